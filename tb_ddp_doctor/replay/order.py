"""Finds the order in which the rows and parts of all ranks can be played, and which of them can be played together.

1. A row can be played once the rank's row before has been, the part that it awaits is over, and the part is over that
   has to leave the launch queue before it.
2. A part has arrived once its row has been played and the part before it on its stream is over.
3. The parts of a collective are over together, once all of them have arrived.

    rank 0   row 0 launches part 0    row 1 awaits part 0
    rank 1   row 2                    row 3 launches part 1        parts 0 and 1 are one collective

    rows 0, 2; then row 3 and with it parts 0 and 1; then row 1
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.numbering import in_order
from tb_ddp_doctor.replay import native, native_library
from tb_ddp_doctor.replay.model import Ordering, PartIndex, Parts
from tb_ddp_doctor.replay.tracks import Tracks
from tb_ddp_doctor.trace.model import Indices, Ints


class CircularWaitError(Exception):
    """Rows wait for each other in a circle, so none of them can be played: some collectives are matched wrongly."""


class PlayedTogether(msgspec.Struct, frozen=True, eq=False):
    """Rows that can be played together, at most one of each rank, and the parts that are then over; see `Round`."""

    #: Places in `Order.rows`.
    rows: slice
    #: Places in `Order.parts`.
    completed: slice


class Order(msgspec.Struct, frozen=True, eq=False):
    """An order in which the rows and parts of all ranks can be played."""

    #: Indices of all rows in the order in which they are played.
    rows: Ints
    #: Indices of all parts in the order in which they are over; at the end those that no row launches.
    parts: Ints
    #: What is played together, first to last.
    plan: list[PlayedTogether]


def nothing_ordered(tracks: Tracks, parts: Parts, awaits: Indices) -> Ordering:
    """The state before any row has been played; `awaits` is the part that each row awaits, shape (rows,)."""
    launches, queue_part = tracks.parts("launches", -1), tracks.parts("queue_part", len(parts.rank) - 1)
    launched = np.zeros(len(parts.rank), np.bool_)
    launched[launches[launches >= 0]] = True
    done = ~launched
    following, beside = np.full((2, len(parts.rank)), -1, np.int32)
    chained = np.flatnonzero(launched & ~done[parts.after])
    chained = chained[in_order(parts.after[chained])]
    of = parts.after[chained]
    begins = np.diff(of, prepend=-1) > 0
    following[of[begins]] = chained[begins]
    beside[chained[:-1][~begins[1:]]] = chained[1:][~begins[1:]]
    collectives = int(parts.collective.max()) + 1
    members = np.flatnonzero(launched).astype(np.int32)
    members = members[np.argsort(parts.collective[members], kind="stable")]
    missing = np.bincount(parts.collective[members], minlength=collectives)
    return Ordering(
        first=tracks.first,
        awaits=PartIndex(awaits),
        queue_part=PartIndex(queue_part),
        launches=PartIndex(launches),
        collective=parts.collective,
        after=parts.after,
        following=PartIndex(following),
        beside=PartIndex(beside),
        members=PartIndex(members),
        members_at=np.concatenate(([0], np.cumsum(missing))),
        missing=missing,
        done=done,
        queued=np.zeros(len(parts.rank), np.bool_),
    )


def order_natively(ordering: Ordering) -> tuple[Ints, Ints, list[PlayedTogether]]:
    """The order of rows, the order of the parts that are over, and what is played together, by the native library.

    Raises CircularWaitError.
    """
    ordered_rows = native.order(ordering)
    if ordered_rows is None:
        raise CircularWaitError("Collectives wait for each other in a circle.")
    order, completed, plan = ordered_rows
    return order, completed, [PlayedTogether(slice(a, b), slice(c, d)) for a, b, c, d in plan.tolist()]


def order_with_numpy(ordering: Ordering) -> tuple[Ints, Ints, list[PlayedTogether]]:
    """The same order as that of `order_natively`, found with numpy. Raises CircularWaitError."""
    place, last = ordering.first[:-1].copy(), ordering.first[1:]
    order: list[Ints] = [np.empty(0, np.int64)]
    completing: list[NDArray[np.integer]] = [np.empty(0, np.int64)]
    plan: list[PlayedTogether] = []
    played = complete = 0
    while (active := np.flatnonzero(place < last)).size:
        row = place[active]
        ready = ordering.done[ordering.awaits[row]] & ordering.done[ordering.queue_part[row]]
        row = row[ready]
        if not len(row):
            raise CircularWaitError("Collectives wait for each other in a circle.")
        place[active[ready]] += 1
        launches = ordering.launches[row]
        new = launches[launches >= 0]
        ordering.queued[new] = True
        now = slice(played, played + len(row))
        played += len(row)
        order.append(row)
        for completed in _completed(ordering, new):
            plan.append(PlayedTogether(now, slice(complete, complete + len(completed))))
            complete += len(completed)
            completing.append(completed)
            now = slice(played, played)
        if now.stop > now.start:
            plan.append(PlayedTogether(now, slice(complete, complete)))
    return np.concatenate(order), np.concatenate(completing), plan


def _completed(ordering: Ordering, new: Indices) -> Iterator[Indices]:
    """The parts that are over once the `new` parts are launched, collective by collective.

    First the collectives that these parts complete; then those of parts that were launched before and come after these
    on a stream; and so on.
    """
    arriving = new[ordering.done[ordering.after[new]]]
    while len(arriving):
        np.subtract.at(ordering.missing, ordering.collective[arriving], 1)
        touched = np.unique(ordering.collective[arriving])
        full = touched[ordering.missing[touched] == 0].tolist()
        starts = ordering.members_at
        completed = np.concatenate([arriving[:0], *(ordering.members[starts[i] : starts[i + 1]] for i in full)])
        ordering.done[completed] = True
        if len(completed):
            yield completed
        after = ordering.following[completed]
        arriving = after[:0]
        while len(after := after[after >= 0]):
            arriving = np.concatenate((arriving, after[ordering.queued[after]]))
            after = ordering.beside[after]


def ordered(tracks: Tracks, parts: Parts, awaits: Indices) -> Order:
    """The order in which rows and parts can be played; `awaits` is the part that each row awaits, shape (rows,).

    Raises CircularWaitError.
    """
    ordering = nothing_ordered(tracks, parts, awaits)
    put_in_order = order_natively if native_library.is_available() else order_with_numpy
    order, completed, plan = put_in_order(ordering)
    never = np.ones(len(parts.rank), np.bool_)
    never[completed] = False
    return Order(order, np.concatenate([completed, np.flatnonzero(never)]), plan)
