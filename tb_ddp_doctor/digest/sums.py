"""Sums by an index, shape (N,): the step of each value, its name or its call; -1 counts nowhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace.model import Ints


def total(index: Ints, chosen: Mask, values: Ints, size: int) -> Ints:
    """Sum of the chosen values, shape (size,)."""
    return _added(index, chosen, values, size)


def summed(index: Ints, values: Ints, size: int) -> Ints:
    """Sum of all values, shape (size,)."""
    return _added(index, np.ones(len(index), np.bool_), values, size)


def total_by(index: Ints, kind: Ints, values: Ints, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Sum of the values of each index and kind, both at least 0."""
    return summed(index * shape[1] + kind, values, shape[0] * shape[1]).reshape(shape)


def count(index: Ints, chosen: Mask, size: int) -> Ints:
    """Number of the chosen values, shape (size,)."""
    return _added(index, chosen, None, size)


def longest(index: Ints, chosen: Mask, start_ns: Ints, length_ns: Ints, size: int) -> tuple[Ints, Ints]:
    """Start and end of the longest chosen event of each index, shape (size,); zeros where there is none."""
    start, end = np.zeros(size, np.int64), np.zeros(size, np.int64)
    rows = longest_of(index, chosen, length_ns, size)
    start[index[rows]] = start_ns[rows]
    end[index[rows]] = start_ns[rows] + length_ns[rows]
    return start, end


def longest_of(index: Ints, chosen: Mask, length_ns: Ints, size: int) -> Ints:
    """The longest chosen event of each index that has any, of equal ones the last, in the order of the index."""
    rows = np.flatnonzero(chosen & (index >= 0))
    most, last = np.full(size, np.iinfo(np.int64).min), np.full(size, -1, np.int64)
    np.maximum.at(most, index[rows], length_ns[rows])
    rows = rows[length_ns[rows] == most[index[rows]]]
    np.maximum.at(last, index[rows], rows)
    return last[last >= 0]


def _added(index: Ints, chosen: Mask, values: Ints | None, size: int) -> Ints:
    """Sum of the chosen values by index, of ones without values."""
    sums, library = np.zeros(size, np.int64), native.library()
    if library is None:
        rows = np.flatnonzero(chosen & (index >= 0))
        np.add.at(sums, index[rows], 1 if values is None else values[rows])
        return sums
    amounts = None if values is None else native.plain(values)
    columns = native.plain(index), native.plain(chosen, np.bool_), amounts
    library.columns_add(len(index), *native.addresses(*columns), size, *native.addresses(sums))
    return sums
