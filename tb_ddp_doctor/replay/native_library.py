"""The part of the native library that orders and plays a schedule, as native/replay.h declares it, through ctypes."""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.storage import native_library
from tb_ddp_doctor.trace.model import Indices, Ints


class Column(Structure):
    """A column of a table: where its first value is, and 1, or 0 if all rows share that one value."""

    _fields_ = (("at", c_void_p), ("step", c_size_t))


#: The flags of a `model.Round`, as bits of `Round.is` in native/replay.h.
GATED, QUEUED, BLOCKED, NEEDING = 1, 2, 4, 8
#: The number of kinds of `CpuTime`.
KINDS = 11
#: Columns of `model.TrackRows` and `model.Parts`: indices of rows, flags of rows, indices of parts.
ROW_INDICES = ("rank", "step", "blocked_by", "queue_row", "queue_part", "awaits", "launches")
ROW_FLAGS = ("waits", "queue_before", "synced")
PART_INDICES = ("collective", "after", "needs")
#: Columns of `model.Lengths`, one value for each row.
ROW_LENGTHS = ("work_ns", "blocked_ns", "device_ns", "lead_ns", "queue_tail_ns", "queue_ns")


class ScheduleTable(Structure):
    """`model.Schedule`. A round is (first row, row after the last, first part, part after the last, flags)."""

    _fields_ = (
        ("rounds", c_void_p),
        ("count", c_size_t),
        *((name, Column) for name in (*ROW_INDICES, *ROW_FLAGS, "delay_ns", *PART_INDICES, "ready_ns")),
    )


class LengthsTable(Structure):
    """`model.Lengths`: how long rows and parts take."""

    _fields_ = (*((name, Column) for name in (*ROW_LENGTHS, "transfer_ns")), ("alone", c_int64))


class CutTable(Structure):
    """`model.Cut`: what a change removes of rows, by rank and step."""

    _fields_ = (
        *((name, c_void_p * KINDS) for name in ("share", "working", "working_ns")),
        ("count", c_size_t * KINDS),
        *((name, c_void_p) for name in ("device_ns", "chosen", "gone_ns")),
        *((name, c_int64) for name in ("steps", "ranks", "no_host")),
    )


class PlayedTable(Structure):
    """`model.Played`: when rows and parts ended, and the state of the play."""

    _fields_ = tuple(
        (name, c_void_p)
        for name in (
            *("begin_ns", "host_at", "device_at"),
            *("done_ns", "issued_ns", "ended_ns"),
            *("ready", "arrival_ns", "end_ns"),
        )
    )


class TracksTable(Structure):
    """`model.Ordering`: what has to be put in an order."""

    _fields_ = (
        ("first", c_void_p),
        ("ranks", c_int64),
        *((name, Column) for name in ("awaits", "queue_part", "launches")),
        *((name, c_void_p) for name in ("collective", "after", "following", "beside", "members", "members_at")),
    )


class OrderingTable(Structure):
    """The state of the ordering, and the order found so far."""

    _fields_ = tuple(
        (name, c_void_p)
        for name in (
            *("place", "done", "queued", "missing", "full"),
            *("arriving", "filled", "order", "completed", "plan"),
        )
    )


_PROTOTYPES: native_library.Prototypes = {
    "replay_order": (c_int64, [POINTER(TracksTable), POINTER(OrderingTable)]),
    "replay_play": (None, [POINTER(table) for table in (ScheduleTable, LengthsTable, CutTable, PlayedTable)]),
}


def is_available() -> bool:
    """Whether the library was built here."""
    return native_library.load() is not None


@cache
def loaded() -> CDLL:
    """The library. Raises RuntimeError where it was not built."""
    return native_library.required(_PROTOTYPES)


def refuse_out_of_range(indices: Indices | Ints, least: int, count: int) -> None:
    """Raise IndexError unless all indices lie from `least` to `count` - 1."""
    if len(indices) and not least <= indices.min() <= indices.max() < count:
        raise IndexError("a schedule out of range")


def column(values: NDArray[Any], kind: type[np.generic], size: int, kept: list[Any]) -> Column:
    """A column as the library takes it: its values, or one value that all rows share; `kept` keeps its memory.

    Raises IndexError if it has not `size` values: the library checks no bounds.
    """
    if len(values) != size:
        raise IndexError(f"{len(values)} values for {size} rows or parts")
    if values.dtype != kind:
        values = values.astype(kind)
    if values.strides[0] not in (0, values.itemsize):
        values = np.ascontiguousarray(values)
    kept.append(values)
    return Column(values.ctypes.data, int(values.strides[0] > 0))


def address(values: NDArray[Any], kind: type[np.generic], kept: list[Any]) -> int:
    """The address of an array's values, one after the other in memory; `kept` keeps that memory."""
    kept.append(np.ascontiguousarray(values, kind))
    return int(kept[-1].ctypes.data)
