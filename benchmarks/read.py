"""How fast traces are read: our readers against json.load and orjson, on one large file.

    python benchmarks/read.py [FILE] [--size MB]

The events of FILE (by default one of demo_logs) are repeated until the JSON has the size. Each reader runs in a
process of its own, json and orjson without garbage collection, which would slow them. CPU time is the process's, of
which no other thread takes part, without start-up and imports: the least of some rounds, in each of which every reader
has its turn. A ratio is of these times; the lowest and the highest within one round stand beside it. Memory is how far
the peak resident set rises while reading, over the JSON's size.
Fails if a bar is missed.
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

from tb_ddp_doctor.trace import native
from tb_ddp_doctor.trace.reader import read
from tb_ddp_doctor.trace.stream import chunks

ROOT = Path(__file__).resolve().parents[1]
FIRST_EVENT = re.compile(rb'"traceEvents"\s*:\s*\[')
LAST_EVENT = re.compile(rb"\}(\s*\][^\]]*)\Z")


def replicate(source: Path, target: Path, size: int) -> None:
    """Write a trace of `size` bytes with the events of another, over and over, plain and as torch packs it."""
    text = b"".join(bytes(chunk) for chunk in chunks(source.open("rb")))
    start, end = FIRST_EVENT.search(text), LAST_EVENT.search(text)
    if not (start and end):
        sys.exit(f"{source}: the end of its events was not found; choose another file")
    events = text[start.end() : end.start(1)]
    repeats = max(1, round((size - len(text)) / len(events)) + 1)
    with target.open("wb") as plain, gzip.open(f"{target}.gz", "wb") as packed:
        for file in (plain, packed):
            file.write(text[: start.end()])
            for repeat in range(repeats):
                file.write(b"," * (repeat > 0) + events)
            file.write(text[end.start(1) :])


def read_stdlib(path: Path) -> int:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        return len(json.load(file)["traceEvents"])


def read_orjson(path: Path) -> int:
    return len(orjson.loads(path.read_bytes())["traceEvents"])


def read_ours(path: Path) -> int:
    trace = read(path)
    if trace.warnings:
        sys.exit(f"unexpected: {trace.warnings}")
    return len(trace.events) + sum(trace.dropped.values())


#: Function, suffix of the file, and which of our readers.
READERS: dict[str, tuple[Callable[[Path], int], str, str]] = {
    "json.load": (read_stdlib, "", ""),
    "gzip + json.load": (read_stdlib, ".gz", ""),
    "orjson.loads": (read_orjson, "", ""),
    "msgspec": (read_ours, "", "msgspec"),
    "msgspec, .gz": (read_ours, ".gz", "msgspec"),
    "native": (read_ours, "", "native"),
    "native, .gz": (read_ours, ".gz", "native"),
}

#: One of ours, against which reader, and how many times as fast it must be.
SPEED_BARS = [
    ("native", "orjson.loads", 5.0),
    ("native, .gz", "gzip + json.load", 12.0),
    ("msgspec", "orjson.loads", 1.0),
]
#: Peak memory over the JSON's size, for a JSON of 400 MB.
MEMORY_BAR = 0.35


def measure(name: str, target: Path) -> dict[str, Any]:
    """One reader on one file, in this process."""
    reader, suffix, _ = READERS[name]
    if reader is read_ours:
        native.is_available()  # loads the library, as an import would
    else:
        gc.disable()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before_s = time.process_time()
    events = reader(Path(f"{target}{suffix}"))
    return {
        "cpu_s": time.process_time() - before_s,
        "peak_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) * 1024,
        "events": events,
    }


def measure_apart(name: str, target: Path) -> dict[str, Any]:
    """`measure` in a new process."""
    command = [sys.executable, __file__, str(target), "--measure", name]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "DDP_DOCTOR_READER": READERS[name][2]}
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(ran.stdout))


def machine() -> str:
    """The machine in a line: times mean nothing without it."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    cpu = found[1] if found else platform.processor()
    return f"{cpu}, {os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="a trace, plain or .gz")
    parser.add_argument("--size", type=int, default=400, metavar="MB", help="size of the JSON (default: 400)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="the least time of N counts (default: 5)")
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
        rounds = [{name: measure_apart(name, target) for name in READERS} for _ in range(options.rounds)]
        results = {name: min((each[name] for each in rounds), key=lambda one: float(one["cpu_s"])) for name in READERS}
        for name, result in results.items():
            print(
                f"{name:20}{result['cpu_s']:8.2f}{size / 1e6 / result['cpu_s']:8.0f}"
                f"{results['json.load']['cpu_s'] / result['cpu_s']:13.1f}x{result['peak_bytes'] / size:15.2f}"
                f"{result['events']:12,}"
            )
    passed = [passes_speed(rounds, *bar) for bar in SPEED_BARS] + [passes_memory(results, size)]
    if not all(passed):
        sys.exit("A bar was missed.")


def passes_speed(rounds: list[dict[str, dict[str, Any]]], name: str, other: str, wanted: float) -> bool:
    ours, theirs = ([float(each[reader]["cpu_s"]) for each in rounds] for reader in (name, other))
    ratio = min(theirs) / min(ours)
    each = [theirs_s / ours_s for ours_s, theirs_s in zip(ours, theirs, strict=True)]
    print(
        f"{name} against {other}: {ratio:.1f} times as fast"
        f" ({min(each):.1f} to {max(each):.1f} in one round; bar: {wanted:g})"
    )
    return ratio >= wanted


def passes_memory(results: dict[str, dict[str, Any]], size: int) -> bool:
    share = max(results[name]["peak_bytes"] for name in ("native", "native, .gz")) / size
    print(f"native, peak memory over JSON: {share:.2f} (bar: {MEMORY_BAR:g})")
    return bool(share <= MEMORY_BAR)


if __name__ == "__main__":
    main()
