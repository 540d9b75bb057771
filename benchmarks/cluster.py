"""How much of a job's reading a Dask cluster takes off the client, and how much memory the client needs.

    python benchmarks/cluster.py [--ranks 1024] [--keep DIR]

The files are real: of every four ranks of demo_logs/healthy a job of their own, in a group of their own; but one such
job is demo_logs/straggler_cpu, whose slow rank has to be named. A scheduler and two workers, of a thread each, are
processes of their own on this machine, and keep nothing. The client is measured as the operating system sees it, after
each eighth of the files; the same files are then read by the command's own two processes.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import only_run
from tb_ddp_doctor.workers.cluster import executor

DEMO_LOGS = Path(__file__).resolve().parents[1] / "demo_logs"
GROUP, SLOW_GROUP, SLOW_RANK = 4, 77, 1


def write(folder: Path, ranks: int) -> int:
    """Write the files of a job; their bytes of JSON."""
    folder.mkdir(parents=True)
    templates = {
        name: [gzip.decompress(path.read_bytes()) for path in sorted((DEMO_LOGS / name).iterdir())]
        for name in ("healthy", "straggler_cpu")
    }
    written = 0
    for rank in range(ranks):
        group, place = divmod(rank, GROUP)
        name = "straggler_cpu" if group == SLOW_GROUP % (ranks // GROUP) else "healthy"
        members = ", ".join(str(group * GROUP + i) for i in range(GROUP)).encode()
        data = templates[name][place].replace(b"[0, 1, 2, 3]", b"[%s]" % members)
        data = data.replace(b'"rank": %d, "world_size": 4' % place, b'"rank": %d, "world_size": %d' % (rank, ranks))
        (folder / f"node{group}_{10_000 + rank}.pt.trace.json.gz").write_bytes(gzip.compress(data, 1))
        written += len(data)
    return written


@contextmanager
def process(*arguments: str) -> Iterator[psutil.Process]:
    """A process of Dask, until the end of the block."""
    with subprocess.Popen([sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]]) as started:
        try:
            yield psutil.Process(started.pid)
        finally:
            started.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Read many files on a local Dask cluster.")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--keep", type=Path, help="where the files stay, or are from an earlier run")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not (folder / "job").exists():
            written = write(folder / "job", options.ranks)
            print(f"{options.ranks} files of {written / options.ranks / 1e6:.1f} MB of JSON")
        address = "tcp://127.0.0.1:18786"
        stack.enter_context(process("dask_scheduler", "--host", "127.0.0.1", "--port", "18786", "--no-dashboard"))
        workers = [
            stack.enter_context(process("dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"))
            for _ in range(2)
        ]
        print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
        measure(folder, address, workers)


def measure(folder: Path, address: str, workers: list[psutil.Process]) -> None:
    """Print what the client and the workers take."""
    run = only_run(str(folder / "job"))
    this = psutil.Process()
    every = max(len(run.files) // 8, 1)

    def advance(done: int, _total: int, _file: str) -> None:
        if done % every == 0:
            print(f"{done:6d} files: client {this.memory_info().rss / 2**20:.0f} MiB")

    with executor(address) as pool:
        assert pool is not None
        for _ in pool.map(abs, range(8)):  # both workers are there
            pass
        before, began = sum(this.cpu_times()[:2]), time.perf_counter()
        of_workers = [sum(worker.cpu_times()[:2]) for worker in workers]
        result = engine.diagnose(run, progress=advance, reading=engine.Reading(cache=Cache(None), executor=pool))
        wall = time.perf_counter() - began
    spent = [sum(worker.cpu_times()[:2]) - at for worker, at in zip(workers, of_workers, strict=True)]
    print(f"cluster: {wall:.1f} s, client {sum(this.cpu_times()[:2]) - before:.1f} s CPU,", end=" ")
    print(f"workers {' and '.join(f'{one:.1f}' for one in spent)} s CPU,", end=" ")
    print(f"{' and '.join(f'{worker.memory_info().rss / 2**20:.0f}' for worker in workers)} MiB")
    print(f"client at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")
    began = time.perf_counter()
    alone = engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
    print(f"without a cluster: {time.perf_counter() - began:.1f} s")
    for finding in result.diagnosis.findings[:3]:
        print(f"{finding.severity} {finding.rule} {finding.cost_ms:.1f} ms, ranks {finding.ranks[:8]}")
    assert alone.diagnosis == result.diagnosis


if __name__ == "__main__":
    main()
