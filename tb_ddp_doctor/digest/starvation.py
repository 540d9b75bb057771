"""Why the device idles for want of launches: a replay of the host running ahead.

A gap on the device is *starved* until the event that ends it is launched and has had time to arrive: had the host
come earlier, the gap would be shorter. The rest of it, and all of a gap whose event was launched well before, is the
device's own (dependencies between streams, the start of a kernel), and no host could close it.

A call that holds the host takes away the lead that the host would have had: the starvation that follows it, in its
own step or in a later one, is its cost, not only the idle time within the call. So the replay takes the calls of a
kind out and lets the host come earlier by their length, its lead. The n-th gap g[n] shrinks by as much of the lead
L[n] as earlier gaps have not used: in all, D[n] = min(D[n-1] + g[n], L[n]), which is
G[n] + min(0, min(L[k] - G[k], k <= n)) with G the sum of the gaps. Kinds are taken out one after the other, in the
order of `Starved`; each is charged with what it closes beyond those before it, so that no nanosecond is charged twice.
What no kind closes is the launches' own.

Idle time in the DataLoader, or with the host outside any op or stalled inside one for long, uses up lead but is charged
to no kind here: other rules own it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.collectives import Vocabulary
from tb_ddp_doctor.digest.frames import own_function
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals
from tb_ddp_doctor.digest.launch_queue import full_queue, profiler_stalls
from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import Blocking, Starved, Steps
from tb_ddp_doctor.digest.track import HostTime
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Events, Ints, RankTrace

#: From a launch to its kernel's start on an empty device, at most, ns: 5 to 10 us were measured while traced.
LATENCY_NS = 20_000
#: From here on a stretch with the host outside operators is a stall; below, it is Python between two operators, ns.
LONG_STALL_NS = 1_000_000
#: What recording one host event costs, ns, by how long a launch call takes while traced. Measured on ten jobs whose
#: steps were also timed untraced: 0.5 us where the median launch takes 6 us, 3 us from 7.4 us on, unlike by rank.
_RECORDING_NS = (400, 4_000)
_QUICK_LAUNCH_NS = 6_000
_RECORDING_BY_LAUNCH = 1.8

_HELD = (Starved.ALLOC, Starved.COPY, Starved.SYNC)


@dataclass(frozen=True)
class _Gaps:
    """Starved stretches of the device, cut at the edges of steps, by time; shape (gaps,)."""

    start_ns: Ints
    end_ns: Ints
    step: Ints
    #: The most that may be charged here: its length without loading and stalls.
    chargeable_ns: Ints


@dataclass(frozen=True)
class _Calls:
    """Calls that hold the host, by start; shape (calls,)."""

    row: Ints
    kind: Ints
    #: The time that it takes the host: of the whole operator where that only reads a value.
    start_ns: Ints
    end_ns: Ints
    #: Row of the operator that encloses it; -1 outside of all.
    op: Ints


def starvation(
    trace: RankTrace,
    layers: owners.Layers,
    op_stalls: Intervals,
    steps: Steps,
    rows: Ints,
    launch: Ints,
    words: Vocabulary,
) -> tuple[NDArray[np.int64], Blocking]:
    """Starvation of each step by its cause, shape (S, len(Starved)), and the calls that hold the host.

    `op_stalls` is when the host is stalled inside an op; `rows` are the device's events, `launch` the row of each one's
    launch, or -1.
    """
    charged = np.zeros((len(steps), len(Starved)), np.int64)
    if not len(steps) or not len(rows):
        return charged, no_blocking()
    events = trace.events
    gaps = _gaps(events, layers, op_stalls, steps, rows, launch)
    launched = launch[launch >= 0]
    last = min(int(events.start_ns[launched].max(initial=0)), int(steps.host_end_ns[-1]))
    calls = _calls(trace, steps, last, rows, launch)
    stalls = _stalls(trace, full_queue(trace, rows, launch))
    credit_ns = _replay(trace, steps, gaps, calls, stalls, recording_ns(trace, launch))
    for kind, credit in enumerate(credit_ns.T):
        np.add.at(charged[:, kind], gaps.step, credit)
    lost, until = _by_call(gaps, calls, credit_ns)
    return charged, _blocking(trace, calls, lost, until, words)


def _gaps(events: Events, layers: owners.Layers, op_stalls: Intervals, steps: Steps, rows: Ints, launch: Ints) -> _Gaps:
    busy = layers.compute | layers.copy | layers.communication
    order = np.argsort(events.start_ns[rows], kind="stable")
    starts, launches = events.start_ns[rows][order], launch[order]
    idle = Intervals.span(int(steps.start_ns[0]), int(steps.end_ns[-1])) - busy
    ends_it = np.searchsorted(starts, idle.end)
    known = ends_it < len(starts)
    by = np.where(known, launches[np.minimum(ends_it, len(starts) - 1)], -1)
    arrives = np.where(by >= 0, events.start_ns[by] + events.duration_ns[by] + LATENCY_NS, idle.start)
    starved = Intervals.union(idle.start, np.minimum(idle.end, arrives))
    stalled = starved - (layers.input | layers.sync | layers.alloc | layers.dispatch)
    long = stalled.end - stalled.start >= LONG_STALL_NS
    others = layers.input | Intervals(stalled.start[long], stalled.end[long]) | op_stalls
    edges = np.concatenate((steps.start_ns, steps.end_ns))
    points = np.unique(np.concatenate((starved.start, starved.end, edges)))
    start, end = points[:-1], points[1:]
    step = np.searchsorted(steps.start_ns, start, side="right") - 1
    keep = starved.covers(start) & (step >= 0)
    keep &= start < steps.end_ns[np.maximum(step, 0)]
    start, end, step = start[keep], end[keep], step[keep]
    return _Gaps(start, end, step, end - start - others.measure(start, end))


def _calls(trace: RankTrace, steps: Steps, until_ns: int, rows: Ints, launch: Ints) -> _Calls:
    """Calls of the training threads that hold the host, from the first recorded step to some instant.

    The last launch is such an instant: what comes after delays nothing in the record. The copies to the device from
    pageable memory, and the synchronisation that follows each within its operator, are a kind of their own: pinned
    memory takes both away.
    """
    events = trace.events
    training = owners.training_threads(trace)
    runtime = (events.category == Category.RUNTIME) & training
    kind = np.full(len(events), -1, np.int8)
    kind[runtime & owners.named(trace, names.is_sync)] = Starved.SYNC
    kind[runtime & owners.named(trace, names.is_alloc)] = Starved.ALLOC
    copies = (events.category[rows] == Category.MEMCPY) & (launch >= 0)
    pageable = copies & owners.named(trace, lambda name: names.host_memory(name) is names.HostMemory.PAGEABLE)[rows]
    to_device = pageable & owners.named(trace, names.is_to_device)[rows]
    kind[launch[pageable]] = Starved.SYNC
    kind[launch[to_device]] = Starved.COPY
    held = np.flatnonzero((kind >= 0) & (events.start_ns >= steps.host_start_ns[0]) & (events.start_ns < until_ns))
    held = held[np.argsort(events.start_ns[held], kind="stable")]
    operators = np.flatnonzero((events.category == Category.OP) & training)
    within = enclosing(
        events.start_ns[operators],
        events.start_ns[operators] + events.duration_ns[operators],
        events.thread[operators],
        events.start_ns[held],
        events.thread[held],
    )
    op = np.full(len(held), -1, np.int64)
    op[within >= 0] = operators[within[within >= 0]]
    of_copies = op[(kind[held] == Starved.COPY) & (op >= 0)]
    kinds = np.where(np.isin(op, of_copies) & (kind[held] == Starved.SYNC), Starved.COPY, kind[held])
    around = np.where((op >= 0) & owners.named(trace, names.reads_value)[op], op, held)
    start = events.start_ns[around]
    return _Calls(held, kinds.astype(np.int64), start, start + events.duration_ns[around], op)


def host_time(
    trace: RankTrace, layers: owners.Layers, op_stalls: Intervals, steps: Steps, rows: Ints, launch: Ints
) -> HostTime:
    """What holds the host of a rank, for its track."""
    calls = _calls(trace, steps, int(steps.host_end_ns[-1]), rows, launch)
    by_kind = [Intervals.union(calls.start_ns[calls.kind == k], calls.end_ns[calls.kind == k]) for k in _HELD]
    window = Intervals.span(int(steps.host_start_ns[0]), int(steps.host_end_ns[-1]))
    idle = window - (layers.input | layers.sync | layers.alloc | layers.dispatch)
    long = idle.end - idle.start >= LONG_STALL_NS
    full = full_queue(trace, rows, launch)
    stalls = _stalls(trace, full)
    long_idle = Intervals(idle.start[long], idle.end[long])
    sets = [*by_kind, layers.input & window, long_idle, op_stalls & window, stalls, full]
    taken = EMPTY
    disjoint = []
    for part in sets:
        disjoint.append(part - taken)
        taken = taken | part
    return HostTime(tuple(disjoint[:-1]), disjoint[-1], recorded(trace), recording_ns(trace, launch))


def no_blocking() -> Blocking:
    """No calls."""
    nothing, words = np.empty(0, np.int64), np.empty(0, np.int32)
    return Blocking(words, words, words, words, nothing, nothing, nothing, nothing, nothing)


def _replay(trace: RankTrace, steps: Steps, gaps: _Gaps, calls: _Calls, stalls: Intervals, event_ns: int) -> Ints:
    """What each kind is charged with in each gap, shape (gaps, len(Starved))."""
    origin = np.full(len(gaps.end_ns), steps.host_start_ns[0])
    until = np.maximum(gaps.end_ns, origin)
    total = np.cumsum(gaps.end_ns - gaps.start_ns)
    taken: list[Intervals] = []
    lead = np.zeros(len(total), np.int64)
    left = gaps.chargeable_ns
    closed = np.zeros(len(total), np.int64)
    charged = np.zeros((len(total), len(Starved)), np.int64)
    for kind in Starved:
        if kind in _HELD:
            mine = calls.kind == kind
            taken.append(Intervals.union(calls.start_ns[mine], calls.end_ns[mine]))
            lead = _all(taken).measure(origin, until)
            # Earlier steps were like these: the host starts with the lead that it would have at the end.
            lead = lead + max(int(_all(taken).total - _closed(total, lead)[-1]), 0) if len(total) else lead
            before = lead
        elif kind is Starved.OVERHEAD:
            lead = before + (stalls - _all(taken)).measure(origin, until)
        elif kind is Starved.RECORDING:
            begun = recorded(trace)
            count = np.searchsorted(begun, until) - np.searchsorted(begun, origin)
            lead = lead + count * event_ns
        else:
            charged[:, kind] = left
            break
        now = _closed(total, lead)
        credit = np.clip(np.diff(now, prepend=0) - np.diff(closed, prepend=0), 0, left)
        charged[:, kind] = credit
        left = left - credit
        closed = now
    return charged


def _all(sets: list[Intervals]) -> Intervals:
    joined = sets[0]
    for other in sets[1:]:
        joined |= other
    return joined


def _closed(total: Ints, lead: Ints) -> Ints:
    """How much of all gaps up to each one a host with that lead closes."""
    closed: Ints = total + np.minimum(0, np.minimum.accumulate(lead - total))
    return closed


def _stalls(trace: RankTrace, full: Intervals) -> Intervals:
    """When the profiler's own work blocks a call of a training thread, and not the full launch queue."""
    return (profiler_stalls(trace, full=True) | profiler_stalls(trace, full=False)) - full


def recorded(trace: RankTrace) -> Ints:
    """Starts of the host events of the training threads, ascending."""
    host = np.isin(trace.events.category, (Category.OP, Category.ANNOTATION, Category.RUNTIME))
    return np.sort(trace.events.start_ns[host & owners.training_threads(trace)])


def recording_ns(trace: RankTrace, launch: Ints) -> int:
    """What recording one host event takes, ns, given the rows of launches (-1 for unknown ones): an estimate."""
    calls = launch[launch >= 0]
    usual = float(np.median(trace.events.duration_ns[calls])) if len(calls) else 0.0
    least, most = _RECORDING_NS
    return round(min(max(least + _RECORDING_BY_LAUNCH * (usual - _QUICK_LAUNCH_NS), least), most))


def _by_call(gaps: _Gaps, calls: _Calls, credit_ns: Ints) -> tuple[Ints, Ints]:
    """Starvation charged to each call, and until when it lasts.

    What a kind is charged with in a gap goes to its calls by how much of the gap lies in or after each, up to the next.
    """
    lost = np.zeros(len(calls.row), np.int64)
    until = calls.end_ns.copy()
    for kind in _HELD:
        mine = np.flatnonzero(calls.kind == kind)
        here = np.flatnonzero(credit_ns[:, kind] > 0)
        if not len(mine) or not len(here):
            continue
        begun = calls.start_ns[mine]
        gap_start, gap_end = gaps.start_ns[here], gaps.end_ns[here]
        points = np.unique(np.concatenate((gap_start, gap_end, begun)))
        start, end = points[:-1], points[1:]
        gap = np.searchsorted(gap_start, start, side="right") - 1
        call = np.searchsorted(begun, start, side="right") - 1
        inside = (gap >= 0) & (call >= 0) & (start < gap_end[np.maximum(gap, 0)])
        gap, call, end, length = gap[inside], call[inside], end[inside], (end - start)[inside]
        share = credit_ns[here, kind][gap] * (length / (gap_end - gap_start)[gap])
        np.add.at(lost, mine[call], share.astype(np.int64))
        np.maximum.at(until, mine[call], end)
    return lost, until


def _blocking(trace: RankTrace, calls: _Calls, lost: Ints, until: Ints, words: Vocabulary) -> Blocking:
    """The calls by kind, name and operator."""
    events = trace.events
    length = calls.end_ns - calls.start_ns
    width = len(trace.strings) + 1
    name = events.name[calls.row].astype(np.int64)
    op = np.where(calls.op >= 0, events.name[calls.op], -1).astype(np.int64)
    kinds, which = np.unique((calls.kind * width + name) * width + op + 1, return_inverse=True)
    size = len(kinds)
    # The last one of each kind in the order of loss, then of length, is its worst.
    order = np.lexsort((length, lost, which))
    worst = order[np.searchsorted(which[order], np.arange(size), side="right") - 1] if size else order
    blocked = np.zeros(size, np.int64)
    np.add.at(blocked, which, length)
    total = np.zeros(size, np.int64)
    np.add.at(total, which, lost)
    own = own_function(trace, calls.start_ns[worst], events.thread[calls.row[worst]])
    return Blocking(
        kind=calls.kind[worst].astype(np.int32),
        call=np.array([words.index(trace.strings[i]) for i in name[worst]], np.int32),
        op=np.array([words.index(trace.strings[i] if i >= 0 else "") for i in op[worst]], np.int32),
        own=np.array([words.index(trace.strings[i] if i >= 0 else "") for i in own], np.int32),
        count=np.bincount(which, minlength=size).astype(np.int64),
        blocked_ns=blocked,
        lost_ns=total,
        worst_start_ns=calls.start_ns[worst],
        worst_end_ns=until[worst],
    )
