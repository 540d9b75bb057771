"""Events whose times contradict each other: signs that some of a record's times were changed.

Three things cannot be, whatever a job does. Of some 90 traces of ours and of others none has one of them, but for a
kernel here and there that runs on for 10 µs beside the next one:

- on a stream, work runs one after the other, in the order of the launches:

      launches  [1] [2] [3]
      stream        [1...][3...][2...]     3 runs before 2, which was launched first
      stream        [1...][2...]           3 runs beside 2
                            [3...]

- on a thread, a driver numbers its calls (`correlation`) as they come;
- on a thread, operators and annotations nest: one that begins within another ends within it. Of torch.compile at work
  some annotations do not.

Work before its launch cannot be either. That is seen once the device's clock is right beside the host's
(`device_clock`), and where the order above is broken it is not the clock that is wrong.

Damage of single events is dropped before (`plausible`). What is counted here, by step, is held against other ranks
(`job/completeness`): recorders may break these rules in ways of their own, and then do so on all ranks.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.host_calls import OVERLAP_NS, ROUNDED_NS, HostCalls
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.digest.sums import count
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace.model import Ints

#: An operator is as long as others of its name, of which there are some, or a stall within it is its parent's as well.
_OVERLONG, _LEAST_ALIKE = 5, 3
#: A device's clock is set right to a microsecond; single events are dropped from 10 ms on, ns.
_EARLY_NS = 1_000_000


def broken_order(rows: DeviceRows) -> Mask:
    """Which events of a trace are device events that run before or beside one launched earlier on their stream.

    Both events of such a pair are, since either may be the one whose time is wrong. Shape (events,). What one call
    launches, as a CUDA graph, has no order.
    """
    events, (this, following) = rows.events, rows.neighbours
    launch = np.full(len(events), -1, np.int64)
    launch[rows.row] = rows.launch
    first, second = launch[this], launch[following]
    pairs = np.flatnonzero((first >= 0) & (second >= 0) & (first != second))
    this, following, first, second = this[pairs], following[pairs], first[pairs], second[pairs]
    start, length = events.start_ns, events.duration_ns
    overlaps = rows.overlap_ns[pairs] > OVERLAP_NS
    # Of calls on two threads that overlap nobody knows which one came first.
    later = (start[second] + length[second] < start[first]) & (start[this] < start[following])
    is_out_of_order = np.zeros(len(events), np.bool_)
    for row in (this, following):
        is_out_of_order[row[overlaps | later]] = True
    return is_out_of_order


def before_launch(rows: DeviceRows) -> Mask:
    """Which events of a trace are device events that start before their launch, shape (events,)."""
    events, joined = rows.events, rows.launch >= 0
    is_before = np.zeros(len(events), np.bool_)
    row, launch = rows.row[joined], rows.launch[joined]
    is_before[row] = events.start_ns[row] < events.start_ns[launch] - _EARLY_NS
    return is_before


def out_of_turn(host: HostCalls, host_start_ns: Ints, host_end_ns: Ints) -> Ints:
    """How many calls of each step on the host, from these starts to these ends, are out of turn on their thread.

    Calls of the runtime beside one with a smaller number that comes later, and operators and annotations that end
    behind the one within which they begin. Of two in a row the second may seem to begin within the first, where their
    times are rounded.
    """
    numbered = np.flatnonzero(host.is_runtime)
    number = host.trace.events.correlation[host.row[numbered]]
    numbered, number = numbered[number > 0], number[number > 0]
    thread, start = host.thread[numbered], host.start_ns[numbered]
    back = (thread[1:] == thread[:-1]) & (number[1:] < number[:-1]) & (start[1:] - start[:-1] > ROUNDED_NS)
    inside = host.crossing
    calls = np.concatenate((numbered[:-1][back], numbered[1:][back], inside, host.parent[inside]))
    return by_step(host.start_ns[calls], host_start_ns, host_end_ns)


def overlong(host: HostCalls) -> int:
    """The first operator that lasts too long to be true, or -1: one wrong digit in a duration makes such an operator.

    It ends behind the one within which it begins, and lasts far longer than all others of its name:

        [aten::linear.....]          [aten::linear.....]
            [aten::to.........................]             others take a hundredth of that
    """
    for call in host.crossing.tolist():
        same_name = np.flatnonzero(host.is_operator & (host.name == host.name[call]))
        others = np.sort(host.length_ns[same_name])[:-1]
        if len(others) >= _LEAST_ALIKE and host.length_ns[call] > _OVERLONG * others[-1]:
            return int(call)
    return -1


def by_step(instant: Ints, host_start_ns: Ints, host_end_ns: Ints) -> Ints:
    """How many of these instants on the host lie in each step."""
    step = np.where(instant < host_end_ns[-1], step_of(instant, host_start_ns), -1)
    return count(step, np.ones(len(step), np.bool_), len(host_start_ns))
