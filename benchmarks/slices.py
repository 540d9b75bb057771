"""How long a slice takes: 8 ranks whose traces have 400 MB of JSON, from kept columns to a Perfetto trace.

    python benchmarks/slices.py [JOB] [--size MB] [--ranks N] [--window MS]

The columns of the ranks of JOB (by default demo_logs/straggler_cpu) are repeated in time until they hold as many
events as that much JSON, and kept as the cache keeps them; ranks beyond the job's are its first ones again. Each
window, ten over the length of the trace, is cut and written in each format; the least, median and largest times are
shown. Fails if the median of the native format misses the bar.
"""

from __future__ import annotations

import argparse
import gzip
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.slices import chrome, columns, native
from tb_ddp_doctor.slices.cut import Window, cut, on_common_clock
from tb_ddp_doctor.trace.model import RankTrace

ROOT = Path(__file__).resolve().parents[1]
BAR_MS = 200.0
WINDOWS = 10


class Repeated(Cache):
    """A cache whose columns are those of a trace, repeated."""

    def columns(self, path: Path, *, checked: bool = True) -> RankTrace:
        found = self._load(RankTrace, str(path), checked=checked)
        assert found is not None
        return found

    def keep(self, trace: RankTrace, path: Path) -> None:
        from tb_ddp_doctor import cache

        place = self._path(RankTrace, str(path))
        assert place is not None
        cache._write(trace, cache._version(type(trace)), place)


def repeated(trace: RankTrace, times: int) -> RankTrace:
    """The trace, over and over: each time later, with correlations that go on."""
    events = trace.events
    apart = int((events.start_ns + events.duration_ns).max() - events.start_ns.min())
    number = np.repeat(np.arange(times), len(events))
    tiled = {name: np.tile(getattr(events, name), times) for name in events.__struct_fields__}
    tiled["start_ns"] = tiled["start_ns"] + number * apart
    step = int(events.correlation.max()) + 1
    tiled["correlation"] = np.where(tiled["correlation"] >= 0, tiled["correlation"] + number * step, -1)
    return msgspec.structs.replace(trace, events=type(events)(**tiled))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", type=Path, default=ROOT / "demo_logs" / "straggler_cpu")
    parser.add_argument("--size", type=float, default=400, help="MB of JSON of a rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--window", type=float, default=10, help="ms")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cache = Repeated(Path(scratch))
        run = discover(str(options.job))[0]
        result = engine.diagnose(run, reading=engine.Reading(Cache()))
        job, events, times = result.job, 0, 1
        for path in result.files:
            size = len(gzip.decompress(path.read_bytes()))
            times = max(1, round(options.size * 1e6 / size))
            trace = repeated(Cache().columns(path), times)
            events += len(trace.events)
            cache.keep(trace, path)
        # The same files stand for more ranks: the work is the same.
        more = [i % len(job.ranks) for i in range(options.ranks)]
        job = msgspec.structs.replace(
            job,
            ranks=np.arange(options.ranks),
            nodes=tuple(job.nodes[i] for i in more),
            digests=tuple(job.digests[i] for i in more),
            clock=msgspec.structs.replace(job.clock, offset_ns=job.clock.offset_ns[more], drift=job.clock.drift[more]),
            matched=msgspec.structs.replace(
                job.matched,
                row=job.matched.row[:, more],
                arrival_ns=job.matched.arrival_ns[:, more],
                end_ns=job.matched.end_ns[:, more],
            ),
            waiting=msgspec.structs.replace(job.waiting, arrival_ns=job.waiting.arrival_ns[:, more]),
        )
        result = msgspec.structs.replace(result, job=job, files=tuple(result.files[i] for i in more))
        first = cache.columns(result.files[0], checked=False).events.start_ns
        begin, length = (
            int(on_common_clock(job, 0, np.array([first.min()]))[0]),
            int(np.ptp(first)),
        )
        print(f"{options.ranks} ranks, {events // len(run.files):,} events each, window {options.window:g} ms")
        medians = {}
        for form in (native, chrome, columns):
            took, sizes, counts = [], [], []
            for i in range(WINDOWS):
                at = begin + (i * 2 + 1) * length // (2 * WINDOWS)
                window = Window(tuple(range(options.ranks)), at, at + round(options.window * 1e6))
                file = io.BytesIO()
                started = time.perf_counter()
                part = cut(result, cache, window)
                form.write(part, file)
                took.append((time.perf_counter() - started) * 1e3)
                sizes.append(file.tell() / 1e6)
                counts.append(sum(len(rank) for rank in part.ranks))
            name = form.__name__.rpartition(".")[2]
            medians[name] = statistics.median(took)
            print(
                f"{name:<8} {min(took):6.0f} {medians[name]:6.0f} {max(took):6.0f} ms, "
                f"{statistics.median(counts):,.0f} events, {statistics.median(sizes):.2f} MB"
            )
    return int(medians["native"] > BAR_MS)


if __name__ == "__main__":
    sys.exit(main())
