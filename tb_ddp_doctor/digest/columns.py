"""Searches in columns, as numpy has them, for what is common here: times that ascend, and numbers that are few."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.trace.model import Indices, Ints

#: Fewer are searched for by numpy, before the native library could be called.
_FEW = 64
#: Numbers are looked up in tables up to so many times as large as their column.
_ROOM = 4


def searchsorted(ascending: Ints, wanted: Ints, side: Literal["left", "right"] = "left") -> Ints:
    """`np.searchsorted`, a quarter of the time of it where what is wanted mostly ascends, as times do.

    `wanted` has any shape, and so has what is found.
    """
    library, values = native.library(), wanted.ravel()
    if library is None or len(values) < _FEW or not (native.fits(ascending) and native.fits(values)):
        return np.searchsorted(ascending, wanted, side=side)
    ascending, values = native.plain(ascending), native.plain(values)
    place = np.empty(len(values), np.int64)
    (column, asked, out) = native.addresses(ascending, values, place)
    library.columns_search(len(ascending), column, len(values), asked, side == "right", out)
    return place.reshape(wanted.shape)


def distinct(numbers: Ints | Indices, limit: int) -> tuple[Ints, Ints]:
    """`np.unique` with the inverse, of numbers from 0 up to below a limit: without sorting many for few different."""
    if limit > _ROOM * len(numbers):
        values, which = np.unique(numbers.astype(np.int64, copy=False), return_inverse=True)
        return values, which.astype(np.int64, copy=False)
    used = np.zeros(limit, np.bool_)
    used[numbers] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[numbers]
