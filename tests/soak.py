"""Traces of many ranks that arrive while TensorBoard runs: in random order, in pieces, with requests all the while.

    PYTHONPATH=. python tests/soak.py [--ranks 64] [--seconds 60] [--seed 0]

Half of the files are gzip that grows at its final path, as torch's profiler and `rsync --inplace` write; the others
grow under rsync's temporary name and are renamed. Every answer on the way is looked at: no request may fail, and no
answer may claim that the job is complete, or blame a rank, before all files are whole. In the end the answer must be
that of a server that is started then.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin
from traces import draw, in_row, ranks
from werkzeug.test import Client, TestResponse

from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin

HEALTHY = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
CULPRIT = 1
NAME = "job"


@dataclass
class Soak:
    """What was seen."""

    answers: int = 0
    #: How many ranks the answers had, in the order in which they came.
    ranks: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)
    cold: dict[str, Any] = field(default_factory=dict)
    settled_s: float = 0.0


def server(logdir: Path | str, plugin: DiagnosisPlugin | None = None) -> Callable[..., TestResponse]:
    """What asks a plugin of a log directory."""
    apps = (plugin or DiagnosisPlugin(base_plugin.TBContext(logdir=str(logdir)))).get_plugin_apps()

    def get(route: str, **query: str) -> TestResponse:
        return Client(apps[route]).get(route, query_string=query)

    return get


def settled(get: Callable[..., TestResponse], world: int, within_s: float) -> dict[str, Any]:
    """The diagnosis once nothing is left to do and all ranks are in it."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        listing = get("/runs", reload="").get_json()
        runs = listing["runs"]
        if listing["state"] == "ready" and [run["ranks"] for run in runs] == [world] and not runs[0]["arriving"]:
            answer: dict[str, Any] = get("/run", run=NAME).get_json()["diagnosis"]
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not settled after {within_s} s: {json.dumps(runs)[:2000]}")


def soak(folder: Path, world: int = 64, seconds: float = 60.0, seed: int = 0, clients: int = 3) -> Soak:
    drawing = in_row(ranks(*(SLOW if rank == CULPRIT else HEALTHY for rank in range(world))))
    files = draw(drawing)
    logdir = folder / "logs"
    (logdir / NAME).mkdir(parents=True)
    get, seen, done = server(logdir), Soak(), threading.Event()
    whole: set[int] = set()
    asking = [threading.Thread(target=_ask, args=(get, seen, whole, world, done), daemon=True) for _ in range(clients)]
    for thread in asking:
        thread.start()
    _write(logdir / NAME, files, whole, seconds, random.Random(seed))
    began = time.monotonic()
    try:
        seen.final = settled(get, world, 120)
        seen.settled_s = time.monotonic() - began
    finally:
        done.set()
        for thread in asking:
            thread.join()
    seen.cold = settled(server(logdir), world, 120)
    return seen


def _write(folder: Path, files: dict[int, bytes], whole: set[int], seconds: float, chance: random.Random) -> None:
    """All files at once, each in pieces, in random order."""
    pieces: dict[int, list[bytes]] = {}
    for rank, data in files.items():
        data = gzip.compress(data) if rank % 2 else data
        cuts = sorted(chance.sample(range(1, len(data)), 3))
        pieces[rank] = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    order = [rank for rank in files for _ in range(len(pieces[rank]))]
    chance.shuffle(order)
    for rank in order:
        name = f"host{rank // 8}_{100 + rank}.1700000000000000000.pt.trace.json" + (".gz" if rank % 2 else "")
        path = folder / name if rank % 2 else folder / f".{name}.Xy12Ab"
        with path.open("ab") as file:
            file.write(pieces[rank].pop(0))
        if not pieces[rank]:
            # Before the file is seen whole, so that nobody who looks finds more ranks than are said to be there.
            whole.add(rank)
            path.rename(folder / name)
        time.sleep(seconds / len(order))


def _ask(get: Callable[..., TestResponse], seen: Soak, whole: set[int], world: int, done: threading.Event) -> None:
    chance = random.Random(threading.get_ident())
    while not done.is_set():
        try:
            problem = _look(get, seen, whole, world)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            seen.problems.append(problem)
        time.sleep(chance.uniform(0, 0.1))


def _look(get: Callable[..., TestResponse], seen: Soak, whole: set[int], world: int) -> str | None:
    listing = get("/runs")
    if listing.status_code != 200 or listing.get_json()["error"]:
        return f"runs: {listing.status_code} {listing.get_json()['error']}"
    failed = [run["error"] for run in listing.get_json()["runs"] if run["state"] == "failed"]
    if failed:
        return f"failed: {failed[0]}"
    if not listing.get_json()["runs"]:
        return None
    response = get("/run", run=NAME)
    # Before the next look at `whole`, which only grows.
    if response.status_code not in (200, 202):
        return f"run: {response.status_code}"
    answer = response.get_json()
    if answer["state"] != "ready":
        return None
    diagnosis = answer["diagnosis"]
    there = len(diagnosis["ranks"])
    seen.answers += 1
    seen.ranks.append(there)
    if not set(diagnosis["ranks"]) <= whole:
        return f"ranks that are not whole: {sorted(set(diagnosis['ranks']) - whole)}"
    if diagnosis["world_size"] != world or len(diagnosis["missing_ranks"]) != world - there:
        return f"{there} ranks pass for the whole job: {diagnosis['headline']}"
    if there < world and diagnosis["headline"].startswith("Healthy"):
        return f"{there} ranks pass for healthy"
    if diagnosis["verdict"] == "straggler" and diagnosis["findings"][0]["ranks"] != [CULPRIT]:
        return f"the wrong culprit: {diagnosis['headline']}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = soak(Path(folder), options.ranks, options.seconds, options.seed)
    sizes = list(dict.fromkeys(seen.ranks))
    print(
        f"{seen.answers} diagnoses looked at, with {sizes} ranks; settled {seen.settled_s:.1f} s after the last byte."
    )
    for problem in dict.fromkeys(seen.problems):
        print(f"problem: {problem}")
    print("The last answer is that of a cold start." if seen.final == seen.cold else "A cold start says otherwise.")
    return int(bool(seen.problems) or seen.final != seen.cold)


if __name__ == "__main__":
    sys.exit(main())
