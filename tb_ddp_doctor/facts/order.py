"""The order in which rows and parts of all ranks can be played, and what can be played together.

A row follows the one before it, and the parts that it awaits and that leave the launch queue before it; the parts of a
collective complete together, once all are launched and those that they come after are over.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.facts import native_order, replay_library
from tb_ddp_doctor.facts.schedule_model import Flags, Parts
from tb_ddp_doctor.facts.tracks import Tracks
from tb_ddp_doctor.job.numbering import in_order
from tb_ddp_doctor.trace.model import Indices, Ints


class StuckError(Exception):
    """Rows wait for each other in a circle: some match of collectives is wrong."""


class Together(msgspec.Struct, frozen=True, eq=False):
    """Rows that follow no other ones still to be played, and the parts that complete with them; as in `Round`."""

    rows: slice
    completed: slice


class Order(msgspec.Struct, frozen=True, eq=False):
    """An order in which rows and parts of all ranks can be played, as indices, and what can be played together."""

    rows: Ints
    #: Those that nothing launches last.
    parts: Ints
    plan: list[Together]


class Ordering(msgspec.Struct, frozen=True, eq=False):
    """What is to be put in order, and how far that has come."""

    #: Where each rank's rows begin, and where the last one's end, shape (R + 1,).
    first: Ints
    #: Of rows: the part that each awaits, that leaves the queue before it, and that it launches, -1 for none.
    awaits: Indices
    queue_part: Indices
    launches: Indices
    #: Of parts: the collective; the part that each comes after; the first one that comes after it, and the next one
    #: that comes after the same part, -1 for none.
    collective: Indices
    after: Indices
    following: Indices
    beside: Indices
    #: The parts of each collective that are launched, together, and where its begin.
    members: Indices
    members_at: Ints
    #: How many parts each collective still lacks; whether each part is over, and whether it is launched.
    missing: Ints
    done: Flags
    queued: Flags

    @classmethod
    def of(cls, tracks: Tracks, parts: Parts, awaits: Indices) -> Ordering:
        """At the beginning; `awaits` is the part that each row awaits."""
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
        return cls(
            first=tracks.first,
            awaits=awaits,
            queue_part=queue_part,
            launches=launches,
            collective=parts.collective,
            after=parts.after,
            following=following,
            beside=beside,
            members=members,
            members_at=np.concatenate(([0], np.cumsum(missing))),
            missing=missing,
            done=done,
            queued=np.zeros(len(parts.rank), np.bool_),
        )

    def natively(self) -> tuple[Ints, Ints, list[Together]]:
        """By the native library: the order of rows, that of parts that complete, and the plan. Raises StuckError."""
        found = native_order.order(self)
        if found is None:
            raise StuckError("Collectives wait for each other in a circle.")
        order, completed, plan = found
        return order, completed, [Together(slice(a, b), slice(c, d)) for a, b, c, d in plan.tolist()]

    def with_numpy(self) -> tuple[Ints, Ints, list[Together]]:
        """The same without it."""
        place, last = self.first[:-1].copy(), self.first[1:]
        order: list[Ints] = [np.empty(0, np.int64)]
        completing: list[NDArray[np.integer]] = [np.empty(0, np.int64)]
        plan: list[Together] = []
        played = complete = 0
        while (active := np.flatnonzero(place < last)).size:
            row = place[active]
            ready = self.done[self.awaits[row]] & self.done[self.queue_part[row]]
            row = row[ready]
            if not len(row):
                raise StuckError("Collectives wait for each other in a circle.")
            place[active[ready]] += 1
            launches = self.launches[row]
            new = launches[launches >= 0]
            self.queued[new] = True
            now = slice(played, played + len(row))
            played += len(row)
            order.append(row)
            for completed in self._completed(new):
                plan.append(Together(now, slice(complete, complete + len(completed))))
                complete += len(completed)
                completing.append(completed)
                now = slice(played, played)
            if now.stop > now.start:
                plan.append(Together(now, slice(complete, complete)))
        return np.concatenate(order), np.concatenate(completing), plan

    def _completed(self, new: Indices) -> Iterator[Indices]:
        """Parts, by collective, that complete once the `new` ones are queued; and those that follow on streams."""
        arriving = new[self.done[self.after[new]]]
        while len(arriving):
            np.subtract.at(self.missing, self.collective[arriving], 1)
            touched = np.unique(self.collective[arriving])
            full = touched[self.missing[touched] == 0].tolist()
            starts = self.members_at
            completed = np.concatenate([arriving[:0], *(self.members[starts[i] : starts[i + 1]] for i in full)])
            self.done[completed] = True
            if len(completed):
                yield completed
            after = self.following[completed]
            arriving = after[:0]
            while len(after := after[after >= 0]):
                arriving = np.concatenate((arriving, after[self.queued[after]]))
                after = self.beside[after]


def ordered(tracks: Tracks, parts: Parts, awaits: Indices) -> Order:
    """The order in which rows and parts can be played. Raises StuckError."""
    ordering = Ordering.of(tracks, parts, awaits)
    order, completed, plan = ordering.natively() if replay_library.is_available() else ordering.with_numpy()
    never = np.ones(len(parts.rank), np.bool_)
    never[completed] = False
    return Order(order, np.concatenate([completed, np.flatnonzero(never)]), plan)
