"""Ranks whose clocks cannot be aligned: those that jump within the record, run at another pace, or are off for a while.

All ranks end a collective at once, but for some nanoseconds of transfer, so its ends tell the clocks apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import TypeAlias

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankDigest, Steps
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.collectives import ABSENT, ENDS_APART, Matched
from tb_ddp_doctor.job.completeness import LEAST_PEERS, Damage, Damages, Mask, after, whole_steps
from tb_ddp_doctor.trace.model import Floats, Ints

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


class EndsApart(msgspec.Struct, frozen=True, eq=False):
    """How much later collectives end on a rank than on most ranks, in the order in which they end.

    Without collectives that a rank may end before the others have arrived.
    """

    #: All collectives of the job.
    matched: Matched
    #: Shape (M, R), ns; nan where absent.
    late_ns: Floats
    #: The ends by each rank's own clock, shape (M, R), ns; any number where absent.
    own_ns: Ints
    #: Of each collective, shape (M,).
    step: Ints

    @classmethod
    def of(cls, matched: Matched, clock: ClockFit) -> EndsApart:
        """By the clocks of all ranks."""
        own = matched.end_ns
        end = np.where(matched.present, own - clock.correction(np.arange(own.shape[1]), own) - clock.origin_ns, np.nan)
        judged = np.flatnonzero(
            matched.together & np.array([kind not in ENDS_APART for kind in matched.kind], np.bool_)
        )
        end = end[judged]
        median = _nanmedian(end, axis=1)
        order = np.argsort(median, kind="stable")
        judged, end, median = judged[order], end[order], median[order]
        return cls(matched, end - median[:, None], own[judged], matched.step[judged])


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
    def of(cls, ends: EndsApart, rank: int, limit_ns: float) -> ClockSet | None:
        """The clock of a rank (index), set by `limit_ns` or more; None where the ends show no such clock."""
        known = np.flatnonzero(np.isfinite(ends.late_ns[:, rank]))
        if len(known) < 2:
            return None
        late, own, step = ends.late_ns[known, rank], ends.own_ns[known, rank], ends.step[known]
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
        over = (steps.number == self.before) & (self.by_ns > 0) & (steps.end_ns <= self.last_ns)
        begins = np.minimum(steps.start_ns, steps.host_start_ns)
        later = (steps.number >= self.after) & (begins >= self.first_ns + max(-self.by_ns, 0))
        return (steps.number < self.before) | over, later


def clock_jumps(
    ranks: Sequence[int], digests: Sequence[RankDigest], ends: EndsApart, damaged: Damages, every: EndsOfAll
) -> Damages:
    """Ranks whose clocks jump: from some step on, all collectives end as far from where those of other ranks do.

    Where a clock is set once, the steps before or those after stay, whichever are more. `found` is what else is
    damaged; `every` gives the ends of the collectives of all steps, also of damaged ones.
    """
    jumps: Damages = {}
    apart, step = ends.late_ns, ends.step
    if not len(step) or not all(digest.has_device for digest in digests):
        return jumps
    # Most collectives end apart on a clock that jumps: what is usual shows in most ranks, or where ends are closest.
    in_most_ranks = float(np.median(_nanmedian(np.abs(apart), axis=1)))
    where_closest = float(np.quantile(np.nanmax(np.abs(apart), axis=1), 0.1))
    limit = max(JUMP_NS, JUMP_RESIDUALS * min(in_most_ranks, where_closest))
    far = np.flatnonzero(np.nanmax(np.abs(apart), axis=0, initial=0) > limit)
    if not len(far):
        return jumps
    by_step = _StepShifts.of(apart, step, limit)
    all_ranks, all_ends = every()
    for index in far.tolist():
        rank, steps = ranks[index], digests[index].steps
        clock = ClockSet.of(all_ends, all_ranks.index(rank), limit) if rank in all_ranks else None
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


class _StepShifts(msgspec.Struct, frozen=True, eq=False):
    """How far the ends of each rank's collectives lie from where those of other ranks do, by step; shape (S, R), ns."""

    #: Numbers of the steps, shape (S,).
    number: Ints
    earliest_ns: Floats
    latest_ns: Floats
    #: Whether the clock jumps within the step, which then has no shift of its own.
    differs: Mask

    @classmethod
    def of(cls, apart_ns: Floats, step: Ints, limit_ns: float) -> _StepShifts:
        """Those of collectives (rows of `apart_ns`, by rank) of these steps; nan where a rank has no part."""
        numbers = np.unique(step)
        earliest = np.stack([np.nanmin(apart_ns[step == one], axis=0, initial=np.inf) for one in numbers])
        latest = np.stack([np.nanmax(apart_ns[step == one], axis=0, initial=-np.inf) for one in numbers])
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
    apart, step = ends.late_ns, ends.step
    if len(ranks) < LEAST_PEERS or not len(apart) or not all(digest.has_device for digest in digests):
        return {}
    with warnings.catch_warnings():
        # Of a step in which a rank has no collective there is no median.
        warnings.simplefilter("ignore", RuntimeWarning)
        by_step = np.stack([_nanmedian(apart[step == number], axis=0) for number in np.unique(step)])
        scatter = np.nan_to_num(_nanmedian(np.abs(by_step - _nanmedian(by_step, axis=0)), axis=0))
    damaged: Damages = {}
    for index in np.flatnonzero(scatter > PACE_NS).tolist():
        if scatter[index] > PACE_TIMES * median_low(np.delete(scatter, index).tolist()):
            damaged[ranks[index]] = [Damage(None, _pace(ends.matched, index))]
    return damaged


def odd_collectives(ranks: Sequence[int], digests: Sequence[RankDigest], matched: Matched, apart: Mask) -> Damages:
    """Ranks with single collectives that end apart from those of all other ranks (`ends_apart`, shape (M, R)).

    Their times in these steps are wrong. Where many end so, it is rather that calls are taken for one that are none.
    """
    damaged: Damages = {}
    for index in np.flatnonzero(apart.any(axis=0)).tolist():
        odd = apart[:, index]
        if odd.sum() > max(1, MOST_APART * matched.present[:, index].sum()):
            continue
        number = digests[index].steps.number
        steps = np.isin(number, matched.step[odd])
        if steps.any():
            reason = f"{int(odd.sum()):,} of its collectives ends apart from those of all other ranks"
            damaged[ranks[index]] = [Damage(frozenset(number[steps | after(steps)].tolist()), reason)]
    return damaged


def _pace(matched: Matched, index: int) -> str:
    """What is odd of the ends of a rank's collectives: the clock's speed, if that explains most of it."""
    both = np.flatnonzero(matched.present[:, index] & (matched.parts > 1))
    others = np.delete(matched.end_ns, index, axis=1)[both].astype(np.float64)
    others[others == ABSENT] = np.nan
    theirs = np.nanmedian(others - np.nanmedian(others, axis=0), axis=1)
    own = matched.end_ns[both, index].astype(np.float64)
    speed, start = np.polyfit(theirs, own - own[0], 1)
    if np.median(np.abs(own - own[0] - speed * theirs - start)) < PACE_NS:
        return f"its clock is {wording.decimals(abs(speed - 1) * 100, 0)} % {'fast' if speed > 1 else 'slow'}"
    return "its collectives do not end when those of other ranks do"


def _nanmedian(values: Floats, axis: int) -> Floats:
    """The median of what is not nan; `np.nanmedian` takes many times as long as `np.median`, also where nothing is."""
    median: Floats = (np.nanmedian if np.isnan(values).any() else np.median)(values, axis=axis)
    return median


def _shifted(shift_ns: Floats, limit_ns: float) -> Mask:
    """Which steps are on the other side of a jump: all before one or all after it, by the same time."""
    far = np.abs(shift_ns - np.sort(shift_ns)[(len(shift_ns) - 1) // 2]) > limit_ns if len(shift_ns) else shift_ns > 0
    is_jump = far.any() and np.ptp(shift_ns[far]) < limit_ns and np.diff(far).sum() == 1
    return far if is_jump else np.zeros_like(far)


def _before(chosen: Mask) -> Mask:
    """The steps that chosen ones follow."""
    return np.concatenate((chosen[1:], [False]))
