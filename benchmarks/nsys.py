"""How long a large export of Nsight Systems takes, from the file to the diagnosis, and how much memory.

python benchmarks/nsys.py EXPORT [--gigabytes 5]

The rows of an export are repeated, each time later by its length, until the file is that large; then each of its ranks
is read and digested alone, and the whole is diagnosed. Kernel rows are those of the file; of a rank with more rows
than are kept, those outside of its window are not read.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_TIMED = (
    _KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)


def repeated(source: Path, target: Path, size: int) -> int:
    """Write the export with its rows repeated until it has so many bytes; the number of kernels."""
    shutil.copy(source, target)
    target.chmod(0o644)
    with closing(sqlite3.connect(target)) as file:
        file.execute("PRAGMA journal_mode = OFF")
        file.execute("PRAGMA synchronous = OFF")
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master") if name in _TIMED]
        first, last = file.execute(f"SELECT min(start), max(end) FROM {_KERNEL}").fetchone()
        columns = {name: [column[1] for column in file.execute(f"PRAGMA table_info({name})")] for name in tables}
        rows = {name: file.execute(f"SELECT max(rowid) FROM {name}").fetchone()[0] or 0 for name in tables}
        largest = file.execute("SELECT max(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0]
        for copy in range(1, max(int(size / source.stat().st_size), 1)):
            shift = {"start": copy * (last - first), "end": copy * (last - first), "correlationId": copy * largest}
            for name in tables:
                shifted = [f"{column} + {shift[column]}" if column in shift else column for column in columns[name]]
                file.execute(f"INSERT INTO {name} SELECT {', '.join(shifted)} FROM {name} WHERE rowid <= {rows[name]}")
        file.commit()
        return int(file.execute(f"SELECT count(*) FROM {_KERNEL}").fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    options = parser.parse_args()

    from tb_ddp_doctor import diagnose
    from tb_ddp_doctor.digest.build import digest
    from tb_ddp_doctor.discover.runs import discover
    from tb_ddp_doctor.trace.reader import read

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "repeated.sqlite"
        kernels = repeated(options.export, path, int(options.gigabytes * 1e9))
        print(f"{path.stat().st_size / 1e9:.2f} GB, {kernels:,} kernels")
        began = all_began = _cpu_s()
        (run,) = discover(path)
        print(f"discover      {_cpu_s() - began:6.1f} CPU s, {len(run.files)} ranks")
        for file in run.files:
            began = _cpu_s()
            trace = read(file.path)
            taken = _cpu_s() - began
            rows = len(trace.events)
            print(f"read rank {file.rank}   {taken:6.1f} CPU s, {rows:,} events, {rows / taken:,.0f} events a CPU s")
            began = _cpu_s()
            digest(trace)
            print(f"digest        {_cpu_s() - began:6.1f} CPU s")
        taken = _cpu_s() - all_began
        print(f"in all        {taken:6.1f} CPU s: {kernels / taken:,.0f} kernel rows of the file a CPU s")
        del trace
        clock = time.perf_counter()
        diagnose(path, cache=False)
        print(f"diagnose      {time.perf_counter() - clock:6.1f} s")
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print(f"peak memory   {peak / 1e3:,.0f} MB in one process")


def _cpu_s() -> float:
    return time.process_time()


if __name__ == "__main__":
    main()
