"""Sums by step. Everywhere `index`, shape (N,), is the step of each value, or -1: it then counts nowhere."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace.model import Ints


def total(index: Ints, chosen: Mask, values: Ints, size: int) -> Ints:
    """Sum of the chosen values, shape (size,)."""
    summed = np.zeros(size, np.int64)
    chosen = chosen & (index >= 0)
    np.add.at(summed, index[chosen], values[chosen])
    return summed


def count(index: Ints, chosen: Mask, size: int) -> Ints:
    """Number of the chosen values, shape (size,)."""
    return total(index, chosen, np.ones(len(index), np.int64), size)


def longest(index: Ints, chosen: Mask, start_ns: Ints, length_ns: Ints, size: int) -> tuple[Ints, Ints]:
    """Start and end of the longest chosen event of each step, shape (size,); zeros where there is none."""
    rows = np.flatnonzero(chosen & (index >= 0))
    rows = rows[np.argsort(length_ns[rows], kind="stable")]
    start, end = np.zeros(size, np.int64), np.zeros(size, np.int64)
    # Of several values for one step the last one stays: the longest.
    start[index[rows]] = start_ns[rows]
    end[index[rows]] = start_ns[rows] + length_ns[rows]
    return start, end
