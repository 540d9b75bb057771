"""Cuts rows of tracks into pieces, so that other collectives can be launched or awaited between them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.planning.edits.recorded_rows import RecordedRows
from tb_ddp_doctor.replay.model import PartIndex, RankIndex, RowIndex, StepIndex, TrackRows
from tb_ddp_doctor.trace.model import Flags, Indices, Ints

#: Longer than any record, ns: added to times once for each rank, so that ranks lie one after the other on one axis.
_APART_NS = 1 << 46


class Cuts(msgspec.Struct, frozen=True, eq=False):
    """Where rows are cut; shape (cuts,). Cuts at the same time are made in this order."""

    #: Index of the rank.
    rank: Ints
    #: When its host gets there, ns.
    at_ns: Ints
    #: When the device is done with all that was launched before, ns; -1 if the record does not show it.
    done_ns: Ints
    #: How long the host then takes to launch a part, ns.
    launching_ns: Ints
    #: That part; -1 if none is launched.
    part: Ints


class RowPieces(msgspec.Struct, frozen=True, eq=False):
    """The pieces of rows, in order; shape (pieces,) unless a comment says more.

    A row of 10 ms of host work, cut after 4 ms to launch part 7 there:

        row  before  share  part  is_first  is_last
          0     0.0    0.4     7  yes       no
          0     0.4    1.0    -1  no        yes
    """

    #: The row of which it is a piece.
    row: Ints
    #: The share of the row's host work that is done at the end of the piece; 1 for the last piece.
    share: NDArray[np.float64]
    #: The share that is done at its begin; 0 for the first piece.
    before: NDArray[np.float64]
    #: As the columns of `TrackRows`.
    device_ns: Ints
    lead_ns: Ints
    #: When the device is done with it in the record.
    done_ns: Ints
    #: How long the host takes to launch `part`.
    launching_ns: Ints
    #: The part that is launched at a cut; -1 if none. What the row itself launches at its end is not here.
    part: Ints
    #: Whether it is the row's first piece.
    is_first: Flags
    #: Whether it is the row's last piece.
    is_last: Flags
    #: The last piece of each row, shape (rows,).
    last_of: Ints
    #: The piece that ends with each cut, shape (cuts,).
    cut_at: Ints

    @classmethod
    def of(cls, tracks: RecordedRows, cuts: Cuts) -> RowPieces:
        """The pieces of the rows of tracks, cut in some places."""
        table, rows, row = tracks.table, len(tracks.table.rank), _rows_at(tracks, cuts)
        begin, issued, end = tracks.begin_ns[row], tracks.issued_ns[row], tracks.done_ns[row]
        work = table.device_ns[row]
        share = np.clip((cuts.at_ns - begin) / np.maximum(issued - begin, 1), 0.0, 1.0)
        done = np.where(cuts.done_ns >= 0, cuts.done_ns, end - np.rint((1 - share) * work).astype(np.int64))
        spare = np.maximum(end - issued - table.lead_ns[row], 0)
        lead = np.where(table.lead_ns[row] > LONG_AGO // 2, done - cuts.at_ns - spare, LONG_AGO)
        return cls._ordered(
            row=np.concatenate((row, np.arange(rows))),
            share=np.concatenate((share, np.ones(rows))),
            needed_ns=np.concatenate((np.clip(done - (end - work), 0, work), table.device_ns)),
            lead_ns=np.concatenate((lead, table.lead_ns)),
            done_ns=np.concatenate((np.minimum(done, end), tracks.done_ns)),
            launching_ns=np.concatenate((cuts.launching_ns, np.zeros(rows, np.int64))),
            part=np.concatenate((cuts.part, np.full(rows, -1))),
        )

    @classmethod
    def _ordered(
        cls,
        row: Ints,
        share: NDArray[np.float64],
        needed_ns: Ints,
        lead_ns: Ints,
        done_ns: Ints,
        launching_ns: Ints,
        part: Ints,
    ) -> RowPieces:
        """The pieces, given what is done at the end of each; the arguments end with the last piece of each row.

        `share` is the share of the row's host work, `needed_ns` the device work, done from the begin of the row on.
        """
        rows = int(row[-1]) + 1
        ends = np.arange(len(row)) >= len(row) - rows
        order = np.lexsort((share, ends, row))
        row, share, needed = row[order], share[order], needed_ns[order]
        is_first = np.diff(row, prepend=-1) != 0
        is_last = np.append(is_first[1:], True)
        # A piece that ends later cannot have less device work done than one before it.
        lengths = np.diff(np.flatnonzero(np.append(is_first, True)))
        base = np.repeat(np.arange(len(lengths)), lengths) * (int(needed.max(initial=0)) + 1)
        needed = np.maximum.accumulate(needed + base) - base
        previous = np.where(is_first, 0, np.append(0, needed[:-1]))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return cls(
            row=row,
            share=share,
            before=np.where(is_first, 0.0, np.append(0.0, share[:-1])),
            device_ns=needed - previous,
            lead_ns=lead_ns[order],
            done_ns=done_ns[order],
            launching_ns=launching_ns[order],
            part=part[order],
            is_first=is_first,
            is_last=is_last,
            last_of=np.flatnonzero(is_last),
            cut_at=place[: len(order) - rows],
        )

    def of_each(self, values: Ints) -> Ints:
        """Values of rows divided among their pieces by share; they sum to the rows' values."""
        done: Ints = np.rint(values[self.row] * self.share).astype(np.int64)
        return done - np.rint(values[self.row] * self.before).astype(np.int64)

    def spent(self, spent: Mapping[CpuTime, Ints]) -> dict[CpuTime, Ints]:
        """Host time of each piece by kind, ns: the rows' time divided by share, and the launches at the cuts."""
        each = {kind: self.of_each(work) for kind, work in spent.items()}
        each[CpuTime.WORK] = each[CpuTime.WORK] + self.launching_ns
        return each

    def rows(self, table: TrackRows, spent: Mapping[CpuTime, Ints], launches: Indices, nothing: int) -> TrackRows:
        """The pieces as rows; `launches` is the part that each old row launches, `nothing` the part for "none"."""
        of, last, first = self.row, self.is_last, self.is_first
        queue_row = table.queue_row[of]
        return TrackRows(
            rank=RankIndex(table.rank[of]),
            own_step=StepIndex(table.own_step[of]),
            step=StepIndex(table.step[of]),
            work_ns=np.asarray(np.sum(list(spent.values()), axis=0, dtype=np.int64)),
            blocked_by=np.where(last, table.blocked_by[of], -1).astype(np.int32),
            blocked_ns=np.where(last, table.blocked_ns[of], 0),
            waits=table.waits[of] & last,
            queue_row=RowIndex(np.where(last & (queue_row >= 0), self.last_of[queue_row], -1).astype(np.int32)),
            queue_before=table.queue_before[of] & last,
            queue_tail_ns=np.where(last, table.queue_tail_ns[of], 0),
            queue_part=PartIndex(np.where(last, table.queue_part[of], nothing).astype(np.int32)),
            queue_ns=np.where(last, table.queue_ns[of], 0),
            synced=table.synced[of] & last,
            device_ns=self.device_ns,
            lead_ns=self.lead_ns,
            fed_ns=np.where(last, table.fed_ns[of], -1),
            awaits=PartIndex(np.where(first, table.awaits[of], nothing).astype(np.int32)),
            delay_ns=np.where(first, table.delay_ns[of], 0),
            launches=PartIndex(np.where(last, launches[of], self.part).astype(np.int32)),
            between=np.zeros(len(of), np.int32),
        )


def _rows_at(tracks: RecordedRows, cuts: Cuts) -> Ints:
    """The row in which each cut lies, shape (cuts,)."""
    origin, first = int(tracks.begin_ns.min(initial=0)), tracks.first
    key = tracks.table.rank.astype(np.int64) * _APART_NS + tracks.begin_ns - origin
    row = np.searchsorted(key, cuts.rank * _APART_NS + cuts.at_ns - origin, side="right") - 1
    return np.clip(row, first[:-1][cuts.rank], first[1:][cuts.rank] - 1)
