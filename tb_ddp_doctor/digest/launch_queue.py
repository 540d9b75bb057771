"""When the host is blocked because the launch queue is full.

A device takes about 1,024 launches that it has not executed yet; while the queue is full, the next launch blocks the
host until the device is done with one. CUPTI records such stalls as "Command Buffer Full" (category `overhead`); ROCm
and stripped traces show only that a launch call is long. Blocking is a consequence of a slow or waiting device, not
something that the host does: it starves nobody, and it goes away with what the device waits for.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.edges import busy_until_ns
from tb_ddp_doctor.digest.host_calls import HostCalls, one_of
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals
from tb_ddp_doctor.digest.vocabulary import Names
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints

#: A recorded stall is the queue's if the device is busy for so much of it, or runs what was launched before the record,
#: which leaves no event; else it is the profiler's. Launches in flight would not tell, for the same reason.
_BUSY = 0.5
#: Without such a record, a launch call is blocked if it takes longer than usual by this much, ns, while nearly as many
#: launches are in flight as ever in the trace, those are many, and at least half of them are left when it ends. Usual
#: is what the median call takes, and no more than this: where the queue is always full, most calls are blocked.
_LONG_CALL_NS = 20_000
_NEARLY = 0.9
_MANY = 256
_STILL = 0.5
#: And it goes on as a launch leaves the queue: in 1,121 of 1,123 such calls of 25 jobs within 0.2 ms; by the recorder's
#: clocks that may seem to be a little later.
_FREED_NS = 500_000
_CLOCKS_NS = 50_000
#: Launching a captured graph takes 0.2 µs for each of its kernels at most: NVIDIA gives 2 µs and 0.2 µs for each, and
#: 2.5 µs and 1 ns for each from CUDA 12.6 on. While each is recorded, it takes 1.5 to 3 µs for each (four records of
#: three servers). Calls that take longer than this for each are stalled by something else.
_GRAPH_KERNEL_NS = 200
_RECORDED_GRAPH_KERNEL_NS = 5_000


class _Launches(msgspec.Struct, frozen=True, eq=False):
    """Launch calls with a device event; shape (launches,), ns."""

    start_ns: Ints
    end_ns: Ints
    #: When all that each launched is done, and each event whose launch came before the record; ascending.
    done_ns: Ints
    #: Until when the device does what was launched before the record, and is not in it: nobody knows how much.
    unknown_until_ns: int

    def in_flight(self, at_ns: Ints) -> Ints:
        """How many launches were issued and not done at some instants; as many as ever in the record, and as a queue
        has at least, where that is not known.
        """
        before = len(self.done_ns) - len(self.end_ns)
        issued = searchsorted(np.sort(self.end_ns, kind="stable"), at_ns, side="right")
        known = before + issued - searchsorted(self.done_ns, at_ns, side="right")
        return np.where(at_ns < self.unknown_until_ns, max(int(known.max(initial=0)), _MANY), known)


class StalledCalls(msgspec.Struct, frozen=True, eq=False):
    """When calls of the training threads are blocked by what is no work of theirs; disjoint."""

    #: The launch queue is full.
    full_queue: Intervals
    #: The profiler stalls them: all that CUPTI records as its own work, but for the full queue; and in launches of
    #: captured graphs, each kernel of which it records.
    profiler: Intervals


def host_stalls(host: HostCalls, device: DeviceEvents, device_busy: Intervals) -> StalledCalls:
    """The stalls of a rank's host; `device_busy` is when its device runs anything."""
    overhead = np.flatnonzero(one_of(host.trace.events.category, (Category.OVERHEAD,)))
    calls = host.over(host.is_runtime & host.trains) if len(overhead) else EMPTY
    name = host.trace.events.name[overhead]
    of_queue = Names(host.trace.strings, name).among(name, names.is_full_queue)
    recorded = _over(host, overhead[of_queue]) & calls
    full = _full_queue(host, device, recorded, device_busy)
    by_profiler = recorded | (_over(host, overhead[~of_queue]) & calls) | _recorded_graphs(host, device)
    return StalledCalls(full, by_profiler - full)


def _over(host: HostCalls, rows: Ints) -> Intervals:
    start = host.trace.events.start_ns[rows]
    return Intervals.union(start, start + host.trace.events.duration_ns[rows])


def _recorded_graphs(host: HostCalls, device: DeviceEvents) -> Intervals:
    """When launches of captured graphs take so long only since each of their kernels is recorded."""
    graphs = np.flatnonzero(host.is_runtime & host.trains & host.named(names.launches_graph))
    if not len(graphs):
        return EMPTY
    kernels = np.bincount(device.launch[device.is_launched], minlength=len(host))[graphs]
    start, end = host.start_ns[graphs] + _GRAPH_KERNEL_NS * kernels, host.end_ns[graphs]
    stalled = (kernels > 1) & (start < end) & (host.length_ns[graphs] <= _RECORDED_GRAPH_KERNEL_NS * kernels)
    return Intervals.union(start[stalled], end[stalled])


def _full_queue(host: HostCalls, device: DeviceEvents, stalls: Intervals, busy: Intervals) -> Intervals:
    """When a launch call was blocked by the full queue, given when CUPTI records a full command buffer."""
    launches = _launches(host, device)
    if not len(launches.start_ns):
        return EMPTY
    if len(stalls):
        busy |= Intervals.union(stalls.start, np.minimum(stalls.end, device.start_ns.min()))
        recorded = busy.measure(stalls.start, stalls.end) >= _BUSY * (stalls.end - stalls.start)
        stalls = Intervals(stalls.start[recorded], stalls.end[recorded])
    length = launches.end_ns - launches.start_ns
    unblocked = min(int(np.median(length)), _LONG_CALL_NS)
    in_flight = launches.in_flight(launches.start_ns)
    # A call that the queue blocks ends as the first launch leaves it; one that is slow itself drains the queue.
    blocked = np.flatnonzero(
        (length > unblocked + _LONG_CALL_NS) & (in_flight >= max(_MANY, int(_NEARLY * in_flight.max())))
    )
    end = launches.end_ns[blocked]
    drained = launches.in_flight(end - 1) < _STILL * in_flight[blocked]
    done = searchsorted(launches.done_ns, end + _CLOCKS_NS, side="right") - 1
    freed = (done >= 0) & (end - launches.done_ns[np.maximum(done, 0)] <= _FREED_NS)
    blocked = blocked[~drained & (freed | (end <= launches.unknown_until_ns))]
    return stalls | Intervals.union(launches.start_ns[blocked] + unblocked, launches.end_ns[blocked])


def _launches(host: HostCalls, device: DeviceEvents) -> _Launches:
    known = device.is_launched
    done = np.zeros(len(host), np.int64)
    launches = np.zeros(len(host), np.bool_)
    launches[device.launch[known]] = True
    np.maximum.at(done, device.launch[known], device.end_ns[known])
    done = np.sort(np.concatenate((done[launches], device.end_ns[~known])), kind="stable")
    return _Launches(host.start_ns[launches], host.end_ns[launches], done, busy_until_ns(device))
