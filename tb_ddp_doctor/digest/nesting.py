"""Which intervals of a thread lie around which; a thread's calls nest, but for what traces get wrong."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.intervals import different
from tb_ddp_doctor.digest.vocabulary import Mask
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
    keys = on.astype(np.int64) * width + searchsorted(times, start, side="right")
    wanted = thread.astype(np.int64) * width + searchsorted(times, instant, side="right")
    at = searchsorted(keys, wanted, side="right") - 1
    at[on[at] != thread] = -1
    while (over := (at >= 0) & (end[at] <= instant)).any():
        at[over] = outer[at[over]]
    return np.where(at >= 0, order[at], -1)


def around(start: Ints, end: Ints, on: Indices) -> Ints:
    """For each interval, sorted by thread and start, the latest before it that still runs when it starts, or -1."""
    library = native.library()
    if library is None:
        return _around_in_numpy(start, end, on)
    outer = np.empty(len(start), np.int64)
    columns = native.plain(start), native.plain(end), native.plain(on, np.int32)
    library.nesting_around(len(outer), *native.addresses(*columns, outer))
    return outer


def first_chosen(at: Ints, instant: Ints, outer: Ints, end: Ints, chosen: Mask) -> Ints:
    """From each of some intervals (-1: none) outwards, the first that is chosen and runs at an instant; -1 for none.

    `outer` has the interval around each, as `around` tells.
    """
    library = native.library()
    if library is None:
        return _first_chosen_in_numpy(at, instant, outer, end, chosen)
    ancestor: Ints = at.copy()
    columns = native.plain(instant), native.plain(outer), native.plain(end), native.plain(chosen, np.bool_)
    library.nesting_chosen(len(ancestor), *native.addresses(ancestor, *columns))
    return ancestor


def outermost(end: Ints, outer: Ints, chosen: Mask) -> Ints:
    """The chosen intervals but for those within a chosen one that is next around them, as indices."""
    library = native.library()
    if library is None:
        return _outermost_in_numpy(end, outer, chosen)
    columns = native.plain(end), native.plain(outer), native.plain(chosen, np.bool_)
    ancestor = np.empty(len(end), np.int64)
    kept: int = library.nesting_outermost(len(end), *native.addresses(*columns, ancestor))
    return ancestor[:kept]


def _outermost_in_numpy(end: Ints, outer: Ints, chosen: Mask) -> Ints:
    within = (outer >= 0) & (end <= end.take(outer)) & chosen.take(outer)
    return np.flatnonzero(chosen & ~within)


def _first_chosen_in_numpy(at: Ints, instant: Ints, outer: Ints, end: Ints, chosen: Mask) -> Ints:
    ancestor: Ints = at.copy()
    going = np.flatnonzero(ancestor >= 0)
    while len(going):
        call = ancestor[going]
        going = going[~chosen[call] | (end[call] <= instant[going])]
        ancestor[going] = outer[ancestor[going]]
        going = going[ancestor[going] >= 0]
    return ancestor


def _around_in_numpy(start: Ints, end: Ints, on: Indices) -> Ints:
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
