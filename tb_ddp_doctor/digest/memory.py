"""What a rank's allocator held of the device's memory, and what of it was in use, step by step.

The caching allocator serves requests from blocks that it holds and that are free. It asks the device for more only
where no free block is large enough: if it held as many free bytes as were asked for, they were in pieces.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.model import Memory, Steps
from tb_ddp_doctor.trace.model import Ints, RankTrace

#: c10's number of the CPU among the kinds of device.
_CPU = 0
#: Smaller requests are served from a pool of their own, in segments of 2 MB, whatever is free elsewhere, bytes.
_LARGE = 1 << 20
#: Points of the series: one for each pixel or two of a plot.
POINTS = 256


def no_memory(steps: int) -> Memory:
    """Of a trace without what the allocator did."""
    unknown, zero, nothing = np.full(steps, -1, np.int64), np.zeros(steps, np.int64), np.empty(0, np.int64)
    return Memory(*(unknown,) * 3, *(zero,) * 2, *(nothing,) * 3)


def memory(trace: RankTrace, device: int, steps: Steps) -> Memory:
    """The memory of a device in each step, by the host's windows: the allocator works when the host does."""
    events = trace.memory
    rows = np.flatnonzero(
        (events.device_type != _CPU) & (events.device == device) & (events.allocated >= 0) & (events.reserved >= 0)
    )
    if not len(rows) or not len(steps):
        return no_memory(len(steps))
    rows = rows[np.argsort(events.time_ns[rows], kind="stable")]
    time, allocated, reserved = (column[rows] for column in (events.time_ns, events.allocated, events.reserved))
    added = np.diff(reserved, prepend=reserved[:1])
    asked = events.bytes[rows]
    free = np.concatenate(([0], (reserved - allocated)[:-1]))
    scattered = (added > 0) & (asked >= _LARGE) & (free >= asked)
    step = np.searchsorted(steps.host_start_ns, time, side="right") - 1
    step[(step >= 0) & (time >= steps.host_end_ns[step])] = -1
    return Memory(
        *_peaks(step, allocated, reserved, len(steps)),
        _sums(step, np.where(scattered, added, 0), len(steps)),
        _sums(step, np.maximum(-added, 0), len(steps)),
        *_series(time, allocated, reserved),
    )


def _peaks(step: Ints, allocated: Ints, reserved: Ints, steps: int) -> tuple[Ints, Ints, Ints]:
    """Peak in use, the least held beside it, and peak held of each step; -1 for steps in which nothing happens."""
    inside = np.flatnonzero(step >= 0)
    used, beside, held = (np.full(steps, -1, np.int64) for _ in range(3))
    # The last of each step in the order of use is its peak; of equal ones that with the least held.
    order = inside[np.lexsort((-reserved[inside], allocated[inside], step[inside]))]
    last = np.flatnonzero(np.diff(step[order], append=steps))
    used[step[order][last]] = allocated[order][last]
    beside[step[order][last]] = reserved[order][last]
    np.maximum.at(held, step[inside], reserved[inside])
    return used, beside, held


def _sums(step: Ints, values: Ints, steps: int) -> Ints:
    total = np.zeros(steps, np.int64)
    np.add.at(total, step[step >= 0], values[step >= 0])
    return total


def _series(time: Ints, allocated: Ints, reserved: Ints) -> tuple[Ints, Ints, Ints]:
    """The instants of most use in each of `POINTS` equal stretches of time, ascending."""
    width = max(int(time[-1]) - int(time[0]), 1) // POINTS + 1
    stretch = (time - time[0]) // width
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    peak = np.repeat(np.maximum.reduceat(allocated, starts), np.diff(starts, append=len(time)))
    at = np.flatnonzero(allocated == peak)
    at = at[np.unique(stretch[at], return_index=True)[1]]
    return time[at], allocated[at], reserved[at]
