"""Columns of one value, which is held once: most of a rank's columns, and most of what thousands of ranks have in
common.

Such a column is a read-only view with strides of 0. Equal ones are one object, so that joining those of all ranks takes
no look at what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@lru_cache(1 << 12)
def constant(dtype: str, shape: tuple[int, ...], value: bytes) -> NDArray[Any]:
    """A column of one value, given as bytes. Raises ValueError if these are no such value."""
    return np.broadcast_to(np.frombuffer(value, np.dtype(dtype)), shape)


def is_constant(column: NDArray[Any]) -> bool:
    """Whether a column holds one value once; one of another kind may have equal values all the same."""
    return column.size > 0 and not any(column.strides)


def has_one_value(column: NDArray[Any]) -> bool:
    """Whether a column of whole numbers or flags has several values that are all equal."""
    if column.size < 2 or column.dtype.kind not in "iub":
        return False
    flat = column.reshape(-1)
    return is_constant(column) or (bool(flat[-1] == flat[0]) and bool((flat == flat[0]).all()))


def joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns one after the other; as a column of one value if all of them are of that one."""
    first = columns[0]
    if is_constant(first):
        distinct = dict(zip(map(id, columns), columns, strict=True))
        if all(_continues(column, first) for column in distinct.values()):
            size = len(first) * len(columns) if len(distinct) == 1 else sum(map(len, columns))
            return np.broadcast_to(first.flat[:1], (size, *first.shape[1:]))
    return np.concatenate(columns)


def _continues(column: NDArray[Any], first: NDArray[Any]) -> bool:
    if column is first:
        return True
    is_same = is_constant(column) and column.dtype == first.dtype and column.shape[1:] == first.shape[1:]
    return is_same and bool(column.flat[0] == first.flat[0])
