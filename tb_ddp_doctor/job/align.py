"""The ranks and steps that a job can use, on one clock, with their collectives matched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job import clock as clocks
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.collectives import Matched, ends_apart, refuse_impossible, select
from tb_ddp_doctor.job.completeness import Damages, damages, serving
from tb_ddp_doctor.job.matching import match
from tb_ddp_doctor.job.odd_clocks import LEAST_ODD_NS, EndsApart, clock_jumps, odd_collectives, other_paces
from tb_ddp_doctor.job.outlasted import outlasted
from tb_ddp_doctor.trace.model import Ints

#: Ends of one collective differ by up to this over slow links (DESIGN, point 5), ns.
END_TOLERANCE_NS = 500_000


class Aligned(msgspec.Struct, frozen=True, eq=False):
    """The ranks that take part, the steps that all of them have, their collectives, and one clock."""

    #: By rank, in order.
    ranks: Mapping[int, RankDigest]
    #: Of each rank, "" where unknown.
    nodes: tuple[str, ...]
    #: Numbers, shape (S,).
    steps: Ints
    calls: Calls
    matched: Matched
    clock: ClockFit

    @property
    def digests(self) -> tuple[RankDigest, ...]:
        return tuple(self.ranks.values())

    @property
    def step_index(self) -> Ints:
        """Where each rank's digest has the steps, shape (R, S)."""
        return np.stack([_positions(digest.steps.number, self.steps) for digest in self.digests])

    def without_first_steps(self, count: int) -> Aligned:
        return replace(self, steps=self.steps[count:])


def align(
    usable: Mapping[int, RankDigest], nodes: Mapping[int, str], world_size: int | None
) -> tuple[Aligned, Damages]:
    """Align the ranks that have a step, and say what is damaged of which."""
    calls = Calls(tuple(usable.values()))
    damaged = damages(usable, calls, world_size)
    aligned = _joined(usable, nodes, damaged, calls)
    close = aligned.clock.most_apart_ns < min(LEAST_ODD_NS, END_TOLERANCE_NS)
    if close and aligned.matched.together.all() and not aligned.matched.one_way.any():
        # All ranks arrive before the last one ends, so none ends before another one arrives.
        return aligned, damaged
    ends = _ends(aligned)

    def every() -> tuple[tuple[int, ...], EndsApart]:
        """The ranks, and how far apart they end the collectives of all steps, also of damaged ones."""
        joined = _joined(usable, nodes, {}, calls)
        return tuple(joined.ranks), _ends(joined)

    for check in (partial(clock_jumps, damaged=damaged, every=every), other_paces):
        if odd := check(tuple(aligned.ranks), aligned.digests, ends):
            for rank, damage in odd.items():
                damaged.setdefault(rank, []).extend(damage)
            aligned = _joined(usable, nodes, damaged, calls)
            ends = _ends(aligned)
    apart = ends_apart(aligned.matched, *_offsets(aligned))
    apart |= outlasted(aligned.digests, aligned.matched, *_offsets(aligned))
    if odd := odd_collectives(tuple(aligned.ranks), aligned.digests, aligned.matched, apart):
        for rank, damage in odd.items():
            damaged.setdefault(rank, []).extend(damage)
        aligned = _joined(usable, nodes, damaged, calls)
    return _with_possible_matches(aligned), damaged


def _ends(aligned: Aligned) -> EndsApart:
    return EndsApart.of(clocks.without_one_way(aligned.matched), aligned.clock)


def _joined(usable: Mapping[int, RankDigest], nodes: Mapping[int, str], damaged: Damages, every: Calls) -> Aligned:
    """The ranks with enough whole steps on one clock; `every` are the calls of all usable ranks."""
    whole = serving(usable, damaged)
    steps, left_out = _common_steps(whole)
    kept = {rank: usable[rank] for rank in sorted(set(whole).difference(left_out))}
    where = tuple(nodes.get(rank, "") for rank in kept)
    calls = every if len(kept) == len(usable) else Calls(tuple(kept.values()))
    matched = match(tuple(kept.values()), calls, tuple(kept))
    if any(rank in damaged for rank in kept):
        # What is left of the other steps tells nothing of clocks.
        matched = select(matched, np.flatnonzero(np.isin(matched.step, steps)))
    return Aligned(kept, where, steps, calls, matched, clocks.fit(matched, where))


def _with_possible_matches(aligned: Aligned) -> Aligned:
    """Without matches in which a rank ends before another one arrives, and with the clock that the others give."""
    checked = refuse_impossible(aligned.matched, *_offsets(aligned))
    if checked is aligned.matched:
        return aligned
    return replace(aligned, matched=checked, clock=clocks.fit(checked, aligned.nodes))


def _offsets(aligned: Aligned) -> tuple[Ints, int]:
    """What to subtract from the ranks' clocks at the end of each part, shape (P,), and how exact that is; ns."""
    matched, clock = aligned.matched, aligned.clock
    offsets = clock.correction(matched.rank, matched.end_ns)
    return offsets, END_TOLERANCE_NS + round(clock.residual_ns or 0)


def _common_steps(numbers: Mapping[int, frozenset[int]]) -> tuple[Ints, list[int]]:
    """The steps that all ranks have, by those of each, and the ranks that had to be left out to have any.

    Kept are the ranks of the step that most ranks have; of several such steps, the one whose ranks share the most.
    """
    first = next(iter(numbers.values()))
    if all(steps == first for steps in numbers.values()):
        return np.array(sorted(first), np.int64), []
    ranks_of: defaultdict[int, list[int]] = defaultdict(list)
    for rank, steps in numbers.items():
        for step in steps:
            ranks_of[step].append(rank)
    most = max(map(len, ranks_of.values()))
    candidates = {tuple(ranks) for ranks in ranks_of.values() if len(ranks) == most}
    shared = {ranks: sorted(frozenset.intersection(*(numbers[rank] for rank in ranks))) for ranks in candidates}
    kept = max(sorted(shared), key=lambda ranks: len(shared[ranks]))
    return np.array(shared[kept], np.int64), sorted(set(numbers).difference(kept))


def _positions(numbers: Ints, wanted: Ints) -> Ints:
    if np.array_equal(numbers, wanted):
        return np.arange(len(wanted))
    order = np.argsort(numbers, kind="stable")
    return order[np.searchsorted(numbers[order], wanted)]
