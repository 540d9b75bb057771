"""Ranks whose clocks cannot be aligned: those that jump within the record, run at another pace, or are off for a while.

All ranks end a collective at once, but for some nanoseconds of transfer, so its ends tell the clocks apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median_low
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankDigest, Steps
from tb_ddp_doctor.digest.numbering import in_order, numbered
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.collectives import ENDS_APART, Matched
from tb_ddp_doctor.job.completeness import LEAST_PEERS, Damage, Damages, Mask, after, whole_steps
from tb_ddp_doctor.job.segments import Segments
from tb_ddp_doctor.trace.model import Floats, Indices, Ints

#: Ends of one collective that are further apart are on clocks that jump, ns, as NTP makes them from 128 ms on; and as
#: many times the usual spread.
JUMP_NS = 4_000_000
JUMP_RESIDUALS = 20
#: On either side of a jump, collectives are late by the same time, to within this share of the jump. A clock that runs
#: at another pace gets later from step to step.
STEADY = 0.1
#: Fewer collectives before or after a jump do not tell it from another pace.
LEAST_ON_A_SIDE = 2
#: A rank's collectives end at another pace than on other ranks from this median deviation on, ns, and from as many
#: times that of the median of the other ranks: transfers end up to 0.5 ms apart, clocks drift by 100 ppm.
PACE_NS = 2_000_000
PACE_TIMES = 5
#: Share of a rank's collectives that end apart from those of all other ranks where single events are damaged.
MOST_APART = 0.1
#: Where no two ranks end a collective further apart than this, ns, no clock is odd: how late a rank ends changes by no
#: more than twice that.
LEAST_ODD_NS = min(JUMP_NS, PACE_NS) / 2
_JUMPS = "its clock jumps relative to those of other ranks"


class EndsApart(msgspec.Struct, frozen=True, eq=False, dict=True):
    """How much later collectives end on a rank than on most ranks, in the order in which they end.

    Without collectives that a rank may end before the others have arrived.
    """

    #: All collectives of the job.
    matched: Matched
    #: The parts of those that are judged, and how much later each one ends, shape (Q,), ns.
    segments: Segments
    part: Ints
    late_ns: Floats

    @classmethod
    def of(cls, matched: Matched, clock: ClockFit) -> EndsApart:
        """By the clocks of all ranks."""
        end = matched.end_ns - clock.correction(matched.rank, matched.end_ns) - clock.origin_ns
        median = matched.segments.median(end)
        judged = np.flatnonzero(matched.together & ~matched.is_of(ENDS_APART))
        judged = judged[np.argsort(median[judged], kind="stable")]
        segments, part = matched.segments.select(judged)
        return cls(matched, segments, part, end[part] - segments.each(median[judged]))

    @cached_property
    def rank(self) -> Indices:
        """Of each part, shape (Q,)."""
        return self.matched.rank[self.part]

    @cached_property
    def step(self) -> Ints:
        """Of each part, shape (Q,)."""
        return self.matched.segments.each(self.matched.step)[self.part]

    @cached_property
    def _by_rank(self) -> Ints:
        return in_order(self.rank)

    def of_rank(self, rank: int) -> Ints:
        """The parts of a rank (index), in order."""
        begin, end = np.searchsorted(self.rank, (rank, rank + 1), sorter=self._by_rank)
        return self._by_rank[begin:end]

    def clock_set(self, rank: int, limit_ns: float) -> ClockSet | None:
        """The clock of a rank (index), set by `limit_ns` or more; None where the ends show no such clock."""
        mine = self.of_rank(rank)
        return ClockSet.of(self.late_ns[mine], self.matched.end_ns[self.part[mine]], self.step[mine], limit_ns)


#: The ranks, in order, and how far apart they end their collectives.
EndsOfAll: TypeAlias = Callable[[], tuple[tuple[int, ...], EndsApart]]


class ClockSet(msgspec.Struct, frozen=True):
    """A rank's clock that is set once within the record.

    Collectives before that instant are all late by one time, and those after it by another:

        others  |ar |ar |ar |ar |ar |ar
        rank    |ar |ar |   set by 800 ms    |ar |ar |ar |ar
    """

    #: The step of the last collective before, and that of the first one after.
    before: int
    after: int
    #: When these two collectives end by the rank's own clock, ns.
    last_ns: int
    first_ns: int
    #: By how much the clock is set, ns; negative where it is set back.
    by_ns: float

    @classmethod
    def of(cls, late: Floats, own: Ints, step: Ints, limit_ns: float) -> ClockSet | None:
        """The clock of a rank by its collectives: how much later than elsewhere each one ends, when it ends by that
        clock, ns, and its step. None where the clock is not set by `limit_ns` or more.
        """
        if len(late) < 2:
            return None
        by_ns = float(late[-1] - late[0])
        steady_ns = min(limit_ns / 2, STEADY * abs(by_ns))
        before, after = (np.abs(late - level) <= steady_ns for level in (late[0], late[-1]))
        last, first = int(np.flatnonzero(before)[-1]), int(after.argmax())
        # A collective that runs while the clock is set, or is cut where times overlap, seems to end in between.
        between = np.isin(step, (step[last], step[first]))
        are_sides = first > last and (before | after | between).all()
        fewest = min(np.count_nonzero(before), np.count_nonzero(after))
        if abs(by_ns) < limit_ns or not are_sides or fewest < LEAST_ON_A_SIDE:
            return None
        return cls(int(step[last]), int(step[first]), int(own[last]), int(own[first]), by_ns)

    def sides(self, steps: Steps) -> tuple[Mask, Mask]:
        """Which steps end before the clock is set, and which begin after that on the CPU and on the GPU.

        A clock that is set back reads some times twice. Steps that begin at such times are in neither.
        """
        over = (steps.number == self.before) & (self.by_ns > 0)
        over &= (steps.end_ns <= self.last_ns) | (self._longer_by(steps) < self.by_ns / 2)
        begins = np.minimum(steps.start_ns, steps.host_start_ns)
        later = (steps.number >= self.after) & (begins >= self.first_ns + max(-self.by_ns, 0))
        return (steps.number < self.before) | over, later

    def _longer_by(self, steps: Steps) -> Floats:
        """How much longer each step is than those in which the clock is not set, shape (steps,), ns."""
        length = (steps.end_ns - steps.start_ns).astype(np.float64)
        others = (steps.number < self.before) | (steps.number > self.after)
        return length - float(np.median(length[others])) if others.any() else length

    def shows_in(self, steps: Steps) -> bool:
        """Whether the rank's own steps are that much longer or shorter where the clock is set than its other steps."""
        during = (steps.number >= self.before) & (steps.number <= self.after)
        excess = float(self._longer_by(steps)[during].sum())
        return bool(during.all()) or abs(excess - self.by_ns) < abs(excess)


def clock_jumps(
    ranks: Sequence[int], digests: Sequence[RankDigest], ends: EndsApart, damaged: Damages, every: EndsOfAll
) -> Damages:
    """Ranks whose clocks jump: from some step on, all collectives end as far from where those of other ranks do.

    Where a clock is set once, the steps before or those after stay, whichever are more. `damaged` is what else
    is damaged; `every` gives the ends of the collectives of all steps, also of damaged ones.
    """
    jumps: Damages = {}
    if not len(ends.part) or not all(digest.has_device for digest in digests):
        return jumps
    apart = np.abs(ends.late_ns)
    # Most collectives end apart on a clock that jumps: what is usual shows in most ranks, or where ends are closest.
    in_most_ranks = float(np.median(ends.segments.median(apart)))
    where_closest = float(np.quantile(ends.segments.max(apart), 0.1))
    limit = max(JUMP_NS, JUMP_RESIDUALS * min(in_most_ranks, where_closest))
    far = np.unique(ends.rank[apart > limit])
    if not len(far):
        return jumps
    by_step = _StepShifts.of(ends, len(ranks), limit)
    for index, clock in _clocks(ranks, digests, far.tolist(), limit, every).items():
        rank, steps = ranks[index], digests[index].steps
        if clock:
            whole = np.isin(steps.number, list(whole_steps(digests[index], damaged.get(rank, ()))))
            kept = max(clock.sides(steps), key=lambda side: int((side & whole).sum()))
            if not kept.all():
                jumps[rank] = [Damage(frozenset(steps.number[~kept].tolist()), _JUMPS, is_other_side=True)]
            continue
        odd = np.isin(steps.number, by_step.odd(index, limit))
        if odd.any():
            # It may jump after the last collective of the step before, or go on behind the first of the next.
            odd |= _before(odd) | after(odd)
            jumps[rank] = [Damage(frozenset(steps.number[odd].tolist()), _JUMPS)]
    return jumps


def _clocks(
    ranks: Sequence[int], digests: Sequence[RankDigest], far: Sequence[int], limit_ns: float, every: EndsOfAll
) -> dict[int, ClockSet | None]:
    """The clocks that jump of these ranks (indices), whose collectives end apart; None if a clock is not set once.

    Where the clock of one node of two is set, each half of the ranks ends apart from the middle. Their own steps tell
    which half it is: one of them is as much longer or shorter than the others.
    """
    all_ranks, ends = every()
    clocks: dict[int, ClockSet | None] = dict.fromkeys(far)
    for index in far:
        if ranks[index] in all_ranks:
            clocks[index] = ends.clock_set(all_ranks.index(ranks[index]), limit_ns)
    all_set = {index: clock for index, clock in clocks.items() if clock}
    if len(all_set) < len(ranks):
        return clocks
    ahead, behind = (
        float(np.median([clock.by_ns for clock in all_set.values() if (clock.by_ns > 0) == sign] or [0.0]))
        for sign in (True, False)
    )
    shown: dict[int, ClockSet | None] = {}
    for index, clock in all_set.items():
        whole = replace(clock, by_ns=clock.by_ns - (behind if clock.by_ns > 0 else ahead))
        if whole.shows_in(digests[index].steps):
            shown[index] = whole
    return shown or clocks


class _StepShifts(msgspec.Struct, frozen=True, eq=False):
    """How far the ends of each rank's collectives lie from where those of other ranks do, by step; shape (S, R), ns."""

    #: Numbers of the steps, shape (S,).
    number: Ints
    earliest_ns: Floats
    latest_ns: Floats
    #: Whether the clock jumps within the step, which then has no shift of its own.
    differs: Mask

    @classmethod
    def of(cls, ends: EndsApart, ranks: int, limit_ns: float) -> _StepShifts:
        """Those of so many ranks; infinite where a rank has no part."""
        numbers, step = np.unique(ends.step, return_inverse=True)
        earliest, latest = (np.full((len(numbers), ranks), nothing) for nothing in (np.inf, -np.inf))
        np.minimum.at(earliest, (step, ends.rank), ends.late_ns)
        np.maximum.at(latest, (step, ends.rank), ends.late_ns)
        return cls(numbers, earliest, latest, latest - earliest >= limit_ns / 2)

    def odd(self, rank: int, limit_ns: float) -> Ints:
        """Numbers of the steps in which the clock of a rank (index) is not where it is in its other steps."""
        clean = np.isfinite(self.latest_ns[:, rank]) & ~self.differs[:, rank]
        shift = (self.latest_ns[clean, rank] + self.earliest_ns[clean, rank]) / 2
        # Calls of different groups that are taken for one, for want of their names, differ on several ranks.
        odd = self.differs[:, rank] & (self.differs.sum(axis=1) == 1) & bool(len(shift))
        odd[clean] |= _shifted(shift, limit_ns)
        numbers: Ints = self.number[odd]
        return numbers


def other_paces(ranks: Sequence[int], digests: Sequence[RankDigest], ends: EndsApart) -> Damages:
    """Ranks whose collectives end at another pace than those of all other ranks: no clock of one job drifts so."""
    if len(ranks) < LEAST_PEERS or not len(ends.part) or not all(digest.has_device for digest in digests):
        return {}
    step = numbered(ends.step)
    cells, order = Segments.grouped(step * len(ranks) + ends.rank)
    # Of a step in which a rank has no collective there is no median.
    by_step = np.full((int(step.max()) + 1, len(ranks)), np.nan)
    chosen = order[cells.first[:-1]]
    by_step[step[chosen], ends.rank[chosen]] = cells.median(ends.late_ns[order])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        scatter = np.nan_to_num(_nanmedian(np.abs(by_step - _nanmedian(by_step, axis=0)), axis=0))
    damaged: Damages = {}
    for index in np.flatnonzero(scatter > PACE_NS).tolist():
        if scatter[index] > PACE_TIMES * median_low(np.delete(scatter, index).tolist()):
            damaged[ranks[index]] = [Damage(None, _pace(ends.matched, index))]
    return damaged


def odd_collectives(ranks: Sequence[int], digests: Sequence[RankDigest], matched: Matched, apart: Mask) -> Damages:
    """Ranks with single collectives that end apart from those of all other ranks (`ends_apart`, shape (P,)).

    Their times in these steps are wrong. Where many end so, it is rather that calls are taken for one that are none.
    """
    damaged: Damages = {}
    step, odd = matched.segments.each(matched.step)[apart], matched.rank[apart]
    count, of_all = np.bincount(odd, minlength=len(ranks)), matched.of_rank()
    for index in np.flatnonzero(count).tolist():
        if count[index] > max(1, MOST_APART * of_all[index]):
            continue
        number = digests[index].steps.number
        steps = np.isin(number, step[odd == index])
        if steps.any():
            reason = f"{int(count[index]):,} of its collectives ends apart from those of all other ranks"
            damaged[ranks[index]] = [Damage(frozenset(number[steps | after(steps)].tolist()), reason)]
    return damaged


def _pace(matched: Matched, index: int) -> str:
    """What is odd of the ends of a rank's collectives: the clock's speed, if that explains most of it."""
    mine = matched.rank == index
    of_mine, part = matched.segments.select(np.flatnonzero(matched.segments.any(mine)))
    others = part[matched.rank[part] != index]
    of_ranks, order = Segments.grouped(matched.rank[others])
    end = matched.end_ns[others].astype(np.float64)
    end[order] -= of_ranks.each(of_ranks.median(end[order]))
    theirs = Segments.of_sizes(of_mine.length - 1).median(end)
    own = matched.end_ns[mine].astype(np.float64)
    speed, start = np.polyfit(theirs, own - own[0], 1)
    if np.median(np.abs(own - own[0] - speed * theirs - start)) < PACE_NS:
        return f"its clock is {wording.decimals(abs(speed - 1) * 100, 0)} % {'fast' if speed > 1 else 'slow'}"
    return "its collectives do not end when those of other ranks do"


def _nanmedian(values: Floats, axis: int) -> Floats:
    """The median of what is not nan; `np.nanmedian` takes many times as long as `np.median`, also where nothing is."""
    return (np.nanmedian if np.isnan(values).any() else np.median)(values, axis=axis)


def _shifted(shift_ns: Floats, limit_ns: float) -> Mask:
    """Which steps are on the other side of a jump: all before one or all after it, by the same time."""
    far = np.abs(shift_ns - np.sort(shift_ns)[(len(shift_ns) - 1) // 2]) > limit_ns if len(shift_ns) else shift_ns > 0
    is_jump = far.any() and np.ptp(shift_ns[far]) < limit_ns and np.diff(far).sum() == 1
    return far if is_jump else np.zeros_like(far)


def _before(chosen: Mask) -> Mask:
    """The steps that chosen ones follow."""
    return np.concatenate((chosen[1:], [False]))
