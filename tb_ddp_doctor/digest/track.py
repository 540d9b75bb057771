"""What a rank does between the points that can hold it up: enough to play its steps again, with something taken out.

The host's time is cut into rows at the points where it meets something else: a step begins, a collective is launched,
a kernel is launched that had to await a collective, a call has blocked the host, and every `_LAUNCHES_A_ROW` launches.
In a row the host works, and may be blocked at its end; the device executes what the row launched. While the launch
queue is full a row is issued only when the device is done with what was launched a queue's length before. A row's
device work may begin when that of the row before has ended, and the collective that it awaits too; it ends `device_ns`
later, or `lead_ns` after the host has issued the row, whichever is later. Played as recorded (see `replay`), this gives
the recorded times to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest import ends_with
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.intervals import Intervals, partition
from tb_ddp_doctor.digest.model import CpuTime, HostTimes, Steps, Track
from tb_ddp_doctor.trace.model import Flags, Indices, Ints
from tb_ddp_doctor.trace.names import Phase

#: Launches that a CUDA channel takes: 1,024 to 1,039 were measured in flight while the host was blocked.
CAPACITY = 1024
#: Long before every trace: where nothing is awaited, and the lead of a row that launches nothing.
LONG_AGO = -(2**62)
#: What leaves the launch queue was launched before the record.
BEFORE = -2
#: From a launch to its kernel's start on an empty device, at most, ns: 5 to 10 us were measured while traced.
LATENCY_NS = 20_000
#: Stretches that hold the host get a row of their own from this length on, ns, and the longest of a step do.
_SHORTEST_HOLD_NS = 20_000
_HOLDS_A_STEP = 32
#: By so much a launch call may seem to end before the event that it waited for, ns.
_SLACK_NS = 2_000
#: The host goes on at most this long after a collective that it carries out itself, ns.
_LEAVES_NS = 200_000
#: Few enough that the queue never blocks a row for what the row itself launched.
_LAUNCHES_A_ROW = 128


class DeviceWork(msgspec.Struct, frozen=True, eq=False):
    """A rank's device events without collectives, by start; shape (events,)."""

    start_ns: Ints
    end_ns: Ints
    #: When the launch was issued: the call's end, or its start where the call waits for the event; -1 if unknown.
    launched_ns: Ints
    stream: Ints


class Communication(msgspec.Struct, frozen=True, eq=False):
    """A rank's collectives, in the order of its `Collectives`; shape (C,)."""

    start_ns: Ints
    end_ns: Ints
    #: When the launch was issued, -1 if unknown.
    launched_ns: Ints
    stream: Ints


class Meetings(msgspec.Struct, frozen=True, eq=False):
    """When the host enters and leaves collectives that it carries out itself; shape (H,)."""

    start_ns: Ints
    end_ns: Ints


NO_MEETINGS = Meetings(np.empty(0, np.int64), np.empty(0, np.int64))


class HostTime(msgspec.Struct, frozen=True, eq=False):
    """What the host spends its time on."""

    #: Disjoint sets, in the order of `Held` up to OVERHEAD; and when the launch queue is full, disjoint from them.
    held: tuple[Intervals, ...]
    full_queue: Intervals
    #: Starts of the events that cost the profiler time to record, ascending, and that time.
    recorded_ns: Ints
    recording_ns: int


class _Rows(msgspec.Struct, frozen=True, eq=False):
    """Where the host's time is cut; shape (rows,)."""

    begin_ns: Ints
    #: When all that the row launches is issued, and when the row ends.
    issued_ns: Ints
    end_ns: Ints
    #: Columns of `Track`.
    blocked_by: Indices
    launches: Indices
    awaits: Indices


class _Needs(msgspec.Struct, frozen=True, eq=False):
    """What the device needs for each row; shape (rows,)."""

    #: When it could begin, and when it is done.
    free_ns: Ints
    done_ns: Ints
    #: Columns of `Track`.
    device_ns: Ints
    lead_ns: Ints
    delay_ns: Ints
    awaits_for_certain: Flags
    fed_ns: Ints


def track(
    steps: Steps,
    device: DeviceWork,
    communication: Communication,
    host: HostTime,
    phases: Sequence[Intervals] = (),
    meetings: Meetings = NO_MEETINGS,
) -> Track:
    """Cut a rank's steps, at least one, into rows; `phases` are the host's, in the order of `Phase` up to OTHER."""
    rows = _cut(steps, device, communication, host, meetings)
    needs = _needs(rows, device, communication, int(steps.start_ns[0]))
    full = host.full_queue.measure(rows.begin_ns, rows.issued_ns)
    blocked = ends_with.Blocked(rows.issued_ns, rows.end_ns, rows.blocked_by)
    waits = blocked.in_a_call & (needs.done_ns > rows.issued_ns) & (needs.done_ns <= blocked.latest_ns)
    queue = _queued(rows, waits, needs, device, communication, host.full_queue, int(steps.start_ns[0]))
    queue = _left(queue, rows, waits, meetings, len(communication.end_ns))
    full = np.where(queue.blocks, full, 0)
    held = np.column_stack([part.measure(rows.begin_ns, rows.issued_ns) for part in host.held])
    work = np.maximum(rows.issued_ns - rows.begin_ns - full - held.sum(axis=1), 0)
    count = searchsorted(host.recorded_ns, rows.issued_ns) - searchsorted(host.recorded_ns, rows.begin_ns)
    recording = np.minimum(count * host.recording_ns, work)
    ready = _readiness(rows, needs, communication)
    return Track(
        step=(searchsorted(steps.host_start_ns, rows.begin_ns, side="right") - 1).astype(np.int32),
        host=_host_times(np.column_stack((held, recording, work - recording))),
        phase=_phase(rows, phases),
        blocked_by=rows.blocked_by,
        blocked_ns=np.where(queue.holds, 0, rows.end_ns - np.where(waits, needs.done_ns, rows.issued_ns)),
        waits=waits,
        queue_row=queue.row,
        queue_tail_ns=queue.tail_ns,
        queue_part=queue.part,
        queue_ns=queue.ns,
        synced=queue.holds,
        device_ns=needs.device_ns,
        lead_ns=needs.lead_ns,
        fed_ns=needs.fed_ns,
        awaits=rows.awaits,
        delay_ns=needs.delay_ns,
        awaits_for_certain=needs.awaits_for_certain,
        launches=rows.launches,
        after=ready.after,
        follows=ready.follows,
        needs=ready.needs,
        ready_ns=ready.ns,
    )


def no_track() -> Track:
    """The track of a rank whose host and device cannot be told apart."""
    nothing, index = np.empty(0, np.int64), np.empty(0, np.int32)
    return Track(
        step=index,
        host=HostTimes(index, index, nothing),
        phase=index,
        blocked_by=index,
        blocked_ns=nothing,
        waits=np.empty(0, np.bool_),
        queue_row=index,
        queue_tail_ns=nothing,
        queue_part=index,
        queue_ns=nothing,
        synced=np.empty(0, np.bool_),
        device_ns=nothing,
        lead_ns=nothing,
        fed_ns=nothing,
        awaits=index,
        delay_ns=nothing,
        awaits_for_certain=np.empty(0, np.bool_),
        launches=index,
        after=index,
        follows=index,
        needs=index,
        ready_ns=nothing,
    )


def _host_times(host_ns: Ints) -> HostTimes:
    """Times of shape (rows, len(CpuTime))."""
    kind, row = np.nonzero(host_ns.T)
    return HostTimes(kind.astype(np.int32), row.astype(np.int32), host_ns[row, kind])


def _phase(rows: _Rows, phases: Sequence[Intervals]) -> Indices:
    """The phase that the host is in for most of each row."""
    begin, end = rows.begin_ns, np.maximum(rows.begin_ns + 1, rows.end_ns)
    each = [phase.measure(begin, end) for phase in phases] or [np.zeros(len(begin), np.int64)] * Phase.OTHER
    # What lies outside of all phases is other.
    other = end - begin - np.sum(each, axis=0)
    most: Indices = np.stack([*each, other], axis=1).argmax(axis=1).astype(np.int32)
    return most


def _cut(steps: Steps, device: DeviceWork, communication: Communication, host: HostTime, meetings: Meetings) -> _Rows:
    """Cut the host's time where steps and holds end, collectives and many kernels are launched, and before gated ones.

    A collective's row ends with its launch, so that all that was launched before is in that row or earlier; the kernel
    that awaits a collective is the first of the row after the cut.
    """
    origin, until = int(steps.host_start_ns[0]), _until(steps, host)
    hold_start, hold_end, hold_kind = _holds(host, origin, until, len(steps))
    gated, gate = _gates(device, communication)
    gate_at = device.launched_ns[gated]
    within = (gate_at >= origin) & (gate_at < until)
    gate, gate_at = gate[within], gate_at[within]
    launched = np.flatnonzero((communication.launched_ns >= origin) & (communication.launched_ns < until))
    blocked = ends_with.Blocked(hold_start, hold_end, hold_kind)
    lasting, awaited = ends_with.collectives(blocked, communication.launched_ns, communication.end_ns)
    gate, gate_at = np.append(gate, awaited), np.append(gate_at, hold_start[lasting])

    # Steps without device events are no steps of the digest: what is between two belongs to the earlier one.
    steps_end = np.append(steps.host_start_ns[1:], until)
    # A step that ends while something holds the host ends after it: half a call would wait for nothing.
    if len(hold_end):
        within = np.minimum(searchsorted(hold_end, steps_end), len(hold_end) - 1)
        steps_end = np.where(hold_start[within] < steps_end, np.maximum(steps_end, hold_end[within]), steps_end)
    crowded = np.sort(device.launched_ns[(device.launched_ns >= origin) & (device.launched_ns < until)])
    cuts = (
        hold_end,
        steps_end,
        communication.launched_ns[launched],
        gate_at,
        crowded[_LAUNCHES_A_ROW - 1 :: _LAUNCHES_A_ROW],
        meetings.start_ns,
        _unblocked(host.full_queue, hold_start, origin),
    )
    ends = np.concatenate(cuts)
    order = np.argsort(ends, kind="stable")
    place = np.empty(len(ends), np.int64)
    place[order] = np.arange(len(ends))
    of_holds, _, of_launches, of_gates, _, of_meetings, _ = np.split(place, np.cumsum([len(cut) for cut in cuts])[:-1])
    ends = ends[order]
    begins = np.concatenate(([origin], ends[:-1]))
    issued = ends.copy()
    issued[of_holds] = np.maximum(hold_start, begins[of_holds])
    blocked_by, launches, awaits = (np.full(len(ends), -1, np.int32) for _ in range(3))
    blocked_by[of_holds] = hold_kind
    launches[of_launches] = launched
    launches[of_meetings] = len(communication.end_ns) + np.arange(len(of_meetings))
    followed = of_gates + 1 < len(ends)
    awaits[of_gates[followed] + 1] = gate[followed]
    return _Rows(begins, issued, ends, blocked_by, launches, awaits)


def _unblocked(full: Intervals, hold_start: Ints, origin: int) -> Ints:
    """When the full launch queue last blocked the host for long before each stretch that holds it, each once, ns.

    A row waits for one thing on the device: where its end does, it cannot wait for a place in the queue, too.
    """
    long = full.end - full.start >= _SHORTEST_HOLD_NS
    ends = full.end[long & (full.end > origin)]
    before = searchsorted(ends, hold_start, side="right") - 1
    return np.unique(ends[before[before >= 0]])


def _until(steps: Steps, host: HostTime) -> int:
    """When the last step ends on the host: a call that it ends within is whole, or it would wait for nothing."""
    end = int(steps.host_end_ns[-1])
    within = [part.end[(part.start < end) & (part.end > end)] for part in host.held[: CpuTime.INPUT]]
    return int(np.concatenate(within).max(initial=end))


def _holds(host: HostTime, origin: int, until: int, steps: int) -> tuple[Ints, Ints, Ints]:
    """Starts, ends and kinds of the longest stretches that hold the host."""
    start, end, kind, _ = partition(host.held[: CpuTime.OVERHEAD], np.array([origin, until]))
    long = (kind < CpuTime.OVERHEAD) & (end - start >= _SHORTEST_HOLD_NS)
    start, end, kind = start[long], end[long], kind[long]
    longest = np.sort(np.argsort(start - end, kind="stable")[: _HOLDS_A_STEP * steps])
    return start[longest], end[longest], kind[longest]


def _gates(device: DeviceWork, communication: Communication) -> tuple[Ints, Ints]:
    """Device events that had to await a collective, and the collective; each collective by its first such event.

    Two things show it. The whole device is idle, a collective ends in the gap, and the event ends the gap. Or the
    event's own stream is idle although the event is launched, and of all that ends on other streams meanwhile the
    collective ends last:

        stream 7   [gemm.........][gemm.........][gemm...
        stream 20  [all-to-all........]
        stream 48   ^launched          [cat..]           cat awaits the all-to-all, beside the gemms
    """
    nothing = np.empty(0, np.int64)
    if not len(communication.end_ns):
        return nothing, nothing
    busy = Intervals.union(device.start_ns, device.end_ns)
    ending = searchsorted(device.start_ns, busy.start[1:])
    by_gap = ends_with.last_to_end(communication.end_ns, busy.end[:-1], busy.start[1:])
    beside, by_stream = _gates_beside(device, communication)
    event, collective = np.append(ending, beside), np.append(by_gap, by_stream)
    known = collective >= 0
    event, collective = event[known], collective[known]
    known = (communication.launched_ns[collective] >= 0) & (
        device.launched_ns[event] >= communication.launched_ns[collective]
    )
    event, collective = event[known], collective[known]
    first = np.lexsort((device.launched_ns[event], collective))
    first = np.sort(first[np.diff(collective[first], prepend=-1) != 0])
    return event[first], collective[first]


def _gates_beside(device: DeviceWork, communication: Communication) -> tuple[Ints, Ints]:
    """Device events whose stream is idle although they are launched, and the collective that ends last meanwhile.

    -1 where work on another stream ends later, and the event rather awaits that.
    """
    order = np.lexsort((device.start_ns, device.stream))
    follows = np.diff(device.stream[order], prepend=-1) == 0
    before = np.append(LONG_AGO, device.end_ns[order][:-1])
    could_start = np.maximum(device.launched_ns[order], np.where(follows, before, LONG_AGO))
    waited = np.flatnonzero((device.launched_ns[order] >= 0) & (device.start_ns[order] - could_start > LATENCY_NS))
    event, since = order[waited], could_start[waited]
    collective = ends_with.last_to_end(communication.end_ns, since, device.start_ns[event])
    work = ends_with.last_to_end(device.end_ns, since, device.start_ns[event])
    later = (work >= 0) & (collective >= 0) & (device.end_ns[work] > communication.end_ns[collective])
    return event, np.where(later, -1, collective)


def _needs(rows: _Rows, device: DeviceWork, communication: Communication, origin: int) -> _Needs:
    """What the device needs for each row; `origin` is when it had done all that was launched before.

    A gap is starved until the launch of the event that ends it has had time to arrive. In a row without such gaps the
    host could have come later by the least slack of its events.
    """
    size = len(rows.end_ns)
    row = searchsorted(rows.end_ns, device.launched_ns, side="right")
    chosen = np.flatnonzero((device.launched_ns >= rows.begin_ns[0]) & (row < size))
    chosen = chosen[np.lexsort((device.start_ns[chosen], row[chosen]))]
    row, start, end = row[chosen], device.start_ns[chosen], device.end_ns[chosen]
    arrived = device.launched_ns[chosen] + LATENCY_NS
    first = searchsorted(row, np.arange(size))
    last = searchsorted(row, np.arange(size), side="right") - 1
    filled = last >= first

    awaited = np.full(size, LONG_AGO)
    gated = rows.awaits >= 0
    awaited[gated] = communication.end_ns[rows.awaits[gated]]
    # A kernel that comes later than this after the collective that it awaits, came late for want of its launch.
    delay = np.zeros(size, np.int64)
    opening = np.flatnonzero(gated & filled)
    delay[opening] = np.clip(start[first[opening]] - awaited[opening], 0, LATENCY_NS)
    gate = np.where(gated, awaited + delay, LONG_AGO)
    # One that started as soon as its launch arrived may have met the collective's end by chance.
    certain = np.zeros(size, np.bool_)
    certain[opening] = (delay[opening] < LATENCY_NS) & (start[first[opening]] > arrived[first[opening]])

    gate_of_event = np.full(len(row), LONG_AGO)
    gate_of_event[first[filled]] = gate[filled]
    reach = np.maximum.accumulate(np.concatenate(([origin], np.maximum(end, gate_of_event))))
    starved = np.maximum(np.minimum(start, arrived) - np.maximum(reach[:-1], gate_of_event), 0)
    # When the device is done with the rows before, and the gate is open.
    base = np.maximum(reach[np.minimum(first, len(reach) - 1)], gate)
    beside = start < base[row]
    spare = np.full(size, -LONG_AGO)
    # What ends while earlier work still runs, as a copy on a stream of its own, does not tie that work to its launch.
    lasts = np.flatnonzero(~beside & (end > reach[:-1]))
    np.minimum.at(spare, row[lasts], np.maximum(start - arrived, 0)[lasts])
    lost = np.zeros(size, np.int64)
    np.add.at(lost, row, starved)
    late = np.flatnonzero(starved)
    fed_from = np.full(size, LONG_AGO)
    np.maximum.at(fed_from, row[late], start[late])
    done = np.where(filled, 0, gate)
    done[filled] = reach[last[filled] + 1]
    done = np.maximum.accumulate(np.maximum(done, origin))
    before = np.concatenate(([origin], done[:-1]))
    in_turn = filled & (spare < -LONG_AGO)
    lead = np.where(in_turn, done - rows.issued_ns - np.where(lost > 0, 0, spare), LONG_AGO)
    lead = np.maximum(lead, _lead_beside(row[beside], start[beside], end[beside], arrived[beside], rows.issued_ns))
    return _Needs(
        free_ns=np.maximum(before, awaited),
        done_ns=done,
        device_ns=np.maximum(done - np.maximum(before, gate) - lost, 0),
        lead_ns=lead,
        delay_ns=delay,
        awaits_for_certain=certain,
        fed_ns=np.where(lost > 0, done - fed_from, -1),
    )


def _lead_beside(row: Ints, start: Ints, end: Ints, arrived: Ints, issued: Ints) -> Ints:
    """How long after a row's issue its events are done that run beside earlier rows' work, on another stream.

    Such events start before the device is done with the rows before. The launch of each binds only the events that
    follow without a gap: after a gap they waited for something else. `row`, `start`, `end` and `arrived` are of the
    events, by row and start; shape (rows,), ns, `LONG_AGO` where a row has no such event.
    """
    lead = np.full(len(issued), LONG_AGO)
    if not len(row):
        return lead
    # The latest end so far within each row: ends by rank, so that a row's come after all of the row before.
    by_end = np.argsort(end, kind="stable")
    place = np.empty(len(end), np.int64)
    place[by_end] = np.arange(len(end))
    in_row = np.cumsum(np.diff(row, prepend=row[0]) != 0) * len(end)
    reach = end[by_end[np.maximum.accumulate(place + in_row) - in_row]]
    chains = np.flatnonzero(np.append(True, (np.diff(row) != 0) | (start[1:] > reach[:-1] + LATENCY_NS)))
    spare = np.minimum.reduceat(np.maximum(start - arrived, 0), chains)
    bound = np.maximum.reduceat(end, chains) - spare - issued[row[chains]]
    np.maximum.at(lead, row[chains], bound)
    return lead


class _Queued(msgspec.Struct, frozen=True, eq=False):
    """What each row waits for on the device; shape (rows,), columns of `Track`."""

    row: Indices
    tail_ns: Ints
    part: Indices
    ns: Ints
    #: Whether the full launch queue blocked the row in the record, or what holds the host at its end waited for that.
    blocks: Flags
    holds: Flags


def _queued(
    rows: _Rows,
    waits: Flags,
    needs: _Needs,
    device: DeviceWork,
    communication: Communication,
    full: Intervals,
    origin: int,
) -> _Queued:
    """What has to leave the launch queue before each row is issued; `origin` is as for `_needs`.

    A row that the queue blocked in the record waits for the event that was done last when the blocking ended. Any other
    waits for the launch a queue's length before its last one, which was done in time. A synchronisation that ends with
    an event, and does not wait (`waits`) for all that was launched, waits for that event. So does a host that is
    outside of any op until a collective ends: not all that waits is recorded.
    """
    launched = np.concatenate((device.launched_ns, communication.launched_ns))
    end = np.concatenate((device.end_ns, communication.end_ns))
    part = np.concatenate((np.full(len(device.end_ns), -1), np.arange(len(communication.end_ns))))
    size = len(rows.end_ns)
    if not len(end):
        return _unqueued(size)
    event = np.full(size, -1)

    unblocked = searchsorted(full.end, rows.issued_ns, side="right") - 1
    blocks = (unblocked >= 0) & (full.end[unblocked] > rows.begin_ns) if len(full) else np.zeros(size, np.bool_)
    blocked = ends_with.Blocked(rows.issued_ns, rows.end_ns, rows.blocked_by)
    held_for = np.where(waits, -1, ends_with.events(blocked, end, part >= 0))
    holds = held_for >= 0
    blocks &= ~holds
    always = np.full(size, LONG_AGO)
    blocked_for = ends_with.last_to_end(end, always, full.end[unblocked] + _SLACK_NS) if len(full) else held_for
    ended = np.where(holds, held_for, blocked_for)
    event[blocks | holds] = ended[blocks | holds]

    # One call may launch many events, as a graph does.
    order = np.lexsort((end, launched))
    order = order[np.diff(launched[order], append=np.iinfo(np.int64).max) > 0]
    order = order[launched[order] >= rows.begin_ns[0]]
    unrecorded = np.sort(end[launched < rows.begin_ns[0]])
    issued = searchsorted(launched[order], rows.issued_ns, side="right")
    done = searchsorted(np.sort(np.concatenate((unrecorded, end[order]))), rows.issued_ns, side="right")
    in_flight = len(unrecorded) + issued - done
    behind = issued - 1 - max(CAPACITY, int(in_flight.max(initial=0)))
    of_capacity = ~blocks & ~holds & (np.diff(issued, prepend=0) > 0) & (behind >= 0)
    event[of_capacity] = order[behind[of_capacity]]

    of_row = searchsorted(rows.end_ns, launched[event], side="right")
    before = (event < 0) | (launched[event] < rows.begin_ns[0])
    by_row = ~before & (part[event] < 0) & (of_row < np.arange(size))
    by_part = ~before & (part[event] >= 0)
    before &= blocks | holds
    since = np.where(before, origin, end[event])
    known = before | by_row | by_part
    blocks &= known
    holds &= known
    slack = np.where(holds, rows.end_ns, rows.issued_ns) - since
    row = np.where(by_row, of_row, np.where(before, BEFORE, -1)).astype(np.int32)
    return _Queued(
        row=row,
        tail_ns=np.where(by_row, needs.done_ns[np.maximum(row, 0)] - since, 0),
        part=np.where(by_part, part[event], -1).astype(np.int32),
        ns=np.where(blocks | holds, slack, np.where(known, np.minimum(slack, 0), 0)),
        blocks=blocks,
        holds=holds,
    )


def _left(queue: _Queued, rows: _Rows, waits: Flags, meetings: Meetings, first: int) -> _Queued:
    """The same with the collectives of the host (the parts from `first` on) that blocking stretches end with."""
    stretch = (rows.blocked_by == CpuTime.STALL) | (rows.blocked_by == CpuTime.OP_STALL)
    last = ends_with.last_to_end(meetings.end_ns, rows.issued_ns, rows.end_ns + _SLACK_NS)
    leaves = stretch & ~waits & (last >= 0)
    leaves[leaves] = rows.end_ns[leaves] - meetings.end_ns[last[leaves]] < _LEAVES_NS
    if not leaves.any():
        return queue
    return _Queued(
        row=np.where(leaves, -1, queue.row).astype(np.int32),
        tail_ns=np.where(leaves, 0, queue.tail_ns),
        part=np.where(leaves, first + last, queue.part).astype(np.int32),
        ns=np.where(leaves, rows.end_ns - meetings.end_ns[last], queue.ns),
        blocks=queue.blocks & ~leaves,
        holds=queue.holds | leaves,
    )


def _unqueued(size: int) -> _Queued:
    """Rows that wait for nothing."""
    none, never, zero = np.full(size, -1, np.int32), np.zeros(size, np.bool_), np.zeros(size, np.int64)
    return _Queued(none, zero, none, zero, never, never)


class _Ready(msgspec.Struct, frozen=True, eq=False):
    """What each row that launches a collective waits for before that can begin; shape (rows,), columns of `Track`."""

    after: Indices
    follows: Indices
    needs: Indices
    ns: Ints


def _readiness(rows: _Rows, needs: _Needs, communication: Communication) -> _Ready:
    """Of each row that launches a collective: the one before it on its stream, the one of another stream and the row
    whose device work it awaits, and how long after all that it arrives.

    It follows a collective of another stream that was launched before it and ended right before it arrived, if all else
    was over earlier. It awaits all device work that was launched before if that was done when it arrived; else, if
    nothing else tells why it came so late, the last row that was done.
    """
    size = len(rows.launches)
    after, followed, needed = (np.full(size, -1, np.int32) for _ in range(3))
    ready = np.zeros(size, np.int64)
    launching = np.flatnonzero((rows.launches >= 0) & (rows.launches < len(communication.end_ns)))
    which = rows.launches[launching]
    # What was launched before the record holds up the first one on its stream.
    order = np.lexsort((communication.start_ns, communication.stream))
    chained = np.append(np.zeros(min(len(order), 1), np.bool_), np.diff(communication.stream[order]) == 0)
    previous = np.full(len(order), -1, np.int32)
    previous[order[chained]] = order[np.flatnonzero(chained) - 1]
    before = previous[which]
    arrival, done = communication.start_ns[which], needs.done_ns[launching]
    freed = np.where(before >= 0, communication.end_ns[before] if len(which) else before, LONG_AGO)
    earliest = np.maximum(rows.end_ns[launching], freed)
    last = np.minimum(searchsorted(needs.done_ns, arrival, side="right") - 1, launching)
    awaits_all = done <= arrival
    earliest = np.where(awaits_all, np.maximum(earliest, done), earliest)
    follows = _followed(which, earliest, communication)
    earliest = np.where(follows >= 0, communication.end_ns[follows], earliest)
    awaits_some = ~awaits_all & (last >= 0) & (arrival - earliest > LATENCY_NS)
    needed[launching] = np.where(awaits_all, launching, np.where(awaits_some, last, -1))
    earliest = np.where(awaits_some, np.maximum(earliest, needs.done_ns[last]), earliest)
    after[launching] = before
    followed[launching] = follows
    ready[launching] = arrival - earliest
    return _Ready(after, followed, needed, ready)


def _followed(which: Indices, earliest: Ints, communication: Communication) -> Indices:
    """Of each of some collectives, which could begin so early but for it, the one that ended right before it arrived.

    That one is of another stream and was launched before; -1 where there is none.
    """
    known = np.flatnonzero(communication.launched_ns >= 0)
    order = known[np.argsort(communication.end_ns[known], kind="stable")]
    if not len(order) or not len(which):
        return np.full(len(which), -1, np.int32)
    arrival = communication.start_ns[which]
    ended = order[np.maximum(searchsorted(communication.end_ns[order], arrival, side="right") - 1, 0)]
    end = communication.end_ns[ended]
    follows = (end <= arrival) & (arrival - end <= LATENCY_NS) & (end > earliest)
    follows &= communication.stream[ended] != communication.stream[which]
    follows &= communication.launched_ns[ended] <= communication.launched_ns[which]
    found: Indices = np.where(follows, ended, -1).astype(np.int32)
    return found
