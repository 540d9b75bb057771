"""What a slice says of a rank beside its events, so that it is read as the rank's trace again (`trace.own_slice`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.slices.model import FRAME, SliceAllocations, SliceArgs
from tb_ddp_doctor.slices.pick import Picked
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.header import members_of
from tb_ddp_doctor.trace.model import Indices, Ints, RankTrace
from tb_ddp_doctor.trace.own_slice import ExactTimes, RankOfSlice, SliceClock

#: Of a rank, beyond which times are those of viewers: what a file says of its ranks has 16 MiB in all.
_MOST_EXACT = 1 << 16


class Seen(msgspec.Struct, frozen=True, eq=False):
    """What is in a slice of one rank."""

    picked: Picked
    #: The order in which the events are written, shape (N,), and their starts and ends in it, on the common clock.
    order: Ints
    start_ns: Ints
    end_ns: Ints
    #: The window, on the rank's own clock; and whether all of the trace is in it.
    window_start_ns: int
    window_end_ns: int
    is_whole: bool


def event_args(trace: RankTrace, row: Ints) -> SliceArgs:
    """The arguments of some events, given by their rows in the trace (-1: a Python function, which has none)."""
    is_event = row >= 0

    def of_events(column: Ints | Indices) -> Ints:
        values = np.full(len(row), -1, np.int64)
        values[is_event] = column[row[is_event]]
        return values

    columns = {name: getattr(trace.events, name) for name in SliceArgs.__struct_fields__ if name != "comm"}
    return SliceArgs(comm=_comm(trace, row), **{name: of_events(column) for name, column in columns.items()})


def _comm(trace: RankTrace, row: Ints) -> Ints:
    """The row of `comms` of each of some events, -1 for none."""
    event = trace.comms.event
    if not len(event):
        return np.full(len(row), -1)
    order = np.argsort(event, kind="stable")
    place = np.minimum(np.searchsorted(event[order], row), len(order) - 1)
    return np.where(event[order[place]] == row, order[place], -1)


def allocations_of(trace: RankTrace, rows: Ints, lane: Indices, common: Callable[[Ints], Ints]) -> SliceAllocations:
    """What the allocators did in these rows of the trace; `common` takes instants to the common clock."""
    columns = {name: getattr(trace.memory, name)[rows] for name in SliceAllocations.__struct_fields__ if name != "lane"}
    return SliceAllocations(lane=lane, **columns | {"time_ns": common(columns["time_ns"])})


def declared(
    rank: int,
    trace: RankTrace,
    digest: RankDigest,
    threads: tuple[tuple[str, str, int], ...],
    clock: SliceClock,
    seen: Seen,
) -> RankOfSlice:
    """What the slice says of a rank; the numbers of process and threads are the format's to give."""
    is_frame = seen.picked.category[seen.order] == FRAME
    return RankOfSlice(
        rank=rank,
        pid=0,
        first_tid=0,
        threads=threads,
        header=members_of(trace.header),
        recorder=trace.header.recorder,
        step_range=trace.header.step_range,
        clock=clock,
        is_whole=seen.is_whole,
        steps=() if seen.is_whole else tuple(_whole_steps(trace, digest, seen)),
        left_out=seen.picked.left_out,
        events=_exact(seen, clock, np.flatnonzero(~is_frame)),
        frames=_exact(seen, clock, np.flatnonzero(is_frame)),
        dropped=dict(trace.dropped),
        warnings=tuple((warning.kind, warning.message) for warning in trace.warnings),
    )


def _exact(seen: Seen, clock: SliceClock, chosen: Ints) -> ExactTimes:
    """The times of those of the chosen events that reading would not give back. They are chosen in the file's order."""
    start, end = seen.start_ns[chosen], seen.end_ns[chosen]
    picked = seen.order[chosen]
    own_start, own_end = seen.picked.start_ns[picked], seen.picked.end_ns[picked]
    differs = np.flatnonzero((clock.own(start) != own_start) | (clock.own(end) != own_end))[:_MOST_EXACT]
    return ExactTimes(
        length=len(chosen),
        row=tuple(differs.tolist()),
        start_ns=tuple(own_start[differs].tolist()),
        duration_ns=tuple((own_end - own_start)[differs].tolist()),
    )


def _whole_steps(trace: RankTrace, digest: RankDigest, seen: Seen) -> Iterator[int]:
    """Numbers of the marked steps that lie within the window, on the host and on the device."""
    steps, picked = digest.steps, seen.picked
    texts = (trace.strings[name] for name in np.unique(picked.name).tolist())
    marked = {number for text in texts if (number := names.step_number(text)) is not None}
    begins, ends = np.minimum(steps.host_start_ns, steps.start_ns), np.maximum(steps.host_end_ns, steps.end_ns)
    lies_within = (begins >= seen.window_start_ns) & (ends <= seen.window_end_ns)
    yield from (number for number in steps.number[lies_within].tolist() if number in marked)
