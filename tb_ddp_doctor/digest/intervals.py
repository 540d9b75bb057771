"""Arithmetic on sets of half-open time intervals [start, end), int64 ns, as sorted disjoint arrays.

A set is empty, or its starts and ends alternate strictly: start[0] < end[0] < start[1] < ... Touching intervals are
one interval. Everything is vectorised and pure; nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.trace.model import Ints

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Intervals(ColumnTable, frozen=True, eq=False, dict=True):
    """A set of instants: sorted, disjoint, non-empty half-open intervals."""

    start: Ints
    end: Ints

    @classmethod
    def union(cls, start: Ints, end: Ints) -> Intervals:
        """The instants that any of [start[i], end[i]) holds; empty and inverted ones hold none."""
        if not len(start):
            return EMPTY
        library = native.library()
        if library is None:
            return cls(*_union_in_numpy(start, end))
        # The library merges into the room behind them.
        sides = np.empty((2, 2 * len(start)), np.int64)
        sides[:, : len(start)] = start, end
        merged = library.intervals_union(len(start), *native.addresses(*sides))
        return cls(*sides[:, :merged])

    @classmethod
    def span(cls, start: int, end: int) -> Intervals:
        """One interval."""
        return cls.union(np.array([start], np.int64), np.array([end], np.int64))

    @property
    def total(self) -> int:
        """Length of the set, ns."""
        return int((self.end - self.start).sum())

    @cached_property
    def _before(self) -> Ints:
        """Length of the set before each interval, and in all."""
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(self.end - self.start)))

    @cached_property
    def _end_before(self) -> Ints:
        """End of the interval before each one, and of the last."""
        return np.concatenate((np.full(1, _EARLIEST), self.end))

    def _length_until(self, instant: Ints) -> Ints:
        index = searchsorted(self.start, instant, side="right")
        inside = np.maximum(self._end_before[index], instant) - instant
        return self._before[index] - inside

    def measure(self, start: Ints, end: Ints) -> Ints:
        """How much of each query [start[i], end[i]) the set covers, ns."""
        return self._length_until(np.maximum(start, end)) - self._length_until(start)

    def covers(self, instant: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each instant is in the set."""
        index = searchsorted(self.start, instant, side="right") - 1
        covered = index >= 0
        covered[covered] = self.end[index[covered]] > instant[covered]
        return covered

    def joined(self, apart_ns: int) -> Intervals:
        """The same without the gaps between two that are shorter than this."""
        if not len(self):
            return self
        far = self.start[1:] - self.end[:-1] >= apart_ns
        return Intervals(self.start[np.append(True, far)], self.end[np.append(far, True)])

    def __or__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self if len(self) else other
        library = native.library()
        if library is None:
            start, end = np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end))
            return Intervals.union(start, end)
        sides = np.empty((2, len(self) + len(other)), np.int64)
        one, two = ([native.plain(each.start), native.plain(each.end)] for each in (self, other))
        outs = native.addresses(*two, *sides)
        merged = library.intervals_either(len(self), *native.addresses(*one), len(other), *outs)
        return Intervals(*sides[:, :merged])

    def __and__(self, other: Intervals) -> Intervals:
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        # Of the many only those are looked at that one of the few meets.
        first = searchsorted(many.end, few.start, side="right")
        last = searchsorted(many.start, few.end, side="left")
        place = run(first, last)
        which = np.repeat(np.arange(len(few)), last - first)
        return Intervals(np.maximum(few.start[which], many.start[place]), np.minimum(few.end[which], many.end[place]))

    def __sub__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self
        return self & Intervals(np.append(_EARLIEST, other.end), np.append(other.start, _LATEST))


def run(first: Ints, last: Ints) -> Ints:
    """All integers of [first[i], last[i]), one range after the other; `last` is nowhere below `first`."""
    length = last - first
    before = np.cumsum(length) - length
    each: Ints = np.arange(int(length.sum())) + np.repeat(first - before, length)
    return each


def different(*sorted_runs: Ints) -> Ints:
    """All different instants, ascending: np.unique, which hashes, takes ten times as long for runs that are sorted."""
    instants = np.sort(np.concatenate(sorted_runs), kind="stable")
    first = np.ones(len(instants), np.bool_)
    np.not_equal(instants[1:], instants[:-1], out=first[1:])
    return instants[first]


#: Cells that `long_gaps` cuts time into at most: 16 bytes each.
_MOST_CELLS = 1 << 20


def long_gaps(instant: Ints, least_ns: int) -> Intervals:
    """The stretches of at least `least_ns`, 1 or more, within which none of the instants lies, which come in any order.

    Time is cut into cells that are no longer: such a stretch lies between the last instant of a cell and the first of
    the next one that has any.
    """
    if not len(instant):
        return EMPTY
    first, bits = int(instant.min()), least_ns.bit_length() - 1
    cells = ((int(instant.max()) - first) >> bits) + 1
    if cells > _MOST_CELLS:
        begin = end = different(instant)
    else:
        begin, end = _of_cells(instant, first, bits, cells)
    long = begin[1:] - end[:-1] >= least_ns
    return Intervals.union(end[:-1][long], begin[1:][long])


def _of_cells(instant: Ints, first: int, bits: int, cells: int) -> tuple[Ints, Ints]:
    """The first and the last instant of each cell that has any; cells are 2 ** `bits` ns long, from `first` on."""
    begin, end = np.full(cells, _LATEST), np.full(cells, _EARLIEST)
    library = native.library()
    if library is None:
        cell = (instant - first) >> bits
        np.minimum.at(begin, cell, instant)
        np.maximum.at(end, cell, instant)
    else:
        instant = native.plain(instant)
        address, *outputs = native.addresses(instant, begin, end)
        library.intervals_cells(len(instant), address, first, bits, *outputs)
    is_kept = begin <= end
    return begin[is_kept], end[is_kept]


def _union_in_numpy(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    keep = end > start
    order = np.argsort(start[keep], kind="stable")
    start, end = start[keep][order], end[keep][order]
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return start[opens], reach[closes]


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def partition(layers: Sequence[Intervals], edges: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut the time from edges[0] to edges[-1] so that each piece has one owner: the first layer that holds it.

    Edges ascend, none twice, and pieces never cross one. Returns (start, end, layer, edge), each of shape (pieces,),
    sorted and gapless; `layer` is len(layers) where no layer holds, `edge` the index of the last edge before the end.
    """
    if len(edges) < 2:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing, nothing
    library = native.library()
    if library is None or len(layers) > _MOST_LAYERS:
        return _partition_in_numpy(layers, edges)
    edges, stop = native.plain(edges), np.cumsum([len(layer) for layer in layers], dtype=np.int64)
    start = np.concatenate([EMPTY.start, *(layer.start for layer in layers)])
    end = np.concatenate([EMPTY.end, *(layer.end for layer in layers)])
    pieces = np.empty((4, len(edges) + 2 * len(start)), np.int64)
    edge, *columns = native.addresses(edges, stop, start, end, *pieces)
    pieces_cut = library.intervals_partition(len(edges), edge, len(layers), *columns)
    cut_start, cut_end, layer, edge_before = pieces[:, :pieces_cut]
    return cut_start, cut_end, layer, edge_before


#: INTERVALS_LAYERS in native/intervals.h.
_MOST_LAYERS = 64


def _partition_in_numpy(layers: Sequence[Intervals], edges: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    low, high = edges[0], edges[-1]
    cuts = [edges] + [side for layer in layers for side in (layer.start, layer.end)]
    points = different(*(np.clip(cut, low, high) for cut in cuts))
    start, end = points[:-1], points[1:]
    owner = np.full(len(start), len(layers), np.int16)
    for index, layer in reversed(list(enumerate(layers))):
        first, last = (np.searchsorted(points, np.clip(side, low, high)) for side in (layer.start, layer.end))
        owner[run(first, last)] = index
    changes = np.concatenate(([True], owner[1:] != owner[:-1]))
    changes[np.searchsorted(points, edges[edges < high])] = True
    start, end = start[changes], end[np.concatenate((changes[1:], [True]))]
    return start, end, owner[changes].astype(np.int64), np.searchsorted(edges, start, side="right") - 1
