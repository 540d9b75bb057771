"""Finds where a role of reinforcement learning waits for another one without a collective; ties the two in a replay.

Samples go to the ranks that train through a queue, weights to those that generate by file, HTTP, CUDA IPC or RDMA. Who
waits for them is outside any op with an idle GPU, which looks like slow Python. But it goes on when others are done:

    rollout  [generate..............]pause......................[load][generate....
    update   pause...................[train..............][save]pause..............
                                     |samples                   |weights

A *pause* is such a stretch, and is taken for a wait where ranks of a role end it together (`job.together`): what a
single rank stalls is its own. It ends so long after the last of the ranks of other roles had done what it waited for:

- the last row before then of a rank that works on towards its own next wait, in a pause or a collective,
- the last row before its last wait of one that has begun something new since.

Of ranks that generate and wait once a round the n-th pause of the others awaits the n-th generation that is over by
then, or one that is as many rounds older in all rounds: it may be consumed a round later.

If others had done it before half of the pause was over, the pause is the rank's own. In the replay a hand-over is a
collective of guests (`guests.py`), one of each rank of another role, and the pauses end a latency after it.

Waits for what lies before the record stay stalls.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.owners import LONG_STALL_NS
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import between_roles, only_generate, parts_of_roles
from tb_ddp_doctor.job.together import Pause, together
from tb_ddp_doctor.replay.cells import lower_median
from tb_ddp_doctor.replay.guests import TracksWithGuests
from tb_ddp_doctor.replay.model import GUEST, Parts, Played, Schedule
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.replay.tracks import Tracks
from tb_ddp_doctor.trace.model import Flags, Indices, Ints
from tb_ddp_doctor.trace.program_names import Program

#: The share of a pause that may come after all that others had done: what is more is the rank's own.
_OWN = 0.5
#: Who copies weights from the GPU to send them copies so many times as many bytes as others of its role.
_FAR_MORE = 2.0
#: Who sends weights in so large a part of the steps does so in all of them.
_OFTEN = 0.5
#: Ranks that send weights meet so soon before the others go on with them, ns.
_SOON_NS = LONG_STALL_NS
#: What a rank hands over it has done when it begins to wait itself, so soon after as multiples of the time since its
#: last wait; or else, where nobody had anything done by then, while it works on.
_SOON = (0.1, 1.0)
#: A role whose CPUs are outside any op, with idle GPUs, for a smaller share of the step hardly idles.
_HARDLY = 0.1
#: Ties of more ranks than this are not made: a replay would take long.
_MOST_GUESTS = 200_000


class HandOvers(msgspec.Struct, frozen=True, eq=False):
    """Waits of ranks for ranks of other roles, in P pauses. Rows are those of the ranks' own tracks, joined."""

    #: The rows that end with a pause, shape (P,), the hand-over that each waits for, and how long after it the pause
    #: ends, ns.
    pause: Ints
    awaits: Ints
    latency_ns: Ints
    #: Of each guest: its hand-over, the row after which it arrives, and the row whose device work is done by then, -1
    #: if none. By hand-over: each has a guest.
    of: Ints
    after: Ints
    needs: Ints
    #: The rows whose device work cannot begin before a hand-over, though nobody waited for it, and that hand-over.
    works: Ints
    works_await: Ints
    #: Rows after which one rank alone sent something, and how long that took, ns.
    sent: Ints
    sending_ns: Ints

    def sending_by_step(self, tracks: Tracks, step_index: Ints) -> Ints:
        """How long each rank sends alone in each step, given the tracks with these hand-overs, shape (R, S), ns."""
        row = tracks.recorded()[self.sent]
        step, by_step = tracks.job_step(step_index)[row], np.zeros_like(step_index)
        known = step >= 0
        np.add.at(by_step, (tracks.rank[row[known]], step[known]), self.sending_ns[known])
        sends = by_step > 0
        # For what is sent at the end of the record nobody waits in it.
        always = sends.mean(axis=1) >= _OFTEN
        for rank in np.flatnonzero(always).tolist():
            by_step[rank, ~sends[rank]] = lower_median(by_step[rank, sends[rank]])
        return by_step


class _RankRows(msgspec.Struct, frozen=True, eq=False):
    """When the rows of one rank's track were issued and over, and their device work done; ns on the common clock."""

    #: Which of the joined rows is the first.
    first: int
    issued_ns: Ints
    ended_ns: Ints
    done_ns: Ints
    #: When all collectives were over that kernels of the row, or of a row before it, wait for.
    free_ns: Ints
    #: The rows that end with a pause, and those at whose end the host is blocked until a collective is over.
    pauses: Ints
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

    def done_for(self, instant_ns: int, since_ns: int, waits: Sequence[int], soon: float) -> int | None:
        """The row with whose end a rank had done what others waited for until an instant, given its own waits (rows, in
        order), and since when others waited; None where nothing of it is recorded.

        That is the last row before then, if the rank's next wait is `soon`: it comes within this multiple of the time
        since its last one. Else it works on something new, and had handed over what came before the last wait: to those
        who wait now, unless that was before `since_ns`.
        """
        # A row whose kernels then wait for a collective is not done: this rank or another may enter that later.
        row = min(int(np.searchsorted(each, instant_ns)) for each in (self.ended_ns, self.free_ns)) - 1
        place = bisect.bisect_right(waits, row)
        while place and waits[place - 1] == row:
            # A wait that is over then is none: two waits that end at once do not wait for each other.
            row, place = row - 1, place - 1
        following = [*waits[place : place + 1], *self.meets[np.searchsorted(self.meets, row, side="right") :][:1]]
        until = self.issued_ns[following].min(initial=self.ended_ns[-1]) - instant_ns
        wait = waits[place - 1] if place else -1
        if wait >= 0 and until > soon * (instant_ns - self.ended_ns[wait]):
            row = wait - 1 if self.issued_ns[wait] >= since_ns else -1
        return row if row >= 0 else None

    def next_work(self, row: int) -> int | None:
        """Which of the rows with device work comes next after a row; None where none is recorded."""
        index = int(np.searchsorted(self.works, row, side="right"))
        return index if index < len(self.works) else None


def hand_overs(job: Job, schedule: Schedule) -> HandOvers | None:
    """The hand-overs of a job whose schedule without them is given; None where there are none."""
    if job_kind.program(job) is not Program.RL:
        return None
    of_roles = parts_of_roles(job)
    if len(of_roles) < 2:
        return None
    role = np.zeros(len(job.ranks), np.int64)
    for number, ranks in enumerate(of_roles, 1):
        role[ranks] = number
    rows = _rows(schedule, role)
    groups = [
        (group, np.setdiff1d(np.concatenate(of_roles), ranks)) for ranks in of_roles for group in _together(rows, ranks)
    ]
    if sum(len(others) for _, others in groups) > _MOST_GUESTS:
        return None
    return _tied(rows, groups, _copies_more(job, of_roles), only_generate(job))


def _copies_more(job: Job, of_roles: Sequence[Ints]) -> Flags:
    """Flags the ranks that copy far more between host and device than the median rank of their role, shape (R,)."""
    work = job.work(lambda work: work.copies)
    copied = (work.pinned_bytes + work.pageable_bytes).sum(axis=1)
    more = np.zeros(len(copied), np.bool_)
    for ranks in of_roles:
        more[ranks] = copied[ranks] > _FAR_MORE * lower_median(copied[ranks])
    return more


def _rows(schedule: Schedule, role: Ints) -> list[_RankRows]:
    """The rows of each rank's own track, as they were recorded; `role` numbers the ranks' roles, shape (R,)."""
    table, place, between = schedule.rows, schedule.recorded, _between_roles(schedule.parts, role)
    played = play(schedule, schedule.lengths, kept=True)
    first = np.searchsorted(table.rank[place], np.arange(len(role) + 1)).tolist()
    rows = []
    for begin, end in itertools.pairwise(first):
        mine = place[begin:end]
        issued, ended, done = (each[mine] for each in (played.issued_ns, played.ended_ns, played.done_ns))
        idle = ended - np.maximum(issued, np.minimum(done, ended))
        # What ends with the record may have gone on.
        stalls = (table.blocked_by[mine] == CpuTime.STALL) & ~table.synced[mine] & (ended < ended.max(initial=0))
        pauses = np.flatnonzero(stalls & (idle >= LONG_STALL_NS))
        free = np.maximum.accumulate(played.end_ns[table.awaits[mine]])
        waits = pauses, *_meets(schedule, played, mine, between)
        next_work = _works(schedule, played, mine)
        rows.append(_RankRows(begin, issued, ended, done, free, *waits, *next_work, *_calls(schedule, played, mine)))
    return rows


def _meets(schedule: Schedule, played: Played, rows: Indices, between: Flags) -> tuple[Ints, Ints]:
    """The columns `meets` and `meets_roles` of `_RankRows`, given a rank's rows, and the parts `between` roles."""
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
    """The last four columns of `_RankRows`, given a rank's rows."""
    part = schedule.rows.launches[rows]
    calls = np.flatnonzero(part >= 0)
    calls = calls[schedule.parts.like[part[calls]] != GUEST]
    of_calls = part[calls]
    collective = schedule.parts.collective[of_calls].astype(np.int64)
    return calls, collective, played.arrival_ns[of_calls], played.end_ns[of_calls]


def _together(rows: list[_RankRows], peers: Ints) -> list[list[Pause]]:
    """The pauses of a role that end together."""
    return together(
        (
            Pause(int(rows[rank].issued_ns[row]), int(rows[rank].ended_ns[row]), rank, row)
            for rank in peers.tolist()
            for row in rows[rank].pauses.tolist()
        ),
        len(peers),
    )


class _Tying:
    """Finds what pauses wait for, given the pauses of all roles that end together."""

    def __init__(self, rows: list[_RankRows], groups: list[tuple[list[Pause], Ints]], copies_more: Flags) -> None:
        self._rows, self._copies_more = rows, copies_more
        #: The waits of each rank for other roles, in pauses and collectives, as rows in order.
        self._waits = [its.meets_roles.tolist() for its in rows]
        for pause in (one for group, _ in groups for one in group):
            bisect.insort(self._waits[pause.rank], pause.row)
        self._pauses: list[tuple[int, int, int]] = []
        self._guests: list[tuple[int, int, int]] = []
        self._works: list[tuple[int, int]] = []
        self._sent: list[tuple[int, int]] = []
        self._count = 0

    def hand_overs(self) -> HandOvers | None:
        """What was tied; None where nothing was."""
        columns = (self._pauses, 3), (self._guests, 3), (self._works, 2), (self._sent, 2)
        of_all = [column for values, many in columns for column in np.array(values, np.int64).reshape(-1, many).T]
        return HandOvers(*of_all) if self._pauses else None

    def generated(self, rank: int, instants: Ints) -> list[int | None] | None:
        """The row with whose end a rank that generates had done what others waited for until each of some instants, one
        a round; None where it waits more or less often than once a round.
        """
        its, waits = self._rows[rank], self._waits[rank]
        # The last work of the record may be the end of a generation, too: the wait after it may end with the record.
        ends = np.array([*(wait - 1 for wait in waits if wait), *its.works[-1:].tolist()], np.int64)
        ahead = np.searchsorted(its.done_ns[ends], instants, side="right") - np.arange(len(instants))
        if min(len(waits), len(instants)) < 2 or np.ptp(ahead) > 1:
            return None
        number = (np.arange(len(instants)) + ahead.min() - 1).tolist()
        return [int(ends[one]) if one >= 0 else None for one in number]

    def tie(self, group: list[Pause], others: Ints, since_ns: int, generated: Mapping[int, int | None]) -> None:
        """Tie pauses that end together to the ranks of other roles; `since_ns` is when those before them ended. What
        some of these had done is known (`generated`, by rank).
        """
        instant = min(one.end_ns for one in group)
        for soon in _SOON:
            done = {one: self._rows[one].done_for(instant, since_ns, self._waits[one], soon) for one in others.tolist()}
            rows = {rank: row for rank, row in {**done, **generated}.items() if row is not None}
            done_ns = max((int(self._rows[rank].ended_ns[row]) for rank, row in rows.items()), default=0)
            late = [one for one in group if one.end_ns - done_ns <= _OWN * (one.end_ns - one.begin_ns)]
            if rows and 2 * len(late) >= len(group):
                break
        else:
            return
        self._pauses += [(self._rows[one.rank].first + one.row, self._count, one.end_ns - done_ns) for one in late]
        self._hand_over(rows)
        self._tie_back(late, rows)
        self._sent += self._sending(rows)

    def _tie_back(self, pauses: list[Pause], rows: Mapping[int, int]) -> None:
        """Tie what ranks do next that others waited for, given the rows with which they handed over, to what those had
        done before their pauses.
        """
        every = ((rank, self._rows[rank].next_work(row)) for rank, row in rows.items())
        works = {rank: index for rank, index in every if index is not None}
        begun = {rank: int(self._rows[rank].begun_ns[index]) for rank, index in works.items()}
        done = {one.rank: one.row - 1 for one in pauses if one.row}
        until = min(begun.values(), default=LONG_AGO)
        done = {rank: row for rank, row in done.items() if self._rows[rank].ended_ns[row] <= until}
        if done:
            self._works += [
                (self._rows[rank].first + int(self._rows[rank].works[works[rank]]), self._count) for rank in begun
            ]
            self._hand_over(done)

    def _sending(self, rows: Mapping[int, int]) -> list[tuple[int, int]]:
        """The row after which a rank sent something alone, given those with which ranks hand over, and how long that
        took, ns: from the last collective with the others on, longer than these take until they enter the next one, a
        barrier that awaits the sender, or pause. Empty where no such collective is recorded.
        """
        last = max(rows, key=lambda rank: int(self._rows[rank].ended_ns[rows[rank]]))
        its, row = self._rows[last], rows[last]
        before = np.flatnonzero((its.calls <= row) & (its.end_ns <= its.ended_ns[row] - _SOON_NS))
        if not len(before):
            return []
        since = int(before[-1])
        takes = {rank: ns for rank in rows if (ns := self._goes_on_ns(rank, int(its.collective[since]))) is not None}
        if not (its.calls[since + 1 :] <= row).any():
            takes[last] = int(its.ended_ns[row] - its.end_ns[since])
        sender = max(takes, key=lambda rank: takes[rank])
        if not self._copies_more[sender]:
            return []
        its = self._rows[sender]
        # The row that launched it: a round may end before the others go on.
        sent = int(its.calls[np.flatnonzero(its.collective == int(self._rows[last].collective[since]))[0]])
        return [(its.first + sent, takes[sender] - lower_median(np.array(list(takes.values()))))]

    def _goes_on_ns(self, rank: int, collective: int) -> int | None:
        """How long after a collective a rank arrives in its next one or begins a pause, ns; None if it has no part."""
        its = self._rows[rank]
        index = np.flatnonzero(its.collective == collective)
        if not len(index):
            return None
        following, place = int(index[0]) + 1, bisect.bisect_right(self._waits[rank], int(its.calls[index[0]]))
        arrives, pauses = its.arrival_ns[following : following + 1], its.issued_ns[self._waits[rank][place : place + 1]]
        return int(min([*arrives.tolist(), *pauses.tolist(), int(its.ended_ns[-1])]) - its.end_ns[index[0]])

    def _hand_over(self, rows: Mapping[int, int]) -> None:
        """Add a hand-over by the ends of some ranks' rows."""
        for rank, row in rows.items():
            its = self._rows[rank]
            # Of rows without device work that are done at once, none that comes later.
            needs = min(int(np.searchsorted(its.done_ns, its.ended_ns[row], side="right")) - 1, row)
            self._guests.append((self._count, its.first + row, its.first + needs if needs >= 0 else -1))
        self._count += 1


def _tied(
    rows: list[_RankRows], groups: list[tuple[list[Pause], Ints]], copies_more: Flags, generates: Flags
) -> HandOvers | None:
    """The hand-overs of some pauses that end together; beside each group the ranks of the other roles. A rank that
    `copies_more` than its peers, flags of shape (R,), may send weights alone; others generate, shape (R,).
    """
    tying = _Tying(rows, groups, copies_more)
    for _, of_role in itertools.groupby(groups, lambda one: one[1].tolist()):
        its = list(of_role)
        instants, last = np.array([min(one.end_ns for one in group) for group, _ in its]), LONG_AGO
        others = its[0][1]
        every = {rank: tying.generated(rank, instants) for rank in others[generates[others]].tolist()}
        for number, (group, _) in enumerate(its):
            generated = {rank: done[number] for rank, done in every.items() if done}
            tying.tie(group, others, last, generated)
            last = int(instants[number])
    return tying.hand_overs()


def with_hand_overs(tracks: Tracks, parts: Parts, ties: HandOvers) -> tuple[Tracks, Parts]:
    """The tracks and parts of a job with its hand-overs; `parts` are put before the last part ("none")."""
    nothing, place = len(parts.rank) - 1, tracks.recorded().astype(np.int64)
    tied = TiedTracks(tracks, nothing, ties)
    order = tied.order
    many = len(order)
    chosen = np.concatenate((np.arange(nothing), np.full(many, nothing), [nothing]))
    columns = {name: getattr(parts, name)[chosen] for name in Parts.__struct_fields__}
    here = slice(nothing, nothing + many)
    columns["rank"][here] = tracks.rank[place[ties.after]][order]
    columns["row"][here] = HAND_OVER
    columns["collective"][here] = int(parts.collective.max()) + 1 + ties.of[order]
    columns["transfer_ns"][here] = 0
    columns["like"][here] = GUEST
    columns["needs"] = tied.moved(columns["needs"])
    needs = np.where(ties.needs >= 0, place[ties.needs], -1).astype(np.int32)
    columns["needs"][here] = tied.moved(needs[order])
    columns["after"][columns["after"] == nothing] = nothing + many
    return tied, Parts(**columns)


#: `Parts.row` of a hand-over's guests.
HAND_OVER = -2


def bound_roles(job: Job, schedule: Schedule) -> tuple[Ints, ...]:
    """The ranks (indices) of each role of reinforcement learning that takes as long for a round as the other roles.

    That are roles that wait for others, in collectives or pauses; and, where some do, those for which they may wait:
    they hardly idle. Of a role that idles and waits for none nothing is known. Empty where no role waits.
    """
    if job_kind.program(job) is not Program.RL:
        return ()
    _, of_rank = np.unique([job_kind.role(digest) for digest in job.digests], return_inverse=True)
    rows, parts = schedule.rows, schedule.parts
    waits = np.zeros(int(of_rank.max()) + 1, np.bool_)
    waits[of_rank[rows.rank[parts.row[rows.queue_part] == HAND_OVER]]] = True
    waits[of_rank[job.calls.rank[between_roles(job)]]] = True
    if len(waits) < 2 or not waits.any():
        return ()
    idle, window = job.budget.of("host").sum(axis=1), job.budget.window_ns.sum(axis=1)
    every = [np.flatnonzero(of_rank == one) for one in range(len(waits))]
    return tuple(
        ranks
        for ranks, waiting in zip(every, waits.tolist(), strict=True)
        if waiting or idle[ranks].sum() < _HARDLY * window[ranks].sum()
    )


#: What a pause is once it waits for others, by column of `Track`.
_TIED: dict[str, int | bool] = {
    "blocked_by": -1,
    "blocked_ns": 0,
    "waits": False,
    "queue_row": -1,
    "queue_tail_ns": 0,
    "queue_ns": 0,
    "synced": True,
}


class TiedTracks(TracksWithGuests):
    """Tracks whose pauses end with the parts of their hand-overs."""

    def __init__(self, tracks: Tracks, first_guest: int, ties: HandOvers) -> None:
        """As for `TracksWithGuests`."""
        place = tracks.recorded().astype(np.int64)
        super().__init__(tracks, place[ties.after], first_guest)
        self.pause: Indices = self._place[place[ties.pause]]
        of_guest = np.empty(len(self.order), np.int64)
        of_guest[self.order] = np.arange(len(self.order))
        #: The part that each pause waits for, any of its hand-over: they end together.
        self.part: Ints = first_guest + of_guest[np.searchsorted(ties.of, ties.awaits)]
        self._latency_ns = ties.latency_ns
        #: The rows whose first kernels wait for a hand-over that no pause shows, and for which part.
        self._works: Indices = self._place[place[ties.works]]
        self._works_await: Ints = first_guest + of_guest[np.searchsorted(ties.of, ties.works_await)]

    def column(self, name: str) -> NDArray[Any]:
        return self._tied(super().column(name), name)

    def rows(self, name: str) -> Indices:
        rows: Indices = self._tied(super().rows(name), name)
        return rows

    def parts(self, name: str, missing: int) -> Indices:
        parts = super().parts(name, missing)
        if name == "queue_part":
            parts[self.pause] = self.part
        return parts

    def after_pauses(self, awaits: Indices, nothing: int) -> Indices:
        """The part that each row's first kernel has to wait for; after a pause that of its hand-over, where `nothing`
        else is known: what a role computes next needs the samples or weights, however soon it is launched.
        """
        after = np.minimum(self.pause + 1, len(awaits) - 1)
        works = (self.column("device_ns")[after] > 0) | (self.parts("launches", -1)[after] >= 0)
        free = works & (awaits[after] == nothing) & (self.rank[after] == self.rank[self.pause])
        gated: Indices = awaits.copy()
        gated[after[free]] = self.part[free]
        free = gated[self._works] == nothing
        gated[self._works[free]] = self._works_await[free]
        return gated

    def _tied(self, column: NDArray[Any], name: str) -> NDArray[Any]:
        if name not in _TIED:
            return column
        column = column.copy()
        column[self.pause] = self._latency_ns if name == "queue_ns" else _TIED[name]
        return column
