"""Finds where ranks of reinforcement learning wait for others without a collective; ties them in a replay.

Samples go to the ranks that train through a queue, weights to those that generate by file, HTTP, CUDA IPC or RDMA, and
a driver that calls all ranks of a role goes on once the last of them has answered. Who waits is outside any op with an
idle GPU, which looks like slow Python. But it goes on when others are done:

    rollout  [generate..............]pause......................[load][generate....
    rollout  [generate......]pause..............................[load][generate....
    update   pause...................[train..............][save]pause..............
                                     |samples                   |weights

A *pause* is such a stretch, and is taken for a wait where ranks of a role end it together (`job.together`): what a
single rank stalls is its own. It ends so long after the last of the ranks of other roles had done what it waited for:

- the last row before then of a rank that works on towards its own next wait, in a pause or a collective,
- the last row before its last wait of one that has begun something new since.

Of ranks that generate and wait once a round the n-th pause of the others awaits the n-th generation that is over by
then, or one that is as many rounds older in all rounds: it may be consumed a round later.

Where what others had done by a wait of their own was there before a pause, it awaits what they generate without a wait
through it (asynchronous engines hand a sample over when it is complete), if it is long: shorter ones are how long
handing over takes.

Where no other role had, or there is none, as where the same ranks do all in turn, pauses end so long after the last
rank of the role was there. And one that a rank ends alone, such as the one that sends the weights for all, is a wait if
it and most others of that rank end right after other roles had done something.

Nobody waits for engines that generate ahead (`asynchronous`).

If others had done it before half of the pause was over (less, where less tells that it is a wait), the pause is the
rank's own. Waits for what lies before the record stay stalls. `tied_tracks` puts the hand-overs into a replay.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest.owners import LONG_STALL_NS
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import only_generate, parts_of_roles
from tb_ddp_doctor.job.together import SHORTER, Pause, together
from tb_ddp_doctor.replay.asynchronous import ahead, asynchronous
from tb_ddp_doctor.replay.cells import lower_median
from tb_ddp_doctor.replay.model import Schedule
from tb_ddp_doctor.replay.rank_rows import RankRows, rows_of_ranks
from tb_ddp_doctor.replay.tracks import Tracks
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.program_names import Program

#: The share of a pause that may come after all that others had done: what is more is the rank's own. Of a rank that
#: waits for its own peers, or pauses alone, less: nothing else tells that it waits.
_OWN, _OWN_OF_PEERS, _OWN_ALONE = 0.5, 0.25, 0.1
#: Who copies weights from the GPU to send them copies so many times as many bytes as others of its role.
_FAR_MORE = 2.0
#: Who sends weights in so large a part of the steps does so in all of them.
_OFTEN = 0.5
#: Ranks that send weights meet so soon before the others go on with them, ns.
_SOON_NS = LONG_STALL_NS
#: What a rank hands over it has done when it begins to wait itself, so soon after as multiples of the time since its
#: last wait; or else, where nobody had anything done by then, while it works on.
_SOON = (0.1, 1.0)
#: Ties of more ranks than this are not made: a replay would take long.
_MOST_GUESTS = 200_000


class HandOvers(msgspec.Struct, frozen=True, eq=False):
    """Waits of ranks for others, in P pauses. Rows are those of the ranks' own tracks, joined."""

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
    #: Which ranks generate all the time, and which of them ahead, so that nobody waits for them, shape (R,).
    asynchronous: Flags
    ahead: Flags

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


def hand_overs(job: Job, schedule: Schedule) -> HandOvers | None:
    """The hand-overs of a job whose schedule without them is given; None where there are none."""
    if job_kind.program(job) is not Program.RL:
        return None
    of_roles = parts_of_roles(job) or [np.arange(len(job.ranks))]
    role = np.zeros(len(job.ranks), np.int64)
    for number, ranks in enumerate(of_roles, 1):
        role[ranks] = number
    rows = rows_of_ranks(schedule, role)
    groups, generates = [_together(rows, ranks) for ranks in of_roles], only_generate(job)
    engines = asynchronous(rows, role, groups, generates, schedule.frame.most_steps)
    nobody_awaits = ahead(rows, role, groups, engines)
    roles = [
        _Role(ranks, np.setdiff1d(np.concatenate(of_roles), ranks), [] if engines[ranks].any() else its)
        for ranks, its in zip(of_roles, groups, strict=True)
    ]
    # Where engines are ahead nobody waits: so short a pause is how long handing over takes.
    roles = [] if nobody_awaits.any() else roles
    if sum(len(rows) * len(its.groups) for its in roles) > _MOST_GUESTS:
        return None
    ties = _tied(rows, roles, _copies_more(job, of_roles), generates)
    ties = msgspec.structs.replace(ties, asynchronous=engines, ahead=nobody_awaits)
    return ties if ties.pause.size or engines.any() else None


def _copies_more(job: Job, of_roles: Sequence[Ints]) -> Flags:
    """Flags the ranks that copy far more between host and device than the median rank of their role, shape (R,)."""
    work = job.work(lambda work: work.copies)
    copied = (work.pinned_bytes + work.pageable_bytes).sum(axis=1)
    more = np.zeros(len(copied), np.bool_)
    for ranks in of_roles:
        more[ranks] = copied[ranks] > _FAR_MORE * lower_median(copied[ranks])
    return more


def _together(rows: list[RankRows], peers: Ints) -> list[list[Pause]]:
    """The pauses of a role that end together, not all of them with their records."""
    groups = together(
        (
            Pause(int(rows[rank].issued_ns[row]), int(rows[rank].ended_ns[row]), rank, row)
            for rank in peers.tolist()
            for row in (*rows[rank].pauses.tolist(), *rows[rank].cut.tolist())
        ),
        len(peers),
    )
    return [group for group in groups if any(one.row not in rows[one.rank].cut for one in group)]


class _Role(msgspec.Struct, frozen=True, eq=False):
    """The ranks of a role, those of all others, and the pauses that end together in it."""

    ranks: Ints
    others: Ints
    groups: list[list[Pause]]


class _Tying:
    """Finds what pauses wait for, given the pauses of all roles that end together."""

    def __init__(self, rows: list[RankRows], roles: Sequence[_Role], copies_more: Flags, generates: Flags) -> None:
        self._rows, self._copies_more, self._generates = rows, copies_more, generates
        #: The waits of each rank for others, in pauses, and in collectives with other roles, as rows in order.
        self._waits = [its.meets_roles.tolist() for its in rows]
        self._add_waits(one for role in roles for group in role.groups for one in group)
        self._pauses: list[tuple[int, int, int]] = []
        self._guests: list[tuple[int, int, int]] = []
        self._works: list[tuple[int, int]] = []
        self._sent: list[tuple[int, int]] = []
        self._count = 0

    def hand_overs(self) -> HandOvers:
        """What was tied."""
        columns = (self._pauses, 3), (self._guests, 3), (self._works, 2), (self._sent, 2)
        of_all = [column for values, many in columns for column in np.array(values, np.int64).reshape(-1, many).T]
        nobody = np.zeros(len(self._rows), np.bool_)
        return HandOvers(*of_all, *[nobody] * 2)

    def generated(self, rank: int, instants: Ints) -> list[int | None] | None:
        """The row with whose end a rank that generates had done what others waited for until each of some instants, one
        a round; None where it waits more or less often than once a round.
        """
        its, waits = self._rows[rank], self._apart(rank)
        # The last work of the record may be the end of a generation, too: the wait after it may end with the record.
        ends = np.array([*(wait - 1 for wait in waits if wait), *its.works[-1:].tolist()], np.int64)
        # Of what comes after the record it is not known how many generations are over.
        known = int(np.searchsorted(instants, its.until_ns, side="right"))
        known = known if known > 1 else len(instants)
        ahead = np.searchsorted(its.done_ns[ends], instants[:known], side="right") - np.arange(known)
        if min(len(waits), known) < 2 or np.ptp(ahead) > 1:
            return None
        number = np.arange(len(instants)) + ahead.min() - 1
        last = ends[np.clip(number, 0, len(ends) - 1)]
        over = (number >= 0) & (number < len(ends)) & (its.ended_ns[last] <= instants)
        return [row if is_over else None for row, is_over in zip(last.tolist(), over, strict=True)]

    def _apart(self, rank: int) -> list[int]:
        """The waits of a rank without those that follow another one at once: weights come after a pause."""
        its, waits = self._rows[rank], self._waits[rank]
        since = [LONG_AGO, *its.ended_ns[waits].tolist()]
        return [row for row, ns in zip(waits, since, strict=False) if its.issued_ns[row] - ns >= LONG_STALL_NS]

    def tie(self, role: _Role, group: list[Pause], since_ns: int, generated: Mapping[int, int | None]) -> None:
        """Tie pauses of a role that end together to the ranks of other roles, and to each other: all of them go on when
        the last one is there, too. `since_ns` is when those before them ended. What some of the others had done is
        known (`generated`, by rank).
        """
        instant = min(one.end_ns for one in group)
        peers = self._peers(role, group, instant)
        every = [self._others(role, instant, since_ns, soon, generated) for soon in _SOON]
        for others in (*every, {}):
            late = self._late(group, others or peers, _OWN if others else _OWN_OF_PEERS)
            if 2 * sum(one.length_ns for one in late) >= sum(one.length_ns for one in group):
                self._tie(late, others, peers)
                return
        # Asynchronous engines go on.
        through = self._generate_through(role, group, since_ns)
        if through:
            self._tie(group, through, {})

    def tie_alone(self, role: _Role) -> None:
        """Tie pauses that end on one rank of a role alone, as on the one that sends the weights for all: those of them
        that end right after ranks of other roles had done something and wait, if most of its pauses are such waits.
        """
        of_groups = {(one.rank, one.row) for group in role.groups for one in group}
        for rank in role.ranks.tolist() if len(role.others) else []:
            its = self._rows[rank]
            every = [Pause(int(its.issued_ns[row]), int(its.ended_ns[row]), rank, row) for row in its.pauses.tolist()]
            longest = max((one.length_ns for one in every), default=0)
            long = [one for one in every if one.length_ns >= SHORTER * longest]
            since = [LONG_AGO, *(one.end_ns for one in long)]
            alone = [
                (one, since_ns) for one, since_ns in zip(long, since, strict=False) if (rank, one.row) not in of_groups
            ]
            tied = [(one, others) for one, since_ns in alone if (others := self._before_its_end(role, one, since_ns))]
            ties = len(long) - len(alone) + len(tied)
            if ties > 1 and 2 * ties > len(long):
                self._add_waits(one for one, _ in tied)
                for one, others in tied:
                    self._tie([one], others, {})

    def _before_its_end(self, role: _Role, pause: Pause, since_ns: int) -> dict[int, int]:
        """What ranks of other roles had done right before a pause ended, if the last of them waits then. Or what they
        generate through it, if it ends after the records of all peers, which may have paused as long.
        """
        others = self._others(role, pause.end_ns, since_ns, _SOON[0], {})
        if self._late([pause], others, _OWN_ALONE):
            last = max(others, key=lambda rank: int(self._rows[rank].ended_ns[others[rank]]))
            until_ns = pause.end_ns + round(_OWN_ALONE * pause.length_ns)
            if self._waits_by(last, others[last], until_ns):
                return others
        peers = [self._rows[rank].until_ns for rank in role.ranks.tolist() if rank != pause.rank]
        is_last = max(peers, default=pause.end_ns) < pause.end_ns
        return self._generate_through(role, [pause], since_ns) if is_last else {}

    def _add_waits(self, pauses: Iterable[Pause]) -> None:
        for one in pauses:
            bisect.insort(self._waits[one.rank], one.row)

    def _others(
        self, role: _Role, instant_ns: int, since_ns: int, soon: float, generated: Mapping[int, int | None]
    ) -> dict[int, int]:
        """The row with whose end each rank of other roles had done what a role waited for until an instant."""
        waits = ((rank, self._rows[rank], self._waits[rank]) for rank in role.others.tolist())
        done = {rank: its.done_for(instant_ns, since_ns, own, soon) for rank, its, own in waits}
        return {rank: row for rank, row in {**done, **generated}.items() if row is not None}

    def _peers(self, role: _Role, group: list[Pause], instant_ns: int) -> dict[int, int]:
        """The row with whose end each rank of a role was there when pauses of it end together: before its own pause, or
        one that is too short for the record, as that of the last one.
        """
        rows = {one.rank: one.row - 1 for one in group if one.row}
        if any(self._rows[rank].ended_ns[row] > instant_ns for rank, row in rows.items()):
            # Who is there only after others went on was not awaited.
            return {}
        soon_ns = round(_OWN_ALONE * max(one.length_ns for one in group))
        for rank in set(role.ranks.tolist()) - {one.rank for one in group}:
            row = self._rows[rank].before(instant_ns)
            if row >= 0 and self._waits_by(rank, row, instant_ns + soon_ns):
                rows[rank] = row
        return rows

    def _waits_by(self, rank: int, row: int, instant_ns: int) -> bool:
        """Whether a rank's next wait after a row, or the end of its record, comes by an instant."""
        waits, its = self._waits[rank], self._rows[rank]
        following = waits[bisect.bisect_right(waits, row) :][:1]
        return bool(its.issued_ns[following].min(initial=its.ended_ns[-1]) <= instant_ns)

    def _generate_through(self, role: _Role, group: list[Pause], since_ns: int) -> dict[int, int]:
        """The last row before the end of pauses of each rank of other roles that generates, and has not waited in the
        later half of them; empty where they are short, given when those before them ended.
        """
        begin_ns, end_ns = max(one.begin_ns for one in group), min(one.end_ns for one in group)
        since_ns = max(since_ns, *(int(self._rows[one.rank].issued_ns[0]) for one in group))
        if end_ns - begin_ns <= _OWN_ALONE * (end_ns - since_ns):
            return {}
        rows, until_ns = {}, begin_ns + round(_OWN * (end_ns - begin_ns))
        for rank in role.others[self._generates[role.others]].tolist():
            its, row = self._rows[rank], self._rows[rank].before(end_ns)
            last = self._waits[rank][: bisect.bisect_right(self._waits[rank], row)][-1:]
            if row >= 0 and its.issued_ns[0] <= begin_ns and its.ended_ns[last].max(initial=LONG_AGO) <= until_ns:
                rows[rank] = row
        return rows

    def _late(self, pauses: list[Pause], rows: Mapping[int, int], own: float) -> list[Pause]:
        """Those of some pauses of which at most a share is the rank's own, after the ends of some ranks' rows."""
        done_ns = self._done_ns(rows)
        return [one for one in pauses if one.end_ns - done_ns <= own * one.length_ns]

    def _done_ns(self, rows: Mapping[int, int]) -> int:
        return max((int(self._rows[rank].ended_ns[row]) for rank, row in rows.items()), default=LONG_AGO)

    def _tie(self, pauses: list[Pause], others: Mapping[int, int], peers: Mapping[int, int]) -> None:
        """Tie pauses to the ends of rows of ranks of other roles, and of their own where the last of those is later."""
        rows = {**peers, **others} if self._done_ns(peers) > self._done_ns(others) else others
        done_ns = self._done_ns(rows)
        # What ends with the record may go on: it ends nothing.
        self._pauses += [
            (self._rows[one.rank].first + one.row, self._count, one.end_ns - done_ns)
            for one in pauses
            if one.row not in self._rows[one.rank].cut
        ]
        self._hand_over(rows)
        if others:
            self._tie_back(pauses, others)
            self._sent += self._sending(others)

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


def _tied(rows: list[RankRows], roles: Sequence[_Role], copies_more: Flags, generates: Flags) -> HandOvers:
    """The hand-overs of the pauses of some roles. A rank that `copies_more` than its peers, flags of shape (R,), may
    send weights alone; others generate, shape (R,).
    """
    tying = _Tying(rows, roles, copies_more, generates)
    for role in roles:
        instants, last = np.array([min(one.end_ns for one in group) for group in role.groups], np.int64), LONG_AGO
        every = {rank: tying.generated(rank, instants) for rank in role.others[generates[role.others]].tolist()}
        for number, group in enumerate(role.groups):
            generated = {rank: done[number] for rank, done in every.items() if done}
            tying.tie(role, group, last, generated)
            last = int(instants[number])
    for role in roles:
        tying.tie_alone(role)
    return tying.hand_overs()
