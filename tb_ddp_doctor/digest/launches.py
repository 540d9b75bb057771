"""Joins device events to the runtime calls that launched them, by correlation."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.intervals import different
from tb_ddp_doctor.trace.model import Category, Events, Indices, Ints


def launch_rows(events: Events, device_rows: Ints) -> Ints:
    """For each device event the row of the call that launched it; -1 where the trace does not hold the call.

    Kernels that were enqueued before the profiler started have no launch record.
    """
    calls = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation >= 0))
    if not len(calls):
        return np.full(len(device_rows), -1, np.int64)
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    wanted = events.correlation[device_rows]
    at = np.minimum(np.searchsorted(events.correlation[calls], wanted), len(calls) - 1)
    return np.where(events.correlation[calls[at]] == wanted, calls[at], -1)


def enclosing(outer_start: Ints, outer_end: Ints, outer_thread: Indices, instant: Ints, thread: Indices) -> Ints:
    """For each (instant, thread) the outer interval on that thread that holds it, the latest-starting one, or -1."""
    if not len(outer_start):
        return np.full(len(instant), -1, np.int64)
    order = np.lexsort((outer_start, outer_thread))
    start, end, on = outer_start[order], outer_end[order], outer_thread[order]
    outer = around(start, end, on)
    # One sortable key for (thread, time); places in the order of starts, since products of times would overflow.
    times = different(start)
    width = len(times) + 1
    keys = on.astype(np.int64) * width + np.searchsorted(times, start, side="right")
    wanted = thread.astype(np.int64) * width + np.searchsorted(times, instant, side="right")
    at = np.searchsorted(keys, wanted, side="right") - 1
    at[on[at] != thread] = -1
    while (over := (at >= 0) & (end[at] <= instant)).any():
        at[over] = outer[at[over]]
    return np.where(at >= 0, order[at], -1)


def around(start: Ints, end: Ints, on: Indices) -> Ints:
    """For each interval, sorted by thread and start, the latest before it that still runs when it starts, or -1."""
    outer = np.arange(-1, len(start) - 1)
    begins = on[1:] != on[:-1]
    outer[1:][begins] = -1
    # Those passed over had ended before: the one around them is the next to ask, so that steps double in length.
    over = np.flatnonzero((end[:-1] <= start[1:]) & ~begins) + 1
    while len(over):
        further = outer[outer[over]]
        outer[over] = further
        over = over[further >= 0]
        over = over[end[outer[over]] <= start[over]]
    return outer
