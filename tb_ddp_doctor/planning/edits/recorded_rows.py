"""A schedule taken apart again: the rows and parts of some ranks, rank by rank, for other collectives to be put in.

Rows are in the order in which each rank's host comes to them; parts in that of their arrival, with one more at the end
that was over long ago.
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
from tb_ddp_doctor.trace.model import Indices, Ints


class Natural(msgspec.Struct, frozen=True, eq=False):
    """The tracks of some ranks; implements `facts.tracks.Tracks`."""

    #: Of each row, with indices into these rows and parts; `work_ns` is the sum of `spent`.
    table: TrackRows
    spent: Mapping[CpuTime, Ints]
    part_table: Parts
    frame: StepFrame
    #: As recorded: when the host begins each row and has issued it, and when the device is done with it, ns.
    begin_ns: Ints
    issued_ns: Ints
    done_ns: Ints
    #: As recorded: when each part arrives and ends, ns.
    arrival_ns: Ints
    end_ns: Ints

    @property
    def rank(self) -> Indices:
        """The rank of each row, as an index among the chosen ones."""
        return self.table.rank

    @property
    def first(self) -> Ints:
        """Where each rank's rows begin, and where the last one's end."""
        return np.searchsorted(self.table.rank, np.arange(len(self.frame.step_index) + 1))

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Track`."""
        if name == "step":
            return self.table.own_step
        if name == "queue_row":
            return np.where(self.table.queue_before, BEFORE, self.table.queue_row)
        column: NDArray[Any] = getattr(self.table, name)
        return column

    def parts(self, name: str, missing: int) -> Indices:
        """A column with collectives, as parts of all ranks; `missing` for none."""
        column: Indices = getattr(self.table, name)
        return np.where((column >= 0) & (column < len(self.part_table.rank) - 1), column, missing).astype(np.int32)

    def rows(self, name: str) -> Indices:
        """A column with rows, as rows of all ranks; what is negative stays so."""
        return self.column(name).astype(np.int32)

    def job_step(self, step_index: Ints) -> Indices:  # noqa: ARG002
        """The job's step of each row, -1 for none."""
        return self.table.step

    def recorded(self) -> Indices:
        """No row of the ranks' own tracks: these are cut anew."""
        return np.empty(0, np.int32)

    def host_times(self, kind: CpuTime) -> tuple[Indices, Ints]:
        """The rows in which the host's time goes to something, each once, and how much of it."""
        row = np.flatnonzero(self.spent[kind]).astype(np.int32)
        return row, self.spent[kind][row]


def natural(replay: Replay, ranks: Ints) -> Natural:
    """The schedule of a replay, of some ranks in ascending order, with the times of the record."""
    schedule = replay.schedule
    played = play(schedule, replay.lengths(Change()), kept=True)
    rows, parts = schedule.rows, schedule.parts
    number = np.full(len(schedule.frame.step_index), -1, np.int32)
    number[ranks] = np.arange(len(ranks))
    row, part = _of_ranks(rows.rank, number), _of_ranks(parts.rank[:-1], number, played.arrival_ns[:-1])
    part = np.append(part, len(parts.rank) - 1)
    new_row, new_part = _places(row, len(rows.rank)), _places(part, len(parts.rank))
    nothing = len(part) - 1
    table = _taken(rows, row)
    part_table = _taken(parts, part)
    awaits, queue_part = new_part[table.awaits], new_part[table.queue_part]
    first = np.flatnonzero(np.diff(number[table.rank], prepend=-1))
    begin = np.concatenate(([0], played.ended_ns[row][:-1]))
    begin[first] = schedule.frame.host_start_ns[ranks][number[table.rank[first]]]
    return Natural(
        table=replace(
            table,
            rank=number[table.rank],
            queue_row=_moved(table.queue_row, new_row),
            launches=_moved(table.launches, new_part),
            awaits=np.where(awaits >= 0, awaits, nothing).astype(np.int32),
            queue_part=np.where(queue_part >= 0, queue_part, nothing).astype(np.int32),
        ),
        spent=_spent(replay, row, new_row),
        part_table=replace(
            part_table,
            rank=np.append(number[part_table.rank[:-1]], 0).astype(np.int32),
            after=_moved(part_table.after, new_part),
            needs=_moved(part_table.needs, new_row),
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
    """Which things are of numbered ranks, rank by rank; in their order, or by time."""
    chosen = np.flatnonzero(number[rank] >= 0)
    keys = (number[rank[chosen]],) if at is None else (at[chosen], number[rank[chosen]])
    return chosen[np.lexsort(keys)]


def _places(chosen: Ints, size: int) -> Indices:
    place = np.full(size, -1, np.int32)
    place[chosen] = np.arange(len(chosen))
    return place


def _moved(things: Indices, place: Indices) -> Indices:
    moved: Indices = np.where(things >= 0, place[np.maximum(things, 0)], -1).astype(np.int32)
    return moved


def _taken(table: Any, chosen: Ints) -> Any:
    """The chosen ones of a table's rows."""
    return type(table)(**{name: getattr(table, name)[chosen] for name in table.__struct_fields__})


def _spent(replay: Replay, row: Ints, place: Indices) -> dict[CpuTime, Ints]:
    spent: dict[CpuTime, Ints] = {}
    for kind, one in replay.schedule.spent.items():
        spent[kind] = np.zeros(len(row), np.int64)
        chosen = place[one.working] >= 0
        spent[kind][place[one.working[chosen]]] = one.work_ns[chosen]
    return spent


def _later(replay: Replay, played: Played, part: Ints) -> Ints:
    """How much later than the chosen parts of a collective the last of all its parts arrives, ns."""
    collective = replay.schedule.parts.collective
    latest = np.full(int(collective.max()) + 1, np.iinfo(np.int64).min)
    chosen = latest.copy()
    known = np.flatnonzero(played.arrival_ns[:-1] > 0)
    np.maximum.at(latest, collective[known], played.arrival_ns[known])
    mine = part[:-1][played.arrival_ns[part[:-1]] > 0]
    np.maximum.at(chosen, collective[mine], played.arrival_ns[mine])
    here = collective[part]
    found = (latest[here] > 0) & (chosen[here] > 0)
    return np.where(found, latest[here] - np.where(found, chosen[here], latest[here]), 0)


def _frame(frame: StepFrame, ranks: Ints) -> StepFrame:
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
    )


def _others(one: JoinedLate, ranks: Ints) -> tuple[Ints, Ints]:
    kept = np.isin(one.others, ranks)
    return np.searchsorted(ranks, one.others[kept]), one.index[kept]
