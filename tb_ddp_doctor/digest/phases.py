"""Cuts a rank's steps by phase: loading, forward, backward, optimizer, and other.

On the host, annotations say it where there are some (`names.phase`), and autograd's nodes say where backward is. What
operators there are beside these prepare what comes next: a backward pass makes them forward, an optimizer's step
makes them part of it (clipping, unscaling), and before the DataLoader or the end of the step they are other. An
operator that brings data to the device outside of all annotations is loading.

On the device, an event is of the phase that launched it. While nothing runs, the next event's phase holds from its
launch on; before that the device waits for the host, and the host's phase holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls, one_of
from tb_ddp_doctor.digest.intervals import Intervals, different, partition
from tb_ddp_doctor.digest.model import Pieces, RankOwner, Steps
from tb_ddp_doctor.digest.sums import total_by
from tb_ddp_doctor.digest.vocabulary import Names
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints
from tb_ddp_doctor.trace.names import Phase

#: Which phase an instant is in where several hold. Loading first, as for owners; an optimizer may step within backward.
_PRECEDENCE = (Phase.LOADING, Phase.OPTIMIZER, Phase.BACKWARD, Phase.FORWARD)


class HostPhases(msgspec.Struct, frozen=True, eq=False):
    """What the host is at, from the trace's first event to its last: gapless pieces by time, shape (pieces,)."""

    start_ns: Ints
    end_ns: Ints
    #: A `Phase`.
    phase: Ints

    def at(self, instant: Ints) -> Ints:
        """The phase at each instant; other outside of the trace."""
        piece = searchsorted(self.start_ns, instant, side="right") - 1
        phase_of = np.full(len(instant), int(Phase.OTHER), np.int64)
        inside = piece >= 0
        inside[inside] = instant[inside] < self.end_ns[piece[inside]]
        phase_of[inside] = self.phase[piece[inside]]
        return phase_of

    def of(self, phase: Phase) -> Intervals:
        """When the host is in a phase."""
        chosen = self.phase == phase
        return Intervals.union(self.start_ns[chosen], self.end_ns[chosen])

    def measure(self, steps: Steps) -> Ints:
        """Each phase's time in the steps' host windows, shape (S, len(Phase)); each row sums to its window."""
        start, end = steps.host_start_ns, steps.host_end_ns
        measured = [self.of(phase).measure(start, end) for phase in Phase if phase is not Phase.OTHER]
        return _with_other(measured, end - start)


def host_phases(host: HostCalls, device: DeviceEvents) -> HostPhases:
    """The phases of a rank's host."""
    events = host.trace.events
    if not len(events):
        return HostPhases(*(np.empty(0, np.int64) for _ in range(3)))
    notes = np.flatnonzero(host.is_annotation & host.trains)
    # What names of phases mean takes long to tell, and operators have many names.
    annotated = Names(host.trace.strings, host.name[notes]).kinds(names.phase)[host.name[notes]]

    def over(phase: Phase) -> Intervals:
        chosen = notes[annotated == phase]
        return Intervals.union(host.start_ns[chosen], host.end_ns[chosen])

    passes = _backward_passes(host)
    backward = passes | over(Phase.BACKWARD)
    optimizing = notes[annotated == Phase.OPTIMIZER]
    updates = _without_closures(host.start_ns[optimizing], host.end_ns[optimizing], passes)
    sets = {
        Phase.LOADING: over(Phase.LOADING),
        Phase.FORWARD: over(Phase.FORWARD),
        Phase.BACKWARD: backward,
        Phase.OPTIMIZER: Intervals.union(*updates),
    }
    working = host.trains & (host.is_operator | (host.is_runtime & ~host.named(names.is_sync)))
    rest = host.over(working) - _all(list(sets.values()))
    stepping = ~host.names.among(host.name[optimizing], names.clears_gradients)
    ahead = _next(
        rest.start,
        {
            Phase.FORWARD: backward.start,
            Phase.OPTIMIZER: updates[0][stepping],
            Phase.OTHER: np.concatenate((sets[Phase.LOADING].start, host.start_ns[host.named(names.is_step)])),
        },
    )
    copied = np.sort(device.launch_ns[device.to_device & device.is_launched])
    brings = searchsorted(copied, rest.end) > searchsorted(copied, rest.start)
    ahead[brings & (ahead == Phase.FORWARD)] = Phase.LOADING
    for phase in sets:
        chosen = ahead == phase
        sets[phase] |= Intervals(rest.start[chosen], rest.end[chosen])
    edges = np.array([events.start_ns.min(), (events.start_ns + events.duration_ns).max()])
    start, end, layer, _ = partition([sets[phase] for phase in _PRECEDENCE], different(edges))
    return _joined(start, end, np.array([*_PRECEDENCE, Phase.OTHER], np.int64)[layer])


def _backward_passes(host: HostCalls) -> Intervals:
    """Backward passes: runs of autograd's nodes with nothing begun between them that is not autograd's.

    All that happens on autograd's own threads belongs to it. A pass holds what Python does in hooks between nodes, and
    after the last one the waiting for the CPU's collectives.
    """
    nodes = host.is_operator & host.named(names.is_backward)
    autograds = np.zeros(len(host.trace.threads), np.bool_)
    autograds[host.thread[nodes]] = True
    autograds[host.thread[host.is_annotation & host.trains & host.named(names.is_annotation)]] = False
    on_autograds = autograds[host.thread]
    busy = host.over(nodes | (host.is_operator & on_autograds))
    if not len(busy):
        return busy
    begun = np.sort(host.start_ns[host.trains & ~host.is_runtime & ~on_autograds & ~nodes], kind="stable")
    begun = begun[~busy.covers(begun)]
    parts = searchsorted(begun, busy.start[1:]) > searchsorted(begun, busy.end[:-1])
    start = busy.start[np.concatenate(([True], parts))]
    end = busy.end[np.concatenate((parts, [True]))]
    # Until then nothing but autograd's is begun. A collective may start on its own thread after the last node.
    going_on = np.append(begun, np.iinfo(np.int64).max)[searchsorted(begun, end)]
    gloo = np.flatnonzero(~host.is_runtime & host.named(names.is_host_collective))
    by = searchsorted(start, host.start_ns[gloo], side="right") - 1
    own = (by >= 0) & (host.start_ns[gloo] < going_on[by])
    reach = end.copy()
    np.maximum.at(reach, by[own], host.end_ns[gloo[own]])
    return Intervals.union(start, np.minimum(reach, going_on))


def _without_closures(start: Ints, end: Ints, passes: Intervals) -> tuple[Ints, Ints]:
    """Starts and ends of an optimizer's annotations, from after the last backward pass that begins within them.

    A step that is given a closure runs forward and backward within itself, as Lightning's do.
    """
    last = searchsorted(passes.start, end) - 1
    within = last >= 0
    within[within] = passes.start[last[within]] >= start[within]
    start[within] = np.minimum(passes.end[last[within]], end[within])
    return start, end


def _next(instant: Ints, begun: dict[Phase, Ints]) -> NDArray[np.int64]:
    """The key whose instants come next after each given one; other where none does."""
    times = np.concatenate(list(begun.values()))
    keys = np.repeat(np.array(list(begun), np.int64), [len(each) for each in begun.values()])
    order = np.argsort(times, kind="stable")
    return np.append(keys[order], Phase.OTHER)[searchsorted(times[order], instant, side="right")]


def _all(sets: Sequence[Intervals]) -> Intervals:
    return Intervals.union(np.concatenate([each.start for each in sets]), np.concatenate([each.end for each in sets]))


def exposed_on_host(host: HostPhases, pieces: Pieces, steps: Steps) -> Ints:
    """The part of each phase of a rank without a device in which only communication runs, shape (S, len(Phase))."""
    return _in_pieces(host, pieces, pieces.owner == RankOwner.COMMUNICATION, steps)


def stalled_phases(host: HostPhases, pieces: Pieces, steps: Steps) -> Ints:
    """The part of each phase in which device and host do nothing, in long stretches, shape (S, len(Phase))."""
    long = pieces.end_ns - pieces.start_ns >= owners.LONG_STALL_NS
    return _in_pieces(host, pieces, long & (pieces.owner == RankOwner.HOST), steps)


def _in_pieces(host: HostPhases, pieces: Pieces, chosen: NDArray[np.bool_], steps: Steps) -> Ints:
    """Time of each phase of the host within the chosen pieces, by the steps' windows, shape (S, len(Phase))."""
    within = Intervals.union(pieces.start_ns[chosen], pieces.end_ns[chosen])
    start, end = steps.start_ns, steps.end_ns
    measured = [(host.of(phase) & within).measure(start, end) for phase in Phase if phase is not Phase.OTHER]
    return _with_other(measured, within.measure(start, end))


def _with_other(measured: list[Ints], in_all: Ints) -> Ints:
    """Columns of all phases, given those of all but other, and their sum; shape (S, len(Phase))."""
    return np.stack([*measured, in_all - np.sum(measured, axis=0)], axis=1)


def _joined(start: Ints, end: Ints, phase: Ints) -> HostPhases:
    """Pieces, without short ones of other between two of one phase: Python between two of its operations."""
    short = np.zeros(len(start), np.bool_)
    short[1:-1] = (
        (phase[1:-1] == Phase.OTHER) & (phase[:-2] == phase[2:]) & ((end - start)[1:-1] < owners.LONG_STALL_NS)
    )
    phase[short] = phase[np.flatnonzero(short) - 1]
    changes = np.concatenate(([True], phase[1:] != phase[:-1]))[: len(start)]
    return HostPhases(start[changes], end[np.concatenate((changes[1:], [True]))[: len(start)]], phase[changes])


def launch_phases(device: DeviceEvents, phases: HostPhases) -> Ints:
    """The phase that launched each device event; other where its launch is not recorded."""
    return np.where(device.is_launched, phases.at(device.launch_ns), int(Phase.OTHER))


def device_phases(device: DeviceEvents, steps: Steps, phase: Ints, host: HostPhases) -> tuple[Ints, Ints]:
    """Each phase's time in the steps' device windows, shape (S, len(Phase)): in all, and of communication alone.

    `phase` is what launched each event. Rows of the first sum to the steps' windows, and those of the second to their
    exposed communication.
    """
    start, end, is_communication = device.start_ns, device.end_ns, device.communicates
    copies = ~one_of(device.category, (Category.KERNEL,))
    queued_from, queued_until = _queued(device)
    layers = []
    for kind in (~copies & ~is_communication, copies, is_communication):
        for each in Phase:
            mine = kind & (phase == each)
            layers.append(Intervals.union(start[mine], end[mine]))
    for each in Phase:
        mine = phase == each
        # Nothing runs then, so that they may join the computing layers and make long stretches of many short ones.
        layers[each] |= Intervals.union(queued_from[mine], queued_until[mine])
    layers += [host.of(each) for each in Phase if each is not Phase.OTHER]
    _, step, length, layer = owners.pieces_of(layers, steps)
    phases, shape = len(Phase), (len(steps), len(Phase))
    of_layer = np.arange(len(layers) + 1) % phases
    alone = (layer >= 2 * phases) & (layer < 3 * phases)
    phase_of_piece = of_layer[layer]
    in_all = total_by(step, phase_of_piece, length, shape)
    return in_all, total_by(step[alone], phase_of_piece[alone], length[alone], shape)


def _queued(device: DeviceEvents) -> tuple[Ints, Ints]:
    """For each device event the idle time right before it in which it was launched already; empty if there is none."""
    launched = np.where(device.is_launched, device.launch_ns, device.start_ns)
    order = device.by_start
    reach = np.maximum.accumulate(device.end_ns[order])
    free = np.empty(len(device), np.int64)
    free[order] = np.concatenate((launched[order[:1]], reach[:-1]))
    return np.maximum(free, np.minimum(launched, device.start_ns)), device.start_ns
