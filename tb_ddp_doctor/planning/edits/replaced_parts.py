"""Replaces collectives of recorded tracks: the last step of every plan that launches other collectives.

    stream 20, recorded   [bucket 0][bucket 1]                        parts 3, 4
    stream 20, replaced   [new 0][new 1][new 2]                       parts 5, 6, 7; 3 and 4 are in no step

Old parts keep their numbers. The new ones come behind them, and the part that stands for "none" stays the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.planning.edits.cut_rows import RowPieces
from tb_ddp_doctor.planning.edits.recorded_rows import RecordedRows
from tb_ddp_doctor.planning.edits.streams import Streams
from tb_ddp_doctor.replay.model import PartIndex, Parts, RankIndex, RowIndex, StepIndex, TrackRows
from tb_ddp_doctor.trace.model import Flags, Ints


class NewParts(msgspec.Struct, frozen=True, eq=False):
    """New parts, shape (parts,); the columns are those of `Parts`, but `collective` and `like` are numbered from 0."""

    rank: Ints
    row: Ints
    own_step: Ints
    step: Ints
    collective: Ints
    absent_ns: Ints
    transfer_ns: Ints
    exposed_ns: Ints
    needs: Ints
    ready_ns: Ints
    like: Ints
    bytes: Ints
    family: Ints
    #: An old part whose stream the new part runs on.
    stream_of: Ints


def replaced(
    tracks: RecordedRows,
    pieces: RowPieces,
    rows: TrackRows,
    spent: Mapping[CpuTime, Ints],
    removed: Ints,
    new: NewParts,
) -> RecordedRows:
    """The tracks with cut rows, and new parts in place of the removed ones.

    `pieces` are the pieces of the old rows, `rows` the same as rows that already launch and await the new parts, and
    `spent` their host time by kind. `removed` are the old parts that are replaced, shape (P, removed), by pass. New
    parts go onto the stream of the last removed part of their rank and step.
    """
    old, nothing = tracks.part_table, len(tracks.part_table.rank) - 1
    gone = np.zeros(nothing + 1, np.bool_)
    gone[removed] = True
    launched = np.zeros(nothing, np.bool_)
    launched[tracks.table.launches[tracks.table.launches >= 0]] = True
    streams = Streams.of(old.after, launched)
    parts = _joined(old, gone, pieces.last_of, new)
    after = streams.chained(parts.after, streams.of_part[new.stream_of], rows, removed)
    return replace(
        tracks,
        table=rows,
        spent=spent,
        part_table=replace(parts, after=after),
        begin_ns=np.zeros_like(rows.work_ns),
        issued_ns=np.zeros_like(rows.work_ns),
        done_ns=pieces.done_ns,
    )


def _joined(old: Parts, gone: Flags, last_of: Ints, new: NewParts) -> Parts:
    """The old parts, of which those that are gone are in no step, then the new parts, then the one for "none".

    `last_of` is the row that each old row has become. New parts follow no part on their streams yet.
    """
    survives = np.append(~gone[:-1], True)
    nothing, added = len(old.rank) - 1, len(new.rank)

    def joined(column: NDArray[Any], more: NDArray[Any] | int) -> NDArray[Any]:
        each = np.broadcast_to(np.asarray(more, np.int64), (added,))
        return np.concatenate((column[:-1], each, column[-1:])).astype(column.dtype)

    own_step, step = (np.where(survives, column, -1).astype(np.int32) for column in (old.own_step, old.step))
    return Parts(
        rank=RankIndex(joined(old.rank, new.rank)),
        row=joined(old.row, new.row),
        own_step=StepIndex(joined(own_step, new.own_step)),
        step=StepIndex(joined(step, new.step)),
        collective=joined(old.collective, int(old.collective.max()) + 1 + new.collective),
        absent_ns=joined(old.absent_ns, new.absent_ns),
        transfer_ns=joined(old.transfer_ns, new.transfer_ns),
        exposed_ns=joined(old.exposed_ns, new.exposed_ns),
        end_ns=joined(np.where(survives, old.end_ns, LONG_AGO), LONG_AGO),
        after=PartIndex(joined(np.where(old.after == nothing, nothing + added, old.after), nothing + added)),
        needs=RowIndex(joined(np.where(old.needs >= 0, last_of[old.needs], -1).astype(np.int32), new.needs)),
        ready_ns=joined(old.ready_ns, new.ready_ns),
        like=joined(old.like, int(old.like.max()) + 1 + new.like),
        ordinal=joined(old.ordinal, 0),
        bytes=joined(old.bytes, new.bytes),
        family=joined(old.family, new.family),
    )
