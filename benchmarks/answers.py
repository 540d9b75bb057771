"""How soon TensorBoard has the data of each view: from the question to the last byte, medians, against a limit.

    python benchmarks/answers.py [--ranks 4096] [--steps 50] [--times 5]

The job is that of many_ranks.py, written as digests into a log directory that a real TensorBoard reads. What the tab
then does with an answer is benchmarks/frontend.py's. Leaves with 1 if the limit is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from many_ranks import NODE, make

from tb_ddp_doctor.cache import write_digest
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX
from tb_ddp_doctor.view.details import DETAILS

LIMIT_MS = 1000
RUN = "job"
#: What the timeline asks lanes of, at once.
LANES = 40


@contextmanager
def tensorboard(logdir: Path, log: Path) -> Iterator[str]:
    """The address of the plugin's routes."""
    with log.open("w") as out:
        command = [sys.executable, "-m", "tensorboard.main", "--port=0", f"--logdir={logdir}"]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        while not (found := re.search(r"http://[^/\s]+:(\d+)/ \(Press", log.read_text())):
            time.sleep(0.2)
        yield f"http://127.0.0.1:{found[1]}/data/plugin/ddp_doctor"
    finally:
        process.terminate()
        process.wait()


def ask(address: str) -> tuple[float, bytes]:
    """Time until an answer is here, ms, and the answer, which a browser gets in gzip."""
    started = time.perf_counter()
    request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=600) as response:
        body = response.read()
    return (time.perf_counter() - started) * 1e3, body


def told(address: str) -> Any:
    return json.loads(gzip.decompress(ask(address)[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "logs", RUN)
        for rank, digest in make(options.ranks, options.steps)[0].items():
            write_digest(digest, logs / f"node{rank // NODE}_rank{rank}.pt.trace.json{DIGEST_SUFFIX}")
        with tensorboard(logs.parent, Path(folder, "log")) as base:
            while [run["state"] for run in told(f"{base}/runs")["runs"]] != ["ready"]:
                time.sleep(1)
            run = urlencode({"run": RUN})
            views = told(f"{base}/run?{run}")["views"]
            # A window of a tenth of the record, in ns of the common clock.
            origin, (first, last) = int(views["origin_ns"]), views["record_ms"]
            window = {"start": origin + round(first * 1e6), "end": origin + round((first + (last - first) / 10) * 1e6)}
            window["ranks"] = ",".join(map(str, range(min(LANES, options.ranks))))
            routes = {"run": f"run?{run}", "lanes": f"lanes?{run}&{urlencode(window)}"}
            routes |= {of: f"detail?{run}&of={of}" for of in DETAILS}
            print(f"{options.ranks} ranks x {options.steps} steps; medians of {options.times}, limit {LIMIT_MS} ms")
            missed = False
            for name, route in routes.items():
                answers = [ask(f"{base}/{route}") for _ in range(options.times)]
                median, worst = (choose(ms for ms, _ in answers) for choose in (statistics.median, max))
                missed |= median > LIMIT_MS
                print(f"  {name:<14} {median:6.0f} ms   worst {worst:6.0f}   {len(answers[0][1]) / 1e6:.2f} MB")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
