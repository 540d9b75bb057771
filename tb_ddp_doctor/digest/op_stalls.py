"""When the host is stalled inside one op or launch call, and not slow at launching.

The training threads begin or end an event every few µs, however slow an eager program is. A stretch of a millisecond or
more inside an op in which none begins or ends, and that is many times as long as ops usually are, is a stall: the
thread is preempted, waits for a lock or a page, or does something once that later calls need not do (it loads a module,
creates a handle, tunes or compiles). Fewer or larger launches do not shorten it.

Not here: calls that wait for the device or allocate, the full launch queue, what the profiler stalls, the DataLoader,
optimizers on the CPU, and DDP's search for unused parameters, which have owners of their own.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals, long_gaps
from tb_ddp_doctor.digest.launch_queue import StalledCalls
from tb_ddp_doctor.digest.model import OpStalls, Steps
from tb_ddp_doctor.digest.module_paths import ModuleCalls
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: Stalls take at least so long, ns, and so many times as long as the median op.
_SHORTEST_NS = 1_000_000
_TIMES_MEDIAN = 10
#: Stalls that are kept, the longest: a digest stays small.
_MOST_STALLS = 1_000
#: Later uses of what was used first in a stall take less than this share of it.
_QUICK = 0.1


class HostStallTimes(msgspec.Struct, frozen=True, eq=False):
    """Stalls by time; shape (stalls,)."""

    start_ns: Ints
    end_ns: Ints
    #: The innermost op around each, and the runtime call that it is in, as indices of `HostCalls`; -1 for none.
    op: Ints
    call: Ints

    @property
    def intervals(self) -> Intervals:
        """The time that they cover."""
        return Intervals.union(self.start_ns, self.end_ns)


def stalls(host: HostCalls, layers: owners.Layers, blocked: StalledCalls, updates: Intervals) -> HostStallTimes:
    """The stalls of a rank's host; `updates` is when an optimizer works on the CPU, which is no stall."""
    ops, calls = host.trains & host.is_operator, host.trains & host.is_runtime
    nothing, either = np.empty(0, np.int64), ops | calls
    if not either.any():
        return HostStallTimes(nothing, nothing, nothing, nothing)
    # Calls of the runtime that do not wait take microseconds, however long ops are.
    least = _least(host.length_ns[ops]) if ops.any() else _SHORTEST_NS
    quiet = long_gaps(np.concatenate((host.start_ns[either], host.end_ns[either])), least)
    if not len(quiet):
        return HostStallTimes(nothing, nothing, nothing, nothing)
    idle = quiet & layers.dispatch
    own_rule = host.named(names.is_graph_walk) | host.named(names.reads_value)
    idle = idle - (layers.input | layers.sync | layers.alloc | host.over(ops & own_rule))
    idle = idle - blocked.full_queue - blocked.profiler - updates
    stays = idle.end - idle.start >= least
    start, end = idle.start[stays], idle.end[stays]
    return HostStallTimes(start, end, _innermost(host, ops, start), _innermost(host, calls, start))


def _least(length_ns: Ints) -> int:
    """The shortest stall, given how long ops take. The median is seldom looked for: ops are short."""
    median = _SHORTEST_NS // _TIMES_MEDIAN
    if 2 * np.count_nonzero(length_ns <= median) > len(length_ns):
        return _SHORTEST_NS
    return max(_SHORTEST_NS, _TIMES_MEDIAN * int(np.median(length_ns)))


def _innermost(host: HostCalls, chosen: Mask, instant: Ints) -> Ints:
    """The latest of the chosen calls to start that runs at each instant, on any thread; -1 for none."""
    innermost = np.full(len(instant), -1, np.int64)
    for thread in host.threads:
        call = host.innermost(instant, thread, chosen)
        later = (call >= 0) & ((innermost < 0) | (host.start_ns[call] > host.start_ns[innermost]))
        innermost = np.where(later, call, innermost)
    return innermost


def op_stalls(
    host: HostCalls,
    device: DeviceEvents,
    steps: Steps,
    layers: owners.Layers,
    times: HostStallTimes,
    modules: ModuleCalls,
    words: Vocabulary,
) -> OpStalls:
    """The stalls of the recorded steps, with what the host is in."""
    step = step_of(times.start_ns, steps.host_start_ns) if len(steps) else np.full(len(times.start_ns), -1)
    inside = (step >= 0) & (times.start_ns < steps.host_end_ns.max(initial=0))
    longest = np.flatnonzero(inside)
    longest = np.sort(
        longest[np.argsort(times.start_ns[longest] - times.end_ns[longest], kind="stable")][:_MOST_STALLS]
    )
    start, end, op, call = times.start_ns[longest], times.end_ns[longest], times.op[longest], times.call[longest]
    return OpStalls(
        step=step[longest].astype(np.int32),
        op=words.indices(host.texts(op)),
        call=words.indices(host.texts(call)),
        kernel=words.indices(device.texts(_launched(host, device, call, end))),
        module=words.indices(modules.paths_at(start, host.thread[np.where(op >= 0, op, call)])),
        is_first_use=np.array(
            [
                _is_first_use(host, device, int(one), int(within), int(until - since))
                for one, within, since, until in zip(op, call, start, end, strict=True)
            ],
            np.bool_,
        ),
        start_ns=start,
        end_ns=end,
        idle_ns=end - start - layers.device_busy.measure(start, end),
    )


def _launched(host: HostCalls, device: DeviceEvents, call: Ints, end_ns: Ints) -> Ints:
    """What the call of each stall launches (-1 for no call), else what is launched next; indices of device events."""
    by_call = np.full(len(host) + 1, -1, np.int64)
    by_call[device.launch[device.is_launched]] = np.flatnonzero(device.is_launched)
    own = by_call[call]
    return np.where(own >= 0, own, device.launched_next(end_ns))


def _is_first_use(host: HostCalls, device: DeviceEvents, op: int, call: int, length: int) -> bool:
    """Whether a stall in an op and a call (-1 for none) is the first use of something, as far as the trace shows it."""
    if any(names.prepares(name) for name in host.texts(np.array([op, call])) if name):
        return True
    if call >= 0:
        launched = np.flatnonzero(device.launch == call)
        if not len(launched):
            return False
        of_kernel = device.launch[(device.name == device.name[launched[0]]) & device.is_launched]
        others = of_kernel[of_kernel != call]
    elif op >= 0:
        same_op = np.flatnonzero(host.is_operator & (host.name == host.name[op]))
        others = same_op[same_op != op]
    else:
        return False
    first = call if call >= 0 else op
    return (
        len(others) > 0
        and bool((host.start_ns[others] > host.start_ns[first]).all())
        and int(host.length_ns[others].max()) < _QUICK * length
    )
