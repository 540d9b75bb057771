"""Many clients at once on a real TensorBoard: no error, and memory that does not grow.

PYTHONPATH=. python tests/load.py [LOGDIR] [--clients 50] [--seconds 60]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

DEMO_LOGS = Path(__file__).parent.parent / "demo_logs"
#: What clients do that mean no harm, and what others do; the status that each must have.
ASKED = (
    ("runs", 200), ("runs?reload", 200), ("run?run={run}", 200), ("whatif?run={run}&without=straggler", 200),
    ("whatif?run={run}&without=dataloader-stall,pageable-memcpy,straggler", 200),
    ("detail?run={run}&of=operators", 200), ("detail?run={run}&of=communication", 200),
    ("detail?run={run}&of=ranks", 200), ("compare?before={run}&after={other}", 200),
    ("slice?run={run}&ranks=0&start=0&end=8000000000000000000&format=columns", 200),
    ("run?run=..%2f..%2fetc%2fpasswd", 404), ("run", 400), ("slice?run={run}&ranks=x", 400),
    ("detail?run={run}&of=x", 400),
)  # fmt: skip


@dataclass
class Load:
    """What was seen."""

    answers: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    #: Of each answer.
    took_s: list[float] = field(default_factory=list)
    grown_mb: float = 0.0


@contextlib.contextmanager
def tensorboard(logdir: Path) -> Iterator[tuple[str, psutil.Process]]:
    with tempfile.NamedTemporaryFile() as log:
        command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", "--port=0", "--load_fast=false"]
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            base = None
            until = time.monotonic() + 120
            while base is None:
                assert process.poll() is None and time.monotonic() < until, Path(log.name).read_text()
                found = re.search(r"http://[^/\s]+:(\d+)/ \(Press", Path(log.name).read_text())
                base = f"http://127.0.0.1:{found[1]}/data/plugin/ddp_doctor" if found else None
                time.sleep(0.1)
            yield base, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(30)


def load(logdir: Path, clients: int = 50, seconds: float = 60.0, answers: int = 0) -> Load:
    """Ask for so long, and until there are so many answers."""
    seen, lock = Load(), threading.Lock()
    with tensorboard(logdir) as (base, process):
        names = [urllib.parse.quote(name, safe="") for name in _analysed(base)]
        for name in names:  # what is made once and kept is no growth
            for route, _ in ASKED:
                _get(f"{base}/{route.format(run=name, other=names[0])}")
        before = process.memory_info().rss
        until = time.monotonic() + seconds

        def client(seed: int) -> None:
            chance = random.Random(seed)
            while time.monotonic() < until or seen.answers < answers:
                route, wanted = chance.choice(ASKED)
                began = time.monotonic()
                run, other = chance.choice(names), chance.choice(names)
                status = _get(f"{base}/{route.format(run=run, other=other)}")
                with lock:
                    seen.answers += 1
                    seen.took_s.append(time.monotonic() - began)
                    if status != wanted:
                        seen.problems[f"{route}: {status}"] += 1

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.grown_mb = (process.memory_info().rss - before) / 1e6
    return seen


def _analysed(base: str) -> list[str]:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{base}/runs", timeout=30) as response:
            listing = json.load(response)
        if listing["runs"] and all(run["state"] == "ready" for run in listing["runs"]):
            return [run["name"] for run in listing["runs"]]
        time.sleep(0.2)
    raise AssertionError(f"not read: {listing}")


def _get(url: str) -> int | str:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.read()
        return error.code
    except OSError as error:
        return str(error)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("logdir", type=Path, nargs="?", default=DEMO_LOGS)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    seen = load(options.logdir, options.clients, options.seconds)
    took = sorted(seen.took_s)
    print(f"{seen.answers} answers, half of them within {took[len(took) // 2] * 1e3:.0f} ms, ", end="")
    print(f"99 % within {took[len(took) * 99 // 100] * 1e3:.0f} ms; the server grew by {seen.grown_mb:.0f} MB.")
    for problem, count in seen.problems.items():
        print(f"problem: {count} times {problem}")
    return int(bool(seen.problems))


if __name__ == "__main__":
    sys.exit(main())
