"""The native library's passes over columns (native/calls.h, columns.h, intervals.h and nesting.h).

Each has a twin in numpy beside its caller, with the same results, for where the library was not built.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.storage import native_library


class CallsTable(Structure):
    """The rows, calls and pairs of all ranks: `job.pair_sums.PairSums`."""

    _fields_ = (
        ("ranks", c_size_t),
        *((name, c_void_p) for name in ("rows", "calls", "pairs")),
        *((name, c_void_p) for name in ("call", "count", "ns")),
        *((name, c_void_p) for name in ("first", "end")),
        ("size", c_size_t),
    )


class CallsLeast(Structure):
    """What calls need at least, and what remains of them."""

    _fields_ = (("least_ns", c_void_p), ("remains", c_void_p))


class CallsExcess(Structure):
    """Sums over the pairs of rows: `job.pair_sums.ExcessSums`."""

    _fields_ = tuple((name, c_void_p) for name in ("took", "least", "unknown", "gone"))


_PROTOTYPES: native_library.Prototypes = {
    "calls_share": (None, [POINTER(CallsTable), *[c_void_p] * 3]),
    "calls_placed": (None, [POINTER(CallsTable), *[c_void_p] * 3, c_size_t, *[c_void_p] * 2]),
    "calls_sums": (None, [POINTER(CallsTable), POINTER(CallsLeast), POINTER(CallsExcess), c_void_p]),
    "columns_search": (None, [c_size_t, c_void_p, c_size_t, c_void_p, c_int, c_void_p]),
    "columns_add": (None, [c_size_t, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "intervals_union": (c_size_t, [c_size_t, *[c_void_p] * 2]),
    "intervals_either": (c_size_t, [c_size_t, *[c_void_p] * 2, c_size_t, *[c_void_p] * 4]),
    "intervals_partition": (c_size_t, [c_size_t, c_void_p, c_size_t, *[c_void_p] * 7]),
    "intervals_cells": (None, [c_size_t, c_void_p, c_int64, c_int, *[c_void_p] * 2]),
    "nesting_around": (None, [c_size_t, *[c_void_p] * 4]),
    "nesting_chosen": (None, [c_size_t, *[c_void_p] * 5]),
    "nesting_outermost": (c_size_t, [c_size_t, *[c_void_p] * 4]),
}


@cache
def library() -> CDLL | None:
    """The library; None where it was not built."""
    return native_library.with_functions(_PROTOTYPES)


def fits(column: NDArray[Any], dtype: type[np.generic] = np.int64) -> bool:
    """Whether the library can read it: one value in each row, each of which the type holds exactly."""
    return column.ndim == 1 and (column.dtype == dtype or np.can_cast(column.dtype, dtype))


def plain(column: NDArray[Any], dtype: type[np.generic] = np.int64) -> NDArray[Any]:
    """A column as the library reads it: its values one behind the other. Raises TypeError for one that does not fit."""
    if not fits(column, dtype):
        raise TypeError(f"not a column of {dtype.__name__}: {column.dtype} of shape {column.shape}")
    return np.ascontiguousarray(column, dtype)


def addresses(*columns: NDArray[Any] | None) -> list[int | None]:
    """Where columns stand in memory; None for none."""
    return [None if column is None else column.ctypes.data for column in columns]
