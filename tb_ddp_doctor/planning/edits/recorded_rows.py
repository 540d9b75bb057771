"""Turns a schedule back into tracks: the rows and parts of some ranks, rank by rank, so that plans can change them.

Rows are in the order in which each rank's host comes to them. Parts are in the order of their arrival, with one more at
the end, which stands for "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.track import BEFORE
from tb_ddp_doctor.job.beginnings import Beginnings, JoinedLate
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.model import Parts, Played, StepFrame, TrackRows
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.replay.replay import Replay
from tb_ddp_doctor.replay.schedule import places, renumbered
from tb_ddp_doctor.trace.model import Indices, Ints


class RecordedRows(msgspec.Struct, frozen=True, eq=False):
    """The tracks of some ranks, with the times of the record; implements `replay.tracks.Tracks`."""

    #: The rows, with indices into these rows and parts; `work_ns` is the sum of `spent`.
    table: TrackRows
    #: Host time of each row by kind, ns.
    spent: Mapping[CpuTime, Ints]
    #: The parts.
    part_table: Parts
    frame: StepFrame
    #: When the host begins each row in the record, shape (rows,), ns.
    begin_ns: Ints
    #: When the host has issued each row in the record, shape (rows,), ns.
    issued_ns: Ints
    #: When the device is done with each row in the record, shape (rows,), ns.
    done_ns: Ints
    #: When each part arrives in the record, shape (parts,), ns.
    arrival_ns: Ints
    #: When each part ends in the record, shape (parts,), ns.
    end_ns: Ints

    @property
    def rank(self) -> Indices:
        """The index of each row's rank among the chosen ones."""
        return self.table.rank

    @property
    def first(self) -> Ints:
        """The first row of each rank, and at the end the number of all rows, shape (R + 1,)."""
        return np.searchsorted(self.table.rank, np.arange(len(self.frame.step_index) + 1))

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Track` as it is, joined."""
        if name == "step":
            return self.table.own_step
        if name == "queue_row":
            return np.where(self.table.queue_before, BEFORE, self.table.queue_row)
        column: NDArray[Any] = getattr(self.table, name)
        return column

    def parts(self, name: str, missing: int) -> Indices:
        """A column of `Track` that names collectives, as indices of parts; `missing` where a row names none."""
        column: Indices = getattr(self.table, name)
        return np.where((column >= 0) & (column < len(self.part_table.rank) - 1), column, missing).astype(np.int32)

    def rows(self, name: str) -> Indices:
        """A column of `Track` that names rows, as indices of joined rows; negative values stay as they are."""
        return self.column(name).astype(np.int32)

    def job_step(self, step_index: Ints) -> Indices:  # noqa: ARG002
        """The index of each row's step in the job, -1 if the job leaves the step out."""
        return self.table.step

    def recorded(self) -> Indices:
        """No row of the ranks' own tracks: these are cut anew."""
        return np.empty(0, np.int32)

    def host_times(self, kind: CpuTime) -> tuple[Indices, Ints]:
        """The rows whose host spends time on one kind of work, each row once, and how much time, ns."""
        row = np.flatnonzero(self.spent[kind]).astype(np.int32)
        return row, self.spent[kind][row]


def recorded_rows(replay: Replay, ranks: Ints) -> RecordedRows:
    """The rows and parts of some ranks of a replay, with recorded times; `ranks` are their indices, ascending."""
    schedule = replay.schedule
    played = play(schedule, replay.lengths(Change()), kept=True)
    rows, parts = schedule.rows, schedule.parts
    number = np.full(len(schedule.frame.step_index), -1, np.int32)
    number[ranks] = np.arange(len(ranks))
    row, part = _of_ranks(rows.rank, number), _of_ranks(parts.rank[:-1], number, played.arrival_ns[:-1])
    part = np.append(part, len(parts.rank) - 1)
    new_row, new_part = places(row, len(rows.rank)), places(part, len(parts.rank))
    nothing = len(part) - 1
    table = _taken(rows, row)
    part_table = _taken(parts, part)
    awaits, queue_part = new_part[table.awaits], new_part[table.queue_part]
    first = np.flatnonzero(np.diff(number[table.rank], prepend=-1))
    begin = np.concatenate(([0], played.ended_ns[row][:-1]))
    begin[first] = schedule.frame.host_start_ns[ranks][number[table.rank[first]]]
    return RecordedRows(
        table=replace(
            table,
            rank=number[table.rank],
            queue_row=renumbered(table.queue_row, new_row),
            launches=renumbered(table.launches, new_part),
            awaits=np.where(awaits >= 0, awaits, nothing).astype(np.int32),
            queue_part=np.where(queue_part >= 0, queue_part, nothing).astype(np.int32),
        ),
        spent=_spent(replay, row, new_row),
        part_table=replace(
            part_table,
            rank=np.append(number[part_table.rank[:-1]], 0).astype(np.int32),
            after=renumbered(part_table.after, new_part),
            needs=renumbered(part_table.needs, new_row),
            absent_ns=part_table.absent_ns + _later(replay, played, part),
        ),
        frame=_frame(schedule.frame, ranks),
        begin_ns=begin,
        issued_ns=played.issued_ns[row],
        done_ns=played.done_ns[row],
        arrival_ns=played.arrival_ns[part],
        end_ns=played.end_ns[part],
    )


def _of_ranks(rank: Indices, number: Indices, at: Ints | None = None) -> Ints:
    """Indices of the items of some ranks, rank by rank, in their order or by the times `at`.

    `rank` is the rank of each item, `number` the new number of each rank, -1 for ranks that are left out.
    """
    chosen = np.flatnonzero(number[rank] >= 0)
    keys = (number[rank[chosen]],) if at is None else (at[chosen], number[rank[chosen]])
    return chosen[np.lexsort(keys)]


def _taken(table: Any, chosen: Ints) -> Any:
    """The chosen rows of a table."""
    return type(table)(**{name: getattr(table, name)[chosen] for name in table.__struct_fields__})


def _spent(replay: Replay, row: Ints, place: Indices) -> dict[CpuTime, Ints]:
    """Host time of each chosen row by kind, ns; `place` is the place of each row among them."""
    spent: dict[CpuTime, Ints] = {}
    for kind, one in replay.schedule.spent.items():
        spent[kind] = np.zeros(len(row), np.int64)
        chosen = place[one.working] >= 0
        spent[kind][place[one.working[chosen]]] = one.work_ns[chosen]
    return spent


def _later(replay: Replay, played: Played, part: Ints) -> Ints:
    """For each chosen part, how much later the last part of its collective arrives than the last chosen one, ns."""
    collective = replay.schedule.parts.collective
    latest = np.full(int(collective.max()) + 1, np.iinfo(np.int64).min)
    chosen = latest.copy()
    known = np.flatnonzero(played.arrival_ns[:-1] > 0)
    np.maximum.at(latest, collective[known], played.arrival_ns[known])
    mine = part[:-1][played.arrival_ns[part[:-1]] > 0]
    np.maximum.at(chosen, collective[mine], played.arrival_ns[mine])
    here = collective[part]
    known_both = (latest[here] > 0) & (chosen[here] > 0)
    return np.where(known_both, latest[here] - np.where(known_both, chosen[here], latest[here]), 0)


def _frame(frame: StepFrame, ranks: Ints) -> StepFrame:
    """The frame of some ranks alone."""
    begins = frame.beginnings
    joined = tuple(
        JoinedLate(np.flatnonzero(np.isin(ranks, one.ranks)), *_others(one, ranks))
        for one in begins.joined
        if np.isin(ranks, one.ranks).any() and np.isin(one.others, ranks).any()
    )
    return replace(
        frame,
        host_start_ns=frame.host_start_ns[ranks],
        device_start_ns=frame.device_start_ns[ranks],
        beginnings=Beginnings(begins.late_ns[ranks], begins.again_ns[ranks], joined),
        step_index=frame.step_index[ranks],
        sequence=frame.sequence[ranks],
        order=frame.order[ranks],
        requests=None,
    )


def _others(one: JoinedLate, ranks: Ints) -> tuple[Ints, Ints]:
    """Those of the chosen ranks that late ranks join, as places among the chosen ones, and the steps of that."""
    kept = np.isin(one.others, ranks)
    return np.searchsorted(ranks, one.others[kept]), one.index[kept]
