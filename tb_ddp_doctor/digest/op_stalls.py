"""When the host is stalled inside one op or launch call, and not slow at launching.

The training threads begin or end an event every few µs, however slow an eager program is. A stretch of a millisecond or
more inside an op in which none begins or ends, and that is many times as long as ops usually are, is a stall: the
thread is preempted, waits for a lock or a page, or does something once that later calls need not do (it loads a module,
creates a handle, tunes or compiles). Fewer or larger launches do not shorten it.

Not here: calls that wait for the device or allocate, the full launch queue, what the profiler stalls, the DataLoader,
and DDP's search for unused parameters, which have owners of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.collectives import Vocabulary
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.launch_queue import full_queue, profiler_stalls
from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import OpStalls, Steps
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: Stalls take at least so long, ns, and so many times as long as the median op.
_SHORTEST_NS = 1_000_000
_TIMES_MEDIAN = 10
#: Stalls that are kept, the longest: a digest stays small.
_MOST_STALLS = 1_000
#: Later uses of what was used first in a stall take less than this share of it.
_QUICK = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Stalls:
    """Stalls by time; shape (stalls,)."""

    start_ns: Ints
    end_ns: Ints
    #: Rows of the innermost op around each, and of the runtime call that it is in; -1 for none.
    op: Ints
    call: Ints

    @property
    def intervals(self) -> Intervals:
        """The time that they cover."""
        return Intervals.union(self.start_ns, self.end_ns)


def stalls(trace: RankTrace, layers: owners.Layers, rows: Ints, launch: Ints) -> Stalls:
    """The stalls of a rank; `rows` are the device's events, `launch` the row of each one's launch, or -1."""
    events = trace.events
    training = owners.training_threads(trace)
    ops = training & (events.category == Category.OP)
    calls = training & (events.category == Category.RUNTIME)
    host = np.flatnonzero(ops | calls)
    least = max(_SHORTEST_NS, _TIMES_MEDIAN * int(np.median(events.duration_ns[ops]))) if ops.any() else 0
    edges = np.unique(np.concatenate((events.start_ns[host], events.start_ns[host] + events.duration_ns[host])))
    long = np.diff(edges) >= max(least, _SHORTEST_NS)
    if not least or not long.any():
        nothing = np.empty(0, np.int64)
        return Stalls(nothing, nothing, nothing, nothing)
    found = Intervals(edges[:-1][long], edges[1:][long]) & layers.dispatch
    found = found - (layers.input | layers.sync | layers.alloc | owners.over(trace, ops & _has_own_rule(trace)))
    found = found - full_queue(trace, rows, launch)
    found = found - (profiler_stalls(trace, full=True) | profiler_stalls(trace, full=False))
    stays = found.end - found.start >= least
    start, end = found.start[stays], found.end[stays]
    return Stalls(start, end, _innermost(trace, ops, start), _innermost(trace, calls, start))


def _has_own_rule(trace: RankTrace) -> NDArray[np.bool_]:
    """Ops that take long in every step by what they do, and have a rule of their own."""
    return owners.named(trace, names.is_graph_walk) | owners.named(trace, names.reads_value)


def _innermost(trace: RankTrace, chosen: NDArray[np.bool_], instant: Ints) -> Ints:
    """The row of the latest of the chosen events to start that runs at each instant, on any thread; -1 for none."""
    events = trace.events
    rows = np.flatnonzero(chosen)
    found = np.full(len(instant), -1, np.int64)
    if not len(rows):
        return found
    for thread in np.unique(events.thread[rows]):
        on = np.full(len(instant), thread, events.thread.dtype)
        end = events.start_ns[rows] + events.duration_ns[rows]
        row = enclosing(events.start_ns[rows], end, events.thread[rows], instant, on)
        row = np.where(row >= 0, rows[row], -1)
        later = (row >= 0) & ((found < 0) | (events.start_ns[row] > events.start_ns[found]))
        found = np.where(later, row, found)
    return found


def op_stalls(
    trace: RankTrace,
    layers: owners.Layers,
    steps: Steps,
    found: Stalls,
    rows: Ints,
    launch: Ints,
    words: Vocabulary,
) -> OpStalls:
    """The stalls of the recorded steps, with what the host is in."""
    events = trace.events
    step = step_of(found.start_ns, steps.host_start_ns) if len(steps) else np.full(len(found.start_ns), -1)
    inside = (step >= 0) & (found.start_ns < steps.host_end_ns.max(initial=0))
    longest = np.flatnonzero(inside)
    longest = np.sort(
        longest[np.argsort(found.start_ns[longest] - found.end_ns[longest], kind="stable")][:_MOST_STALLS]
    )
    start, end, op, call = found.start_ns[longest], found.end_ns[longest], found.op[longest], found.call[longest]
    busy = layers.compute | layers.copy | layers.communication

    def texts(events_rows: Ints) -> NDArray[np.int32]:
        named = (trace.strings[events.name[row]] if row >= 0 else "" for row in events_rows)
        return np.array([words.index(text) for text in named], np.int32)

    return OpStalls(
        step=step[longest].astype(np.int32),
        op=texts(op),
        call=texts(call),
        is_first_use=np.array(
            [
                _is_first_use(trace, int(one), int(within), int(until - since), rows, launch)
                for one, within, since, until in zip(op, call, start, end, strict=True)
            ],
            np.bool_,
        ),
        start_ns=start,
        end_ns=end,
        idle_ns=end - start - busy.measure(start, end),
    )


def _is_first_use(trace: RankTrace, op: int, call: int, length: int, rows: Ints, launch: Ints) -> bool:
    """Whether a stall in an op and a call (rows, or -1) is the first use of something, as far as the trace shows it."""
    events = trace.events
    inside = [trace.strings[events.name[row]] for row in (op, call) if row >= 0]
    if any(names.prepares(name) for name in inside):
        return True
    if call >= 0:
        launched = rows[launch == call]
        if not len(launched):
            return False
        of_kernel = events.name[rows] == events.name[launched[0]]
        alike = np.unique(launch[of_kernel & (launch >= 0)])
        others = alike[alike != call]
    elif op >= 0:
        alike = np.flatnonzero((events.category == Category.OP) & (events.name == events.name[op]))
        others = alike[alike != op]
    else:
        return False
    first = call if call >= 0 else op
    return (
        len(others) > 0
        and bool((events.start_ns[others] > events.start_ns[first]).all())
        and int(events.duration_ns[others].max()) < _QUICK * length
    )


def no_op_stalls() -> OpStalls:
    """No stalls."""
    nothing, words = np.empty(0, np.int64), np.empty(0, np.int32)
    return OpStalls(words, words, words, np.empty(0, np.bool_), nothing, nothing, nothing)
