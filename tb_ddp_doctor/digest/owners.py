"""Gives every nanosecond of a rank's steps its owner, as far as one rank can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.intervals import EMPTY, Intervals, partition
from tb_ddp_doctor.digest.model import Pieces, RankOwner, Steps
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: Pieces shorter than this share of their step are summed, not kept: 2,000 pieces draw any step.
KEPT_SHARE = 1 / 2000

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Layers:
    """What holds at each instant, one set per owner but the last; where several hold, the first one owns."""

    compute: Intervals
    copy: Intervals
    communication: Intervals
    input: Intervals
    sync: Intervals
    alloc: Intervals
    dispatch: Intervals

    def in_order(self) -> tuple[Intervals, ...]:
        return (self.compute, self.copy, self.communication, self.input, self.sync, self.alloc, self.dispatch)


def named(trace: RankTrace, test: Callable[[str], object]) -> Mask:
    """Which events have a name that passes, asking once per name."""
    passes = np.array([bool(test(text)) for text in trace.strings], np.bool_)
    return passes[trace.events.name]


def by_name(trace: RankTrace, rows: Ints, classify: Callable[[str], int]) -> NDArray[np.int64]:
    """What the names of some events are, asking once for each name among them."""
    distinct, which = np.unique(trace.events.name[rows], return_inverse=True)
    kinds: NDArray[np.int64] = np.array([classify(trace.strings[name]) for name in distinct], np.int64)[which]
    return kinds


def over(trace: RankTrace, chosen: Mask) -> Intervals:
    """The time that the chosen events cover."""
    start = trace.events.start_ns[chosen]
    return Intervals.union(start, start + trace.events.duration_ns[chosen])


def training_threads(trace: RankTrace) -> Mask:
    """Which events lie on threads that train: those with operators or steps.

    NCCL's watchdog polls events and pin-memory threads allocate, whatever the training does.
    """
    events = trace.events
    trains = (events.category == Category.OP) | (
        (events.category == Category.ANNOTATION) & named(trace, lambda name: names.step_number(name) is not None)
    )
    threads = np.zeros(len(trace.threads), np.bool_)
    threads[events.thread[trains]] = True
    return threads[events.thread]


def device_layers(trace: RankTrace, on_device: Mask, blocking_calls: Ints) -> Layers:
    """Layers of a rank with a device; `blocking_calls` are rows of copies that hold the host until they are done."""
    events = trace.events
    category = events.category
    communication = (category == Category.KERNEL) & named(trace, names.is_communication_kernel)
    training = training_threads(trace)
    calls = (category == Category.RUNTIME) & training
    blocking = np.zeros(len(events), np.bool_)
    blocking[blocking_calls] = True
    return Layers(
        compute=over(trace, on_device & (category == Category.KERNEL) & ~communication),
        copy=over(trace, on_device & ((category == Category.MEMCPY) | (category == Category.MEMSET))),
        communication=over(trace, on_device & communication),
        input=over(trace, training & named(trace, lambda name: names.loader(name) is not None)),
        sync=over(trace, calls & (named(trace, names.is_sync) | blocking)),
        alloc=over(trace, calls & named(trace, names.is_alloc)),
        dispatch=over(trace, calls | (training & (category == Category.OP))),
    )


@dataclass(frozen=True)
class HostOperators:
    """What the operators of a rank without a device are, one mask over its events each."""

    computing: Mask
    #: Start or await a collective; they may block, but compute nothing.
    calling: Mask
    #: Have such a call within them: autograd's nodes, tensors that await themselves.
    around_calls: Mask
    #: Gloo's own operations.
    collective: Mask


def host_operators(trace: RankTrace) -> HostOperators:
    """Tell the operators of a rank without a device apart."""
    events = trace.events
    operator = events.category == Category.OP
    collective = named(trace, names.is_host_collective) & (operator | (events.category == Category.ANNOTATION))
    operator &= ~collective
    calling = operator & named(trace, names.enqueues_collective)
    around = np.zeros(len(events), np.bool_)
    for thread in np.unique(events.thread[calling]):
        here = events.thread == thread
        called = np.sort(events.start_ns[calling & here])
        rows = np.flatnonzero(operator & ~calling & here)
        start = events.start_ns[rows]
        around[rows] = np.searchsorted(called, start) < np.searchsorted(called, start + events.duration_ns[rows])
    return HostOperators(operator & ~calling & ~around, calling, around, collective)


def host_layers(trace: RankTrace, operators: HostOperators) -> Layers:
    """Layers of a rank that computes on its CPU: operators compute, and gloo's operations communicate.

    An operator around a call of a collective computes only while no collective is carried out: then it waits for it,
    and a whole backward pass may wait within one of autograd's nodes.
    """
    loads = over(trace, named(trace, lambda name: names.loader(name) is not None))
    calls = over(trace, operators.calling)
    communication = over(trace, operators.collective)
    computes = over(trace, operators.computing) | (over(trace, operators.around_calls) - communication)
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
    totals = np.zeros((len(steps), len(RankOwner)), np.int64)
    np.add.at(totals, (step, owner), length)
    window = steps.end_ns - steps.start_ns
    keep = (length >= window[step] * KEPT_SHARE) | (owner == RankOwner.COMMUNICATION)
    pieces = Pieces(step[keep].astype(np.int32), start[keep], (start + length)[keep], owner[keep].astype(np.int32))
    return totals, pieces


def pieces_of(layers: Sequence[Intervals], steps: Steps) -> tuple[Ints, Ints, Ints, Ints]:
    """Pieces of the steps' windows with one layer each, the first that holds: start, step, length and layer."""
    edges = np.unique(np.concatenate((steps.start_ns, steps.end_ns)))
    start, end, layer = partition(layers, edges)
    step = np.searchsorted(steps.start_ns, start, side="right") - 1
    inside = (step >= 0) & (start < steps.end_ns[step]) if len(steps) else np.zeros(len(start), np.bool_)
    return start[inside], step[inside], (end - start)[inside], layer[inside]
