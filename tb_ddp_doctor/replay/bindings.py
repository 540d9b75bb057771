"""Says what each event of the recorded steps waited for. Followed back from the end, that is the critical path.

Back from the end of an AllReduce, for which rank 0 waits:

    rank 0   [launch]  [wait....................][transfer]     COMPLETED waited for ARRIVED of rank 1,
    rank 1   [load................][launch]      [transfer]     ARRIVED for ENDED of its launch, and so on
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.model import GUEST
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.replay.replay import Replay
from tb_ddp_doctor.trace.model import Flags, Indices, Ints


class EventKind(IntEnum):
    """What happens to a row or a part."""

    #: The host has issued all that the row launches.
    ISSUED = 0
    #: The call that blocks the host at the row's end is over.
    ENDED = 1
    #: The device has done what the row launched.
    DONE = 2
    #: The rank arrives at a collective.
    ARRIVED = 3
    #: The collective ends.
    COMPLETED = 4


class EventNode(NamedTuple):
    """An event of a row or of a part of the schedule; `at` is the index of that row or part."""

    event: EventKind
    at: int


class Binding(NamedTuple):
    """What an event waited for."""

    #: Index of the event's rank.
    rank: int
    #: The event's row in the rank's track, or in its collectives.
    row: int
    #: The event that it waited for; None if that is before the record.
    by: EventNode | None
    #: When that wait was over: from then on the event took its own time.
    since_ns: int
    #: How much of that time a collective waits for ranks that have no trace.
    absent_ns: int = 0


class Bindings:
    """What each recorded event waited for: of all that had to be over before it, the last to be over.

    If two were over at the same time, it waited for the host's or the device's own work.
    """

    def __init__(self, replay: Replay) -> None:
        self._schedule = schedule = replay.schedule
        self._lengths = replay.lengths(Change())
        self._played = play(schedule, self._lengths, kept=True)
        self._ends_ns = ends = replay.step_ends(self._played)
        #: The ranks that are waited for: engines of reinforcement learning that generate ahead are not.
        self._awaited = np.flatnonzero(~schedule.frame.ahead)
        rank, step = self._awaited[:, None], schedule.frame.step_index[self._awaited]
        #: When each of the job's steps begins on the last rank, shape (S,), ns.
        self.start_ns: Ints = ends[rank, step].max(axis=0)
        #: When each of the job's steps ends on the last rank, shape (S,), ns.
        self.end_ns: Ints = ends[rank, step + 1].max(axis=0)
        self._rows_of: dict[int, Ints] = {}
        #: The rows of each rank's track: all of its rows but those that launch a guest.
        self._tracks: dict[int, Ints] = {}

    @property
    def last(self) -> EventNode | None:
        """The last event of the last step, on the rank that ends it last; None if the record has no event."""
        rows, parts, played = self._schedule.rows, self._schedule.parts, self._played
        index = self._schedule.frame.step_index
        rank = int(self._awaited[self._ends_ns[self._awaited, index[self._awaited, -1] + 1].argmax()])
        own_step = index[rank, -1]
        mine = np.flatnonzero((rows.rank == rank) & (rows.own_step <= own_step))
        own = np.flatnonzero((parts.rank == rank) & (parts.own_step >= 0) & (parts.own_step <= own_step))
        ends = np.concatenate((played.done_ns[mine], played.end_ns[own]))
        if not len(ends):
            return None
        # Rows without device work end together with the row before: take the latest of those that end last.
        latest = len(ends) - 1 - int(ends[::-1].argmax())
        if latest < len(mine):
            return EventNode(EventKind.DONE, int(mine[latest]))
        return EventNode(EventKind.COMPLETED, int(own[latest - len(mine)]))

    def of(self, node: EventNode) -> Binding:
        """What an event waited for."""
        binding = {
            EventKind.ISSUED: self._issued,
            EventKind.ENDED: self._ended,
            EventKind.DONE: self._done,
            EventKind.ARRIVED: self._arrived,
            EventKind.COMPLETED: self._completed,
        }
        return binding[node.event](node.at)

    def _issued(self, row: int) -> Binding:
        """A row is issued after the rank's row before, or once the launch queue has a place for it."""
        rows, lengths = self._schedule.rows, self._lengths
        before = self._before(row)
        host_ns = self._played.ended_ns[before] if before >= 0 else self._schedule.frame.host_start_ns[rows.rank[row]]
        by, free_ns = self._queue(row)
        if not rows.synced[row] and free_ns + lengths.queue_ns[row] > host_ns + lengths.work_ns[row]:
            return self._of_row(row, by, free_ns)
        return self._of_row(row, EventNode(EventKind.ENDED, before) if before >= 0 else None, int(host_ns))

    def _ended(self, row: int) -> Binding:
        """A row ends once it is issued, or once the event or the device work is over that blocks its host."""
        rows, lengths, played = self._schedule.rows, self._lengths, self._played
        by, free_ns = self._queue(row)
        issued_ns = int(played.issued_ns[row])
        if rows.synced[row] and free_ns + lengths.queue_ns[row] > issued_ns + lengths.blocked_ns[row]:
            return self._of_row(row, by, free_ns)
        if rows.waits[row] and played.done_ns[row] > issued_ns:
            return self._of_row(row, EventNode(EventKind.DONE, row), int(played.done_ns[row]))
        return self._of_row(row, EventNode(EventKind.ISSUED, row), issued_ns)

    def _done(self, row: int) -> Binding:
        """The device is done with a row after the row before, the collective that it awaits, or its own launch."""
        rows, lengths, played = self._schedule.rows, self._lengths, self._played
        before = self._before(row)
        free_ns = int(played.done_ns[before] if before >= 0 else self._schedule.frame.device_start_ns[rows.rank[row]])
        awaited_ns = int(played.end_ns[rows.awaits[row]])
        gated_ns = awaited_ns + int(rows.delay_ns[row])
        issued_ns, fed_ns = int(played.issued_ns[row]), int(rows.fed_ns[row])
        if issued_ns + lengths.lead_ns[row] > max(gated_ns, free_ns) + lengths.device_ns[row]:
            since = int(played.done_ns[row]) - fed_ns if fed_ns >= 0 else issued_ns
            return self._of_row(row, EventNode(EventKind.ISSUED, row), since)
        if gated_ns > free_ns:
            return self._of_row(row, EventNode(EventKind.COMPLETED, int(rows.awaits[row])), awaited_ns)
        return self._of_row(row, EventNode(EventKind.DONE, before) if before >= 0 else None, free_ns)

    def _arrived(self, part: int) -> Binding:
        """A part arrives after its launch, the device work that it needs, or the part before it."""
        parts, played = self._schedule.parts, self._played
        row, needs, after = int(self._launching[part]), int(parts.needs[part]), int(parts.after[part])
        waited_for = [(int(played.ended_ns[row]), EventNode(EventKind.ENDED, row))]
        if needs >= 0:
            waited_for.append((int(played.done_ns[needs]), EventNode(EventKind.DONE, needs)))
        if after < len(parts.rank) - 1:
            waited_for.append((int(played.end_ns[after]), EventNode(EventKind.COMPLETED, after)))
        since, by = max(waited_for, key=lambda one: one[0])
        return self._of_part(part, by, since)

    def _completed(self, part: int) -> Binding:
        """A collective ends after its last rank's arrival; of parts that no row launches nothing is known."""
        parts = self._schedule.parts
        if self._launching[part] < 0:
            return self._of_part(part, None, int(parts.end_ns[part]))
        members = self._members(part)
        arrivals = self._played.arrival_ns[members]
        latest = len(members) - 1 - int(arrivals[::-1].argmax())
        return self._of_part(part, EventNode(EventKind.ARRIVED, int(members[latest])), int(arrivals[latest]))

    def _queue(self, row: int) -> tuple[EventNode | None, int]:
        """The event after which the launch queue has a place for a row, None if before the record, and when; ns."""
        rows, played = self._schedule.rows, self._played
        behind, part = int(rows.queue_row[row]), int(rows.queue_part[row])
        if rows.queue_before[row]:
            return None, int(self._schedule.frame.device_start_ns[rows.rank[row]])
        if behind >= 0:
            return EventNode(EventKind.DONE, behind), int(played.done_ns[behind] - rows.queue_tail_ns[row])
        nothing = len(self._schedule.parts.rank) - 1
        return EventNode(EventKind.COMPLETED, part) if part < nothing else None, int(played.end_ns[part])

    def _before(self, row: int) -> int:
        """The row before a row on the same rank, -1 if none."""
        mine = self._of_rank(int(self._schedule.rows.rank[row]))
        place = int(np.searchsorted(mine, row))
        return int(mine[place - 1]) if place else -1

    def _of_rank(self, rank: int) -> Ints:
        """The rows of a rank, in the order in which they are played, which is that of its track."""
        if rank not in self._rows_of:
            self._rows_of[rank] = np.flatnonzero(self._schedule.rows.rank == rank)
        return self._rows_of[rank]

    def _of_row(self, row: int, by: EventNode | None, since_ns: int) -> Binding:
        """The binding of an event of a row."""
        rank = int(self._schedule.rows.rank[row])
        if rank not in self._tracks:
            # A row that launches a guest is part of the row before it.
            mine = self._of_rank(rank)
            self._tracks[rank] = mine[~self._launches_guest[mine]]
        return Binding(rank, int(np.searchsorted(self._tracks[rank], row, side="right")) - 1, by, since_ns)

    def _of_part(self, part: int, by: EventNode | None, since_ns: int) -> Binding:
        """The binding of an event of a part."""
        parts = self._schedule.parts
        absent_ns = int(parts.absent_ns[part]) if by and by.event is EventKind.ARRIVED else 0
        return Binding(int(parts.rank[part]), int(parts.row[part]), by, since_ns, absent_ns)

    @cached_property
    def _launches_guest(self) -> Flags:
        """Flags the rows that launch a guest (see `guests.py`), shape (rows,)."""
        launches = self._schedule.rows.launches
        guests: Flags = (launches >= 0) & (self._schedule.parts.like[launches] == GUEST)
        return guests

    @cached_property
    def _launching(self) -> Indices:
        """The row that launches each part, -1 if none does, shape (parts,)."""
        launches = self._schedule.rows.launches
        rows = np.flatnonzero(launches >= 0).astype(np.int32)
        launching = np.full(len(self._schedule.parts.rank), -1, np.int32)
        launching[launches[rows]] = rows
        return launching

    def _members(self, part: int) -> Ints:
        """The parts that complete together with a part: the launched parts of its collective."""
        after = int(np.searchsorted(self._completed_until, part, side="right"))
        first, last = self._completed_until[after - 1], self._completed_until[after]
        mine = self._schedule.parts.collective[first:last] == self._schedule.parts.collective[part]
        members: Ints = first + np.flatnonzero(mine)
        return members

    @cached_property
    def _completed_until(self) -> Ints:
        """0, and for each round with collectives the index after its last part."""
        return np.array([0, *(each.completed.stop for each in self._schedule.rounds if len(each.starts))])
