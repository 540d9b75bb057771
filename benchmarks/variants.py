"""Whether a job's diagnosis stays the same where its traces change in ways that do not matter.

    python benchmarks/variants.py FOLDER... [--only NAME ...]

Each run below each FOLDER whose traces are Kineto's JSON is diagnosed as it is, and once more in each of these ways:

    ranks renumbered        each rank has the next one's number
    without rank N          one file is missing, of a rank that no finding is about alone (each of the first four)
    first, last step cut    one step less, where there are four or more
    clock 3 ms, 40 s off    of the second file
    no NCCL arguments       collectives say neither their group nor their sizes
    no Python frames        as with_stack=False would record

The rules and ranks of all findings above info have to be as before; ranks are renamed and left out as the variant does.
Prints those that are not; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parent))
from consistency import results

from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis, Severity

Trace = dict[str, Any]
#: A trace for each rank.
Traces = dict[int, Trace]
#: Rule and ranks of each finding above info.
Said = set[tuple[str, tuple[int, ...]]]

_QUIET = (Severity.INFO.label, Severity.OPPORTUNITY.label)
_NCCL_ARGUMENTS = re.compile(r"Collective|msg nelems|Group|dtype|Rank")
_LEFT_OUT = 4
_LEAST_STEPS = 4


class Variant(NamedTuple):
    """The same job, recorded otherwise."""

    name: str
    traces: Traces
    #: The number that each rank has now; those without one are missing.
    numbers: dict[int, int]


def said(diagnosis: Diagnosis) -> Said:
    """What the findings above info are about."""
    return {(one.rule, tuple(sorted(one.ranks))) for one in diagnosis.findings if one.severity not in _QUIET}


def expected(before: Said, numbers: dict[int, int]) -> Said:
    """The same with the ranks' new numbers, without those that are missing."""
    return {(rule, tuple(sorted(numbers[rank] for rank in ranks if rank in numbers))) for rule, ranks in before}


def variants(traces: Traces, before: Said) -> Iterator[Variant]:
    """All that can be made of a job."""
    ranks = sorted(traces)
    numbers = {rank: rank for rank in ranks}
    if len(ranks) > 1:
        following = dict(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
        yield Variant("ranks renumbered", {following[rank]: trace for rank, trace in traces.items()}, following)
        for name, off_us in (("clock 3 ms off", 3e3), ("clock 40 s off", -40e6)):
            late = _with_events(traces[ranks[1]], partial(_later, by_us=off_us))
            yield Variant(name, traces | {ranks[1]: late}, numbers)
    for rank in ranks[:_LEFT_OUT] if len(ranks) > 2 else ():
        if (rank,) not in {accused for _, accused in before}:
            left = {other: trace for other, trace in traces.items() if other != rank}
            yield Variant(f"without rank {rank}", left, {other: other for other in left})
    if min(len(_steps(trace)) for trace in traces.values()) >= _LEAST_STEPS:
        yield Variant("first step cut", _each(traces, partial(_cut, is_first=True)), numbers)
        yield Variant("last step cut", _each(traces, partial(_cut, is_first=False)), numbers)
    yield Variant("no NCCL arguments", _each(traces, partial(_with_events, change=_without_nccl_arguments)), numbers)
    yield Variant("no Python frames", _each(traces, partial(_with_events, change=_without_frame)), numbers)


def _each(traces: Traces, change: Callable[[Trace], Trace]) -> Traces:
    return {rank: change(trace) for rank, trace in traces.items()}


def _with_events(trace: Trace, change: Callable[[Trace], Trace | None]) -> Trace:
    """The trace with each event changed, without those that become None."""
    changed = (change(event) for event in trace["traceEvents"])
    return trace | {"traceEvents": [event for event in changed if event is not None]}


def _has_time(event: Trace) -> bool:
    return "ts" in event and event.get("ph") != "M"


def _later(event: Trace, by_us: float) -> Trace:
    return event | {"ts": float(event["ts"]) + by_us} if _has_time(event) else event


def _steps(trace: Trace) -> list[float]:
    """Where the steps begin, us."""
    return sorted(
        float(event["ts"])
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and str(event.get("name")).startswith("ProfilerStep#")
    )


def _cut(trace: Trace, is_first: bool) -> Trace:
    """Without what comes before the second step, or after the last one but one."""
    at = _steps(trace)[1 if is_first else -1]
    return _with_events(
        trace, lambda event: event if not _has_time(event) or (float(event["ts"]) >= at) == is_first else None
    )


def _without_nccl_arguments(event: Trace) -> Trace:
    if "nccl" not in str(event.get("name")).lower() or not isinstance(event.get("args"), dict):
        return event
    return event | {"args": {key: value for key, value in event["args"].items() if not _NCCL_ARGUMENTS.search(key)}}


def _without_frame(event: Trace) -> Trace | None:
    return None if event.get("cat") == "python_function" else event


def decoded(path: Path) -> Trace | None:
    """A trace of Kineto's JSON; None for any other file."""
    try:
        data = path.read_bytes()
        trace = msgspec.json.decode(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (msgspec.DecodeError, OSError):  # the ranks of a merged file are no paths
        return None
    return trace if isinstance(trace, dict) and isinstance(trace.get("traceEvents"), list) else None


def written(traces: Traces, folder: Path) -> None:
    """A file for each rank, which says it by its name, and in its head where it did before."""
    for rank, trace in traces.items():
        says = trace.get("distributedInfo")
        numbered = trace | {"distributedInfo": says | {"rank": rank}} if says else trace
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(msgspec.json.encode(numbered), 1))


def diagnosed(traces: Traces) -> Said | None:
    """What is said of a job; None if its traces are no run, or several."""
    with tempfile.TemporaryDirectory() as folder:
        written(traces, Path(folder))
        found = [said(result.diagnosis) for result in results([Path(folder)])]
    return found[0] if len(found) == 1 else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is said otherwise of a variant, and how many are as before; returns 1 if one is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[""], help="runs whose name has one of these")
    chosen = parser.parse_args(arguments)
    runs = [run for folder in chosen.folders for run in discover(folder) if any(one in run.name for one in chosen.only)]
    same = made = 0
    for run in runs:
        traces = {file.rank: trace for file in run.files if (trace := decoded(Path(str(file.path))))}
        if not traces or len(traces) < len(run.files):
            print(f"{run.name}: not of Kineto's JSON, a file for each rank")
            continue
        before = diagnosed(traces)
        if before is None:
            continue
        for variant in variants(traces, before):
            now, wanted = diagnosed(variant.traces), expected(before, variant.numbers)
            made += 1
            same += now == wanted
            if now != wanted:
                print(f"{run.name}, {variant.name}: {now and sorted(now)}, and not {sorted(wanted)}", flush=True)
    print(f"{same} of {made} variants of {len(runs)} runs are diagnosed as before.")
    return int(same < made)


if __name__ == "__main__":
    sys.exit(main())
