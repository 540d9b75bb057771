"""Orders and plays a schedule in the native library, to the same nanosecond as `order.py` and `play.py` do with numpy.

It is there for speed. In a small job a round has few rows, and numpy's overhead is a hundred times the work itself. In
a large job rows are shortened while they are played, so that a change needs no copy of their columns.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tb_ddp_doctor.replay import native_library as library
from tb_ddp_doctor.replay.model import Cut, Lengths, Ordering, Played, Schedule
from tb_ddp_doctor.replay.native_library import (
    CutTable,
    LengthsTable,
    OrderingTable,
    PlayedTable,
    ScheduleTable,
    TracksTable,
)
from tb_ddp_doctor.trace.model import Ints


def order(now: Ordering) -> tuple[Ints, Ints, Ints] | None:
    """The order of the rows, the order of the parts that complete, and what is played together, shape (rounds, 4).

    A round is (first row, row after the last, first part, part after the last), as places in the two orders. Returns
    None if rows wait for each other in a circle. Raises IndexError for indices out of range.
    """
    order_all = library.loaded().replay_order
    ranks, rows, parts, collectives = len(now.first) - 1, len(now.awaits), len(now.after), len(now.missing)
    for indices, least, count in (
        (now.awaits, 0, parts),
        (now.queue_part, 0, parts),
        (now.launches, -1, parts),
        (now.after, 0, parts),
        (now.collective, 0, collectives),
    ):
        library.refuse_out_of_range(indices, least, count)
    kept: list[Any] = []
    tracks = TracksTable(
        library.address(now.first, np.int64, kept),
        ranks,
        *(library.column(values, np.int32, rows, kept) for values in (now.awaits, now.queue_part, now.launches)),
        *(
            library.address(each, np.int32, kept)
            for each in (now.collective, now.after, now.following, now.beside, now.members)
        ),
        library.address(now.members_at, np.int64, kept),
    )
    in_order, completed = np.empty(rows, np.int64), np.empty(parts, np.int64)
    plan = np.empty((rows + collectives, 4), np.int64)
    state = (now.first[:-1].copy(), now.done, now.queued, now.missing, np.zeros(collectives, np.bool_))
    lists = (np.empty(max(parts, ranks), np.int32), np.empty(collectives, np.int32), in_order, completed, plan)
    rounds = int(order_all(byref(tracks), byref(OrderingTable(*(each.ctypes.data for each in (*state, *lists))))))
    if rounds < 0:
        return None
    done = int(plan[:rounds, 3].max(initial=0))
    return in_order, completed[:done], plan[:rounds].copy()


def play(schedule: Schedule, lengths: Lengths, begin_ns: Ints, host_at: Ints, ready: Ints, played: Played) -> None:
    """Play all rounds and fill `played`. `begin_ns`, `host_at` and `ready` are the start, as in `play._Playing`.

    Raises IndexError if an index of the schedule is out of range.
    """
    play_all = library.loaded().replay_play
    if schedule not in _TABLES:
        _TABLES[schedule] = _Table(schedule)
    kept: list[Any] = []
    rows, parts = len(schedule.rows.rank), len(schedule.parts.rank)
    columns = [library.column(getattr(lengths, name), np.int64, rows, kept) for name in library.ROW_LENGTHS]
    columns.append(library.column(lengths.transfer_ns, np.int64, parts, kept))
    device_at, arrival_ns = begin_ns.copy(), played.arrival_ns
    if not len(arrival_ns):
        arrival_ns = np.empty(len(ready), np.int64)
    state = (begin_ns, host_at, device_at, played.done_ns, played.issued_ns, played.ended_ns, ready, arrival_ns)
    out = PlayedTable(*(array.ctypes.data if len(array) else None for array in (*state, played.end_ns)))
    cut = byref(_cut(schedule, lengths.cut, lengths.no_host, kept)) if lengths.cut else None
    play_all(byref(_TABLES[schedule].schedule), byref(LengthsTable(*columns, lengths.alone)), cut, byref(out))


def _cut(schedule: Schedule, cut: Cut, no_host: bool, kept: list[Any]) -> CutTable:
    """A cut as the library takes it; `kept` keeps its memory. Raises IndexError for arrays of another shape."""
    ranks, steps = schedule.frame.step_index.shape
    shape, rows = (ranks, steps + 1), len(schedule.rows.rank)
    table = CutTable(steps=steps, ranks=ranks, no_host=no_host)
    for kind, share in cut.host.items():
        _refuse_unlike(share.shape, shape)
        spent = schedule.spent[kind]
        _refuse_unlike(spent.working.shape, spent.work_ns.shape)
        table.share[kind] = library.address(share.T, np.float64, kept)
        table.working[kind] = library.address(spent.working, np.int32, kept)
        table.working_ns[kind] = library.address(spent.work_ns, np.int64, kept)
        table.count[kind] = len(spent.working)
    if cut.device_ns is not None:
        _refuse_unlike(cut.device_ns.shape, (rows,))
        table.device_ns = library.address(cut.device_ns, np.int64, kept)
    if cut.chosen is not None:
        _refuse_unlike(cut.chosen.shape, shape)
        table.chosen = library.address(cut.chosen.T, np.bool_, kept)
    if cut.gone_ns is not None:
        _refuse_unlike(cut.gone_ns.shape, (rows,))
        table.gone_ns = library.address(cut.gone_ns, np.int64, kept)
    return table


def _refuse_unlike(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise IndexError if a shape is not the wanted one: the library checks no bounds."""
    if shape != wanted:
        raise IndexError(f"a shape of {shape} for {wanted}")


class _Table:
    """A schedule as the library takes it. Raises IndexError if an index of the schedule is out of range."""

    def __init__(self, schedule: Schedule) -> None:
        rows, parts = schedule.rows, schedule.parts
        ranks, steps = schedule.frame.step_index.shape
        row_count, part_count = len(rows.rank), len(parts.rank)
        for indices, least, count in (
            (rows.rank, 0, ranks),
            (rows.step, -1, steps),
            (rows.queue_row, -1, row_count),
            (rows.queue_part, 0, part_count),
            (rows.awaits, 0, part_count),
            (rows.launches, -1, part_count),
            (parts.after, 0, part_count),
            (parts.needs, -1, row_count),
        ):
            library.refuse_out_of_range(indices, least, count)
        rounds = np.array(
            [
                (
                    *(each.rows.start, each.rows.stop, each.completed.start, each.completed.stop),
                    each.gated * library.GATED
                    + each.queued * library.QUEUED
                    + each.blocked * library.BLOCKED
                    + each.needing * library.NEEDING,
                )
                for each in schedule.rounds
            ],
            np.int64,
        ).reshape(-1, 5)
        library.refuse_out_of_range(rounds[:, :2].ravel(), 0, row_count + 1)
        library.refuse_out_of_range(rounds[:, 2:4].ravel(), 0, part_count + 1)
        self._kept: list[Any] = [rounds]
        self.schedule = ScheduleTable(
            rounds.ctypes.data,
            len(rounds),
            *(
                library.column(getattr(table, name), kind, size, self._kept)
                for table, names, kind, size in (
                    (rows, library.ROW_INDICES, np.int32, row_count),
                    (rows, library.ROW_FLAGS, np.bool_, row_count),
                    (rows, ("delay_ns",), np.int64, row_count),
                    (parts, library.PART_INDICES, np.int32, part_count),
                    (parts, ("ready_ns",), np.int64, part_count),
                )
                for name in names
            ),
        )


_TABLES: WeakKeyDictionary[Schedule, _Table] = WeakKeyDictionary()
