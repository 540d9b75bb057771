"""What hostile files cost a TensorBoard that others use meanwhile.

    python benchmarks/hostile.py [NAME ...]

For each file of `tests/hostile_files.py` a TensorBoard of its own, which has diagnosed a healthy job, gets a job with
that file. From then until the job has its answer, two clients ask for what is known of the healthy one, without a pause
but 20 ms. The columns:

    MB server, reader     the most that TensorBoard's process, and any process that reads files, has had
    CPU s server, reader  of TensorBoard's process, and of the reader that took most, from then on
    s                     until the answer is there, of which a search of the directory may take 10
    slowest before, then  the slowest of the clients' requests in 3 s before, and from then on, s

A cell ends in `!` where it is over a bar: 512 MB, 30 s, 1 s for a request. Requests share the machine's cores with
the readers and with whatever else runs: the third from last column says how long they take without the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hostile_files import CASES, JOB
from load import tensorboard
from traces import write

MOST_MB, MOST_S, SLOWEST_S = 512.0, 30.0, 1.0
BEFORE_S, PAUSE_S, LOOK_S = 3.0, 0.02, 0.02
GIVEN_UP_S = 900.0
BESIDE = "beside"
ASKED = ("runs", f"run?run={BESIDE}", f"detail?run={BESIDE}&of=operators", f"detail?run={BESIDE}&of=ranks")


class Used:
    """What the processes of a server have used, by their id."""

    def __init__(self, server: psutil.Process) -> None:
        self._server = server
        self.rss: dict[int, int] = {}
        self.cpu_s: dict[int, float] = {}

    def look(self) -> None:
        with contextlib.suppress(psutil.Error):
            for process in (self._server, *self._server.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used = process.cpu_times()
                    self.cpu_s[process.pid] = used.user + used.system
                    self.rss[process.pid] = max(self.rss.get(process.pid, 0), process.memory_info().rss)

    def of_readers(self, values: dict[int, Any]) -> float:
        return max((value for pid, value in values.items() if pid != self._server.pid), default=0)


def get(base: str, route: str) -> Any:
    with urllib.request.urlopen(f"{base}/{route}", timeout=120) as response:
        return json.load(response)


@contextlib.contextmanager
def asked_meanwhile(base: str, used: Used) -> Iterator[list[float]]:
    """How long each request of two clients took, s, as long as this goes on."""
    took: list[float] = []
    done = threading.Event()

    def ask(first: int) -> None:
        number = first
        while not done.wait(PAUSE_S):
            began = time.monotonic()
            with contextlib.suppress(OSError):
                get(base, ASKED[number % len(ASKED)])
            took.append(time.monotonic() - began)
            number += 1

    def look() -> None:
        while not done.wait(LOOK_S):
            used.look()

    threads = [threading.Thread(target=ask, args=(0,)), threading.Thread(target=ask, args=(2,))]
    threads.append(threading.Thread(target=look))
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        done.set()
        for thread in threads:
            thread.join()


def answered(base: str, name: str) -> Any:
    """The answer for a run, once it is there; None where it never comes."""
    until = time.monotonic() + GIVEN_UP_S
    route = f"run?run={urllib.parse.quote(name, safe='')}"
    while time.monotonic() < until:
        if name in {run["name"] for run in get(base, "runs?reload")["runs"]}:
            answer = get(base, route)
            if answer["state"] in ("ready", "failed"):
                return answer
        time.sleep(0.2)
    return None


def tried(name: str, place: Path) -> str:
    """The line of one file."""
    logs = place / "logs"
    write(logs / BESIDE, JOB)
    CASES[name](place / "made" / name)
    with tensorboard(logs) as (base, server):
        answered(base, BESIDE)
        used = Used(server)
        with asked_meanwhile(base, used) as before:
            time.sleep(BEFORE_S)
        used = Used(server)
        used.look()
        cpu_before = dict(used.cpu_s)
        with asked_meanwhile(base, used) as then:
            began = time.monotonic()
            os.rename(place / "made" / name, logs / name)
            answer = answered(base, name)
            took = time.monotonic() - began
        cpu_s = {pid: value - cpu_before.get(pid, 0.0) for pid, value in used.cpu_s.items()}
        cells = (
            (used.rss[server.pid] / 1e6, MOST_MB, 0),
            (used.of_readers(used.rss) / 1e6, MOST_MB, 0),
            (cpu_s[server.pid], MOST_S, 1),
            (used.of_readers(cpu_s), MOST_S, 1),
            (took, MOST_S, 1),
            (max(before), SLOWEST_S, 2),
            (max(then), SLOWEST_S, 2),
        )
        columns = "".join(f"{value:9.{digits}f}{'!' if value > most else ' '}" for value, most, digits in cells)
        diagnosis = (answer or {}).get("diagnosis") or {}
        said = diagnosis.get("headline") or (answer or {"error": "no answer"}).get("error") or ""
        return f"{name:38}{columns}  {said[:60]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAME")
    heads = ("MB serv.", "MB reader", "CPU serv.", "CPU read.", "s", "before", "then")
    print(f"{'':38}" + "".join(f"{head:>9} " for head in heads))
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as place:
            print(tried(name, Path(place)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
