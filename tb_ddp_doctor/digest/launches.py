"""Joins device events to the runtime calls that launched them, by correlation."""

from __future__ import annotations

import numpy as np

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
    """For each (instant, thread) the index of the latest-starting outer interval on that thread that holds it, or -1.

    Exact where the outer intervals of a thread do not nest, as collectives and autograd nodes mostly do not; where
    they nest, an instant between an inner end and its outer end finds nothing.
    """
    if not len(outer_start):
        return np.full(len(instant), -1, np.int64)
    order = np.lexsort((outer_start, outer_thread))
    low = min(int(outer_start.min()), int(instant.min(initial=outer_start[0])))
    width = max(int(outer_start.max()), int(instant.max(initial=outer_start[0]))) - low + 1
    # One sortable key for (thread, time): exact while threads x time stay below 2^63, which 100 s and 90 million do.
    keys = outer_thread[order].astype(np.int64) * width + (outer_start[order] - low)
    at = np.searchsorted(keys, thread.astype(np.int64) * width + (instant - low), side="right") - 1
    found = np.full(len(instant), -1, np.int64)
    some = at >= 0
    index = order[at[some]]
    holds = (outer_thread[index] == thread[some]) & (outer_end[index] > instant[some])
    found[some] = np.where(holds, index, -1)
    return found
