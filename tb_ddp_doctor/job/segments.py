"""Maxima, sums and medians of many short runs of values at once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.numbering import in_order
from tb_ddp_doctor.trace.model import Flags, Floats, Ints


class Segments(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Where the values of each of M things are in columns of shape (N,): one after the other, at least one of each.

    values      4  9  3  8  8  5
    thing       0  0  1  1  1  2     `first` is 0 2 5 6
    max         9     8        5
    argmax      1     3        5     indices of values, the first one where several are as large
    sum        13    19        5
    """

    #: Where each thing's values begin, and where the last one's end, shape (M + 1,).
    first: Ints

    @classmethod
    def of_sizes(cls, sizes: Ints) -> Segments:
        """Segments of so many values each, shape (M,)."""
        first = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=first[1:])
        return cls(first)

    @classmethod
    def grouped(cls, numbers: NDArray[np.integer[Any]]) -> tuple[Segments, Ints]:
        """A segment for each distinct number, ascending, of numbers that are at least 0; and the indices of the numbers
        in the order of the segments, shape (N,). Equal numbers stay in their order.
        """
        order = in_order(numbers)
        ordered = numbers[order]
        opens = np.ones(len(order), np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=opens[1:])
        return cls(np.append(np.flatnonzero(opens), len(order))), order

    def __len__(self) -> int:
        return len(self.first) - 1

    @cached_property
    def length(self) -> Ints:
        """How many values each segment has, shape (M,)."""
        return np.diff(self.first)

    @cached_property
    def index(self) -> Ints:
        """The segment that each value is in, shape (N,)."""
        return np.repeat(np.arange(len(self)), self.length)

    def each(self, of_segments: NDArray[Any]) -> NDArray[Any]:
        """The value of its segment for each of the values: shape (M,) becomes (N,)."""
        return np.repeat(of_segments, self.length)

    def max(self, values: NDArray[Any]) -> NDArray[Any]:
        """The largest value of each segment, shape (M,)."""
        return np.maximum.reduceat(values, self.first[:-1])

    def min(self, values: NDArray[Any]) -> NDArray[Any]:
        """The smallest value of each segment, shape (M,)."""
        return np.minimum.reduceat(values, self.first[:-1])

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum of each segment, shape (M,)."""
        return np.add.reduceat(values, self.first[:-1])

    def count(self, flags: Flags) -> Ints:
        """How many flags of each segment are set, shape (M,)."""
        return np.add.reduceat(flags, self.first[:-1], dtype=np.int64)

    def any(self, flags: Flags) -> Flags:
        """Which segments have a flag that is set, shape (M,)."""
        return np.logical_or.reduceat(flags, self.first[:-1])

    def all(self, flags: Flags) -> Flags:
        """Of which segments all flags are set, shape (M,)."""
        return np.logical_and.reduceat(flags, self.first[:-1])

    def argmax(self, values: NDArray[Any]) -> Ints:
        """Index of the largest value of each segment, of several the first one, shape (M,)."""
        return self._first_of(values == self.each(self.max(values)))

    def argmin(self, values: NDArray[Any]) -> Ints:
        """Index of the smallest value of each segment, of several the first one, shape (M,)."""
        return self._first_of(values == self.each(self.min(values)))

    def _first_of(self, flags: Flags) -> Ints:
        """Index of the first flag of each segment that is set, shape (M,): each has one."""
        there = np.flatnonzero(flags)
        return there[np.searchsorted(there, self.first[:-1])]

    def median(self, values: NDArray[Any], chosen: Flags | None = None) -> Floats:
        """The median of each segment, or of its chosen values, shape (M,); inf where none is chosen."""
        count = self.length if chosen is None else np.maximum(self.count(chosen), 1)
        ordered = self._sorted(values if chosen is None else np.where(chosen, values, np.inf))
        low, high = (ordered[self.first[:-1] + middle].astype(np.float64) for middle in ((count - 1) // 2, count // 2))
        return (low + high) / 2

    def _sorted(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values, each segment of them in ascending order, shape (N,)."""
        ordered: NDArray[Any] = np.empty_like(values)
        for length in np.unique(self.length):
            # Segments of one length are the rows of a table.
            place = self.first[:-1][self.length == length, None] + np.arange(length)
            ordered[place] = np.sort(values[place], axis=1)
        return ordered

    def select(self, chosen: Ints) -> tuple[Segments, Ints]:
        """The chosen segments, in the order given, and the indices of their values."""
        selected = Segments.of_sizes(self.length[chosen])
        return selected, selected.each(self.first[chosen] - selected.first[:-1]) + np.arange(selected.first[-1])


def joined_by(segments: Segments, member: NDArray[np.integer[Any]], count: int) -> Ints:
    """The smallest number among the members, numbered below `count`, that segments join each one to, shape (count,).

    For example the segments 0 1, 1 4 and 2 3 join 0 to 1 and 4, and 2 to 3: 0 0 2 2 0.
    """
    first, before = np.arange(count), np.empty(0)
    while not np.array_equal(first, before):
        before = first.copy()
        np.minimum.at(first, member, segments.each(segments.min(first[member])))
        # What a member is joined to may be joined to a smaller one.
        first = first[first]
    return first
