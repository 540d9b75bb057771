"""Gives every nanosecond of a rank's steps its owner, as far as one rank can tell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls, one_of
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals, different, partition
from tb_ddp_doctor.digest.model import Pieces, RankOwner, Steps
from tb_ddp_doctor.digest.sums import total_by
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints
from tb_ddp_doctor.trace.program_names import Program

#: Pieces shorter than this share of their step are summed, not kept: 2,000 pieces draw any step.
KEPT_SHARE = 1 / 2000


#: From here on a stretch with the host outside operators is a stall; below, it is Python between two operators, ns.
LONG_STALL_NS = 1_000_000
#: The same for servers: their iterations take a few ms, and a hundred operators or one graph, so that what they do
#: between two of them (scheduling, inputs in numpy, sampling) is no Python between two operators.
_LONG_STALL_OF_SERVERS_NS = 100_000


class Layers(msgspec.Struct, frozen=True, dict=True):
    """What holds at each instant, one set per owner but the last; where several hold, the first one owns."""

    compute: Intervals
    copy: Intervals
    communication: Intervals
    input: Intervals
    sync: Intervals
    alloc: Intervals
    dispatch: Intervals
    #: From here on a stretch with the host outside of all of them is a stall, ns.
    stall_ns: int = LONG_STALL_NS
    #: Whether calls show what the host does when it launches.
    shows_host: bool = True

    @cached_property
    def device_busy(self) -> Intervals:
        """When the device runs anything."""
        return self.compute | self.copy | self.communication

    @cached_property
    def host_busy(self) -> Intervals:
        """When the host is in anything that is told."""
        return self.input | self.sync | self.alloc | self.dispatch

    def stalls(self, within: Intervals) -> Intervals:
        """The long stretches within some time in which the host is in nothing that is told."""
        idle = within - self.host_busy
        long = idle.end - idle.start >= self.stall_ns
        return Intervals(idle.start[long], idle.end[long])

    def in_order(self) -> tuple[Intervals, ...]:
        return (self.compute, self.copy, self.communication, self.input, self.sync, self.alloc, self.dispatch)


def device_layers(host: HostCalls, device: DeviceEvents, program: str) -> Layers:
    """Layers of a rank with a device that runs a `Program`.

    Copies from or to pageable memory hold the host until they are done.
    """
    calls = host.is_runtime & host.trains
    called, shows_host = _called(host, device, program)
    blocking = np.zeros(len(host), np.bool_)
    blocking[device.launch[device.is_pageable & device.is_launched]] = True
    copies = one_of(device.category, (Category.MEMCPY, Category.MEMSET))
    return Layers(
        compute=_running(device, device.computes),
        copy=_running(device, copies),
        communication=_running(device, device.communicates),
        input=host.over(host.trains & host.named(names.is_loader)),
        sync=host.over(calls & (host.named(names.is_sync) | blocking)),
        alloc=host.over(calls & host.named(names.is_alloc)),
        dispatch=called,
        stall_ns=_LONG_STALL_OF_SERVERS_NS if program == Program.SERVING.value else LONG_STALL_NS,
        shows_host=shows_host,
    )


def _called(host: HostCalls, device: DeviceEvents, program: str) -> tuple[Intervals, bool]:
    """When the host is in an operator or a call of the runtime, and whether that shows what it does when it launches:
    outside of operators it seems idle.

    Where operators were not recorded, calls that follow each other closely are taken to be made by them; and so are
    those of a server most of whose launches are its extensions' (Triton, DeepGEMM, DeepEP), from no operator. A CUDA
    graph's launch counts as within one, however many kernels it has.
    """
    called = host.over(host.trains & ~host.is_annotation)
    launch = device.launch[device.is_launched & ~device.communicates]
    if not host.is_operator.any():
        return called.joined(LONG_STALL_NS), len(launch) > 0
    within = host.named(names.launches_graph)[launch] | (host.around(launch, host.is_operator) >= 0)
    if 2 * int(within.sum()) > len(launch):
        return called, True
    serves = program == Program.SERVING.value
    return called.joined(_LONG_STALL_OF_SERVERS_NS) if serves else called, serves and len(launch) > 0


def _running(device: DeviceEvents, chosen: Mask) -> Intervals:
    return Intervals.union(device.start_ns[chosen], device.end_ns[chosen])


class HostOperators(msgspec.Struct, frozen=True):
    """What the calls of a rank without a device are, one mask over them each."""

    computing: Mask
    #: Start or await a collective; they may block, but compute nothing.
    calling: Mask
    #: Have such a call within them: autograd's nodes, tensors that await themselves.
    around_calls: Mask
    #: Gloo's own operations.
    collective: Mask


def host_operators(host: HostCalls) -> HostOperators:
    """Tell the operators of a rank without a device apart."""
    operator = host.is_operator
    collective = host.named(names.is_host_collective) & (operator | host.is_annotation)
    operator = operator & ~collective
    calling = operator & host.named(names.enqueues_collective)
    around = np.zeros(len(host), np.bool_)
    for thread in np.unique(host.thread[calling]):
        here = host.thread == thread
        called = host.start_ns[calling & here]
        calls = np.flatnonzero(operator & ~calling & here)
        around[calls] = searchsorted(called, host.start_ns[calls]) < searchsorted(called, host.end_ns[calls])
    return HostOperators(operator & ~calling & ~around, calling, around, collective)


def host_layers(host: HostCalls, operators: HostOperators) -> Layers:
    """Layers of a rank that computes on its CPU: operators compute, and gloo's operations communicate.

    An operator around a call of a collective computes only while no collective is carried out: then it waits for it,
    and a whole backward pass may wait within one of autograd's nodes.
    """
    loads = host.over(host.named(names.is_loader))
    calls = host.over(operators.calling)
    communication = host.over(operators.collective)
    computes = host.over(operators.computing) | (host.over(operators.around_calls) - communication)
    return Layers(
        compute=computes - loads - calls,
        copy=EMPTY,
        communication=communication,
        input=loads,
        sync=EMPTY,
        alloc=EMPTY,
        dispatch=calls,
    )


def cut(layers: Layers, steps: Steps) -> tuple[NDArray[np.int64], Pieces]:
    """Cut each step's window by owner.

    Returns the owners' times, shape (S, len(RankOwner)), each row summing to its window; and the pieces to keep.
    """
    start, step, length, owner = pieces_of(layers.in_order(), steps)
    totals = total_by(step, owner, length, (len(steps), len(RankOwner)))
    window = steps.end_ns - steps.start_ns
    keep = (length >= window[step] * KEPT_SHARE) | (owner == RankOwner.COMMUNICATION)
    pieces = Pieces(step[keep].astype(np.int32), start[keep], (start + length)[keep], owner[keep].astype(np.int32))
    return totals, pieces


def pieces_of(layers: Sequence[Intervals], steps: Steps) -> tuple[Ints, Ints, Ints, Ints]:
    """Pieces of the steps' windows with one layer each, the first that holds: start, step, length and layer."""
    edges = different(steps.start_ns, steps.end_ns)
    start, end, layer, edge = partition(layers, edges)
    step = searchsorted(steps.start_ns, edges, side="right") - 1
    inside = ((step >= 0) & (edges < steps.end_ns[step]))[edge] if len(steps) else np.zeros(len(start), np.bool_)
    return start[inside], step[edge[inside]], (end - start)[inside], layer[inside]
