"""Which intervals of a thread lie around which; a thread's calls nest, but for what traces get wrong."""

from __future__ import annotations

from ctypes import CDLL, c_size_t, c_void_p
from functools import cache

import numpy as np

from tb_ddp_doctor.digest.intervals import different
from tb_ddp_doctor.trace import native
from tb_ddp_doctor.trace.model import Indices, Ints


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
    library = _library()
    if library is None:
        return _in_numpy(start, end, on)
    outer = np.empty(len(start), np.int64)
    times = np.ascontiguousarray(start, np.int64), np.ascontiguousarray(end, np.int64)
    threads = np.ascontiguousarray(on, np.int32)
    addresses = [*(column.ctypes.data for column in times), threads.ctypes.data, outer.ctypes.data]
    library.nesting_around(len(outer), *addresses)
    return outer


@cache
def _library() -> CDLL | None:
    library = native.load()
    if library is not None:
        library.nesting_around.restype = None
        library.nesting_around.argtypes = [c_size_t, *[c_void_p] * 4]
    return library


def _in_numpy(start: Ints, end: Ints, on: Indices) -> Ints:
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
