"""Why the device idles for want of launches: a replay of the host running ahead.

A gap on the device is *starved* until the event that ends it is launched and has had time to arrive: had the host
come earlier, the gap would be shorter. The rest of it, and all of a gap whose event was launched well before, is the
device's own (dependencies between streams, the start of a kernel), and no host could close it.

A call that blocks the host takes away the lead that the host would have had. Its cost is all the GPU idle that follows
from that, in its own step or in a later one, and not only the idle time within the call. So the calls of a kind are
removed, and the host comes earlier by their length, its lead. The n-th gap g[n] shrinks by as much of the lead L[n] as
earlier gaps have not used: in all, D[n] = min(D[n-1] + g[n], L[n]), which is G[n] + min(0, min(L[k] - G[k], k <= n))
with G the sum of the gaps. Kinds are removed one after the other, in the order of `LaunchDelay`. Each is charged with
what it closes in addition to those before it, so that no nanosecond is charged twice. What no kind closes is the
launches' own.

Idle time in the DataLoader, or with the host outside any op or stalled inside one for long, uses up lead but is charged
to no kind here: other rules own it. So does what an optimizer works on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.frames import own_function
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals, different
from tb_ddp_doctor.digest.launch_queue import StalledCalls
from tb_ddp_doctor.digest.model import Blocking, LaunchDelay, Steps
from tb_ddp_doctor.digest.module_paths import ModuleCalls
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: From a launch to its kernel's start on an empty device, at most, ns: 5 to 10 us were measured while traced.
LATENCY_NS = 20_000
#: What recording one host event costs, ns, by how long the median launch takes while traced, ns. Measured on ten jobs
#: whose steps were also timed untraced: 0.5 us where that is 6 us, 3 us from 7.4 us on, unlike by rank. On no rank of
#: theirs was it above 9 us, whatever recording took: a CPU whose launches take longer is slow by itself, and recording
#: counts with 1.5 us, which is typical.
_LAUNCH_NS = (6_000, 8_000, 9_000, 10_000)
_RECORDING_NS = (400, 4_000, 4_000, 1_500)

BLOCKING = (LaunchDelay.ALLOC, LaunchDelay.COPY, LaunchDelay.SYNC)


class _Gaps(msgspec.Struct, frozen=True, dict=True):
    """Stretches in which the device waits for launches, cut at the edges of steps, by time; shape (gaps,)."""

    start_ns: Ints
    end_ns: Ints
    step: Ints
    #: The most that may be charged here: its length without loading and stalls.
    chargeable_ns: Ints

    @cached_property
    def until_ns(self) -> Ints:
        """Length of all gaps up to the end of each one."""
        return np.cumsum(self.end_ns - self.start_ns)


class BlockingCalls(msgspec.Struct, frozen=True):
    """Calls that hold the host, by start; shape (calls,)."""

    #: Index of `HostCalls`.
    call: Ints
    #: A `LaunchDelay`: ALLOC, COPY or SYNC.
    kind: Ints
    #: The time that it takes the host: of the whole operator where that only reads a value.
    start_ns: Ints
    end_ns: Ints
    #: The operator that encloses it, an index of `HostCalls`; -1 outside of all.
    op: Ints

    def chosen(self, which: NDArray[np.bool_]) -> BlockingCalls:
        """Some of them."""
        columns = (self.call, self.kind, self.start_ns, self.end_ns, self.op)
        return BlockingCalls(*(column[which] for column in columns))

    def over(self, kind: LaunchDelay) -> Intervals:
        """The time that those of a kind take."""
        mine = self.kind == kind
        return Intervals.union(self.start_ns[mine], self.end_ns[mine])


def late_launches(
    host: HostCalls,
    device: DeviceEvents,
    steps: Steps,
    layers: owners.Layers,
    blocked: StalledCalls,
    calls: BlockingCalls,
    apart: Intervals,
    modules: ModuleCalls,
    words: Vocabulary,
) -> tuple[NDArray[np.int64], Blocking]:
    """Late launches of each step by their cause, shape (S, len(LaunchDelay)), and the calls that block the host.

    `apart` is when the host is stalled inside an op, or updates parameters. What comes after the last launch delays
    nothing in the record.
    """
    charged = np.zeros((len(steps), len(LaunchDelay)), np.int64)
    if not len(steps) or not len(device):
        return charged, empty(Blocking)
    gaps = _gaps(device, layers, apart, steps)
    last = min(int(device.launch_ns[device.is_launched].max(initial=0)), int(steps.host_end_ns[-1]))
    calls = calls.chosen(host.start_ns[calls.call] < last)
    leads = _leads(host, steps, gaps, calls, blocked.profiler, recording_ns(device))
    credit_ns = _charges(gaps, leads)
    np.add.at(charged, gaps.step, credit_ns)
    lost, until = _by_call(gaps, calls, credit_ns)
    return charged, _blocking(host, calls, lost, until, modules, words)


def _gaps(device: DeviceEvents, layers: owners.Layers, apart: Intervals, steps: Steps) -> _Gaps:
    starts = device.start_ns[device.by_start]
    returned = device.launch_ns + device.launch_length_ns
    idle = Intervals.span(int(steps.start_ns[0]), int(steps.end_ns[-1])) - layers.device_busy
    ends_it = searchsorted(starts, idle.end)
    by = device.by_start[np.minimum(ends_it, len(starts) - 1)]
    known = (ends_it < len(starts)) & device.is_launched[by]
    arrives = np.where(known, returned[by] + LATENCY_NS, idle.start)
    late = Intervals.union(idle.start, np.minimum(idle.end, arrives))
    others = layers.input | layers.stalls(late) | apart
    points = different(late.start, late.end, steps.start_ns, steps.end_ns)
    start, end = points[:-1], points[1:]
    step = searchsorted(steps.start_ns, start, side="right") - 1
    keep = late.covers(start) & (step >= 0)
    keep &= start < steps.end_ns[np.maximum(step, 0)]
    start, end, step = start[keep], end[keep], step[keep]
    return _Gaps(start, end, step, end - start - others.measure(start, end))


def blocking_calls(host: HostCalls, device: DeviceEvents, steps: Steps) -> BlockingCalls:
    """Calls of the training threads that hold the host in the recorded steps.

    The copies to the device from pageable memory, and the synchronisation that follows each within its operator, are a
    kind of their own: pinned memory takes both away.
    """
    runtime = host.is_runtime & host.trains
    kind = np.full(len(host), -1, np.int8)
    kind[runtime & host.named(names.is_sync)] = LaunchDelay.SYNC
    kind[runtime & host.named(names.is_alloc)] = LaunchDelay.ALLOC
    pageable = device.is_pageable & device.is_launched
    kind[device.launch[pageable]] = LaunchDelay.SYNC
    kind[device.launch[pageable & device.to_device]] = LaunchDelay.COPY
    blocking = np.flatnonzero(kind >= 0)
    first, last = (steps.host_start_ns[0], steps.host_end_ns[-1]) if len(steps) else (0, 0)
    blocking = blocking[(host.start_ns[blocking] >= first) & (host.start_ns[blocking] < last)]
    # Of several that start at once, the first of the file comes first.
    blocking = blocking[np.lexsort((host.row[blocking], host.start_ns[blocking]))]
    op = host.around(blocking, host.is_operator & host.trains)
    copies = np.zeros(len(host), np.bool_)
    copies[op[(kind[blocking] == LaunchDelay.COPY) & (op >= 0)]] = True
    of_copies = (op >= 0) & copies[op] & (kind[blocking] == LaunchDelay.SYNC)
    kinds = np.where(of_copies, LaunchDelay.COPY, kind[blocking])
    reads = (op >= 0) & host.names.among(host.name[op], names.reads_value) if len(host) else op >= 0
    around = np.where(reads, op, blocking)
    return BlockingCalls(blocking, kinds.astype(np.int64), host.start_ns[around], host.end_ns[around], op)


def _leads(
    host: HostCalls, steps: Steps, gaps: _Gaps, calls: BlockingCalls, stalls: Intervals, event_ns: int
) -> list[Ints]:
    """The host's lead at the end of each gap without a kind and those before it, in the order of `LaunchDelay`.

    All but LAUNCHES, which take what is left; each of shape (gaps,).
    """
    since = np.full(len(gaps.end_ns), steps.host_start_ns[0])
    until = np.maximum(gaps.end_ns, since)
    leads: list[Ints] = []
    taken = EMPTY
    for kind in BLOCKING:
        taken |= calls.over(kind)
        lead = taken.measure(since, until)
        # Earlier steps were like these: the host starts with the lead that it would have at the end.
        unused = taken.total - int(_closed(gaps.until_ns, lead)[-1]) if len(lead) else 0
        leads.append(lead + max(unused, 0))
    without_stalls = leads[-1] + (stalls - taken).measure(since, until)
    recorded = searchsorted(host.recorded_ns, until) - searchsorted(host.recorded_ns, since)
    return [*leads, without_stalls, without_stalls + recorded * event_ns]


def _charges(gaps: _Gaps, leads: Sequence[Ints]) -> Ints:
    """What each kind is charged with in each gap: what it closes in addition to those before it.

    Shape (gaps, len(LaunchDelay)), ns.
    """
    remaining = gaps.chargeable_ns
    closed = np.zeros(len(remaining), np.int64)
    charged = []
    for lead in leads:
        now = np.diff(_closed(gaps.until_ns, lead), prepend=0)
        charged.append(np.clip(now - closed, 0, remaining))
        remaining, closed = remaining - charged[-1], now
    return np.stack([*charged, remaining], axis=1)


def _closed(until_ns: Ints, lead: Ints) -> Ints:
    """How much of all gaps up to each one a host with that lead closes."""
    return until_ns + np.minimum(0, np.minimum.accumulate(lead - until_ns))


def recording_ns(device: DeviceEvents) -> int:
    """What recording one host event takes, ns, by how long launches take: an estimate."""
    return round(float(np.interp(device.median_launch_ns, _LAUNCH_NS, _RECORDING_NS)))


def recording(host: HostCalls, device: DeviceEvents, steps: Steps) -> Ints:
    """The host's time that recording its calls took in each step, by an estimate, shape (S,), ns."""
    calls = searchsorted(host.recorded_ns, steps.host_end_ns) - searchsorted(host.recorded_ns, steps.host_start_ns)
    return calls * recording_ns(device)


def _by_call(gaps: _Gaps, calls: BlockingCalls, credit_ns: Ints) -> tuple[Ints, Ints]:
    """Starvation charged to each call, and until when it lasts.

    What a kind is charged with in a gap goes to its calls by how much of the gap lies in or after each, up to the next.
    """
    lost = np.zeros(len(calls.call), np.int64)
    until = calls.end_ns.copy()
    for kind in BLOCKING:
        mine = np.flatnonzero(calls.kind == kind)
        # What reads a value begins with its operator, which may be before a call of another thread.
        mine = mine[np.argsort(calls.start_ns[mine], kind="stable")]
        here = np.flatnonzero(credit_ns[:, kind] > 0)
        if not len(mine) or not len(here):
            continue
        begun = calls.start_ns[mine]
        gap_start, gap_end = gaps.start_ns[here], gaps.end_ns[here]
        points = different(gap_start, gap_end, begun)
        start, end = points[:-1], points[1:]
        gap = searchsorted(gap_start, start, side="right") - 1
        call = searchsorted(begun, start, side="right") - 1
        inside = (gap >= 0) & (call >= 0) & (start < gap_end[np.maximum(gap, 0)])
        gap, call, end, length = gap[inside], call[inside], end[inside], (end - start)[inside]
        share = credit_ns[here, kind][gap] * (length / (gap_end - gap_start)[gap])
        np.add.at(lost, mine[call], share.astype(np.int64))
        np.maximum.at(until, mine[call], end)
    return lost, until


def _blocking(
    host: HostCalls, calls: BlockingCalls, lost: Ints, until: Ints, modules: ModuleCalls, words: Vocabulary
) -> Blocking:
    """The calls by kind, name and operator."""
    length = calls.end_ns - calls.start_ns
    width = len(host.trace.strings) + 1
    name = host.name[calls.call].astype(np.int64)
    op = np.where(calls.op >= 0, host.name[calls.op], -1).astype(np.int64) if len(host) else name
    kinds, which = np.unique((calls.kind * width + name) * width + op + 1, return_inverse=True)
    size = len(kinds)
    # The last one of each kind in the order of loss, then of length, is its worst.
    order = np.lexsort((length, lost, which))
    worst = order[searchsorted(which[order], np.arange(size), side="right") - 1] if size else order
    blocked, total = summed(which, length, size), summed(which, lost, size)
    thread = host.thread[calls.call[worst]]
    own = own_function(host, calls.start_ns[worst], thread)
    return Blocking(
        kind=calls.kind[worst].astype(np.int32),
        call=words.indices(host.texts(calls.call[worst])),
        op=words.indices(host.texts(calls.op[worst])),
        own=words.indices(host.trace.strings[i] if i >= 0 else "" for i in own.tolist()),
        module=words.indices(modules.paths_at(calls.start_ns[worst], thread)),
        count=np.bincount(which, minlength=size).astype(np.int64),
        blocked_ns=blocked,
        lost_ns=total,
        worst_start_ns=calls.start_ns[worst],
        worst_end_ns=until[worst],
    )
