"""One rank of a trace into which those of several were merged (`discover.merged` says how they are told apart)."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.discover import merged
from tb_ddp_doctor.trace.model import Category, RankTrace, TraceError

T = TypeVar("T", bound=msgspec.Struct)
#: What is said of a file of several traces, behind what shows it.
SEVERAL = (
    "traces of several ranks were merged into it, and nothing tells which launches and kernels belong together. "
    "Diagnose the files that it was made of."
)
#: A process with a smaller share of the operators is none: its events are damaged.
_LEAST_SHARE = 0.05


def check_one_process(trace: RankTrace, *, is_remote: bool) -> None:
    """Raise TraceError for the events of several ranks.

    Kineto records one process. Where traces were only put together, processes differ, but launches of all ranks have
    the same numbers, and GPUs of two nodes, too.
    """
    events = trace.events
    several = _processes(trace, events.category == Category.OP)
    if len(several) < 2:
        return
    if is_remote and (merged.have_labels(several) or several <= _processes(trace, events.category == Category.KERNEL)):
        raise TraceError(
            f"Traces of {len(several)} ranks were merged into it. Copy it to a disk, where each rank is read by itself."
        )
    raise TraceError(f"It holds operators of {len(several)} processes: {SEVERAL}")


def _processes(trace: RankTrace, rows: NDArray[np.bool_]) -> set[str]:
    """The processes of some events, without those that have next to none of them."""
    threads = trace.events.thread[rows]
    counts = np.bincount(threads[threads >= 0], minlength=len(trace.threads))
    of_process: Counter[str] = Counter()
    for (pid, _), count in zip(trace.threads, counts.tolist(), strict=False):
        of_process[pid] += count
    return {pid for pid, count in of_process.items() if count and count >= _LEAST_SHARE * len(threads)}


def only(trace: RankTrace, part: str, name: str) -> RankTrace:
    """The events of one part, with its own numbers of processes. The file's header is of no rank.

    `name` is what warnings call the part.
    """
    mine = np.array([merged.is_of(pid, part) for pid, _ in trace.threads] + [False], np.bool_)
    chosen = mine[trace.events.thread]
    row = np.cumsum(chosen) - 1
    comms = _rows(trace.comms, chosen[trace.comms.event])
    return replace(
        trace,
        file=name,
        header=replace(trace.header, rank=merged.rank(part), world_size=None),
        threads=tuple((merged.own_pid(pid), tid) for pid, tid in trace.threads),
        events=_rows(trace.events, chosen),
        comms=replace(comms, event=row[comms.event]),
        memory=_rows(trace.memory, mine[trace.memory.thread]),
        frames=_rows(trace.frames, mine[trace.frames.thread]),
        warnings=tuple(replace(warning, file=name) for warning in trace.warnings),
    )


def _rows(table: T, chosen: NDArray[np.bool_]) -> T:
    """Some rows of a table of columns."""
    return type(table)(*(getattr(table, name)[chosen] for name in table.__struct_fields__))
