"""Puts rows and parts in the order in which they are played, as `order.Ordering` does, in the native library
(native/replay.h), through ctypes.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tb_ddp_doctor.facts.native_play import Column, column, refuse_out_of_range
from tb_ddp_doctor.trace import native
from tb_ddp_doctor.trace.model import Ints

if TYPE_CHECKING:
    from tb_ddp_doctor.facts.order import Ordering


# From here to `_Ordering`: native/replay.h.
class _Tracks(Structure):
    _fields_ = (
        ("first", c_void_p),
        ("ranks", c_int64),
        *((name, Column) for name in ("awaits", "queue_part", "launches")),
        *((name, c_void_p) for name in ("collective", "after", "following", "members", "members_at")),
    )


class _Ordering(Structure):
    _fields_ = tuple(
        (name, c_void_p)
        for name in (
            *("place", "done", "queued", "missing", "full"),
            *("arriving", "filled", "order", "completed", "plan"),
        )
    )


@cache
def _library() -> CDLL | None:
    library = native.load()
    if library is None or not hasattr(library, "replay_order"):  # built from an earlier checkout
        return None
    library.replay_order.restype = c_int64
    library.replay_order.argtypes = [POINTER(_Tracks), POINTER(_Ordering)]
    return library


def is_available() -> bool:
    """Whether the library was built here."""
    return _library() is not None


def order(now: Ordering) -> tuple[Ints, Ints, Ints] | None:
    """The order of rows, that of the parts that complete, and what is played together: the first row and the one after
    the last, the same of parts, shape (rounds, 4). None where rows wait for each other in a circle.

    Raises IndexError for indices out of range.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the native library was not built")
    ranks, rows, parts, collectives = len(now.first) - 1, len(now.awaits), len(now.after), len(now.missing)
    for indices, least, count in (
        (now.awaits, 0, parts),
        (now.queue_part, 0, parts),
        (now.launches, -1, parts),
        (now.after, 0, parts),
        (now.collective, 0, collectives),
    ):
        refuse_out_of_range(indices, least, count)
    kept: list[Any] = []

    def whole(values: np.ndarray[Any, np.dtype[Any]], kind: type[np.generic]) -> int:
        kept.append(np.ascontiguousarray(values, kind))
        return int(kept[-1].ctypes.data)

    tracks = _Tracks(
        whole(now.first, np.int64),
        ranks,
        *(column(values, np.int32, rows, kept) for values in (now.awaits, now.queue_part, now.launches)),
        *(whole(values, np.int32) for values in (now.collective, now.after, now.following, now.members)),
        whole(now.members_at, np.int64),
    )
    in_order, completed = np.empty(rows, np.int64), np.empty(parts, np.int64)
    plan = np.empty((rows + collectives, 4), np.int64)
    state = (now.first[:-1].copy(), now.done, now.queued, now.missing, np.zeros(collectives, np.bool_))
    lists = (np.empty(max(parts, ranks), np.int32), np.empty(collectives, np.int32), in_order, completed, plan)
    rounds = int(
        library.replay_order(byref(tracks), byref(_Ordering(*(each.ctypes.data for each in (*state, *lists)))))
    )
    if rounds < 0:
        return None
    done = int(plan[:rounds, 3].max(initial=0))
    return in_order, completed[:done], plan[:rounds].copy()
