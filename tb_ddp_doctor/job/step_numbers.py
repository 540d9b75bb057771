"""Gives the steps of all ranks the same numbers, where ranks count them from other ones.

A rank that was restarted, or whose profiler was started by another call, counts its ProfilerSteps from another number.
All ranks end a collective at once, so steps that have the same number and whose last collectives end further apart are
not the same step: then the rank's numbers are moved until they are. Only those steps tell: where gradients are
accumulated, a rank may fall behind by whole steps until the next AllReduce. Steps at no time in common are other steps.
No number is moved where a clock is off or was set instead: the first or the last steps end together, or the reference
has all of the numbers too, whose steps are always as far apart.
Clocks may be apart by steps as well as numbers: where collectives have sequence numbers, these tell, and no clock does.

    rank 0  |2   |3   |4   |5
    rank 1  |1002|1003|1004|1005      moved by -1000
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import RankDigest, Steps
from tb_ddp_doctor.digest.rounds import SHARED_ROUND
from tb_ddp_doctor.digest.trace_contents import MARKED
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.storage.constant import joined
from tb_ddp_doctor.trace.model import Floats, Ints

#: The last collectives of the same step end on all ranks closer than this share of a step.
_SAME = 0.5
#: Of the record with fewer steps that meet so many have to be in both, as a share, to tell that they are the same.
_SHARED = 0.5
#: Ends of one collective differ by up to this over slow links (DESIGN, point 5), ns: so little is no difference.
_AS_EVEN_NS = 500_000


class _Meetings(ColumnTable, frozen=True, eq=False):
    """The steps in which a rank meets others, and the end of the last collective that each launched, ns."""

    number: Ints
    end_ns: Ints


class _Move(msgspec.Struct, frozen=True):
    """Numbers that are moved, and how far apart the same steps then meet."""

    by: int
    #: Median of the distances, and how much distances differ from it, ns.
    apart_ns: float
    uneven_ns: float
    steps: int
    #: Whether the first or the last steps meet together, and the others always as far apart: a clock is set within the
    #: record.
    jumps: bool

    @property
    def score(self) -> float:
        """Least where steps meet together, and always as far apart."""
        return self.apart_ns + self.uneven_ns


def same_numbers(digests: Mapping[int, RankDigest]) -> tuple[dict[int, RankDigest], list[FileWarning]]:
    """The digests with the same numbers for the same steps, and what is said of those whose numbers were moved.

    Numbers stay as they are on most ranks.
    """
    everyone = dict(digests)
    if len(digests) < 2 or not all(digest.has_steps and len(digest.steps) for digest in digests.values()):
        return everyone, []
    if any(digest.contents.steps_from == SHARED_ROUND for digest in digests.values()):
        return everyone, []
    reference = next(iter(digests.values()))
    limit = _SAME * float(np.median(reference.steps.end_ns - reference.steps.start_ns))
    together = _end_together(digests, reference.steps, limit)
    moves = {rank: 0 if rank in together else _move(digest, reference, limit) for rank, digest in digests.items()}
    shift = Counter(moves.values()).most_common(1)[0][0]
    # No number is negative.
    shift = min(shift, *(int(digests[rank].steps.number[0]) + by for rank, by in moves.items()))
    notes = []
    for rank, by in moves.items():
        if by != shift:
            digest = everyone[rank] = _moved(digests[rank], by - shift)
            if digest.contents.steps_from != MARKED:
                continue
            first = int(digest.steps.number[0])
            notes.append(
                FileWarning(
                    digest.file,
                    f"Rank {rank} counts its steps from another number: its ProfilerStep#{first + shift - by} is the "
                    f"other ranks' ProfilerStep#{first}, and is called step {first}.",
                )
            )
    return everyone, notes


def _moved(digest: RankDigest, by: int) -> RankDigest:
    lost = digest.lost_kernels
    return replace(
        digest,
        steps=replace(digest.steps, number=digest.steps.number + by),
        lost_kernels=replace(lost, number=np.where(lost.number >= 0, lost.number + by, lost.number)),
    )


def _end_together(digests: Mapping[int, RankDigest], reference: Steps, limit_ns: float) -> set[int]:
    """The ranks whose steps have the numbers of the reference, and end within a limit of its: nearly all, mostly."""
    ranks = [rank for rank, digest in digests.items() if len(digest.steps) == len(reference)]
    number, end_ns = (
        joined([getattr(digests[rank].steps, name) for rank in ranks]).reshape(len(ranks), len(reference))
        for name in ("number", "end_ns")
    )
    equal = (number == reference.number).all(axis=1) & (np.abs(end_ns - reference.end_ns).max(axis=1) < limit_ns)
    return {rank for rank, same in zip(ranks, equal.tolist(), strict=True) if same}


def _move(digest: RankDigest, reference: RankDigest, limit: float) -> int:
    """By how much to move the numbers of a rank's steps so that they are the reference's."""
    mine, its = _meetings(digest), _meetings(reference)
    now = _compared(mine, its, 0, limit)
    if now and (now.apart_ns < limit or now.jumps):
        return 0
    if differences := _by_sequence(digest, reference):
        return differences.most_common(1)[0][0]
    # Clocks may be apart by steps, too: then all moves meet as far apart.
    most_uneven = limit + (now.uneven_ns if now else 0)
    last = int(reference.steps.number[0] - digest.steps.number[0])
    moves = _possible(mine, its, range(last - len(digest.steps) + 1, last + len(reference.steps)), limit)
    best = min(moves, key=lambda move: move.score, default=None)
    has_the_same = np.isin(mine.number, its.number).all()
    if now and best and has_the_same and now.uneven_ns <= best.uneven_ns + _AS_EVEN_NS:
        return 0
    return best.by if best and best.apart_ns < limit and best.uneven_ns <= most_uneven else 0


def _by_sequence(digest: RankDigest, reference: RankDigest) -> Counter[int]:
    """By how much to move the numbers, as told by each collective that both ranks have by its sequence number."""
    mine, its = _steps_of_calls(digest), _steps_of_calls(reference)
    return Counter(its[call] - mine[call] for call in mine.keys() & its.keys())


def _steps_of_calls(digest: RankDigest) -> dict[tuple[str, str, str, int], int]:
    """The number of the step of each collective with a sequence number, by group, its ranks, kind, and that number."""
    table, strings = digest.collectives, digest.strings
    numbered = (table.step >= 0) & (table.sequence >= 0) & (table.group_size != 1)
    numbered[digest.message_ends.call] = False
    columns = (table.group, table.group_ranks, table.kind, table.sequence, digest.steps.number[table.step])
    rows = zip(*(column[numbered].tolist() for column in columns), strict=True)
    return {
        (strings[group], strings[ranks], strings[kind], sequence): step for group, ranks, kind, sequence, step in rows
    }


def _meetings(digest: RankDigest) -> _Meetings:
    table = digest.collectives
    meets = (table.step >= 0) & (table.group_size != 1)
    last = np.full(len(digest.steps), np.iinfo(np.int64).min)
    np.maximum.at(last, table.step[meets], table.end_ns[meets])
    of_step = np.unique(table.step[meets])
    return _Meetings(digest.steps.number[of_step], last[of_step])


def _possible(mine: _Meetings, its: _Meetings, moves: range, limit_ns: float) -> Iterator[_Move]:
    """The moves after which enough steps are in both records."""
    least = max(min(len(mine), len(its)) * _SHARED, 1)
    for by in moves:
        move = _compared(mine, its, by, limit_ns)
        if move and move.steps >= least:
            yield move


def _compared(mine: _Meetings, its: _Meetings, by: int, limit_ns: float) -> _Move | None:
    """How far apart steps of the same number meet once those of a rank are moved; None where none is in both.

    Steps meet together that do so within `limit_ns`.
    """
    _, here, there = np.intersect1d(mine.number + by, its.number, return_indices=True)
    if not len(here):
        return None
    apart = (mine.end_ns[here] - its.end_ns[there]).astype(np.float64)
    middle = float(np.median(apart))
    return _Move(by, abs(middle), float(np.abs(apart - middle).mean()), len(here), _jumps(apart, limit_ns))


def _jumps(apart_ns: Floats, limit_ns: float) -> bool:
    """Whether the first or the last of some steps meet within a limit, and all others as far apart as each other."""
    together = np.abs(apart_ns) < limit_ns
    others = apart_ns[~together]
    return bool(np.count_nonzero(np.diff(together)) == 1 and np.ptp(others) < limit_ns)
