"""Device work whose result was there before: forward computed again, weights cast again, copies into another layout.

Each kernel counts at most once, as the first of these three that it is.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import RedundantWork, Steps
from tb_ddp_doctor.digest.shapes import Dims, dims
from tb_ddp_doctor.digest.sums import count, longest, total
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Indices, Ints


def redundant(host: HostCalls, device: DeviceEvents, steps: Steps, recomputes: Mask) -> RedundantWork:
    """The redundant work of the steps. Without launch records or operators all of it is zero.

    `recomputes` says which device events compute forward again (`recomputed_events`).
    """
    chosen = np.flatnonzero(device.computes & device.is_launched & (device.step >= 0))
    launch = device.launch[chosen]
    again = recomputes[chosen]
    cast = ~again & _recast(host, launch)
    layout = ~again & ~cast & (_for_layout(host, launch) | device.named(names.changes_layout)[chosen])
    size = len(steps)
    columns: dict[str, Ints] = {}
    for name, which in (("recomputed", again), ("recast", cast), ("layout", layout)):
        mask = np.zeros(len(device), np.bool_)
        mask[chosen[which]] = True
        start, end = longest(device.step, mask, device.start_ns, device.length_ns, size)
        columns |= {
            f"{name}_ns": total(device.step, mask, device.length_ns, size),
            f"{name}_kernels": count(device.step, mask, size),
            f"{name}_start_ns": start,
            f"{name}_end_ns": end,
        }
    return RedundantWork(**columns)


def recomputed_events(host: HostCalls, device: DeviceEvents) -> Mask:
    """Which device events compute forward again within backward; shape (events,)."""
    again = np.zeros(len(device), np.bool_)
    launched = np.flatnonzero(device.is_launched)
    again[launched] = recomputed(host, device.launch[launched])
    return again


def recomputed(host: HostCalls, launch: Ints) -> Mask:
    """Which launches compute forward again within backward: activation checkpointing.

    A reentrant checkpoint is a node of its own: all in it that lies in no further node is forward. One that is not
    reentrant runs within the first node that needs what was not kept: from the node's start to the end of the last
    operator that only forward calls.
    """
    nodes = host.is_operator & host.named(names.is_backward)
    if not nodes.any():
        return np.zeros(len(launch), np.bool_)
    forward = np.flatnonzero(host.is_operator & host.named(names.is_forward_only))
    until = np.full(len(host), np.iinfo(np.int64).min, np.int64)
    by = host.around(forward, nodes)
    np.maximum.at(until, by[by >= 0], host.end_ns[forward[by >= 0]])
    checkpoints = nodes & host.named(names.is_checkpoint)
    until[checkpoints] = host.end_ns[checkpoints]
    node = host.around(launch, nodes)
    again = np.zeros(len(launch), np.bool_)
    inside = node >= 0
    again[inside] = host.start_ns[launch[inside]] < until[node[inside]]
    return again


def _recast(host: HostCalls, launch: Ints) -> Mask:
    """Which launches cast a parameter in forward that was cast since the last update of the parameters.

    A cast is of a parameter if it has the shape of a gradient that backward accumulates. It is repeated if a backward
    pass has begun since the last update: each forward casts each parameter once.
    """
    cast = np.zeros(len(launch), np.bool_)
    casting = host.is_operator & host.named(names.casts)
    inside = host.around(launch, casting)
    known = np.flatnonzero(inside >= 0)
    if not len(known):
        return cast
    shapes = _shapes(host, host.is_operator & host.named(names.accumulates_gradient))
    others = host.is_operator & ~host.named(names.copies_tensor)
    in_forward = ~_is_backward(host, host.around(inside[known], others))
    known = known[in_forward]
    at = inside[known]
    of_parameter = _is_one_of(host, host.shape[at], shapes)
    begun = np.sort(host.start_ns[host.is_operator & host.named(names.is_backward)])
    updated = np.sort(host.start_ns[host.is_annotation & host.named(names.is_optimizer_step)])
    times = host.start_ns[at]
    last_update = np.concatenate(([np.iinfo(np.int64).min], updated))[searchsorted(updated, times, side="right")]
    repeated = searchsorted(begun, times) > searchsorted(begun, last_update)
    # Of a trace without updates nothing tells whether the parameters changed.
    cast[known] = of_parameter & repeated & bool(len(updated))
    return cast


def _for_layout(host: HostCalls, launch: Ints) -> Mask:
    """Which launches copy a tensor only for other strides: `contiguous`, and a `reshape` that no view can be."""
    operator = host.around(launch, host.is_operator & ~host.named(names.copies_tensor))
    is_copy = np.zeros(len(launch), np.bool_)
    known = operator >= 0
    is_copy[known] = host.named(names.needs_layout)[operator[known]]
    return is_copy


def _is_backward(host: HostCalls, operator: Ints) -> Mask:
    """Which operators (-1: none) are autograd's, or lie within one of its nodes."""
    nodes = host.is_operator & host.named(names.is_backward)
    is_backward = np.zeros(len(operator), np.bool_)
    known = operator >= 0
    is_backward[known] = nodes[operator[known]] | (host.around(operator[known], nodes) >= 0)
    return is_backward


def _shapes(host: HostCalls, chosen: Mask) -> set[Dims]:
    """Shapes of what some operators are given first."""
    return {shape for shape in _first(host, host.shape[np.flatnonzero(chosen)]).values() if shape}


def _is_one_of(host: HostCalls, texts: Indices, shapes: set[Dims]) -> Mask:
    """Whether the first of each list of shapes is among some; `texts` are indices of strings, -1 of none."""
    chosen = [index for index, shape in _first(host, texts).items() if shape in shapes]
    return np.isin(texts, np.array(chosen, np.int64))


def _first(host: HostCalls, texts: Indices) -> dict[int, Dims]:
    """The first of each list of shapes by the index of its string; () of one without tensors."""
    given = {index: dims(host.trace.strings[index]) for index in np.unique(texts).tolist() if index >= 0}
    return {index: listed[0] if listed else () for index, listed in given.items()}
