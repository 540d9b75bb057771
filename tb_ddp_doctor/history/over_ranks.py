"""The largest and the usual of all ranks in each step. R ranks, N steps; NaN where nothing is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Columns that are taken at once.
_COLUMNS = 8192


def largest(busy_us: NDArray[Any]) -> NDArray[Any]:
    """Largest of all ranks in each step, shape (N,); NaN where all are."""
    result: NDArray[Any] = np.fmax.reduce(busy_us, axis=0).astype(np.float64)
    return result


def usual(busy_us: NDArray[Any]) -> NDArray[Any]:
    """Lower median of all ranks in each step, shape (N,)."""
    parts = [lower_median(busy_us[:, at : at + _COLUMNS]) for at in range(0, busy_us.shape[1], _COLUMNS)]
    return np.concatenate(parts).astype(np.float64)


def lower_median(values: NDArray[Any]) -> NDArray[Any]:
    """Lower median over the first axis: of two the smaller, which is no slow rank's; NaN where all are."""
    if not np.isnan(values).any():
        middle = (len(values) - 1) // 2
        result: NDArray[Any] = np.partition(values, middle, axis=0)[middle]
        return result
    ordered = np.sort(values, axis=0)
    known = np.count_nonzero(~np.isnan(values), axis=0)
    medians: NDArray[Any] = np.take_along_axis(ordered, (np.maximum(known - 1, 0) // 2)[None], axis=0)[0]
    return medians
