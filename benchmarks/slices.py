"""How long a slice takes: 8 ranks whose traces have 400 MB of JSON, from kept columns to a Perfetto trace.

    python benchmarks/slices.py [JOB] [--size MB] [--ranks N] [--window MS]
    python benchmarks/slices.py [JOB] --merge 64

The columns of the ranks of JOB (by default demo_logs/straggler_cpu) are repeated in time until they hold as many
events as that much JSON, and kept as the cache keeps them; ranks beyond the job's are its first ones again. Each
window, ten over the length of the trace, is cut and written in each format; the least, median and largest times are
shown. Fails if the median of the native format misses the bar.

The second writes so many ranks (JOB's again and again, each with a clock of its own) as one trace by `ddp-doctor
merge`, in each format, from columns that the cache has. Beside wall and CPU time it tells how long the command's main
thread waited for a core that others had, and how long for anything else: disks, and processes of its own.
"""

from __future__ import annotations

import argparse
import gzip
import io
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
from cost import cost

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.job.segments import Segments
from tb_ddp_doctor.slices import chrome, columns, native
from tb_ddp_doctor.slices.cut import SliceWindow, cut, on_common_clock
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

    def kept_columns(self, path: Path, *, checked: bool = True) -> RankTrace:
        return self.columns(path, checked=checked)

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


#: Runs the command, and prints the seconds of its main thread on a core and in wait for one (Linux).
_COUNTED = """
import sys
from pathlib import Path
from tb_ddp_doctor.cli import main
status = main(sys.argv[1:])
ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
print("counted", int(ran) / 1e9, int(waited) / 1e9, file=sys.stderr)
sys.exit(status)
"""


def many(job: Path, folder: Path, count: int) -> None:
    """Write the ranks of a job again and again as one job of so many; each set's clock runs a ppm faster."""
    traces = [gzip.decompress(path.read_bytes()) for path in sorted(job.glob("*.gz"))]
    listed = b"[" + b", ".join(b"%d" % rank for rank in range(count)) + b"]"
    own = b"[" + b", ".join(b"%d" % rank for rank in range(len(traces))) + b"]"
    folder.mkdir()
    for rank in range(count):
        turn, which = divmod(rank, len(traces))
        data = traces[which]
        starts = [int(us) for us in re.findall(rb'"ts": (\d+)\.', data)]
        base = min(starts) * 1000

        def later(found: re.Match[bytes], base: int = base, turn: int = turn) -> bytes:
            ns = int(found[1]) * 1000 + int(found[2].ljust(3, b"0")[:3])
            return b'"ts": %d.%03d' % divmod(ns + round((ns - base) * turn * 1e-6) + turn * 1000, 1000)

        data = re.sub(rb'"ts": (\d+)\.(\d+)', later, data)
        data = re.sub(rb'"rank": \d+', b'"rank": %d' % rank, data, count=1)
        data = re.sub(rb'"(world_size|pg_size|Group size)": \d+', rb'"\1": %d' % count, data)
        data = data.replace(own, listed)
        name = f"node{rank // 8}_{400 + rank}.1795198700812327865.pt.trace.json.gz"
        (folder / name).write_bytes(gzip.compress(data, 1))


def merge(job: Path, count: int) -> int:
    """What it takes to write all ranks as one trace."""
    with tempfile.TemporaryDirectory() as scratch:
        many(job, Path(scratch) / "job", count)
        for name in ("first.json", "all.json", "all.pftrace"):
            asked = ("merge", f"{scratch}/job", "--cache", f"{scratch}/cache", "-o", f"{scratch}/{name}")
            took = cost([sys.executable, "-c", _COUNTED, *asked])
            (counted,) = re.findall(r"^counted (\S+) (\S+)$", took.errors, re.MULTILINE)
            ran, waited = map(float, counted)
            size = (Path(scratch) / name).stat().st_size / 1e6
            source = "reads traces" if name == "first.json" else "from the cache"
            print(
                f"{source}, {name.partition('.')[2]}: {size:.0f} MB, wall {took.wall_s:.1f} s, CPU {took.cpu_s:.1f} s, "
                f"{took.peak_gib:.2f} GiB; main thread {ran:.1f} s on a core, {waited:.1f} s in wait for one, "
                f"{max(took.wall_s - ran - waited, 0):.1f} s for anything else",
                flush=True,
            )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", type=Path, default=ROOT / "demo_logs" / "straggler_cpu")
    parser.add_argument("--size", type=float, default=400, help="MB of JSON of a rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--window", type=float, default=10, help="ms")
    parser.add_argument("--merge", type=int, metavar="RANKS", help="write so many ranks as one trace")
    options = parser.parse_args()
    if options.merge:
        return merge(options.job, options.merge)
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
        parts = [np.flatnonzero(job.matched.rank == i) for i in more]
        rank, part = np.repeat(np.arange(options.ranks), list(map(len, parts))), np.concatenate(parts)
        segments, order = Segments.grouped(job.matched.segments.index[part])
        part = part[order]
        arrival_ns = job.waiting.arrival_ns[part]
        job = msgspec.structs.replace(
            job,
            ranks=np.arange(options.ranks),
            nodes=tuple(job.nodes[i] for i in more),
            digests=tuple(job.digests[i] for i in more),
            clock=msgspec.structs.replace(job.clock, offset_ns=job.clock.offset_ns[more], drift=job.clock.drift[more]),
            matched=msgspec.structs.replace(
                job.matched,
                segments=segments,
                rank=rank[order],
                call=job.matched.call[part],
                arrival_ns=job.matched.arrival_ns[part],
                end_ns=job.matched.end_ns[part],
            ),
            waiting=msgspec.structs.replace(job.waiting, arrival_ns=arrival_ns, last_part=segments.argmax(arrival_ns)),
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
                window = SliceWindow(tuple(range(options.ranks)), at, at + round(options.window * 1e6))
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
