"""Which ranks are slower than the median rank: shared by the rules on always and sometimes slow ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.compute import Phases
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import limits
from tb_ddp_doctor.step_parts import PHASES
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.names import Phase
from tb_ddp_doctor.trace.program_names import Program

#: Most ranks are slow if the others are faster by so many times the limit.
_CLEARLY = 3
_LEAST_EXCESS = limits.SLOW_RANK[0]
#: Noise of each rank and step, not of a rank: the mean excess is below so many of its standard errors, and below this
#: share of the step. Of drawn jobs with 6 % of noise, 2 to 16 ranks and 3 to 6 steps, 1 in 300 has a rank beyond both.
_STANDARD_ERRORS = 5
_CLEAR_OF_NOISE = 0.15
#: Where ranks and steps differ by far more, as with sequences of any length, chance makes one of eight ranks this many
#: standard errors slower in one of twenty records of five steps, however long that is.
_CHANCE = 3
#: Kernels of a rank vary by 1 or 2 % from step to step; a device is slower from this many times as long on, and by
#: this much at most more in one step than in another: how many rows are looked up, or tokens sent, changes by more.
_SLOWER = 1.05
_STEADY = 1.5
#: Standard deviations in a median deviation, of a normal distribution.
_SD_OF_MEDIAN = 1.5
#: The standard error of a median over that of a mean, of a normal distribution.
_MEDIAN_BY_MEAN = 1.25
#: A phase is named from this share of an excess on.
_MOST = 0.5


class Slowness(msgspec.Struct, frozen=True, eq=False):
    """What R ranks need by themselves in S steps, against comparable ranks and steps."""

    #: Beyond the median rank's, shape (R, S), ns; negative for faster ranks.
    excess_ns: Ints
    #: Whether the excess passes the limit, shape (R, S).
    slow: NDArray[np.bool_]
    #: Indices of the ranks that are slow in enough steps, slowest first.
    persistent: Ints
    #: The ranks that they are compared with, shape (R,); None for all.
    among: NDArray[np.bool_] | None
    #: By how much the median rank takes longer in each step than in comparable ones, shape (S,), ns.
    step_excess_ns: Ints
    #: How far most ranks and steps are from comparable ones anyway, one standard deviation, ns.
    noise_ns: float
    #: An excess beyond this makes a rank slow in a step, ns.
    limit_ns: float
    #: The ranks' roles in reinforcement learning, shape (R,); the same for all in other jobs.
    roles: NDArray[np.str_]

    def persistently(self, ranks: Sequence[int] | Ints | None = None) -> NDArray[np.bool_]:
        """Whether a rank is persistently slow (and one of these, by index) with an excess in the step, shape (R, S)."""
        rows = self.persistent if ranks is None else ranks
        chosen = np.zeros_like(self.slow)
        chosen[rows] = self.excess_ns[rows] > 0
        return chosen

    @property
    def others(self) -> Ints:
        """Indices of the ranks that are not persistently slow."""
        return np.setdiff1d(np.arange(len(self.slow)), self.persistent)

    def others_of(self, role: str) -> Ints:
        """Those of `others` that have a role; all of them where none has."""
        others = self.others
        of_role = others[self.roles[others] == role]
        return of_role if len(of_role) else others

    def others_like(self, rank: int) -> Ints:
        """Those of `others` with the role of a rank (index); all of them where none has."""
        return self.others_of(str(self.roles[rank]))

    @property
    def now_and_then(self) -> NDArray[np.bool_]:
        """Whether a rank that is not persistently slow is slow in the step, shape (R, S)."""
        others: NDArray[np.bool_] = self.slow.copy()
        others[self.persistent] = False
        return others


def median_rank(values: NDArray[Any]) -> NDArray[Any]:
    """The median rank's value: the lower median over the first axis, so that of two ranks the better one is it."""
    typical: NDArray[Any] = np.sort(values, axis=0)[(len(values) - 1) // 2]
    return typical


def median_rank_index(values: NDArray[Any]) -> int:
    """The rank (index) whose mean over steps is the median rank's, given shape (R, S)."""
    return int(np.argsort(values.mean(axis=1), kind="stable")[(len(values) - 1) // 2])


def slowness(whatif: WhatIf, frame: Frame, min_excess: float, min_steps: float) -> Slowness:
    """Compare what each rank needs by itself with the median rank in each step.

    A rank is slow in a step if its excess is over `min_excess` of the step and over twice the clock skew;
    it is persistently slow if that holds on average and in at least `min_steps` (a share) of the steps, in all but the
    first, or in all since its device became slower. Where most ranks are slow, they are compared with those that are
    not, if these have as much to do on their devices.
    """
    # One rank has to send the weights, if no collective does.
    own, limit = whatif.busy_ns - whatif.sending_ns, _limit(frame, min_excess)
    # Which rank has larger batches in a record of few steps is chance.
    with_even_batches = own - whatif.for_more_work_ns
    among = _fast_minority(whatif, with_even_batches, frame, limit)
    excess = _excess(own, among, whatif, frame)
    if among is None:
        of_step = median_rank(own)
        step_excess = np.minimum(of_step - median_rank(whatif.typical_need(own)), of_step)
        step_excess = np.maximum(step_excess, whatif.excess_over_length_ns())
        step_excess = np.where(step_excess < _CHANCE * _error_of_median(excess), 0, step_excess)
    else:
        step_excess = np.zeros(own.shape[1], np.int64)
    steadily = _excess(with_even_batches, among, whatif, frame) if whatif.for_more_work_ns.any() else excess
    slow = steadily > limit
    mean = steadily.mean(axis=1)
    often = slow.mean(axis=1) >= min_steps
    if slow.shape[1] > 2:
        # What holds the host at the end of a step delays the next one: before the first step it is not recorded.
        often |= slow[:, 1:].all(axis=1)
    often |= device_slower_since(slow, whatif.pace) < slow.shape[1]
    persistent = often & (mean > limit)
    if among is None:
        persistent &= ~_is_noise(steadily, frame)
    if persistent.all():  # they take turns: none is slower than the others
        persistent[:] = False
    excess = np.where(persistent[:, None], steadily, excess)
    slow = excess > limit
    indices = np.flatnonzero(persistent)
    slowest_first = indices[np.argsort(-mean[indices], kind="stable")]
    deviations = np.sort(np.abs(own - whatif.typical_need(own)), axis=None)
    noise = _SD_OF_MEDIAN * float(deviations[(deviations.size - 1) // 2])
    roles = np.array(frame.roles if frame.program == Program.RL.value else [""] * len(own))
    return Slowness(excess, slow, slowest_first, among, step_excess, noise, limit, roles)


def _excess(need_ns: Ints, among: NDArray[np.bool_] | None, whatif: WhatIf, frame: Frame) -> Ints:
    """What each rank needs beyond comparable ranks and steps, given what it needs in each, shape (R, S), ns."""
    typical = whatif.typical_need(need_ns, among)
    if among is None:
        typical = np.maximum(typical, whatif.typical_of_step(need_ns))
    excess: Ints = need_ns - typical
    # Without the other rank's trace, waiting for it looks like a longer transfer.
    known: Ints = np.minimum(excess, np.maximum(excess - frame.unknown_wait_ns, 0))
    return known


def device_slower_since(slow: NDArray[np.bool_], pace: Floats) -> Ints:
    """From which step (index) on each rank is slow, if not from the first on, because its device takes longer for the
    same kernels, shape (R,); the number of steps where that is not so.

    A GPU that is throttled stays so. `slow` and `pace` have the shape (R, S), `pace` as `WhatIf.pace`.
    """
    steps = slow.shape[1]
    after = np.logical_and.accumulate(slow[:, ::-1], axis=1).sum(axis=1)
    is_since = (after > 1) & (after < steps) & (after == slow.sum(axis=1))
    times = pace / np.where(slow, 0, pace).max(axis=1, keepdims=True, initial=1e-9)
    least, most = np.where(slow, times, np.inf).min(axis=1), np.where(slow, times, 0).max(axis=1)
    is_since &= (least > _SLOWER) & (most - 1 < _STEADY * (least - 1))
    since: Ints = np.where(is_since, steps - after, steps)
    return since


def _is_noise(excess_ns: Ints, frame: Frame) -> NDArray[np.bool_]:
    """Whether what each rank has beyond the median rank, shape (R, S), may be noise of its steps, shape (R,)."""
    ranks, steps = excess_ns.shape
    mean = excess_ns.mean(axis=1)
    if steps < 2:
        return np.zeros(ranks, np.bool_)
    return is_noise(mean, _spread(excess_ns) / np.sqrt(steps), frame.step_ns)


def _spread(excess_ns: Ints) -> float:
    """By how much the median rank differs from step to step, one standard deviation, given shape (R, S)."""
    return float(median_rank(excess_ns.std(axis=1, ddof=1)))


def _error_of_median(excess_ns: Ints) -> float:
    """How far the median rank of a step is from that of other steps by chance, one standard deviation: ranks with
    sequences of any length have longer ones in one step than in another.
    """
    ranks, steps = excess_ns.shape
    return _MEDIAN_BY_MEAN * _spread(excess_ns) / np.sqrt(ranks) if min(ranks, steps) > 1 else 0.0


def is_noise(mean_ns: Floats, error_ns: Floats | float, step_ns: float) -> NDArray[np.bool_]:
    """Whether means over steps may be noise of these steps, given the standard errors of the means."""
    may_be_small = (mean_ns < _STANDARD_ERRORS * error_ns) & (mean_ns < _CLEAR_OF_NOISE * step_ns)
    return may_be_small | (mean_ns < _CHANCE * error_ns)


def shared(whatif: WhatIf, frame: Frame, kind: CpuTime) -> Change:
    """What all ranks share of the host's time of one kind: where most are slow, as much as the others have."""
    return whatif.shared(kind, _fast_minority(whatif, whatif.busy_ns, frame, _limit(frame, _LEAST_EXCESS)))


def _limit(frame: Frame, min_excess: float) -> float:
    return max(min_excess * frame.step_ns, 2 * frame.residual_ns)


def _fast_minority(whatif: WhatIf, need_ns: Ints, frame: Frame, limit: float) -> NDArray[np.bool_] | None:
    """The ranks, shape (R,), that need far less than most others although their devices have as much to do; None for
    none. `need_ns` is what each needs in each step, shape (R, S).
    """
    mean = need_ns.mean(axis=1)
    order = np.argsort(mean)
    gaps = np.diff(mean[order])[: len(mean) // 2]
    if not len(gaps) or gaps.max() < _CLEARLY * limit:
        return None
    chosen = np.zeros(len(mean), np.bool_)
    chosen[order[: int(gaps.argmax()) + 1]] = True
    is_minority = 2 * chosen.sum() < len(mean) and not _is_noise_between(need_ns, chosen, frame)
    return chosen if is_minority and whatif.have_as_much_work(chosen) else None


def _is_noise_between(busy_ns: Ints, chosen: NDArray[np.bool_], frame: Frame) -> bool:
    """Whether the chosen ranks may need less than the others, given shape (R, S), only by noise of a few steps."""
    ranks, steps = busy_ns.shape
    if steps < 2:
        return False
    less_ns = busy_ns[~chosen].mean() - busy_ns[chosen].mean()
    # What ranks have in common in a step is no noise: the few and the many each on their own, since a step in which
    # the many alone are slow would count as one in which the few are fast.
    apart = np.concatenate([busy_ns[some] - np.median(busy_ns[some], axis=0) for some in (chosen, ~chosen)])
    # A rank that is alone is its own median.
    fast = int(chosen.sum())
    variance = float(apart.var(axis=1, ddof=1).sum()) / (ranks - (fast == 1))
    error = np.sqrt(variance / steps * (1 / fast + 1 / (ranks - fast)))
    return bool(is_noise(less_ns, error, frame.step_ns))


def within(phase: Phase) -> str:
    """Where something is: "in the forward pass"."""
    return PHASES[phase.name.lower()].within


def phase_of_most(more_ns: NDArray[np.float64], phases: Phases) -> Phase | None:
    """The phase that has most of an excess, given the excess by phase; None if none has or none is known."""
    worst = Phase(int(more_ns.argmax()))
    return worst if phases.known and more_ns[worst] > _MOST * max(float(more_ns.sum()), 0.0) else None


def behind(who: str, more_ns: NDArray[np.float64], phases: Phases) -> str:
    """The sentence that says in which phase someone falls behind, after a space; "" where none has most of it."""
    worst = phase_of_most(more_ns, phases)
    return "" if worst is None else f" {who} falls {wording.ms(more_ns[worst])} behind {within(worst)}."


def longest_wait(stragglers: Ints, frame: Frame, arrivals: Arrivals, places: Places) -> list[Evidence]:
    """The longest wait that any of the stragglers (indices) caused on another rank, if there is one."""
    caused = np.flatnonzero(
        np.isin(arrivals.last, stragglers) & np.isin(arrivals.step, frame.steps) & (arrivals.longest_wait_ns > 0)
    )
    if not len(caused):
        return []
    worst = caused[arrivals.longest_wait_ns[caused].argmax()]
    what = f"Straggler wait in {arrivals.kind[worst] or 'a collective'} for rank {frame.ranks[arrivals.last[worst]]}."
    waiter, start, end = (
        int(column[worst]) for column in (arrivals.longest_waiter, arrivals.wait_start_ns, arrivals.wait_end_ns)
    )
    seen = places.between(waiter, start, end, RankOwner.COMMUNICATION, what)
    return [seen] if seen else []
