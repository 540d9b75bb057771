"""Finds where a role of reinforcement learning waits for another one without a collective; ties the two in a replay.

Samples go to the ranks that train through a queue, weights to those that generate by file, HTTP, CUDA IPC or RDMA. Who
waits for them is outside any op with an idle GPU, which looks like slow Python. But it goes on when others are done:

    rollout  [generate..............]pause......................[load][generate....
    update   pause...................[train..............][save]pause..............
                                     |samples                   |weights

A *pause* is such a stretch, and is taken for a wait if at least half of the ranks of its role are in one when it ends:
what a single rank stalls is its own. It ends so long after the last of the ranks of other roles had done what it last
did by then: where a rank is in a pause itself, what came before that. In the replay this is a collective of guests
(`guests.py`), one of the rank that waits and one of each rank of another role, which takes as long.

What ranks that go on meanwhile had handed over is not known: what they last did by then stands for it. Roles that meet
in a collective are not tied: the collective joins them.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.owners import LONG_STALL_NS
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.guests import TracksWithGuests
from tb_ddp_doctor.replay.model import GUEST, Parts, Schedule
from tb_ddp_doctor.replay.play import play
from tb_ddp_doctor.replay.tracks import Tracks
from tb_ddp_doctor.trace.model import Indices, Ints
from tb_ddp_doctor.trace.program_names import Program

#: The share of a role's ranks that pause at once.
_OF_ROLE = 0.5
#: Ranks of one role get samples or weights one after the other: pauses that end within so much of each other, or within
#: this share of the pause, end together.
_TOGETHER_NS, _TOGETHER = 2_000_000, 0.1
#: Ties of more ranks than this are not made: a replay would take long.
_MOST_GUESTS = 200_000


class HandOvers(msgspec.Struct, frozen=True, eq=False):
    """Waits of ranks for ranks of other roles. Rows are those of the ranks' own tracks, joined; H hand-overs."""

    #: The row that ends with the pause, shape (H,).
    pause: Ints
    #: How long after the last of the others has arrived the pause ends, shape (H,), ns.
    latency_ns: Ints
    #: Of each guest: its hand-over, the row after which it arrives, and the row whose device work is done by then, -1
    #: if none. The first H guests are those of the ranks that wait.
    of: Ints
    after: Ints
    needs: Ints

    def __len__(self) -> int:
        return len(self.pause)


class _RankRows(msgspec.Struct, frozen=True, eq=False):
    """When the rows of one rank's track were issued and over, and their device work done; ns on the common clock."""

    first: int
    issued_ns: Ints
    ended_ns: Ints
    done_ns: Ints
    #: The rows that end with a pause.
    pauses: Ints

    def last_before(self, instant_ns: int) -> tuple[int, int] | None:
        """The last row that was over before an instant, and when; of a rank in a pause, the row before that.

        A pause that is over then is none: two pauses that end at once do not wait for each other.
        """
        row = int(np.searchsorted(self.ended_ns, instant_ns)) - 1
        row -= row in self.pauses
        return (row, int(self.ended_ns[row])) if row >= 0 else None


def hand_overs(job: Job, schedule: Schedule) -> HandOvers | None:
    """The hand-overs of a job whose schedule without them is given; None where there are none."""
    if job_kind.program(job) is not Program.RL:
        return None
    roles = np.array([job_kind.role(digest) for digest in job.digests])
    if len(set(roles.tolist()) - {""}) < 2 or _meet(job, roles):
        return None
    rows = _rows(schedule, len(roles))
    of_roles = [np.flatnonzero(roles == role) for role in sorted(set(roles.tolist()) - {""})]
    waits = [wait for ranks in of_roles for wait in _together(rows, ranks)]
    others = [np.flatnonzero((roles != role) & (roles != "")) for role in roles.tolist()]
    if not waits or sum(1 + len(others[rank]) for rank, _ in waits) > _MOST_GUESTS:
        return None
    return _tied(rows, waits, others)


def _meet(job: Job, roles: NDArray[np.str_]) -> bool:
    """Whether ranks of different roles meet in a collective."""
    _, number = np.unique(roles, return_inverse=True)
    of_part, segments = number[job.matched.rank], job.matched.segments
    return bool((segments.max(of_part) != segments.min(of_part)).any()) if len(job.matched) else False


def _rows(schedule: Schedule, ranks: int) -> list[_RankRows]:
    """The rows of each rank's own track, as they were recorded."""
    table, place = schedule.rows, schedule.recorded
    played = play(schedule, schedule.lengths, kept=True)
    own, stalls = table.rank[place], (table.blocked_by[place] == CpuTime.STALL) & ~table.synced[place]
    rows = []
    for rank in range(ranks):
        mine = np.flatnonzero(own == rank)
        issued, ended, done = (each[place[mine]] for each in (played.issued_ns, played.ended_ns, played.done_ns))
        idle = ended - np.maximum(issued, np.minimum(done, ended))
        # What ends with the record may have gone on.
        goes_on = ended < ended.max(initial=0)
        pauses = np.flatnonzero(stalls[mine] & goes_on & (idle >= LONG_STALL_NS))
        rows.append(_RankRows(int(mine[0]) if len(mine) else 0, issued, ended, done, pauses))
    return rows


def _together(rows: list[_RankRows], peers: Ints) -> list[tuple[int, int]]:
    """The pauses of a role that end together on at least half of its ranks: each a rank and a row of it."""
    pauses = np.concatenate([rows[rank].pauses for rank in peers.tolist()])
    rank = np.repeat(peers, [len(rows[rank].pauses) for rank in peers.tolist()])
    begin = np.concatenate([rows[rank].issued_ns[rows[rank].pauses] for rank in peers.tolist()])
    end = np.concatenate([rows[rank].ended_ns[rows[rank].pauses] for rank in peers.tolist()])
    sort = np.argsort(end, kind="stable")
    pauses, rank, begin, end = pauses[sort], rank[sort], begin[sort], end[sort]
    close = np.maximum(_TOGETHER_NS, np.rint(_TOGETHER * (end - begin)).astype(np.int64))
    first, last = np.searchsorted(end, end - close), np.searchsorted(end, end + close, side="right")
    # What a rank did before its first row is not recorded.
    chosen = np.flatnonzero((pauses > 0) & (last - first >= _OF_ROLE * len(peers)))
    return [
        (int(rank[one]), int(pauses[one]))
        for one in chosen.tolist()
        if len(set(rank[first[one] : last[one]].tolist())) >= _OF_ROLE * len(peers)
    ]


def _tied(rows: list[_RankRows], waits: list[tuple[int, int]], others: list[Ints]) -> HandOvers | None:
    """The hand-overs of these pauses, each a rank and a row of it."""
    receivers: list[tuple[int, int, int]] = []
    senders: list[tuple[int, int, int]] = []
    latency = []
    for rank, row in waits:
        mine, end = rows[rank], int(rows[rank].ended_ns[row])
        before = [(one, latest) for one in others[rank].tolist() if (latest := rows[one].last_before(end))]
        if not before:
            continue
        last = max(at for _, (_, at) in before)
        number = len(receivers)
        receivers.append((number, mine.first + row - 1, -1))
        latency.append(end - max(last, int(mine.ended_ns[row - 1])))
        for one, (its, at) in before:
            # Of rows without device work that are done at once, none that comes later.
            done = min(int(np.searchsorted(rows[one].done_ns, at, side="right")) - 1, its)
            senders.append((number, rows[one].first + its, rows[one].first + done if done >= 0 else -1))
    if not receivers:
        return None
    of, after, needs = np.array(receivers + senders, np.int64).T
    pause = after[: len(receivers)] + 1
    return HandOvers(pause, np.array(latency, np.int64), of, after, needs)


def with_hand_overs(tracks: Tracks, parts: Parts, ties: HandOvers) -> tuple[Tracks, Parts]:
    """The tracks and parts of a job with its hand-overs; `parts` are put before the last part ("none")."""
    nothing, place = len(parts.rank) - 1, tracks.recorded().astype(np.int64)
    tied = TiedTracks(tracks, place[ties.after], nothing, place[ties.pause])
    order = tied.order
    many, rank = len(order), tracks.rank[place[ties.after]]
    chosen = np.concatenate((np.arange(nothing), np.full(many, nothing), [nothing]))
    columns = {name: getattr(parts, name)[chosen] for name in Parts.__struct_fields__}
    here = slice(nothing, nothing + many)
    columns["rank"][here] = rank[order]
    columns["row"][here] = HAND_OVER
    columns["collective"][here] = int(parts.collective.max()) + 1 + ties.of[order]
    columns["transfer_ns"][here] = ties.latency_ns[ties.of[order]]
    columns["like"][here] = GUEST
    columns["needs"] = tied.moved(columns["needs"])
    needs = np.where(ties.needs >= 0, place[ties.needs], -1).astype(np.int32)
    columns["needs"][here] = tied.moved(needs[order])
    columns["after"][columns["after"] == nothing] = nothing + many
    return tied, Parts(**columns)


#: `Parts.row` of a hand-over's guests.
HAND_OVER = -2
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

    def __init__(self, tracks: Tracks, after: Ints, first_guest: int, pause: Ints) -> None:
        """As for `TracksWithGuests`; the first of the guests are those of the pauses, which are rows of `tracks`."""
        super().__init__(tracks, after, first_guest)
        self.pause: Indices = self._place[pause]
        of_guest = np.empty(len(self.order), np.int64)
        of_guest[self.order] = np.arange(len(self.order))
        #: The part that each pause waits for.
        self.part: Ints = first_guest + of_guest[: len(pause)]

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
        column[self.pause] = _TIED[name]
        return column
