"""Compute kernels by name and grid; on CPUs operators, by name and number of elements."""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np

from tb_ddp_doctor.digest.collectives import count_elements
from tb_ddp_doctor.digest.columns import distinct
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.gemms import slow_inputs
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import Kernels, KernelWork, Steps
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.digest.sums import count, longest, longest_of, total
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Indices, Ints, RankTrace

#: Beyond, a time would not fit 64 bits: grids of a damaged file may be of any size.
_MOST_NS = float(1 << 61)
#: Up to three sizes; CUDA's largest has ten digits.
_GRID = re.compile(r"\s*\[\s*\d{1,10}\s*(,\s*\d{1,10}\s*){0,2}\]\s*", re.ASCII)


def kernel_work(device: DeviceEvents, steps: Steps, phase: Ints) -> KernelWork:
    """The kernels of the steps; `phase` is what launched each event."""
    step, size = device.step, len(steps)
    return KernelWork(
        kernels=count(step, device.computes, size),
        kernel_ns=total(step, device.computes, device.length_ns, size),
        backward_compute_ns=total(step, device.computes & (phase == names.Phase.BACKWARD), device.length_ns, size),
        sized_ns=_sized_ns(device, size),
    )


@lru_cache(1 << 16)
def blocks(grid: str) -> int:
    """Thread blocks of a launch from its raw grid, "[183, 1, 1]"; 0 where there is none."""
    return math.prod(int(size) for size in re.findall(r"\d+", grid)) if _GRID.fullmatch(grid) else 0


def _sized_ns(device: DeviceEvents, steps: int) -> Ints:
    """See `KernelWork.sized_ns`: of each name the usual time, and as much more as its mean grid is larger.

    How often a step launches a kernel does not count: an evaluation is no longer sequence.
    """
    events = np.flatnonzero(device.computes & (device.step >= 0))
    if not len(events):
        return np.zeros(steps, np.int64)
    strings, shape = device.trace.strings, device.trace.events.shape[device.row[events]].astype(np.int64)
    shapes, which = distinct(shape + 1, len(strings) + 1)
    size = np.array([blocks(strings[i - 1]) if i else 0 for i in shapes.tolist()], np.int64)[which]
    known, name = distinct(device.name[events], len(strings))
    cell = name * steps + device.step[events]
    launched, grids = (
        np.bincount(cell, weights, len(known) * steps).reshape(len(known), steps) for weights in (None, size)
    )
    mean = np.where(launched > 0, grids / np.maximum(launched, 1), np.nan)
    median = np.nanmedian(mean, axis=1, keepdims=True)
    larger = np.where((launched > 0) & (median > 0), mean / np.where(median > 0, median, 1), 1.0)
    takes = np.bincount(name, device.length_ns[events], len(known)) / steps
    return np.rint(np.minimum(takes @ larger, _MOST_NS)).astype(np.int64)


def kernels(host: HostCalls, device: DeviceEvents, words: Vocabulary) -> Kernels:
    """The compute kernels of the steps."""
    trace = device.trace
    events = np.flatnonzero(device.computes & (device.step >= 0))
    rows = device.row[events]
    which = numbered(device.name[events], trace.events.shape[rows])
    at = longest_of(which, which >= 0, device.length_ns[events], int(which.max(initial=-1)) + 1)
    name, shape = device.name[events[at]], trace.events.shape[rows[at]]
    return _table(
        trace,
        rows,
        which,
        _beside_ns(device, events),
        name=words.indices(trace.strings[i] for i in name.tolist()),
        shape=words.indices(trace.strings[i] if i >= 0 else "" for i in shape.tolist()),
        inputs=words.indices(slow_inputs(host, device, events[at])),
    )


def operators_as_kernels(host: HostCalls, computing: Mask, steps: Steps, words: Vocabulary) -> Kernels:
    """The CPU's computing operators as kernels, whose grid is the number of elements that they are given.

    Without shapes nothing tells more work from slower work, so operators without them are left out.
    """
    trace = host.trace
    events = trace.events
    rows = np.empty(0, np.int64)
    if len(steps):
        rows = host.row[computing & (host.start_ns >= steps.start_ns[0]) & (host.start_ns < steps.end_ns[-1])]
    rows = np.sort(rows)
    shapes, which = np.unique(events.shape[rows], return_inverse=True)
    sizes = np.array([count_elements(trace.strings[i]) if i >= 0 else -1 for i in shapes], np.int64)
    known = sizes[which] > 0
    rows, elements = rows[known], sizes[which][known]
    width = len(trace.strings)
    amounts, size = np.unique(elements, return_inverse=True)
    kinds, which = np.unique(size * width + events.name[rows], return_inverse=True)
    return _table(
        trace,
        rows,
        which,
        np.zeros(len(rows), np.int64),
        name=words.indices(trace.strings[i] for i in (kinds % width).tolist()),
        shape=words.indices(f"[{amounts[i]}]" for i in (kinds // width).tolist()),
        inputs=words.indices([""] * len(kinds)),
    )


def _beside_ns(device: DeviceEvents, chosen: Ints) -> Ints:
    """For how long each of some events runs beside communication, ns."""
    communicates = device.communicates
    communication = Intervals.union(device.start_ns[communicates], device.end_ns[communicates])
    return communication.measure(device.start_ns[chosen], device.end_ns[chosen])


def _table(
    trace: RankTrace, rows: Ints, which: Ints, beside_ns: Ints, name: Indices, shape: Indices, inputs: Indices
) -> Kernels:
    """The table of some events, given the kind of each and for how long it runs beside communication."""
    events, size = trace.events, len(name)
    every, length = np.ones(len(rows), np.bool_), events.duration_ns[rows]
    occupancy = events.occupancy[rows].astype(np.int64)
    beside, alone = (length > 0) & (beside_ns >= length), beside_ns == 0
    longest_start, longest_end = longest(which, every, events.start_ns[rows], length, size)
    return Kernels(
        name=name,
        shape=shape,
        inputs=inputs,
        count=count(which, every, size),
        total_ns=total(which, every, length, size),
        beside=count(which, beside, size),
        beside_ns=total(which, beside, length, size),
        alone=count(which, alone, size),
        alone_ns=total(which, alone, length, size),
        estimated_ns=total(which, occupancy > 0, length, size),
        occupied_ns=total(which, occupancy > 0, length // 100 * np.minimum(occupancy, 100), size),
        longest_start_ns=longest_start,
        longest_end_ns=longest_end,
    )
