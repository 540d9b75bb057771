"""How long a diagnosis takes: traces to findings, without and with the cache; and a digest against reading its trace.

    python benchmarks/diagnose.py [JOB] [--size MB] [--hta PYTHON]

The steps of each rank of JOB (by default demo_logs/straggler_cpu) are repeated, with times, step numbers and
correlations that go on, until its JSON has the size; the job is then diagnosed by the command, in processes of its
own, whose CPU time, wall time and largest resident set are those of the operating system. With the cache no trace may
be opened: an audit hook counts. Another question is answered from the digests, the same one by what was printed. One
rank is read and digested in turns, in a process of its own; the ratio is of the least CPU times. With --hta, a Python
that has HolisticTraceAnalysis, its temporal breakdown and its overlap of communication and computation of the same
files are timed beside it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from cost import ROOT, Cost, cost

_TIME = re.compile(rb'"ts": (\d+)\.(\d+)')
_STEP = re.compile(rb"ProfilerStep#(\d+)")
_CORRELATION = re.compile(rb'"(correlation|id|External id)": (\d+)')
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_LAST = re.compile(rb"\}(\s*\][^\]]*)\Z")
#: Counts the traces that are opened while the command runs.
_AUDITED = """
import sys
opened = set()
def hook(event, args):
    if event == "open" and isinstance(args[0], str) and ".pt.trace.json" in args[0]:
        opened.add(args[0])
sys.addaudithook(hook)
from tb_ddp_doctor.cli import main
status = main(sys.argv[1:])
print(f"{len(opened)} traces opened", file=sys.stderr)
sys.exit(status)
"""
#: Reads and digests a trace in turns, and prints the CPU seconds of both.
_IN_TURNS = """
import sys, time
from pathlib import Path
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.trace.reader import read
for _ in range(int(sys.argv[2])):
    began = time.process_time()
    trace = read(Path(sys.argv[1]))
    done = time.process_time()
    digest(trace)
    print(done - began, time.process_time() - done)
"""
_ROUNDS = 8
#: Two analyses of HTA, which parses the files in processes of its own.
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
"""


def digest_against_reading(path: Path) -> tuple[float, float, list[float]]:
    """CPU seconds of reading a trace and of its digest, the least of some rounds each, and the ratio of each round."""
    command = [sys.executable, "-c", _IN_TURNS, str(path), str(_ROUNDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rounds = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    return min(r for r, _ in rounds), min(d for _, d in rounds), sorted(d / r for r, d in rounds)


def span_us(source: Path) -> int:
    """From the first start to the last, us."""
    times = [int(found[1]) for found in _TIME.finditer(gzip.decompress(source.read_bytes()))]
    return max(times) - min(times)


def lengthen(source: Path, target: Path, size: int, apart_us: int) -> int:
    """Write the trace with its events repeated, each time `apart_us` later; returns the bytes of JSON."""
    text = gzip.decompress(source.read_bytes())
    first, last = _EVENTS.search(text), _LAST.search(text)
    if not (first and last):
        sys.exit(f"{source}: the end of its events was not found; choose another job")
    events = text[first.end() : last.start(1)]
    repeats = max(1, round(size / len(events)))
    with gzip.open(target, "wb", compresslevel=1) as packed:
        written = packed.write(text[: first.end()])
        for i in range(repeats):
            shifted = _TIME.sub(lambda m, i=i: b'"ts": %d.%b' % (int(m[1]) + i * apart_us, m[2]), events)
            shifted = _STEP.sub(lambda m, i=i: b"ProfilerStep#%d" % (int(m[1]) + 10 * i), shifted)
            shifted = _CORRELATION.sub(lambda m, i=i: b'"%b": %d' % (m[1], int(m[2]) + i * 10_000_000), shifted)
            written += packed.write(b"," * (i > 0) + shifted)
        written += packed.write(text[last.start(1) :])
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a diagnosis, without and with the cache.")
    parser.add_argument("job", type=Path, nargs="?", default=ROOT / "demo_logs" / "straggler_cpu")
    parser.add_argument("--hta", type=Path, metavar="PYTHON", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--size", type=int, default=400, help="MB of JSON a rank (default: %(default)s)")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        logs, cache = Path(folder) / "logs", Path(folder) / "cache"
        logs.mkdir()
        sources = sorted(options.job.glob("*.gz"))
        apart_us = max(span_us(source) for source in sources)
        sizes = [lengthen(source, logs / source.name, options.size * 10**6, apart_us) for source in sources]
        print(f"{len(sources)} ranks of {sum(sizes) / len(sizes) / 1e6:.0f} MB of JSON, gzipped")
        read_s, digest_s, ratios = digest_against_reading(logs / sources[0].name)
        print(
            f"one rank: read in {read_s:.2f} s CPU, digest in {digest_s:.2f} s: {digest_s / read_s:.2f} of the reading "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f} in one of {_ROUNDS} rounds)"
        )
        for title, arguments in (
            ("no cache", ["--no-cache"]),
            ("filling the cache", ["--cache", str(cache)]),
            ("from the digests", ["--cache", str(cache), "--phases"]),
            ("the same again", ["--cache", str(cache)]),
        ):
            took = cost([sys.executable, "-c", _AUDITED, "diagnose", str(logs), "--json", *arguments])
            run = json.loads(took.output)["runs"][0]
            print(
                f"{title:<18} {_told(took)} ({sum(sizes) / 1e6 / took.cpu_s:.0f} MB/s); "
                f"{took.errors.strip().splitlines()[-1]}; {run['verdict']}, {len(run['steps'])} steps"
            )
        if options.hta:
            print(f"{'HTA':<18} {_told(cost([options.hta, '-c', _HTA, str(logs)]))}")


def _told(took: Cost) -> str:
    return f"{took.wall_s:6.2f} s wall {took.cpu_s:6.2f} s CPU {took.peak_gib:5.2f} GiB in the largest process"


if __name__ == "__main__":
    main()
