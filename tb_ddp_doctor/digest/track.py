"""Cuts a rank's time into rows: enough to play its steps again with a what-if change (see `replay`).

The host's time is cut at the points where it meets something else: a step begins, a collective is launched, a kernel
is launched that has to wait for a collective, device work is launched at whose end a collective begins, a blocking call
is over, and every `_LAUNCHES_A_ROW` launches. For each row three things are measured:

1. Host: how long it works, on what, and how long it is blocked at the row's end.
2. Device: how long it needs for what the row launched. That work begins once the work of the row before is done, and
   the collective that it awaits is over. It ends `device_ns` later, or `lead_ns` after the host has issued the row,
   whichever is later.
3. Launch queue: while it is full, a row is issued only once the device is done with what was launched a queue's length
   before.

Played without a change, the rows give the recorded times to the nanosecond. `Track` has two rows as an example.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest import ends_with
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.intervals import Intervals, partition
from tb_ddp_doctor.digest.model import CollectiveRow, CpuTime, HostTimes, StepRow, Steps, Track, TrackRow
from tb_ddp_doctor.digest.owners import LONG_STALL_NS
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.trace.model import Flags, Indices, Ints
from tb_ddp_doctor.trace.names import Phase

#: Launches that a CUDA channel takes: 1,024 to 1,039 were measured in flight while the host was blocked.
CAPACITY = 1024
#: Long before every trace: where nothing is awaited, and the lead of a row that launches nothing.
LONG_AGO = -(2**62)
#: In `Track.queue_row`: the row waits for work that was launched before the record.
BEFORE = -2
#: The longest time from a launch to its kernel's start on an idle device, ns: 5 to 10 us were measured while traced.
LATENCY_NS = 20_000
#: A stretch that blocks the host gets a row of its own if it is at least this long, ns, ...
_SHORTEST_BLOCK_NS = 20_000
#: ... and among the longest: this many times the number of steps, ...
_BLOCKS_A_STEP = 32
#: ... but not fewer than this in a record: one without marks is a single step, however many rounds it holds.
_FEWEST_BLOCKS = 256
#: A launch call may seem to end this much before the event that it waited for, ns.
_SLACK_NS = 2_000
#: The host goes on at most this long after a collective that it carries out itself, ns.
_LEAVES_NS = 200_000
#: So many collectives that ended right before another one arrives are looked at for the one that it follows.
_ENDED_TOGETHER = 8
#: What begins on the device when something ends may seem to begin this much sooner, ns: times are rounded. A script
#: that rewrites a trace keeps µs since 1970 as a double, to 250 ns.
_ROUNDED_NS = 500
#: The most launches in a row: few enough that the queue never blocks a row for what the row itself launched.
_LAUNCHES_A_ROW = 128


class DeviceWork(msgspec.Struct, frozen=True, eq=False):
    """A rank's device events except collectives, in order of their starts; shape (events,)."""

    start_ns: Ints
    end_ns: Ints
    #: When the event was launched: the end of the launch call, or its start if the call waits for the event; -1 if
    #: unknown.
    launched_ns: Ints
    stream: Ints


class Communication(msgspec.Struct, frozen=True, eq=False):
    """A rank's collectives, in the order of its `Collectives`; shape (C,)."""

    start_ns: Ints
    end_ns: Ints
    #: When it was launched, -1 if unknown.
    launched_ns: Ints
    stream: Ints
    #: Whether the host that launches it waits for what it writes, in no call that is recorded.
    is_polled: Flags


class Meetings(msgspec.Struct, frozen=True, eq=False):
    """When the host enters and leaves collectives that it carries out itself; shape (H,)."""

    start_ns: Ints
    end_ns: Ints


NO_MEETINGS = Meetings(np.empty(0, np.int64), np.empty(0, np.int64))


class HostTime(msgspec.Struct, frozen=True, eq=False):
    """What the host spends its time on."""

    #: For each `CpuTime` up to OVERHEAD, when the host spends time on it; no two of these overlap.
    by_kind: tuple[Intervals, ...]
    #: When the launch queue is full; overlaps none of `by_kind`.
    full_queue: Intervals
    #: Starts of the events that the profiler records, ascending.
    recorded_ns: Ints
    #: How long the profiler takes to record one of them.
    recording_ns: int


class _Rows(msgspec.Struct, frozen=True, eq=False):
    """Where the host's time is cut; shape (rows,)."""

    begin_ns: Ints
    #: When the host has issued all that the row launches.
    issued_ns: Ints
    end_ns: Ints
    #: As the columns of `Track`.
    blocked_by: Indices
    launches: CollectiveRow
    awaits: CollectiveRow


class _Needs(msgspec.Struct, frozen=True, eq=False):
    """The device's work for each row; shape (rows,)."""

    #: When it was done.
    done_ns: Ints
    #: As the columns of `Track`.
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
) -> tuple[Track, Ints]:
    """Cut a rank's steps into rows, and say when each row ends on the host, shape (rows,).

    `steps` has at least one step. `phases` is when the host is in each `Phase` up to OTHER, in that order; without them
    all rows are in OTHER. Times are ns on the rank's own clock.
    """
    rows = _cut(steps, device, communication, host, meetings)
    needs = _needs(rows, device, communication, int(steps.start_ns[0]))
    full = host.full_queue.measure(rows.begin_ns, rows.issued_ns)
    blocked = ends_with.Blocked(rows.issued_ns, rows.end_ns, rows.blocked_by)
    waits = blocked.in_a_call & (needs.done_ns > rows.issued_ns) & (needs.done_ns <= blocked.latest_ns)
    queue = _queued(rows, waits, needs, device, communication, host.full_queue, int(steps.start_ns[0]))
    queue = _with_meetings(queue, rows, waits, meetings, len(communication.end_ns))
    full = np.where(queue.blocks, full, 0)
    spent = np.column_stack([stretches.measure(rows.begin_ns, rows.issued_ns) for stretches in host.by_kind])
    work = np.maximum(rows.issued_ns - rows.begin_ns - full - spent.sum(axis=1), 0)
    count = searchsorted(host.recorded_ns, rows.issued_ns) - searchsorted(host.recorded_ns, rows.begin_ns)
    recording = np.minimum(count * host.recording_ns, work)
    ready = _readiness(rows, needs, communication)
    rank_track = Track(
        step=StepRow((searchsorted(steps.host_start_ns, rows.begin_ns, side="right") - 1).astype(np.int32)),
        host=_host_times(np.column_stack((spent, recording, work - recording))),
        phase=_phase(rows, phases),
        blocked_by=rows.blocked_by,
        blocked_ns=np.where(queue.syncs, 0, rows.end_ns - np.where(waits, needs.done_ns, rows.issued_ns)),
        waits=waits,
        queue_row=queue.row,
        queue_tail_ns=queue.tail_ns,
        queue_part=queue.part,
        queue_ns=queue.ns,
        synced=queue.syncs,
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
    return rank_track, rows.end_ns


def _host_times(host_ns: Ints) -> HostTimes:
    """The times that are not zero, of a table of shape (rows, len(CpuTime))."""
    kind, row = np.nonzero(host_ns.T)
    return HostTimes(kind.astype(np.int32), TrackRow(row.astype(np.int32)), host_ns[row, kind])


def _phase(rows: _Rows, phases: Sequence[Intervals]) -> Indices:
    """The `Phase` in which the host is for most of each row, shape (rows,)."""
    begin, end = rows.begin_ns, np.maximum(rows.begin_ns + 1, rows.end_ns)
    each = [phase.measure(begin, end) for phase in phases] or [np.zeros(len(begin), np.int64)] * Phase.OTHER
    # What lies outside of all phases is other.
    other = end - begin - np.sum(each, axis=0)
    most: Indices = np.stack([*each, other], axis=1).argmax(axis=1).astype(np.int32)
    return most


def _long_stalls(blocked: ends_with.Blocked, origin: int) -> Ints:
    """Where long stalls begin: what other ranks wait for was done before one, not when it is over."""
    long = (blocked.kind == CpuTime.STALL) & (blocked.end_ns - blocked.start_ns >= LONG_STALL_NS)
    begins: Ints = blocked.start_ns[long & (blocked.start_ns > origin)]
    return begins


def _cut(steps: Steps, device: DeviceWork, communication: Communication, host: HostTime, meetings: Meetings) -> _Rows:
    """Cut the host's time into rows.

    A row ends where a blocking call or a step ends, where a collective is launched, before a kernel is launched that
    awaits a collective, after device work that a collective awaits, and after `_LAUNCHES_A_ROW` launches. So all that
    was launched before a collective is in that collective's row or earlier, and a kernel that awaits a collective is
    the first one of its row: of cuts at one time, its cut is the last.
    """
    origin, until = int(steps.host_start_ns[0]), _until(steps, host)
    blocked = _longest_blocked(host, origin, until, len(steps))
    gate, gate_at = _gate_cuts(device, communication, blocked, origin, until)
    launched = np.flatnonzero((communication.launched_ns >= origin) & (communication.launched_ns < until))
    launches_ns = np.sort(device.launched_ns[(device.launched_ns >= origin) & (device.launched_ns < until)])
    ends, places = _sorted_cuts(
        (
            blocked.end_ns,
            _step_ends(steps, until, blocked),
            communication.launched_ns[launched],
            launches_ns[_LAUNCHES_A_ROW - 1 :: _LAUNCHES_A_ROW],
            meetings.start_ns,
            _unblocked(host.full_queue, blocked.start_ns, origin),
            _long_stalls(blocked, origin),
            _arrival_cuts(device, communication, origin, until),
            gate_at,
        )
    )
    of_blocked, _, of_launches, _, of_meetings, _, _, _, of_gates = places
    begins = np.concatenate(([origin], ends[:-1]))
    issued = ends.copy()
    issued[of_blocked] = np.maximum(blocked.start_ns, begins[of_blocked])
    blocked_by, launches, awaits = (np.full(len(ends), -1, np.int32) for _ in range(3))
    blocked_by[of_blocked] = blocked.kind
    launches[of_launches] = launched
    launches[of_meetings] = len(communication.end_ns) + np.arange(len(of_meetings))
    followed = of_gates + 1 < len(ends)
    awaits[of_gates[followed] + 1] = gate[followed]
    return _Rows(begins, issued, ends, blocked_by, CollectiveRow(launches), CollectiveRow(awaits))


def _arrival_cuts(device: DeviceWork, communication: Communication, origin: int, until: int) -> Ints:
    """When the host launches the next device event after one at whose end a collective begins, each once, ns.

    A collective may wait for part of what was launched before it:

        stream 40  [copy..............][copy of the next batch...]    both launched before the all-to-all
        stream 22                      [all-to-all...]

    With a cut between the two copies, the collective needs the row of the first (`_readiness`); in one row, its wait
    would be a delay of its own, which nothing shortens.
    """
    within = (device.launched_ns >= origin) & (device.launched_ns < until)
    launched, end = device.launched_ns[within], device.end_ns[within]
    order = np.lexsort((end, launched))
    launched, done = launched[order], np.maximum.accumulate(end[order])
    following = searchsorted(done, communication.start_ns + _ROUNDED_NS, side="right")
    partly = (following > 0) & (following < len(done))
    following, arrival, called = following[partly], communication.start_ns[partly], communication.launched_ns[partly]
    begins = (arrival - done[following - 1] <= LATENCY_NS) & (launched[following] < called)
    begins &= arrival - np.maximum(called, _freed(communication)[partly]) > LATENCY_NS
    # There is a cut between the two already where a collective is launched, and none where one call launches both.
    calls = np.sort(communication.launched_ns)
    before, after = launched[following - 1], launched[following]
    together = (before < after) & (searchsorted(calls, before) == searchsorted(calls, after))
    return np.unique(after[begins & together])


def _sorted_cuts(cuts: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """All cuts by time, and for each kind of cut the places of its cuts among them.

    Cuts at the same time stay in the order of their kinds.
    """
    ends = np.concatenate(cuts)
    order = np.argsort(ends, kind="stable")
    place = np.empty(len(ends), np.int64)
    place[order] = np.arange(len(ends))
    return ends[order], np.split(place, np.cumsum([len(cut) for cut in cuts])[:-1])


def _gate_cuts(
    device: DeviceWork, communication: Communication, blocked: ends_with.Blocked, origin: int, until: int
) -> tuple[Ints, Ints]:
    """Collectives that something waits for, and when the host launches that or begins to wait, ns.

    Kernels wait for collectives (`_gates`), and so do calls that block the host.
    """
    gated, gate = _gates(device, communication)
    gate_at = device.launched_ns[gated]
    within = (gate_at >= origin) & (gate_at < until)
    waiting, awaited = ends_with.collectives(blocked, communication.launched_ns, communication.end_ns)
    return np.append(gate[within], awaited), np.append(gate_at[within], blocked.start_ns[waiting])


def _step_ends(steps: Steps, until: int, blocked: ends_with.Blocked) -> Ints:
    """When each step ends on the host, ns; a step that ends within a blocking call ends when that call does.

    So no call is cut in two: its first half would wait for nothing. Steps without device events are not in `steps`:
    the time between two steps belongs to the earlier one.
    """
    ends: Ints = np.append(steps.host_start_ns[1:], until)
    if not len(blocked.end_ns):
        return ends
    within = np.minimum(searchsorted(blocked.end_ns, ends), len(blocked.end_ns) - 1)
    return np.where(blocked.start_ns[within] < ends, np.maximum(ends, blocked.end_ns[within]), ends)


def _unblocked(full: Intervals, blocked_ns: Ints, origin: int) -> Ints:
    """The times at which the full launch queue last blocked the host for long before each blocking call, each once, ns.

    `blocked_ns` is when these calls begin. A row waits for one thing on the device: a row whose end waits cannot wait
    for a place in the queue, too. So there is a cut between the two.
    """
    long = full.end - full.start >= _SHORTEST_BLOCK_NS
    ends = full.end[long & (full.end > origin)]
    before = searchsorted(ends, blocked_ns, side="right") - 1
    return np.unique(ends[before[before >= 0]])


def _until(steps: Steps, host: HostTime) -> int:
    """End of the last step on the host, ns.

    If the step ends within a blocking call, the end of that call, so that the call is not cut in two.
    """
    end = int(steps.host_end_ns[-1])
    within = [calls.end[(calls.start < end) & (calls.end > end)] for calls in host.by_kind[: CpuTime.INPUT]]
    return int(np.concatenate(within).max(initial=end))


def _longest_blocked(host: HostTime, origin: int, until: int, steps: int) -> ends_with.Blocked:
    """The longest stretches that block the host from `origin` to `until`, by time: at most `_BLOCKS_A_STEP` a step, or
    `_FEWEST_BLOCKS` in all.
    """
    start, end, kind, _ = partition(host.by_kind[: CpuTime.OVERHEAD], np.array([origin, until]))
    long = (kind < CpuTime.OVERHEAD) & (end - start >= _SHORTEST_BLOCK_NS)
    start, end, kind = start[long], end[long], kind[long]
    most = max(_BLOCKS_A_STEP * steps, _FEWEST_BLOCKS)
    longest = np.sort(np.argsort(start - end, kind="stable")[:most])
    return ends_with.Blocked(start[longest], end[longest], kind[longest])


def _gates(device: DeviceWork, communication: Communication) -> tuple[Ints, Ints]:
    """Device events that had to wait for a collective, and that collective; for each collective its first such event.

    An event had to wait in two cases:

    1. The whole device is idle, a collective ends in the gap, and the event ends the gap.
    2. The event's own stream is idle although the event is launched, and the collective is the last on other streams
       to end meanwhile:

        stream 7   [gemm.........][gemm.........][gemm...
        stream 20  [all-to-all........]
        stream 48   ^launched          [cat..]           cat awaits the all-to-all, beside the gemms
    """
    nothing = np.empty(0, np.int64)
    if not len(communication.end_ns):
        return nothing, nothing
    busy = Intervals.union(device.start_ns, device.end_ns)
    ending = searchsorted(device.start_ns, busy.start[1:])
    by_gap = ends_with.last_to_end(communication.end_ns, busy.end[:-1], busy.start[1:] + _ROUNDED_NS)
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
    """Device events whose stream is idle although they are launched, and the last collective to end meanwhile.

    -1 instead of a collective if none ends, or if other work ends even later: the event rather waits for that work.
    """
    order = np.lexsort((device.start_ns, device.stream))
    follows = np.diff(device.stream[order], prepend=-1) == 0
    before = np.append(LONG_AGO, device.end_ns[order][:-1])
    could_start = np.maximum(device.launched_ns[order], np.where(follows, before, LONG_AGO))
    waited = np.flatnonzero((device.launched_ns[order] >= 0) & (device.start_ns[order] - could_start > LATENCY_NS))
    event, since = order[waited], could_start[waited]
    collective = ends_with.last_to_end(communication.end_ns, since, device.start_ns[event] + _ROUNDED_NS)
    work = ends_with.last_to_end(device.end_ns, since, device.start_ns[event])
    later = (work >= 0) & (collective >= 0) & (device.end_ns[work] > communication.end_ns[collective])
    return event, np.where(later, -1, collective)


class _RowEvents(msgspec.Struct, frozen=True, eq=False):
    """The device events that the rows launch, by row and start; shape (events,) unless a comment says more."""

    row: Ints
    start_ns: Ints
    end_ns: Ints
    #: When the event could have started by its launch.
    arrived_ns: Ints
    #: The first event of each row, shape (rows,).
    first: Ints
    #: The last event of each row; less than `first` in rows without events, shape (rows,).
    last: Ints

    @property
    def filled(self) -> Flags:
        """Flags the rows that launch events, shape (rows,)."""
        return self.last >= self.first


class _Gates(msgspec.Struct, frozen=True, eq=False):
    """The collectives that rows await; shape (rows,)."""

    #: When the row's first event may start after the collective, `LONG_AGO` if the row awaits none.
    open_ns: Ints
    #: As the columns of `Track`.
    delay_ns: Ints
    awaits_for_certain: Flags


def _row_events(rows: _Rows, device: DeviceWork) -> _RowEvents:
    """The device events that the rows launch."""
    size = len(rows.end_ns)
    row = searchsorted(rows.end_ns, device.launched_ns, side="right")
    chosen = np.flatnonzero((device.launched_ns >= rows.begin_ns[0]) & (row < size))
    chosen = chosen[np.lexsort((device.start_ns[chosen], row[chosen]))]
    row = row[chosen]
    return _RowEvents(
        row=row,
        start_ns=device.start_ns[chosen],
        end_ns=device.end_ns[chosen],
        arrived_ns=device.launched_ns[chosen] + LATENCY_NS,
        first=searchsorted(row, np.arange(size)),
        last=searchsorted(row, np.arange(size), side="right") - 1,
    )


def _row_gates(rows: _Rows, events: _RowEvents, communication: Communication) -> _Gates:
    """What the collectives that rows await mean for the rows' first events."""
    size, gated = len(rows.end_ns), rows.awaits >= 0
    awaited = np.full(size, LONG_AGO)
    awaited[gated] = communication.end_ns[rows.awaits[gated]]
    opening = np.flatnonzero(gated & events.filled)
    start, arrived = events.start_ns[events.first[opening]], events.arrived_ns[events.first[opening]]
    # An event that starts later than this after its collective was late because of its own launch.
    delay = np.zeros(size, np.int64)
    delay[opening] = np.clip(start - awaited[opening], -_ROUNDED_NS, LATENCY_NS)
    # An event that starts as soon as its launch arrives may start right after the collective by chance.
    certain = np.zeros(size, np.bool_)
    certain[opening] = (delay[opening] < LATENCY_NS) & (start > arrived)
    return _Gates(np.where(gated, awaited + delay, LONG_AGO), delay, certain)


def _needs(rows: _Rows, device: DeviceWork, communication: Communication, origin: int) -> _Needs:
    """How long the device needs for each row; `origin` is when it had done all work of earlier steps, ns.

    1. A gap before an event counts as idle for want of a launch until that launch has had time to arrive.
    2. `device_ns` is the time from when the device could begin the row to when it is done, without such idle time.
    3. `lead_ns` ties the device to the host. In a row with such gaps it is the time from the row's issue to the end of
       its work; in a row without, less by the least slack of its events: the host could have come so much later.
    """
    events = _row_events(rows, device)
    gates = _row_gates(rows, events, communication)
    size, filled = len(rows.end_ns), events.filled
    row, start, end = events.row, events.start_ns, events.end_ns
    gate_of_event = np.full(len(row), LONG_AGO)
    gate_of_event[events.first[filled]] = gates.open_ns[filled]
    reach = np.maximum.accumulate(np.concatenate(([origin], np.maximum(end, gate_of_event))))
    idle = np.maximum(np.minimum(start, events.arrived_ns) - np.maximum(reach[:-1], gate_of_event), 0)
    # When the device is done with the rows before, and the collective is over.
    base = np.maximum(reach[np.minimum(events.first, len(reach) - 1)], gates.open_ns)
    beside = start < base[row]
    slack = np.full(size, -LONG_AGO)
    # An event that ends while earlier work still runs, as a copy on a stream of its own, does not bind that work.
    lasts = np.flatnonzero(~beside & (end > reach[:-1]))
    np.minimum.at(slack, row[lasts], np.maximum(start - events.arrived_ns, 0)[lasts])
    lost = summed(row, idle, size)
    late = np.flatnonzero(idle)
    fed_from = np.full(size, LONG_AGO)
    np.maximum.at(fed_from, row[late], start[late])
    done = np.where(filled, 0, gates.open_ns)
    done[filled] = reach[events.last[filled] + 1]
    done = np.maximum.accumulate(np.maximum(done, origin))
    before = np.concatenate(([origin], done[:-1]))
    bound = filled & (slack < -LONG_AGO)
    lead = np.where(bound, done - rows.issued_ns - np.where(lost > 0, 0, slack), LONG_AGO)
    return _Needs(
        done_ns=done,
        device_ns=np.maximum(done - np.maximum(before, gates.open_ns) - lost, 0),
        lead_ns=np.maximum(lead, _lead_beside(events, beside, rows.issued_ns)),
        delay_ns=gates.delay_ns,
        awaits_for_certain=gates.awaits_for_certain,
        fed_ns=np.where(lost > 0, done - fed_from, -1),
    )


def _lead_beside(events: _RowEvents, beside: Flags, issued: Ints) -> Ints:
    """How long after each row's issue its events are done that run beside earlier rows' work on another stream, ns.

    `beside` flags these events, shape (events,): they start before the device is done with the rows before. The launch
    of an event binds it and the events that follow without a gap: after a gap, events waited for something else.
    `issued` is when the rows are issued, shape (rows,), as is the result; `LONG_AGO` in a row without such events.
    """
    row, start, end = events.row[beside], events.start_ns[beside], events.end_ns[beside]
    lead = np.full(len(issued), LONG_AGO)
    if not len(row):
        return lead
    # The latest end so far within each row: ends are numbered by size, plus an offset that grows from row to row, so
    # that one running maximum over all rows begins anew in each row.
    by_end = np.argsort(end, kind="stable")
    place = np.empty(len(end), np.int64)
    place[by_end] = np.arange(len(end))
    in_row = np.cumsum(np.diff(row, prepend=row[0]) != 0) * len(end)
    reach = end[by_end[np.maximum.accumulate(place + in_row) - in_row]]
    chains = np.flatnonzero(np.append(True, (np.diff(row) != 0) | (start[1:] > reach[:-1] + LATENCY_NS)))
    slack = np.minimum.reduceat(np.maximum(start - events.arrived_ns[beside], 0), chains)
    bound = np.maximum.reduceat(end, chains) - slack - issued[row[chains]]
    np.maximum.at(lead, row[chains], bound)
    return lead


class _Queued(msgspec.Struct, frozen=True, eq=False):
    """What each row waits for on the device; shape (rows,)."""

    #: As the columns `queue_row`, `queue_tail_ns`, `queue_part` and `queue_ns` of `Track`.
    row: TrackRow
    tail_ns: Ints
    part: CollectiveRow
    ns: Ints
    #: Whether the full launch queue blocked the row in the record.
    blocks: Flags
    #: Whether the call at the row's end waited for `row` or `part`, as `Track.synced`.
    syncs: Flags


class _Work(msgspec.Struct, frozen=True, eq=False):
    """Device events and, after them, collectives; shape (N,)."""

    launched_ns: Ints
    end_ns: Ints
    #: Row in `Collectives`, -1 for other device events.
    part: Ints
    is_polled: Flags


def _queued(
    rows: _Rows,
    waits: Flags,
    needs: _Needs,
    device: DeviceWork,
    communication: Communication,
    full: Intervals,
    origin: int,
) -> _Queued:
    """What has to leave the launch queue before each row is issued, or be over before the row's end.

    `full` is when the launch queue is full, `waits` as in `Track`, `origin` as for `_needs`. A row waits for one event:
    the one that blocked it in the record (`_blocking_events`), else the launch a queue's length before its last one,
    which left the queue in time (`_a_queue_before`).
    """
    work = _Work(
        np.concatenate((device.launched_ns, communication.launched_ns)),
        np.concatenate((device.end_ns, communication.end_ns)),
        np.concatenate((np.full(len(device.end_ns), -1), np.arange(len(communication.end_ns)))),
        np.concatenate((np.zeros(len(device.end_ns), np.bool_), communication.is_polled)),
    )
    if not len(work.end_ns):
        return _unqueued(len(rows.end_ns))
    event, blocks, syncs = _blocking_events(rows, waits, work, full)
    event = np.where(blocks | syncs, event, _a_queue_before(rows, work))

    of_row = searchsorted(rows.end_ns, work.launched_ns[event], side="right")
    before = (event < 0) | (work.launched_ns[event] < rows.begin_ns[0])
    by_row = ~before & (work.part[event] < 0) & (of_row < np.arange(len(of_row)))
    by_part = ~before & (work.part[event] >= 0)
    before &= blocks | syncs
    since = np.where(before, origin, work.end_ns[event])
    known = before | by_row | by_part
    blocks, syncs = blocks & known, syncs & known
    slack = np.where(syncs, rows.end_ns, rows.issued_ns) - since
    row = np.where(by_row, of_row, np.where(before, BEFORE, -1)).astype(np.int32)
    return _Queued(
        row=TrackRow(row),
        tail_ns=np.where(by_row, needs.done_ns[np.maximum(row, 0)] - since, 0),
        part=CollectiveRow(np.where(by_part, work.part[event], -1).astype(np.int32)),
        ns=np.where(blocks | syncs, slack, np.where(known, np.minimum(slack, 0), 0)),
        blocks=blocks,
        syncs=syncs,
    )


def _blocking_events(rows: _Rows, waits: Flags, work: _Work, full: Intervals) -> tuple[Ints, Flags, Flags]:
    """The event that blocked each row, whether the full queue blocked the row, and whether a call at its end did.

    - A call that does not wait for all that was launched (`waits`) may end with one event: it waits for that one. So
      does a host that is outside of any op until a collective ends, in a call that is not recorded.
    - Else, if the launch queue was full, the row waited for the last event that was over when the queue had a place.

    All of the shape (rows,); the event is meaningless where neither is the case.
    """
    blocked = ends_with.Blocked(rows.issued_ns, rows.end_ns, rows.blocked_by)
    synced = np.where(
        waits, -1, ends_with.events(blocked, work.launched_ns, work.end_ns, work.part >= 0, work.is_polled)
    )
    syncs = synced >= 0
    if not len(full):
        return synced, np.zeros(len(syncs), np.bool_), syncs
    unblocked = searchsorted(full.end, rows.issued_ns, side="right") - 1
    blocks = (unblocked >= 0) & (full.end[unblocked] > rows.begin_ns) & ~syncs
    always = np.full(len(syncs), LONG_AGO)
    queued = ends_with.last_to_end(work.end_ns, always, full.end[unblocked] + _SLACK_NS)
    return np.where(syncs, synced, queued), blocks, syncs


def _a_queue_before(rows: _Rows, work: _Work) -> Ints:
    """The event that was launched a queue's length before the last launch of each row, shape (rows,).

    -1 for a row that launches nothing, and where fewer launches come before it.
    """
    # One call may launch many events, as a graph does: only the last of them counts.
    order = np.lexsort((work.end_ns, work.launched_ns))
    order = order[np.diff(work.launched_ns[order], append=np.iinfo(np.int64).max) > 0]
    order = order[work.launched_ns[order] >= rows.begin_ns[0]]
    unrecorded = np.sort(work.end_ns[work.launched_ns < rows.begin_ns[0]])
    issued = searchsorted(work.launched_ns[order], rows.issued_ns, side="right")
    done = searchsorted(np.sort(np.concatenate((unrecorded, work.end_ns[order]))), rows.issued_ns, side="right")
    in_flight = len(unrecorded) + issued - done
    behind = issued - 1 - max(CAPACITY, int(in_flight.max(initial=0)))
    launches = (np.diff(issued, prepend=0) > 0) & (behind >= 0)
    event = np.full(len(issued), -1)
    event[launches] = order[behind[launches]]
    return event


def _with_meetings(queue: _Queued, rows: _Rows, waits: Flags, meetings: Meetings, first: int) -> _Queued:
    """What each row waits for, with the collectives of the host that its stalls end with.

    These are the parts from `first` on. A stall that ends right after such a collective waited for it.
    """
    stretch = (rows.blocked_by == CpuTime.STALL) | (rows.blocked_by == CpuTime.OP_STALL)
    last = ends_with.last_to_end(meetings.end_ns, rows.issued_ns, rows.end_ns + _SLACK_NS)
    leaves = stretch & ~waits & (last >= 0)
    leaves[leaves] = rows.end_ns[leaves] - meetings.end_ns[last[leaves]] < _LEAVES_NS
    if not leaves.any():
        return queue
    return _Queued(
        row=TrackRow(np.where(leaves, -1, queue.row).astype(np.int32)),
        tail_ns=np.where(leaves, 0, queue.tail_ns),
        part=CollectiveRow(np.where(leaves, first + last, queue.part).astype(np.int32)),
        ns=np.where(leaves, rows.end_ns - meetings.end_ns[last], queue.ns),
        blocks=queue.blocks & ~leaves,
        syncs=queue.syncs | leaves,
    )


def _unqueued(size: int) -> _Queued:
    """Rows that wait for nothing."""
    none, never, zero = np.full(size, -1, np.int32), np.zeros(size, np.bool_), np.zeros(size, np.int64)
    return _Queued(TrackRow(none), zero, CollectiveRow(none), zero, never, never)


class _Ready(msgspec.Struct, frozen=True, eq=False):
    """What a collective waits for, for each row that launches one; shape (rows,)."""

    #: As the columns `after`, `follows`, `needs` and `ready_ns` of `Track`.
    after: CollectiveRow
    follows: CollectiveRow
    needs: TrackRow
    ns: Ints


def _readiness(rows: _Rows, needs: _Needs, communication: Communication) -> _Ready:
    """What each launched collective waits for before it arrives.

    1. The collective before it on its stream (`after`).
    2. The device work of its own row (`needs`), if that was done when the collective arrived.
    3. A collective on another stream that ended right before it arrived, if all else was over earlier (`follows`).
    4. If it arrived later than all this explains: the last row whose device work was done by then (`needs`).

    `ready_ns` is how long after all of these, and its launch, it arrives.
    """
    size = len(rows.launches)
    after, followed, needed = (np.full(size, -1, np.int32) for _ in range(3))
    ready = np.zeros(size, np.int64)
    launching = np.flatnonzero((rows.launches >= 0) & (rows.launches < len(communication.end_ns)))
    which = rows.launches[launching]
    before = _before(communication)[which]
    arrival, done = communication.start_ns[which], needs.done_ns[launching]
    freed = _freed(communication)[which]
    earliest = np.maximum(rows.end_ns[launching], freed)
    last = np.minimum(searchsorted(needs.done_ns, arrival + _ROUNDED_NS, side="right") - 1, launching)
    awaits_all = done <= arrival + _ROUNDED_NS
    earliest = np.where(awaits_all, np.maximum(earliest, done), earliest)
    follows = _followed(which, earliest, communication)
    earliest = np.where(follows >= 0, communication.end_ns[follows], earliest)
    awaits_some = ~awaits_all & (last >= 0) & (arrival - earliest > LATENCY_NS)
    needed[launching] = np.where(awaits_all, launching, np.where(awaits_some, last, -1))
    earliest = np.where(awaits_some, np.maximum(earliest, needs.done_ns[last]), earliest)
    after[launching] = before
    followed[launching] = follows
    ready[launching] = arrival - earliest
    return _Ready(CollectiveRow(after), CollectiveRow(followed), TrackRow(needed), ready)


def _before(communication: Communication) -> Indices:
    """The collective before each on its stream, -1 for the first, which may wait for one launched before the record."""
    order = np.lexsort((communication.start_ns, communication.stream))
    chained = np.append(np.zeros(min(len(order), 1), np.bool_), np.diff(communication.stream[order]) == 0)
    before: Indices = np.full(len(order), -1, np.int32)
    before[order[chained]] = order[np.flatnonzero(chained) - 1]
    return before


def _freed(communication: Communication) -> Ints:
    """When each collective's stream is free, ns; `LONG_AGO` for the first of a stream."""
    before = _before(communication)
    freed: Ints = np.where(before >= 0, communication.end_ns[before], LONG_AGO)
    return freed


def _followed(which: Indices, earliest: Ints, communication: Communication) -> Indices:
    """For each of some collectives, the collective on another stream that ended right before it arrived, -1 if none.

    `which` are these collectives, `earliest` is when each could have begun otherwise, ns. The other collective was
    launched earlier, and ended after `earliest`. Of several it is the one launched last: an AllReduce follows the
    reduce-scatter whose result it sums, and not the all-gather that ended with that.

        stream 20  [all-gather........]                   launched third
        stream 21  [reduce-scatter....]                   launched first
        stream 24                      [all-reduce...]    launched second: follows the reduce-scatter
    """
    followed: Indices = np.full(len(which), -1, np.int32)
    known = np.flatnonzero(communication.launched_ns >= 0)
    order = known[np.argsort(communication.end_ns[known], kind="stable")]
    if not len(order) or not len(which):
        return followed
    arrival, launched = communication.start_ns[which], communication.launched_ns[which]
    since = np.maximum(earliest, arrival - LATENCY_NS - 1)
    latest = np.full(len(which), -1, np.int64)
    at = searchsorted(communication.end_ns[order], arrival + _ROUNDED_NS, side="right") - 1
    some = np.flatnonzero(at >= 0)
    for back in range(_ENDED_TOGETHER):
        some = some[at[some] >= back]
        ended = order[at[some] - back]
        recent = communication.end_ns[ended] > since[some]
        some, ended = some[recent], ended[recent]
        if not len(some):
            break
        issued = communication.launched_ns[ended]
        follows = (communication.stream[ended] != communication.stream[which[some]]) & (issued <= launched[some])
        follows &= issued > latest[some]
        followed[some[follows]] = ended[follows]
        latest[some[follows]] = issued[follows]
    return followed
