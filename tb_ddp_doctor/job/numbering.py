"""Values as indices of the distinct ones among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.storage.constant import is_constant
from tb_ddp_doctor.trace.model import Ints

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


def in_order(numbers: NDArray[np.integer[Any]]) -> Ints:
    """Indices of numbers, which are at least 0, in ascending order; equal ones stay in theirs."""
    # Numbers of 16 bits are sorted digit by digit, five times as fast.
    few = len(numbers) and int(numbers.max()) < 1 << 16
    order: Ints = np.argsort(numbers.astype(np.uint16) if few else numbers, kind="stable")
    return order


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
    if there.all():
        return offset, len(there)
    counted = np.cumsum(there) - 1
    return counted[offset], int(counted[-1]) + 1
