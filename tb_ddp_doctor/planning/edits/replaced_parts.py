"""Replaces collectives of recorded tracks by others: what every plan does that launches other collectives.

    stream 20, recorded   [bucket 0][bucket 1]                        parts 3, 4
    stream 20, replaced   [new 0][new 1][new 2]                       parts 5, 6, 7; 3 and 4 are in no step

Old parts keep their numbers. The new ones come behind them, and the part that stands for "none" stays the last. If a
new part equals a removed one, rows that launched or awaited the removed one launch and await the new one.
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
from tb_ddp_doctor.replay.model import GUEST, PartIndex, Parts, RankIndex, RowIndex, StepIndex, TrackRows
from tb_ddp_doctor.trace.model import Flags, Ints

#: Instead of the name of a stream: that of a part which comes after one that is named.
_ON_NO_STREAM = -2


class NewParts(msgspec.Struct, frozen=True, eq=False):
    """New parts, shape (parts,). Parts, `collective` and `like` are numbered from 0; other columns as in `Parts`."""

    #: The piece of a row that launches it; -1 if none does.
    launched_by: Ints
    #: The removed part that it equals; -1 if it equals none.
    same_as: Ints
    #: A row that queued behind a removed part queues behind the last new one, launched before, of the same number here.
    queue: Ints

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
    #: The new part that it comes after on another stream, numbered from 0; -1 if it comes after the part before it on
    #: its own stream. None for -1 in all.
    after: Ints | None = None
    #: Flags guests (`guests.py`): each only makes its collective wait for the part in `after`. None if there are none.
    is_guest: Flags | None = None


class Gates(msgspec.Struct, frozen=True, eq=False):
    """Pieces of rows whose first kernel waits for a new part; shape (gates,)."""

    piece: Ints
    part: Ints
    #: How long after the end of that part the kernel starts, ns.
    delay_ns: Ints


def replaced(
    tracks: RecordedRows, pieces: RowPieces, work_ns: Ints, removed: Ints, queue: Ints, new: NewParts, gates: Gates
) -> RecordedRows:
    """The tracks with new parts in place of the removed ones.

    `pieces` are the pieces of the old rows. `work_ns` is the host's work in each old row without the launches of
    removed parts, shape (rows,). `removed` are the replaced old parts, by pass, shape (P, removed), and `queue`
    is their number in `NewParts.queue`, shape (P,). New parts go onto the stream of the last removed part of their
    rank and step.
    """
    old, first = tracks.part_table, len(tracks.part_table.rank) - 1
    queue_of = _with_guests(old, removed, queue)
    launched = np.zeros(first, np.bool_)
    launched[tracks.table.launches[tracks.table.launches >= 0]] = True
    streams = Streams.of(old.after, launched)
    parts = _joined(old, queue_of >= 0, pieces.last_of, new)
    spent = pieces.spent({**tracks.spent, CpuTime.WORK: work_ns})
    rows = _rows(tracks, pieces, spent, queue_of, new, gates)
    behind = np.full(len(new.rank), -1) if new.after is None else new.after
    of_new = np.where(behind >= 0, _ON_NO_STREAM, streams.of_part[new.stream_of])
    after = streams.chained(parts.after, of_new, rows, removed)
    after[first + np.flatnonzero(behind >= 0)] = first + behind[behind >= 0]
    return replace(
        tracks,
        table=rows,
        spent=spent,
        part_table=replace(parts, after=after),
        begin_ns=np.zeros_like(rows.work_ns),
        issued_ns=np.zeros_like(rows.work_ns),
        done_ns=pieces.done_ns,
    )


def _with_guests(old: Parts, removed: Ints, queue: Ints) -> Ints:
    """The number in `NewParts.queue` of each removed old part, -1 of the other ones, shape (old parts,).

    The guests of a removed collective on the same rank are removed with it: they stand for nothing else.
    """
    queue_of = np.full(len(old.rank), -1)
    queue_of[removed] = queue[:, None]
    guests = np.flatnonzero(old.like[:-1] == GUEST)
    parts = np.flatnonzero(queue_of >= 0)
    if len(guests) and len(parts):
        apart = int(old.rank.max()) + 1
        own, host = (old.collective[some].astype(np.int64) * apart + old.rank[some] for some in (guests, parts))
        order = np.argsort(host, kind="stable")
        place = np.minimum(np.searchsorted(host[order], own), len(parts) - 1)
        mine = host[order][place] == own
        queue_of[guests[mine]] = queue_of[parts[order][place[mine]]]
    return queue_of


def _rows(
    tracks: RecordedRows, pieces: RowPieces, spent: Mapping[CpuTime, Ints], queue_of: Ints, new: NewParts, gates: Gates
) -> TrackRows:
    """The pieces as rows that launch, queue behind, and await the new parts.

    `queue_of` is the number of each removed part in `NewParts.queue`, -1 of the other old ones, shape (old parts,).
    """
    first, gone = len(queue_of) - 1, queue_of >= 0
    nothing = first + len(new.rank)
    # What each old part is now: itself, the new part that equals it, or "none".
    now = np.where(gone, nothing, np.arange(first + 1))
    now[-1] = nothing
    is_same = new.same_as >= 0
    now[new.same_as[is_same]] = first + np.flatnonzero(is_same)
    launched = tracks.table.launches
    launches = np.where((launched >= 0) & (now[launched] < nothing), now[launched], -1)
    rows = pieces.rows(tracks.table, spent, launches, first)
    queue_part = now[rows.queue_part]
    queued = np.flatnonzero(gone[rows.queue_part] & (queue_part == nothing))
    before = _launched_before(queued, queue_of[rows.queue_part[queued]], new)
    queue_part[queued] = np.where(before >= 0, first + before, nothing)
    awaits, delay_ns = now[rows.awaits], rows.delay_ns.copy()
    awaits[gates.piece], delay_ns[gates.piece] = first + gates.part, gates.delay_ns
    return replace(
        rows,
        queue_part=PartIndex(queue_part.astype(np.int32)),
        awaits=PartIndex(awaits.astype(np.int32)),
        delay_ns=delay_ns,
    )


def _launched_before(queued: Ints, queue: Ints, new: NewParts) -> Ints:
    """The last new part of these queues that is launched before these rows, both shape (queued,); -1 if none."""
    launched = np.flatnonzero((new.launched_by >= 0) & (True if new.is_guest is None else ~new.is_guest))
    order = launched[np.lexsort((new.launched_by[launched], new.queue[launched]))]
    apart = int(max(new.launched_by.max(initial=0), queued.max(initial=0))) + 1
    launches = new.queue[order] * apart + new.launched_by[order]
    place = np.searchsorted(launches, queue * apart + queued) - 1
    part = np.append(order, -1)[place]
    return np.where((part >= 0) & (new.queue[part] == queue), part, -1)


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
    like = int(old.like.max()) + 1 + new.like
    if new.is_guest is not None:
        like[new.is_guest] = GUEST
    return Parts(
        rank=RankIndex(joined(old.rank, new.rank)),
        row=joined(old.row, new.row),
        own_step=StepIndex(joined(own_step, new.own_step)),
        step=StepIndex(joined(step, new.step)),
        collective=joined(old.collective, int(old.collective.max()) + 1 + new.collective),
        absent_ns=joined(old.absent_ns, new.absent_ns),
        transfer_ns=joined(old.transfer_ns, new.transfer_ns),
        exposed_ns=joined(old.exposed_ns, new.exposed_ns),
        first_exposed_ns=joined(old.first_exposed_ns, new.exposed_ns),
        end_ns=joined(np.where(survives, old.end_ns, LONG_AGO), LONG_AGO),
        after=PartIndex(joined(np.where(old.after == nothing, nothing + added, old.after), nothing + added)),
        needs=RowIndex(joined(np.where(old.needs >= 0, last_of[old.needs], -1).astype(np.int32), new.needs)),
        ready_ns=joined(old.ready_ns, new.ready_ns),
        like=joined(old.like, like),
        ordinal=joined(old.ordinal, 0),
        bytes=joined(old.bytes, new.bytes),
        family=joined(old.family, new.family),
    )
