"""The median rank of each step. R ranks, N steps; NaN where nothing is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
