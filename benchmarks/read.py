"""How fast traces are read: our reader against json.load and orjson, on one large file.

    python benchmarks/read.py [FILE] [--size MB]

The events of FILE (by default one of demo_logs) are repeated until the JSON has the size. Each reader runs in a
process of its own, json and orjson without garbage collection, which would slow them. CPU time is the process's,
without start-up and imports; memory is how far the peak resident set rises while reading, over the JSON's size.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import multiprocessing
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from tb_ddp_doctor.trace.reader import read
from tb_ddp_doctor.trace.stream import chunks

ROOT = Path(__file__).resolve().parents[1]
FIRST_EVENT = re.compile(rb'"traceEvents"\s*:\s*\[')
LAST_EVENT = re.compile(rb"\}(\s*\][^\]]*)\Z")


def replicate(source: Path, target: Path, size: int) -> None:
    """Write a trace of `size` bytes with the events of another, over and over, plain and as `target`.gz."""
    text = b"".join(bytes(chunk) for chunk in chunks(source.open("rb")))
    start, end = FIRST_EVENT.search(text), LAST_EVENT.search(text)
    if not (start and end):
        sys.exit(f"{source}: the end of its events was not found; choose another file")
    events = text[start.end() : end.start(1)]
    repeats = max(1, round((size - len(text)) / len(events)) + 1)
    with target.open("wb") as plain, gzip.open(f"{target}.gz", "wb", compresslevel=1) as packed:
        for file in (plain, packed):
            file.write(text[: start.end()])
            for repeat in range(repeats):
                file.write(b"," * (repeat > 0) + events)
            file.write(text[end.start(1) :])


def read_stdlib(path: Path) -> int:
    with path.open("rb") as file:
        return len(json.load(file)["traceEvents"])


def read_orjson(path: Path) -> int:
    return len(orjson.loads(path.read_bytes())["traceEvents"])


def read_ours(path: Path) -> int:
    trace = read(path)
    if trace.warnings:
        sys.exit(f"unexpected: {trace.warnings}")
    return len(trace.events) + sum(trace.dropped.values())


READERS: dict[str, tuple[Callable[[Path], int], str]] = {
    "json.load": (read_stdlib, ""),
    "orjson.loads": (read_orjson, ""),
    "ours": (read_ours, ""),
    "ours, from .gz": (read_ours, ".gz"),
}


def measure(name: str, target: Path) -> dict[str, Any]:
    """One reader on one file, in this process."""
    reader, suffix = READERS[name]
    if reader is not read_ours:
        gc.disable()

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before_s = time.process_time()
    events = reader(Path(f"{target}{suffix}"))
    return {
        "cpu_s": time.process_time() - before_s,
        "peak_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) * 1024,
        "events": events,
    }


def machine() -> str:
    """The machine in a line: times mean nothing without it."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    cpu = found[1] if found else platform.processor()
    return f"{cpu}, {os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="a trace, plain or .gz")
    parser.add_argument("--size", type=int, default=400, metavar="MB", help="size of the JSON (default: 400)")
    parser.add_argument("--measure", choices=READERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.file)))
        return
    source = options.file or next(iter(sorted((ROOT / "demo_logs").rglob("*.pt.trace.json*"))), None)
    if source is None:
        parser.error("demo_logs has no trace: name a file")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "trace.json"
        # Not in this process: a child's peak memory starts from its parent's.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
            other.submit(replicate, source, target, options.size * 10**6).result()
        size = target.stat().st_size
        print(f"{source.name}, repeated to {size / 1e6:.0f} MB ({os.path.getsize(f'{target}.gz') / 1e6:.0f} MB as .gz)")
        print(machine())
        print(f"{'':20}{'CPU s':>8}{'MB/s':>8}{'against json':>14}{'memory / JSON':>15}{'events':>12}")
        slowest = 0.0
        for name in READERS:
            command = [sys.executable, __file__, str(target), "--measure", name]
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
            ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            result = json.loads(ran.stdout)
            slowest = slowest or result["cpu_s"]
            print(
                f"{name:20}{result['cpu_s']:8.2f}{size / 1e6 / result['cpu_s']:8.0f}"
                f"{slowest / result['cpu_s']:13.1f}x{result['peak_bytes'] / size:15.2f}{result['events']:12,}"
            )


if __name__ == "__main__":
    main()
