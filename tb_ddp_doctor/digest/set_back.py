"""Keeps one side of a record in whose middle the rank's clock was set back, as NTP does.

Every event of the rank after that instant has too early a time. Two parts of the record then lie over each other, and
calls seem to nest, wait and launch what they never did:

    as it was        [call 1][call 2][call 3][call 4][call 5]
                                       | set back by two calls
    as recorded      [call 1][call 2][call 3]
                             [call 4][call 5]

A driver numbers its calls as they come (`correlation`), so on one thread times rise with numbers. Where they fall once,
and rise before and after that, the clock was set. Numbers also tell on which side of that instant calls and device
events are. Other events have no numbers. Where both sides have recorded the same time, such an event is on the side
that has more calls within it, or without calls on that of the event before it in the file, on its thread.

A device whose times do not fall, but which starts its work later after a launch from then on, by as much, shows that
the clock was not set: only the host's times are wrong.

The side with more calls is kept. By how much the clock was set is known only roughly, since nobody knows how long
nothing ran at that instant, so the two sides cannot be joined.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.host_calls import one_of
from tb_ddp_doctor.digest.launches import DeviceRows, is_on_device
from tb_ddp_doctor.digest.plausible import without
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Events, Frames, Ints, MemoryEvents, RankTrace

#: A clock that is set back by less, ns, disorders few calls.
_SET_NS = 2_000_000
#: Kernels that are launched programmatically begin early by less, ns.
_OVERLAP_NS = 100_000
#: As many calls on each side were made at times that the other side has, too. A damaged time moves one call.
_FEWEST = 8
#: Numbers of calls rise by less from one recorded call to the next. After 2^32 calls they begin anew.
_NEXT = 1 << 20
#: Before and after all times, ns.
_EARLIEST, _LATEST = -(1 << 62), 1 << 62


class _Side(msgspec.Struct, frozen=True):
    """What was recorded before the clock was set, or after."""

    #: Rows of its runtime calls in the events.
    calls: Ints
    #: Its times lie between these two, ns.
    from_ns: int
    to_ns: int

    def has(self, instant_ns: Ints) -> Mask:
        """At which of these times something of this side may be recorded."""
        return (self.from_ns <= instant_ns) & (instant_ns <= self.to_ns)


class _SetBack(msgspec.Struct, frozen=True):
    """A clock that was set back within the record."""

    before: _Side
    after: _Side
    #: The number (`correlation`) of the first call after that.
    number: int
    #: By how much, ns, without the time that passed between the last call before and the first one after.
    by_ns: int

    @classmethod
    def of(cls, events: Events) -> _SetBack | None:
        """The clock of a trace; None where it was not set back."""
        calls = np.flatnonzero(one_of(events.category, (Category.RUNTIME,)))
        calls = calls[events.correlation[calls] > 0]
        calls = calls[np.argsort(events.correlation[calls], kind="stable")]
        start = events.start_ns[calls]
        falls = np.maximum.accumulate(start)[:-1] - start[1:]
        if int(falls.max(initial=0)) < _SET_NS:
            return None
        by_thread = calls[np.argsort(events.thread[calls], kind="stable")]
        thread = events.thread[by_thread]
        rises = np.where(thread[1:] == thread[:-1], np.diff(events.start_ns[by_thread]), 0)
        mine = by_thread[thread == thread[rises.argmin()]]
        start, number = events.start_ns[mine], events.correlation[mine]
        at = _fall(start)
        before, after = start[:at], start[at:]
        if not at or _fall(before) or _fall(after) or number[at] - number[at - 1] > _NEXT:
            return None
        twice = min(np.count_nonzero(before > after.min()), np.count_nonzero(after < before.max()))
        if twice < _FEWEST:
            return None
        is_after = events.correlation[calls] >= number[at]
        sides = _sides(events, calls[~is_after], calls[is_after])
        return cls(*sides, int(number[at]), int(before[-1] - after[0]))


def one_side(trace: RankTrace, rows: DeviceRows) -> RankTrace:
    """The trace without one side of the instant at which its clock was set back, and a warning; most are unchanged.

    Of steps, only whole ones stay. `rows` are the trace's device events.
    """
    set_back = _SetBack.of(trace.events)
    if set_back is None or _is_of_host_alone(trace.events, rows.row, set_back):
        return trace
    later = len(set_back.after.calls) >= len(set_back.before.calls)
    kept, other = (set_back.after, set_back.before) if later else (set_back.before, set_back.after)
    events = trace.events
    has, lacks = kept.has(events.start_ns), other.has(events.start_ns)
    stays = has & ~lacks
    doubtful = np.flatnonzero(has & lacks)
    more = _calls_within(events, doubtful, kept) - _calls_within(events, doubtful, other)
    stays[doubtful] = more > 0
    stays[kept.calls], stays[other.calls] = True, False
    unknown = np.zeros(len(events), np.bool_)
    unknown[doubtful[more == 0]] = True
    unknown[np.concatenate((kept.calls, other.calls))] = False
    stays = _as_before(events, stays, unknown)
    stays[rows.row] = _later_on_device(events, rows.row, set_back) == later
    steps = _steps(trace)
    at = _fall(events.start_ns[steps], least_ns=1)
    if at:
        stays[steps] = (np.arange(len(steps)) >= at) == later
    ended = steps[stays[steps]]
    if len(ended) and not later:
        # The clock was set during the last one.
        stays[ended[-1]] = False
    where = "after" if later else "before"
    warning = FileWarning(
        trace.file,
        f"The rank's clock was set back by about {wording.ms(set_back.by_ns)} within the record: only what was "
        f"recorded {where} that is used.",
    )
    right = without(trace, ~stays, [warning])
    sure = [kept.has(times) & ~other.has(times) for times in (trace.memory.time_ns, trace.frames.start_ns)]
    return replace(
        right,
        memory=MemoryEvents(*(getattr(trace.memory, name)[sure[0]] for name in MemoryEvents.__struct_fields__)),
        frames=Frames(*(getattr(trace.frames, name)[sure[1]] for name in Frames.__struct_fields__)),
    )


def _is_of_host_alone(events: Events, rows: Ints, set_back: _SetBack) -> bool:
    """Whether device events (rows) go on as before while their launches fall: then no clock was set, since both have
    the same one. All work then starts later after its launch than most did before.

    Work that seems to start before its launch was queued at that instant, and tells nothing of how long work waits.
    """
    if any(_fall(events.start_ns[rows[lane]]) for lane in _lanes(events, rows)):
        return False
    calls = np.concatenate((set_back.before.calls, set_back.after.calls))
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    number = events.correlation[rows]
    launch = calls[np.minimum(np.searchsorted(events.correlation[calls], number), len(calls) - 1)]
    waits = events.start_ns[rows] - events.start_ns[launch]
    waited = (events.correlation[launch] == number) & (waits >= 0)
    before, after = (waits[waited & side] for side in (number < set_back.number, number >= set_back.number))
    return bool(len(before) and len(after) and after.min() - np.median(before) > set_back.by_ns / 2)


def _fall(start_ns: Ints, least_ns: int = _SET_NS) -> int:
    """Index of the first time after the largest fall of times that should rise; 0 if none falls by `least_ns`."""
    if len(start_ns) < 2:
        return 0
    rises = np.diff(start_ns)
    at = int(rises.argmin())
    return at + 1 if rises[at] <= -least_ns else 0


def _sides(events: Events, before: Ints, after: Ints) -> tuple[_Side, _Side]:
    """The two sides, given the rows of their calls. The side that begins first has all earlier times."""
    ends = [(int(events.start_ns[calls].min()), int(events.start_ns[calls].max())) for calls in (before, after)]
    begins, until = min(low for low, _ in ends), max(high for _, high in ends)
    one, two = (
        _Side(
            calls,
            _EARLIEST if low == begins else low,
            _LATEST if high == until else high,
        )
        for calls, (low, high) in zip((before, after), ends, strict=True)
    )
    return one, two


def _calls_within(events: Events, rows: Ints, side: _Side) -> Ints:
    """How many calls of a side begin within each of these events, on its thread, shape of `rows`."""
    inside = np.zeros(len(rows), np.int64)
    start, end = events.start_ns[rows], events.start_ns[rows] + events.duration_ns[rows]
    called = events.start_ns[side.calls]
    for thread in np.unique(events.thread[rows]).tolist():
        mine = events.thread[rows] == thread
        times = np.sort(called[events.thread[side.calls] == thread])
        inside[mine] = np.searchsorted(times, end[mine], "right") - np.searchsorted(times, start[mine])
    return inside


def _as_before(events: Events, stays: Mask, unknown: Mask) -> Mask:
    """Whether events stay, where it is unknown as the last known event before them in the file, on their thread."""
    order = np.argsort(events.thread, kind="stable")
    place, thread = np.arange(len(order)), events.thread[order]
    known = np.maximum.accumulate(np.where(unknown[order], np.searchsorted(thread, thread), place))
    filled: Mask = stays.copy()
    filled[order] = stays[order][known]
    return filled


def _later_on_device(events: Events, rows: Ints, set_back: _SetBack) -> Mask:
    """Which of these device events (rows) ran after the clock was set.

    On a stream, work runs in the order of its numbers. So its times fall where the clock was set; where they do not,
    the stream ran nothing at that instant.
    """
    later: Mask = np.zeros(len(rows), np.bool_)
    for part in _lanes(events, rows):
        start, number = events.start_ns[rows[part]], events.correlation[rows[part]]
        at = _fall(start, _OVERLAP_NS)
        is_after = (number >= set_back.number) | ~set_back.before.has(start)
        if not at and is_after.any():
            at = int(is_after.argmax())
        later[part[at or len(part) :]] = True
        if is_after.all():
            later[part] = True
    return later


def _lanes(events: Events, rows: Ints) -> list[Ints]:
    """Which of these device events (rows) each stream ran, in the order of their numbers."""
    order = np.lexsort((events.correlation[rows], events.stream[rows], events.device[rows]))
    lane = np.stack((events.device[rows[order]], events.stream[rows[order]]))
    return np.split(order, np.flatnonzero((lane[:, 1:] != lane[:, :-1]).any(axis=0)) + 1)


def _steps(trace: RankTrace) -> Ints:
    """Rows of the ProfilerSteps on the host, in the order of their numbers."""
    numbers = np.array([-1 if (n := names.step_number(text)) is None else n for text in trace.strings], np.int64)
    number = numbers[trace.events.name]
    rows = np.flatnonzero((number >= 0) & (trace.events.category == Category.ANNOTATION) & ~is_on_device(trace.events))
    return rows[np.argsort(number[rows], kind="stable")]
