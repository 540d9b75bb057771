"""Plays a schedule as `play` does, to the nanosecond, in the native library (native/replay.h), through ctypes.

The rows of a small job's round are so few that numpy's own time is a hundred times what they take here.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_int64, c_size_t, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.facts.schedule_model import Schedule
from tb_ddp_doctor.trace import native
from tb_ddp_doctor.trace.model import Indices, Ints

if TYPE_CHECKING:
    from tb_ddp_doctor.facts.play import Lengths, Played

# From here to `_Played`: native/replay.h.
_GATED, _QUEUED, _HELD, _NEEDING = 1, 2, 4, 8


class Column(Structure):
    """As in native/replay.h."""

    _fields_ = (("at", c_void_p), ("step", c_size_t))


class _Schedule(Structure):
    _fields_ = (
        ("rounds", c_void_p),
        ("count", c_size_t),
        *((name, Column) for name in ("rank", "queue_row", "queue_part", "awaits", "launches")),
        *((name, Column) for name in ("waits", "queue_before", "synced", "delay_ns")),
        *((name, Column) for name in ("collective", "after", "needs", "ready_ns")),
    )


_ROW_LENGTHS = ("work_ns", "blocked_ns", "device_ns", "lead_ns", "queue_tail_ns", "queue_ns")


class _Lengths(Structure):
    _fields_ = (*((name, Column) for name in (*_ROW_LENGTHS, "transfer_ns")), ("alone", c_int64))


class _Played(Structure):
    _fields_ = tuple(
        (name, c_void_p)
        for name in (
            *("begin_ns", "host_at", "device_at"),
            *("done_ns", "issued_ns", "ended_ns"),
            *("ready", "arrival_ns", "end_ns"),
        )
    )


@cache
def _library() -> CDLL | None:
    library = native.load()
    if library is not None:
        library.replay_play.restype = None
        library.replay_play.argtypes = [POINTER(_Schedule), POINTER(_Lengths), POINTER(_Played)]
    return library


def is_available() -> bool:
    """Whether the library was built here."""
    return _library() is not None


def play(schedule: Schedule, lengths: Lengths, begin_ns: Ints, host_at: Ints, ready: Ints, played: Played) -> None:
    """Fill `played`; what it starts from is as in `play._Playing`. Raises IndexError for a schedule out of range."""
    library = _library()
    if library is None:
        raise RuntimeError("the native library was not built")
    if schedule not in _TABLES:
        _TABLES[schedule] = _Table(schedule)
    kept: list[Any] = []
    columns = [column(getattr(lengths, name), np.int64, len(schedule.rows.rank), kept) for name in _ROW_LENGTHS]
    columns.append(column(lengths.transfer_ns, np.int64, len(schedule.parts.rank), kept))
    device_at, arrival_ns = begin_ns.copy(), played.arrival_ns
    if not len(arrival_ns):
        arrival_ns = np.empty(len(ready), np.int64)
    state = (begin_ns, host_at, device_at, played.done_ns, played.issued_ns, played.ended_ns, ready, arrival_ns)
    out = _Played(*(array.ctypes.data if len(array) else None for array in (*state, played.end_ns)))
    library.replay_play(byref(_TABLES[schedule].schedule), byref(_Lengths(*columns, lengths.alone)), byref(out))


class _Table:
    """A schedule as the library takes it."""

    def __init__(self, schedule: Schedule) -> None:
        rows, parts, ranks = schedule.rows, schedule.parts, len(schedule.frame.host_start_ns)
        row_count, part_count = len(rows.rank), len(parts.rank)
        for indices, least, count in (
            (rows.rank, 0, ranks),
            (rows.queue_row, -1, row_count),
            (rows.queue_part, 0, part_count),
            (rows.awaits, 0, part_count),
            (rows.launches, -1, part_count),
            (parts.after, 0, part_count),
            (parts.needs, -1, row_count),
        ):
            refuse_out_of_range(indices, least, count)
        rounds = np.array(
            [
                (
                    *(each.rows.start, each.rows.stop, each.completed.start, each.completed.stop),
                    each.gated * _GATED + each.queued * _QUEUED + each.held * _HELD + each.needing * _NEEDING,
                )
                for each in schedule.rounds
            ],
            np.int64,
        ).reshape(-1, 5)
        self._kept: list[Any] = [rounds]
        of_rows = (rows.rank, rows.queue_row, rows.queue_part, rows.awaits, rows.launches)
        flags = (rows.waits, rows.queue_before, rows.synced)
        of_parts = (parts.collective, parts.after, parts.needs)
        self.schedule = _Schedule(
            rounds.ctypes.data,
            len(rounds),
            *(column(each, np.int32, row_count, self._kept) for each in of_rows),
            *(column(each, np.bool_, row_count, self._kept) for each in flags),
            column(rows.delay_ns, np.int64, row_count, self._kept),
            *(column(each, np.int32, part_count, self._kept) for each in of_parts),
            column(parts.ready_ns, np.int64, part_count, self._kept),
        )


_TABLES: WeakKeyDictionary[Schedule, _Table] = WeakKeyDictionary()


def refuse_out_of_range(indices: Indices, least: int, count: int) -> None:
    """Raise IndexError unless all indices are of so many things, from the least one on."""
    if len(indices) and not least <= indices.min() <= indices.max() < count:
        raise IndexError("a schedule out of range")


def column(values: NDArray[Any], kind: type[np.generic], size: int, kept: list[Any]) -> Column:
    """A column of one value that is broadcast, or of as many as it has; `kept` keeps its memory.

    Raises IndexError for one of another size: the library looks at no bounds.
    """
    if len(values) != size:
        raise IndexError(f"{len(values)} values for {size} things")
    if values.dtype != kind:
        values = values.astype(kind)
    if values.strides[0] not in (0, values.itemsize):
        values = np.ascontiguousarray(values)
    kept.append(values)
    return Column(values.ctypes.data, int(values.strides[0] > 0))
