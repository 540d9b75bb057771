"""How long the gaps of ranks are: stretches of one owner in which the GPU idles, counted by length.

Digests keep stretches from `KEPT_SHARE` of their step on one by one; shorter ones are known as a sum.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.digest.owners import KEPT_SHARE
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.step_parts import IDLE
from tb_ddp_doctor.trace.model import Ints

#: 1, 2 and 5 times each power of ten, from a microsecond to 5,000 s, ns.
_EDGES_NS = np.array([digit * 10**power for power in range(3, 13) for digit in (1, 2, 5)], np.int64)


class GapBin(msgspec.Struct, frozen=True):
    """Gaps of at least `from_ms` and less than `to_ms`."""

    from_ms: float
    to_ms: float
    count: int
    sum_ms: float


class GapLengths(msgspec.Struct, frozen=True):
    """Gaps of one owner by length, the shortest first; with `shorter_ms` they sum to the owner's time in the budget."""

    bins: list[GapBin]
    #: Those shorter than `kept_from_ms`, which are not counted.
    shorter_ms: float
    kept_from_ms: float


class Gaps(msgspec.Struct, frozen=True, eq=False):
    """All gaps of a job's ranks in the steps that all have, one row each."""

    job: Job
    #: Indices of the rank and of the step.
    rank: Ints
    step: Ints
    #: Index in `IDLE`.
    owner: Ints
    length_ns: Ints

    def lengths(self, ranks: Collection[int], steps: Collection[int]) -> dict[str, GapLengths]:
        """Gaps by owner on some ranks in some steps; owners without any are left out."""
        on_ranks, in_steps = np.isin(self.job.ranks, list(ranks)), np.isin(self.job.steps, list(steps))
        here = np.ix_(on_ranks, in_steps)
        budget = self.job.budget
        kept_from_ns = KEPT_SHARE * int(budget.window_ns[here].max(initial=0))
        chosen = on_ranks[self.rank] & in_steps[self.step]
        owner, length_ns = self.owner[chosen], self.length_ns[chosen]
        by_owner = {}
        for i, name in enumerate(IDLE):
            total_ns = int(budget.of(name)[here].sum())
            if total_ns:
                own_ns = length_ns[owner == i]
                shorter_ms = round((total_ns - int(own_ns.sum())) / 1e6, 4)
                by_owner[name] = GapLengths(_bins(own_ns), shorter_ms, round(kept_from_ns / 1e6, 4))
        return by_owner


def _bins(length_ns: Ints) -> list[GapBin]:
    """From the first to the last bin with a gap."""
    which = np.clip(np.searchsorted(_EDGES_NS, length_ns, side="right") - 1, 0, len(_EDGES_NS) - 2)
    count = np.bincount(which)
    sum_ns = np.zeros(len(count), np.int64)
    np.add.at(sum_ns, which, length_ns)
    edges_ms = (_EDGES_NS / 1e6).tolist()
    first = int(which.min(initial=len(count)))
    return [
        GapBin(edges_ms[i], edges_ms[i + 1], int(count[i]), round(int(sum_ns[i]) / 1e6, 4))
        for i in range(first, len(count))
    ]


def gaps(job: Job) -> Gaps:
    """The gaps of a job."""
    to_owner = np.full(len(RankOwner), -1)
    for one in RankOwner:
        if one.name.lower() in IDLE:
            to_owner[one] = IDLE.index(one.name.lower())
    columns: list[tuple[Ints, Ints, Ints, Ints]] = []
    for i, digest in enumerate(job.digests):
        column = np.full(max(len(digest.steps), 1), -1)
        column[job.step_index[i]] = np.arange(len(job.steps))
        pieces = digest.pieces
        length_ns = pieces.end_ns - pieces.start_ns
        rows = np.flatnonzero((to_owner[pieces.owner] >= 0) & (column[pieces.step] >= 0) & (length_ns > 0))
        columns.append(
            (
                np.full(len(rows), i),
                column[pieces.step[rows]],
                to_owner[pieces.owner[rows]],
                length_ns[rows],
            )
        )
    return Gaps(job, *(np.concatenate(parts) for parts in zip(*columns, strict=True)))
