"""The rows of each rank's track as they were recorded: where it pauses, what it had done by when, its collectives.

Pure: a schedule in, rows out. Times are ns on the common clock.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.owners import LONG_STALL_NS
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.replay.model import GUEST, Parts, Played, Schedule
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.trace.model import Flags, Indices, Ints


class RankRows(msgspec.Struct, frozen=True, eq=False):
    """When the rows of one rank's track were issued and over, and their device work done; ns on the common clock."""

    #: Which of the joined rows is the first.
    first: int
    issued_ns: Ints
    ended_ns: Ints
    done_ns: Ints
    #: When all collectives were over that kernels of the row, or of a row before it, wait for.
    free_ns: Ints
    #: The rows that end with a pause, those whose pause ends with the record, so that it may have gone on, and those at
    #: whose end the host is blocked until a collective is over.
    pauses: Ints
    cut: Ints
    meets: Ints
    #: Those of `meets` with ranks of other roles.
    meets_roles: Ints
    #: The rows with device work, and when that begins, ns.
    works: Ints
    begun_ns: Ints
    #: The rows that launch collectives, which ones, and when the rank arrives in them and they end, ns.
    calls: Ints
    collective: Ints
    arrival_ns: Ints
    end_ns: Ints

    @property
    def until_ns(self) -> int:
        """When the last of the rows and collectives is over, ns."""
        return max(int(each.max(initial=LONG_AGO)) for each in (self.ended_ns, self.done_ns, self.end_ns))

    def done_for(self, instant_ns: int, since_ns: int, waits: Sequence[int], soon: float) -> int | None:
        """The row with whose end a rank had done what others waited for until an instant, given its own waits (rows, in
        order), and since when others waited; None where nothing of it is recorded.

        That is the last row before then, if the rank's next wait is `soon`: it comes within this multiple of the time
        since its last one. Or that wait itself, if nothing began since: it has got the weights. Else the rank works on
        something new, and had handed over what came before the last wait: to those who wait now, unless that was before
        `since_ns`. What it had done before a wait with which its record ends it has handed over, too.
        """
        row = self.before(instant_ns)
        place = bisect.bisect_right(waits, row)
        while place and waits[place - 1] == row and instant_ns - self.ended_ns[row] < LONG_STALL_NS:
            # A wait that is over then is none: two waits that end at once do not wait for each other.
            row, place = row - 1, place - 1
        if place and waits[place - 1] in self.cut:
            return waits[place - 1] - 1 if waits[place - 1] else None
        if place and waits[place - 1] == row and not self._begins(row, instant_ns):
            return row
        following = [*waits[place : place + 1], *self.meets[np.searchsorted(self.meets, row, side="right") :][:1]]
        until = self.issued_ns[following].min(initial=self.ended_ns[-1]) - instant_ns
        wait = waits[place - 1] if place else -1
        if wait >= 0 and until > soon * (instant_ns - self.ended_ns[wait]):
            row = wait - 1 if self.issued_ns[wait] >= since_ns else -1
        return row if row >= 0 else None

    def before(self, instant_ns: int) -> int:
        """The last row that is over before an instant; -1 if none. A row whose kernels then wait for a collective is
        not: this rank or another may enter that later.
        """
        return min(int(np.searchsorted(each, instant_ns)) for each in (self.ended_ns, self.free_ns)) - 1

    def _begins(self, row: int, until_ns: int) -> bool:
        """Whether anything after a row begins before an instant."""
        return bool((self.issued_ns[row + 1 : row + 2] < until_ns).any())

    def next_work(self, row: int) -> int | None:
        """Which of the rows with device work comes next after a row; None where none is recorded."""
        index = int(np.searchsorted(self.works, row, side="right"))
        return index if index < len(self.works) else None


def rows_of_ranks(schedule: Schedule, role: Ints) -> list[RankRows]:
    """The rows of each rank's own track, as they were recorded; `role` numbers the ranks' roles, shape (R,)."""
    table, place, between = schedule.rows, schedule.recorded, _between_roles(schedule.parts, role)
    played = play(schedule, schedule.lengths, kept=True)
    first = np.searchsorted(table.rank[place], np.arange(len(role) + 1)).tolist()
    rows = []
    for begin, end in itertools.pairwise(first):
        mine = place[begin:end]
        issued, ended, done = (each[mine] for each in (played.issued_ns, played.ended_ns, played.done_ns))
        idle = ended - np.maximum(issued, np.minimum(done, ended))
        stalls = (table.blocked_by[mine] == CpuTime.STALL) & ~table.synced[mine] & (idle >= LONG_STALL_NS)
        is_last = ended >= ended.max(initial=0)
        pauses = np.flatnonzero(stalls & ~is_last), np.flatnonzero(stalls & is_last)
        free = np.maximum.accumulate(played.end_ns[table.awaits[mine]])
        waits = *pauses, *_meets(schedule, played, mine, between)
        next_work = _works(schedule, played, mine)
        rows.append(RankRows(begin, issued, ended, done, free, *waits, *next_work, *_calls(schedule, played, mine)))
    return rows


def _meets(schedule: Schedule, played: Played, rows: Indices, between: Flags) -> tuple[Ints, Ints]:
    """The columns `meets` and `meets_roles` of `RankRows`, given a rank's rows, and the parts `between` roles."""
    table, nothing = schedule.rows, len(schedule.parts.rank) - 1
    part = np.where(table.synced[rows], table.queue_part[rows], table.awaits[rows])
    blocked = (
        (table.synced[rows] | table.waits[rows]) & (part < nothing) & (played.end_ns[part] > played.issued_ns[rows])
    )
    meets = np.flatnonzero(blocked & (played.ended_ns[rows] - played.issued_ns[rows] >= LONG_STALL_NS))
    return meets, meets[between[part[meets]]]


def _between_roles(parts: Parts, role: Ints) -> Flags:
    """Which parts are of collectives with ranks of several roles, given each rank's role, shape (parts,)."""
    size = int(parts.collective.max(initial=0)) + 1
    least, most = np.full(size, len(role)), np.full(size, -1)
    np.minimum.at(least, parts.collective, role[parts.rank])
    np.maximum.at(most, parts.collective, role[parts.rank])
    between: Flags = (least < most)[parts.collective]
    return between


def _works(schedule: Schedule, played: Played, rows: Indices) -> tuple[Ints, Ints]:
    """The rows of a rank, among some, with device work, and when that begins, ns."""
    needs = schedule.rows.device_ns[rows]
    works = np.flatnonzero((needs > 0) | (schedule.rows.launches[rows] >= 0))
    return works, (played.done_ns[rows] - needs)[works]


def _calls(schedule: Schedule, played: Played, rows: Indices) -> tuple[Ints, Ints, Ints, Ints]:
    """The last four columns of `RankRows`, given a rank's rows."""
    part = schedule.rows.launches[rows]
    calls = np.flatnonzero(part >= 0)
    calls = calls[schedule.parts.like[part[calls]] != GUEST]
    of_calls = part[calls]
    collective = schedule.parts.collective[of_calls].astype(np.int64)
    return calls, collective, played.arrival_ns[of_calls], played.end_ns[of_calls]
