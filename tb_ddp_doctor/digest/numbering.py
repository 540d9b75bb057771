"""Values as indices of the distinct ones among them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.storage.constant import is_constant
from tb_ddp_doctor.trace.model import Indices, Ints

Whole = NDArray[np.integer[Any]] | NDArray[np.bool_]
#: Values within so many times their number are counted instead of sorted.
_MOST_SPREAD = 8


def numbered(*columns: Whole) -> Ints:
    """Which of the distinct rows of some columns, of numbers or flags, each row is, as an index in their order."""
    which: Ints | None = None
    distinct = 1
    for column in columns:
        place, values = _places(column)
        if place is not None:
            which, distinct = (place, values) if which is None else _places_of_two(which, distinct, place, values)
    return np.zeros(len(columns[0]), np.int64) if which is None else which


def ordinals(numbers: Ints, by: NDArray[np.integer[Any]] | None = None) -> Ints:
    """For each of some numbers, at least 0, how many equal ones come before it: 0, 0, 1, 1 for 7, 3, 7, 3.

    They are counted in their order, or in ascending order of `by`.
    """
    order = np.argsort(numbers, kind="stable") if by is None else np.lexsort((by, numbers))
    first = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    ordinal = np.empty(len(numbers), np.int64)
    ordinal[order] = np.arange(len(numbers)) - np.repeat(first, np.diff(first, append=len(numbers)))
    return ordinal


def in_order(numbers: NDArray[np.integer[Any]]) -> Ints:
    """Indices of numbers, which are at least 0, in ascending order; equal ones stay in theirs."""
    # Numbers of 16 bits are sorted digit by digit, five times as fast.
    few = len(numbers) and int(numbers.max()) < 1 << 16
    return np.argsort(numbers.astype(np.uint16) if few else numbers, kind="stable")


def _places_of_two(one: Ints, ones: int, other: Ints, others: int) -> tuple[Ints, int]:
    """The places of pairs of so many and so many distinct values."""
    if ones == 1:
        return other, others
    pairs, count = _places(one * others + other)
    return (one, ones) if pairs is None else (pairs, count)


def _places(values: Whole) -> tuple[Ints | None, int]:
    """The place of each value among the distinct ones, and how many there are; None in place of zeros alone."""
    if not len(values) or is_constant(values):
        return None, 1
    least, most = int(values.min()), int(values.max())
    if most == least:
        return None, 1
    if most - least >= _MOST_SPREAD * len(values):
        distinct, place = np.unique(values, return_inverse=True)
        return place.reshape(-1), len(distinct)
    offset = np.subtract(values, least, dtype=np.int64)
    there = np.zeros(most - least + 1, np.bool_)
    there[offset] = True
    distinct = np.flatnonzero(there)
    if len(distinct) == len(there):
        return offset, len(there)
    # Only the places of distinct values are written and read: of a few large sizes, hardly any of the table.
    place = np.empty(len(there), np.int64)
    place[distinct] = np.arange(len(distinct))
    return place[offset], len(distinct)


def different(values: Ints) -> Ints:
    """The distinct ones of numbers that are at least 0, ascending."""
    if not len(values) or int(values.max()) >= _MOST_SPREAD * len(values):
        return np.unique(values)
    there = np.zeros(int(values.max()) + 1, np.bool_)
    there[values] = True
    return np.flatnonzero(there)


def chosen_of(flags: NDArray[np.bool_]) -> slice | Ints:
    """The places of chosen things; a slice if all are chosen, so that columns are not copied, and keep their strides if
    they are of one value.
    """
    return slice(None) if flags.all() else np.flatnonzero(flags)


class RankRuns(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Things in the order of families and, within a family, of ranks; a run is what a rank has of a family.

    The ranks of family 0 do not have as many things, those of family 1 do:

        family  0 0 0 1 1 1 1
        rank    0 0 1 0 0 1 1
        run     0 0 1 2 2 3 3
    """

    #: Indices of the things in that order, and the family of each there, shape (N,).
    order: Ints
    family: Ints
    #: Place in that order at which each run begins, and how many things it has, shape (runs,).
    start: Ints
    length: Ints
    #: Of each family, shape (families,): the place at which its first run begins, the number of its runs, and whether
    #: all of them have as many things.
    first: Ints
    ranks: Ints
    as_many: NDArray[np.bool_]

    @classmethod
    def of(cls, family: Ints, rank: Indices) -> RankRuns:
        """Of things of these families, as `numbered` gives them, and ranks, which ascend; both of shape (N,)."""
        order = in_order(family)
        family, rank = family[order], rank[order]
        opens = np.ones(len(order), np.bool_)
        np.not_equal(family[1:], family[:-1], out=opens[1:])
        opens[1:] |= rank[1:] != rank[:-1]
        start = np.flatnonzero(opens)
        length = np.diff(start, append=len(order))
        of_run = family[start]
        ranks = np.bincount(of_run)
        first_run = np.cumsum(ranks) - ranks
        as_many = np.ones(len(ranks), np.bool_)
        as_many[of_run[length != length[first_run[of_run]]]] = False
        return cls(order, family, start, length, start[first_run], ranks, as_many)

    @cached_property
    def ordinal(self) -> Ints:
        """How many things of its run are before each one, in the order of the runs, shape (N,)."""
        return np.arange(len(self.order)) - np.repeat(self.start, self.length)
