"""The events of one rank in a window, from its kept columns.

Rows stand in no order in time, and an event that began long ago may last into the window, so every start and end is
looked at: four passes over a million numbers, milliseconds. Nothing else of the columns is touched but the rows found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.evidence.model import GpuLook
from tb_ddp_doctor.slices.model import FRAME, LaneRole, SliceGpu, SliceLane, SliceMemory
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Events, Indices, Ints, RankTrace

#: Points of a memory curve: more than a screen is wide.
MEMORY_POINTS = 4_000
#: No GPU has more MHz, or W.
_MOST_SEEN = 1e5
_SAMPLE = 50_000
_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


class Picked(msgspec.Struct, frozen=True, eq=False):
    """Events of a window, shape (N,), on the rank's own clock; in no order, and perhaps not nested."""

    #: Row in `Events`; -1 for a Python function.
    row: Ints
    start_ns: Ints
    end_ns: Ints
    name: Indices
    category: Indices
    #: Index into `RankTrace.threads`, and the device and stream; -1 on the host.
    thread: Indices
    device: Indices
    stream: Ints
    left_out: int


def pick(trace: RankTrace, start_ns: int, end_ns: int, most: int | None, own_code: bool = False) -> Picked:
    """The events that touch a window, the longest `most` of them (None: all), and the calls that launched them.

    The host runs ahead of the device, so a launch may lie long before the window. With `own_code`, Python functions of
    libraries are not among them.
    """
    events, frames = trace.events, trace.frames
    rows = _touching(events.start_ns, events.duration_ns, start_ns, end_ns)
    calls = _touching(frames.start_ns, frames.duration_ns, start_ns, end_ns)
    if own_code and len(calls):
        distinct, which = np.unique(frames.name[calls], return_inverse=True)
        calls = calls[np.array([names.is_own_code(trace.strings[name]) for name in distinct], np.bool_)[which]]
    kept, kept_calls = _longest(events.duration_ns[rows], frames.duration_ns[calls], most)
    left_out = len(rows) - int(kept.sum()) + len(calls) - int(kept_calls.sum())
    chosen, calls = rows[kept], calls[kept_calls]
    launches = np.setdiff1d(_launches(events, chosen), chosen)
    left_out -= len(np.intersect1d(launches, rows))
    chosen = np.concatenate((chosen, launches))
    on_host = np.full(len(calls), -1)
    return Picked(
        row=np.concatenate((chosen, on_host)),
        start_ns=np.concatenate((events.start_ns[chosen], frames.start_ns[calls])),
        end_ns=np.concatenate(
            (
                events.start_ns[chosen] + events.duration_ns[chosen],
                frames.start_ns[calls] + frames.duration_ns[calls],
            )
        ),
        name=np.concatenate((events.name[chosen], frames.name[calls])),
        category=np.concatenate((events.category[chosen], np.full(len(calls), FRAME))).astype(np.int32),
        thread=np.concatenate((events.thread[chosen], frames.thread[calls])),
        device=np.concatenate((events.device[chosen], on_host)).astype(np.int32),
        stream=np.concatenate((events.stream[chosen], on_host)),
        left_out=left_out,
    )


def _touching(start_ns: Ints, duration_ns: Ints, begin_ns: int, until_ns: int) -> Ints:
    touches = start_ns + duration_ns >= begin_ns
    touches &= start_ns < until_ns
    return np.flatnonzero(touches)


def _longest(events_ns: Ints, frames_ns: Ints, most: int | None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which events and which Python functions are among the longest."""
    durations = np.concatenate((events_ns, frames_ns))
    kept = np.ones(len(durations), np.bool_)
    if most is not None and len(durations) > most:
        kept[np.argpartition(durations, len(durations) - most)[: len(durations) - most]] = False
    return kept[: len(events_ns)], kept[len(events_ns) :]


def _launches(events: Events, chosen: Ints) -> Ints:
    """Rows of the calls that launched what is chosen of the device."""
    wanted = events.correlation[chosen[np.isin(events.category[chosen], _DEVICE)]]
    wanted = np.unique(wanted[wanted >= 0])
    if not len(wanted):
        return np.empty(0, np.int64)
    # Correlations are given in order, so few events but those wanted lie between the first and the last.
    between = events.correlation >= wanted[0]
    between &= events.correlation <= wanted[-1]
    between &= events.category == Category.RUNTIME
    rows = np.flatnonzero(between)
    return rows[np.isin(events.correlation[rows], wanted)]


def nest(lane: Indices, start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints, Indices]:
    """The order by lane, then start, the outer first; the ends in that order, cut to what is around; and the depths.

    Traces round inner and outer ends apart, and ROCm's kernels overrun the next one of their stream.
    """
    order = np.lexsort((-end_ns, start_ns, lane))
    ends: list[int] = end_ns[order].tolist()
    depths: list[int] = []
    around: list[int] = []
    before = -1
    for i, (where, start, end) in enumerate(zip(lane[order].tolist(), start_ns[order].tolist(), ends, strict=True)):
        if where != before:
            around.clear()
            before = where
        while around and around[-1] <= start:
            around.pop()
        if around and around[-1] < end:
            ends[i] = end = around[-1]
        depths.append(len(around))
        around.append(end)
    return order, np.array(ends, np.int64), np.array(depths, np.int32)


def owners(trace: RankTrace, picked: Picked, has_device: bool) -> Indices:
    """A `RankOwner` for each event."""
    distinct, which = np.unique(picked.name, return_inverse=True)
    texts = [trace.strings[name] for name in distinct]
    category = picked.category
    owner = np.full(len(which), int(RankOwner.HOST), np.int32)

    def named(test: object) -> NDArray[np.bool_]:
        passes: NDArray[np.bool_] = np.array([bool(test(text)) for text in texts], np.bool_)[which]  # type: ignore[operator]
        return passes

    operates = category == Category.OP
    calls = category == Category.RUNTIME
    owner[operates | calls] = RankOwner.DISPATCH if has_device else RankOwner.COMPUTE
    owner[calls & named(names.is_alloc)] = RankOwner.ALLOC
    owner[calls & named(names.is_sync)] = RankOwner.SYNC
    owner[(category <= Category.ANNOTATION) & named(lambda text: names.loader(text) is not None)] = RankOwner.INPUT
    owner[(category == Category.MEMCPY) | (category == Category.MEMSET)] = RankOwner.COPY
    owner[category == Category.KERNEL] = RankOwner.COMPUTE
    communicates = (category == Category.KERNEL) & named(names.is_communication_kernel)
    if not has_device:
        communicates |= (category <= Category.ANNOTATION) & named(names.is_host_collective)
    owner[communicates] = RankOwner.COMMUNICATION
    return owner


class SliceLanes(msgspec.Struct, frozen=True, eq=False):
    """The lanes of a slice."""

    #: In the order in which they are drawn.
    drawn: tuple[SliceLane, ...]
    #: Process and thread of each in the trace, and the index in `RankTrace.threads`. A stream may be several there.
    threads: tuple[tuple[str, str, int], ...]
    #: Each event's, shape (N,), and that of each allocation.
    of_event: Indices
    of_allocation: Indices


def lanes(trace: RankTrace, picked: Picked, owner: Indices, allocating: Indices) -> SliceLanes:
    """The lanes; `allocating` has the thread of each allocation, by its index in `RankTrace.threads`."""
    allocates = np.full(len(allocating), -1)
    stream = np.concatenate((picked.stream, allocates))
    thread = np.concatenate((picked.thread, allocating))
    on_device = stream >= 0
    # A device's stream is told by its numbers, since pid and tid of device events are anything.
    key = np.stack(
        (
            on_device.astype(np.int64),
            np.where(on_device, np.concatenate((picked.device, allocates)), thread).astype(np.int64),
            np.where(on_device, stream, 0),
        )
    )
    distinct, first, every = np.unique(key, axis=1, return_index=True, return_inverse=True)
    every = every.reshape(-1)
    which = every[: len(picked.row)]
    autograd = _autograd_threads(trace)
    drawn: list[SliceLane] = []
    for i, (streams, place, number) in enumerate(distinct.T.tolist()):
        here = which == i
        if streams:
            drawn.append(SliceLane(LaneRole.STREAM, f"GPU {place} stream {number}: {_work(picked, owner, here)}"))
        else:
            drawn.append(_thread(trace, picked, here, place, autograd))
    order = sorted(range(len(drawn)), key=lambda i: (drawn[i].role, *distinct[1:, i].tolist()))
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    threads = [(*trace.threads[index], index) for index in thread[first].tolist()]
    return SliceLanes(
        tuple(drawn[i] for i in order),
        tuple(threads[i] for i in order),
        position[which],
        position[every[len(picked.row) :]],
    )


def _work(picked: Picked, owner: Indices, here: NDArray[np.bool_]) -> str:
    """What a stream is mostly for."""
    spent = np.bincount(owner[here], (picked.end_ns - picked.start_ns)[here], minlength=len(RankOwner))
    return ("compute", "copies", "communication")[int(spent[: RankOwner.INPUT].argmax())]


def _thread(trace: RankTrace, picked: Picked, here: NDArray[np.bool_], thread: int, autograd: set[int]) -> SliceLane:
    pid, tid = trace.threads[thread]
    texts = (trace.strings[name] for name in np.unique(picked.name[here]))
    # On Linux a process and its first thread have one number.
    if (pid == tid and pid) or any(names.step_number(text) is not None for text in texts):
        return SliceLane(LaneRole.MAIN, f"main thread {tid}")
    if thread in autograd:
        return SliceLane(LaneRole.AUTOGRAD, f"autograd thread {tid}")
    return SliceLane(LaneRole.THREAD, f"thread {tid}")


def _autograd_threads(trace: RankTrace) -> set[int]:
    """Threads that walk the graph, which show in any sample of the events."""
    sample = slice(None, None, len(trace.events) // _SAMPLE + 1)
    walks = np.array([text.startswith("autograd::engine") for text in trace.strings], np.bool_)
    return set(trace.events.thread[sample][walks[trace.events.name[sample]]].tolist())


def memory(trace: RankTrace, start_ns: int, end_ns: int) -> SliceMemory:
    """The curve of the device's memory within a window, of at most `MEMORY_POINTS` points."""
    counters = trace.memory
    here = (counters.time_ns >= start_ns) & (counters.time_ns < end_ns)
    here &= (counters.device_type != 0) & (counters.allocated >= 0)
    rows = np.flatnonzero(here)
    rows = rows[np.argsort(counters.time_ns[rows], kind="stable")]
    # Of several events the fullest stays, so that a curve keeps its peak.
    group = np.arange(len(rows)) // (-(-len(rows) // MEMORY_POINTS) or 1)
    by_size = np.lexsort((counters.allocated[rows], group))
    rows = rows[by_size[np.flatnonzero(np.diff(group, append=-1))]]
    return SliceMemory(counters.time_ns[rows], counters.allocated[rows], counters.reserved[rows])


def allocations(trace: RankTrace, start_ns: int, end_ns: int, most: int | None) -> Ints:
    """Rows of what the allocators did within a window; none of more than `most`, which would be in no slice."""
    time_ns = trace.memory.time_ns
    rows = np.flatnonzero((time_ns >= start_ns) & (time_ns < end_ns))
    return rows if most is None or len(rows) <= most else rows[:0]


def looks(seen: Sequence[GpuLook], start_ns: int, end_ns: int) -> SliceGpu:
    """The looks at a GPU within a window, and the last one before it."""
    time_ns = np.array([look.at_ns for look in seen], np.int64)
    order = np.argsort(time_ns, kind="stable")
    first = max(int(np.searchsorted(time_ns[order], start_ns, side="right")) - 1, 0)
    order = order[first : int(np.searchsorted(time_ns[order], end_ns))]

    def column(values: Iterable[float | None]) -> NDArray[np.float64]:
        known = np.array([math.nan if value is None else value for value in values], np.float64)[order]
        return np.where((known >= 0) & (known < _MOST_SEEN), known, math.nan)

    return SliceGpu(time_ns[order], column(look.sm_mhz for look in seen), column(look.power_w for look in seen))
