"""When the host is blocked because the launch queue is full.

A device takes about 1,024 launches that it has not executed yet; while the queue is full, the next launch blocks the
host until the device is done with one. CUPTI records such stalls as "Command Buffer Full" (category `overhead`); ROCm
and stripped traces show only that a launch call is long. Blocking is a consequence of a slow or waiting device, not
something that the host does: it starves nobody, and it goes away with what the device waits for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: Launches that a CUDA channel takes: 1,024 to 1,039 were measured in flight while the host was blocked.
CAPACITY = 1024
#: A recorded stall is the queue's if the device is busy for so much of it, or runs what was launched before the record,
#: which leaves no event; else it is the profiler's. Launches in flight would not tell, for the same reason.
_BUSY = 0.5
#: Without such a record, a launch call is blocked if it takes longer than the median one by this much, ns, while nearly
#: as many launches are in flight as ever in the trace, those are many, and at least half of them are left when it ends.
_LONG_CALL_NS = 20_000
_NEARLY = 0.9
_MANY = 256
_STILL = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class _Launches:
    """Launch calls with a device event; shape (launches,), ns."""

    start_ns: Ints
    end_ns: Ints
    #: When all that each launched is done, and each event whose launch came before the record; ascending.
    done_ns: Ints

    def in_flight(self, at_ns: Ints) -> Ints:
        """How many launches were issued and not done at some instants."""
        before = len(self.done_ns) - len(self.end_ns)
        issued = np.searchsorted(np.sort(self.end_ns), at_ns, side="right")
        return before + issued - np.searchsorted(self.done_ns, at_ns, side="right")


def full_queue(trace: RankTrace, rows: Ints, launch: Ints) -> Intervals:
    """When a launch call was blocked by the full queue.

    `rows` are the device's events, `launch` the row of each one's launch, or -1.
    """
    launches = _launches(trace, rows, launch)
    if not len(launches.start_ns):
        return Intervals.union(launches.start_ns, launches.end_ns)
    stalls = profiler_stalls(trace, full=True)
    start = trace.events.start_ns[rows]
    busy = Intervals.union(start, start + trace.events.duration_ns[rows])
    busy |= Intervals.union(stalls.start, np.minimum(stalls.end, start.min()))
    recorded = busy.measure(stalls.start, stalls.end) >= _BUSY * (stalls.end - stalls.start)
    length = launches.end_ns - launches.start_ns
    usual = int(np.median(length))
    in_flight = launches.in_flight(launches.start_ns)
    # A call that the queue blocks ends as the first launch leaves it; one that is slow itself drains the queue.
    drained = launches.in_flight(launches.end_ns - 1) < _STILL * in_flight
    blocked = (length > usual + _LONG_CALL_NS) & (in_flight >= max(_MANY, int(_NEARLY * in_flight.max()))) & ~drained
    return Intervals(stalls.start[recorded], stalls.end[recorded]) | Intervals.union(
        launches.start_ns[blocked] + usual, launches.end_ns[blocked]
    )


def profiler_stalls(trace: RankTrace, *, full: bool) -> Intervals:
    """Calls of the training threads that are stalled: by a full command buffer, or by all else that CUPTI records."""
    events = trace.events
    runtime = (events.category == Category.RUNTIME) & owners.training_threads(trace)
    stalls = events.category == Category.OVERHEAD
    return owners.over(trace, stalls & (owners.named(trace, names.is_full_queue) == full)) & owners.over(trace, runtime)


def _launches(trace: RankTrace, rows: Ints, launch: Ints) -> _Launches:
    events = trace.events
    known = launch >= 0
    call, which = np.unique(launch[known], return_inverse=True)
    end = events.start_ns[rows] + events.duration_ns[rows]
    done = np.zeros(len(call), np.int64)
    np.maximum.at(done, which, end[known])
    done = np.sort(np.concatenate((done, end[~known])))
    return _Launches(events.start_ns[call], events.start_ns[call] + events.duration_ns[call], done)
