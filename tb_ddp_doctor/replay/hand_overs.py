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

If others had done it before half of the pause was over, the pause is the rank's own. In the replay a hand-over is a
collective of guests (`guests.py`), one of each rank of another role, and the pauses end a latency after it.

Waits for what lies before the record stay stalls.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.owners import LONG_STALL_NS
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import between_roles
from tb_ddp_doctor.job.together import Pause, together
from tb_ddp_doctor.replay.guests import TracksWithGuests
from tb_ddp_doctor.replay.model import GUEST, Parts, Schedule
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.replay.tracks import Tracks
from tb_ddp_doctor.trace.model import Indices, Ints
from tb_ddp_doctor.trace.program_names import Program

#: The share of a pause that may come after all that others had done: what is more is the rank's own.
_OWN = 0.5
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

    def done_for(self, instant_ns: int, since_ns: int, waits: Sequence[int]) -> int | None:
        """The row with whose end a rank had done what others waited for until an instant, given its own waits (rows, in
        order), and since when others waited; None where nothing of it is recorded.

        That is the last row before then, if the rank is nearer to its next wait than to its last one. Else it works on
        something new, and had handed over what came before the last wait.
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
        if wait >= 0 and self.issued_ns[wait] >= since_ns and until > instant_ns - self.ended_ns[wait]:
            row = wait - 1
        return row if row >= 0 else None


def hand_overs(job: Job, schedule: Schedule) -> HandOvers | None:
    """The hand-overs of a job whose schedule without them is given; None where there are none."""
    if job_kind.program(job) is not Program.RL:
        return None
    roles = np.array([job_kind.role(digest) for digest in job.digests])
    of_roles = [np.flatnonzero(roles == role) for role in sorted(set(roles.tolist()) - {""})]
    if len(of_roles) < 2:
        return None
    rows = _rows(schedule, len(roles))
    groups = [
        (group, np.setdiff1d(np.concatenate(of_roles), ranks)) for ranks in of_roles for group in _together(rows, ranks)
    ]
    if sum(len(others) for _, others in groups) > _MOST_GUESTS:
        return None
    return _tied(rows, groups)


def _rows(schedule: Schedule, ranks: int) -> list[_RankRows]:
    """The rows of each rank's own track, as they were recorded."""
    table, place = schedule.rows, schedule.recorded
    played = play(schedule, schedule.lengths, kept=True)
    own, stalls = table.rank[place], (table.blocked_by[place] == CpuTime.STALL) & ~table.synced[place]
    first, nothing = np.searchsorted(own, np.arange(ranks + 1)).tolist(), len(schedule.parts.rank) - 1
    rows = []
    for begin, end in itertools.pairwise(first):
        mine = place[begin:end]
        issued, ended, done = (each[mine] for each in (played.issued_ns, played.ended_ns, played.done_ns))
        idle = ended - np.maximum(issued, np.minimum(done, ended))
        # What ends with the record may have gone on.
        goes_on = ended < ended.max(initial=0)
        pauses = np.flatnonzero(stalls[begin:end] & goes_on & (idle >= LONG_STALL_NS))
        free = np.maximum.accumulate(played.end_ns[table.awaits[mine]])
        for_part = np.where(table.synced[mine], table.queue_part[mine] < nothing, table.awaits[mine] < nothing)
        blocked = (table.synced[mine] | table.waits[mine]) & (ended - issued >= LONG_STALL_NS)
        meets = np.flatnonzero(for_part & blocked)
        rows.append(_RankRows(begin, issued, ended, done, free, pauses, meets))
    return rows


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


def _tied(rows: list[_RankRows], groups: list[tuple[list[Pause], Ints]]) -> HandOvers | None:
    """The hand-overs of some pauses that end together; beside each group the ranks of the other roles."""
    waits: defaultdict[int, list[int]] = defaultdict(list)
    for pause in sorted((one for group, _ in groups for one in group), key=lambda one: one.row):
        waits[pause.rank].append(pause.row)
    pauses: list[tuple[int, int, int]] = []
    guests: list[tuple[int, int, int]] = []
    count, last = 0, LONG_AGO
    for group, others in groups:
        instant = min(one.end_ns for one in group)
        since, last = last if last < instant else LONG_AGO, instant
        done = [(rows[one], rows[one].done_for(instant, since, waits[one])) for one in others.tolist()]
        before = [(its, row) for its, row in done if row is not None]
        done_ns = max((int(its.ended_ns[row]) for its, row in before), default=0)
        late = [one for one in group if one.end_ns - done_ns <= _OWN * (one.end_ns - one.begin_ns)]
        if 2 * len(late) < len(group):
            continue
        pauses += [(rows[one.rank].first + one.row, count, one.end_ns - done_ns) for one in late]
        for its, row in before:
            # Of rows without device work that are done at once, none that comes later.
            needs = min(int(np.searchsorted(its.done_ns, its.ended_ns[row], side="right")) - 1, row)
            guests.append((count, its.first + row, its.first + needs if needs >= 0 else -1))
        count += 1
    return HandOvers(*np.array(pauses, np.int64).T, *np.array(guests, np.int64).T) if pauses else None


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
        return gated

    def _tied(self, column: NDArray[Any], name: str) -> NDArray[Any]:
        if name not in _TIED:
            return column
        column = column.copy()
        column[self.pause] = self._latency_ns if name == "queue_ns" else _TIED[name]
        return column
