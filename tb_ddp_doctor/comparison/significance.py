"""Whether two runs differ significantly in step time: a bootstrap (Efron, 1979) over ranks and over steps.

Runs are profiled for three steps or so, and the resampled means of so few lie too close together. Each deviation is
therefore widened by sqrt(n / chi2(n - 1)), as Student's t has it; one step gives no interval.

What differs from run to run but not from step to step, such as a device's temperature, is in no interval: changes of
less than 3 % are never significant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.comparison.model import StepTime
from tb_ddp_doctor.findings import Severity
from tb_ddp_doctor.trace.model import Ints

#: A change of less than this share of the earlier step is not told.
TELLING = Severity.MINOR.least_share
#: Fewer steps show little of how much steps differ by chance.
_ENOUGH_STEPS = 3
_RESAMPLES = 4000
#: Numbers drawn at once.
_AT_ONCE = 1_000_000
#: Intervals end at some thousand times the change, as a logarithm: exp must not overflow.
_WIDEST = 7.0


def step_time(before_ns: Ints, after_ns: Ints) -> StepTime:
    """Of windows of shape (R, S)."""
    before, after = max(float(before_ns.mean()), 1.0), max(float(after_ns.mean()), 1.0)
    steps = min(before_ns.shape[1], after_ns.shape[1])
    change = after / before - 1
    interval = _interval(before_ns, after_ns, after / before) if steps > 1 else None
    return StepTime(
        before_ms=before / 1e6,
        after_ms=after / 1e6,
        change=change,
        interval=interval,
        tells=interval is not None and abs(change) >= TELLING and (interval[0] > 0 or interval[1] < 0),
        least_change=TELLING,
        doubt=_doubt(steps),
    )


def _interval(before_ns: Ints, after_ns: Ints, ratio: float) -> tuple[float, float]:
    differences = np.clip(_deviations(after_ns, 1) - _deviations(before_ns, 0), -_WIDEST, _WIDEST)
    low, high = np.expm1(np.log(ratio) + np.percentile(differences, [2.5, 97.5])).tolist()
    return low, high


def differs(before_ns: Ints, after_ns: Ints) -> bool:
    """Whether a part of the step, shape (R, S), changed significantly. Of one step, any change counts.

    Ranks are not drawn here: each has its own part, and all are there.
    """
    if min(before_ns.shape[1], after_ns.shape[1]) == 1:
        return True
    change = float(after_ns.mean()) - float(before_ns.mean())
    deviations = [
        (_resampled(part_ns.mean(axis=0, keepdims=True), rng) - float(part_ns.mean())) * _stretch(part_ns.shape[1], rng)
        for part_ns, rng in ((before_ns, np.random.default_rng(0)), (after_ns, np.random.default_rng(1)))
    ]
    low, high = change + np.percentile(deviations[1] - deviations[0], [2.5, 97.5])
    return bool(low > 0 or high < 0)


def _deviations(windows_ns: Ints, seed: int) -> NDArray[np.float64]:
    """How far, as logarithms, the means of runs like this one lie from its own: shape (_RESAMPLES,).

    Of two steps or more.
    """
    rng = np.random.default_rng(seed)
    means = np.maximum(_resampled(windows_ns, rng), 1.0)
    return np.log(means / max(float(windows_ns.mean()), 1.0)) * _stretch(windows_ns.shape[1], rng)


def _resampled(values_ns: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float64]:
    """Means of runs whose ranks and steps are drawn from this one's, shape (R, S), with replacement."""
    ranks, steps = values_ns.shape
    values = values_ns.astype(np.float64)
    means: list[NDArray[np.float64]] = []
    # Of thousands of ranks, what is drawn for all at once would take hundreds of megabytes.
    at_once = max(1, _AT_ONCE // ranks)
    for first in range(0, _RESAMPLES, at_once):
        size = min(at_once, _RESAMPLES - first)
        # Drawing ranks and steps apart, the mean is a product of how often each is drawn.
        of_ranks = rng.multinomial(ranks, np.full(ranks, 1 / ranks), size) / ranks
        of_steps = rng.multinomial(steps, np.full(steps, 1 / steps), size) / steps
        means.append(((of_ranks @ values) * of_steps).sum(axis=1))
    return np.concatenate(means)


def _stretch(steps: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """By how much each mean's deviation is widened: resampled steps lie closer together than others would."""
    return np.sqrt(steps / rng.chisquare(steps - 1, _RESAMPLES))


def _doubt(steps: int) -> str:
    if steps == 1:
        return f"1 step cannot separate noise from change; record {_ENOUGH_STEPS} or more."
    if steps < _ENOUGH_STEPS:
        return f"{steps} steps are few to estimate noise: the interval is wide. Record {_ENOUGH_STEPS} or more."
    return ""
