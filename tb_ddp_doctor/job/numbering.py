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
    which = np.zeros(len(columns[0]), np.int64)
    distinct = 1
    for column in columns:
        place = _places(column)
        values = int(place.max(initial=-1)) + 1
        if values > 1:
            which = _places(which * values + place) if distinct > 1 else place
            distinct = int(which.max()) + 1
    return which


def _places(values: Whole) -> Ints:
    if not len(values):
        return np.empty(0, np.int64)
    least, most = (int(values[0]),) * 2 if is_constant(values) else (int(values.min()), int(values.max()))
    if most == least:
        return np.zeros(len(values), np.int64)
    if most - least >= _MOST_SPREAD * len(values):
        place: Ints = np.unique(values, return_inverse=True)[1].reshape(-1)
        return place
    offset = values.astype(np.int64) - least
    there = np.zeros(most - least + 1, np.bool_)
    there[offset] = True
    counted: Ints = (np.cumsum(there) - 1)[offset]
    return counted
