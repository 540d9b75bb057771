"""Joins device events to the runtime calls that launched them, by correlation."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.trace.model import Category, Events, Ints


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
