"""Whether two runs differ in step time, or only by chance: a bootstrap (Efron, 1979) over ranks and over steps.

Runs are profiled for three steps or so, and the resampled means of so few lie too close together. Each deviation is
therefore drawn out by sqrt(n / chi2(n - 1)), as Student's t has it; one step gives no interval.

What differs from run to run but not from step to step, such as a device's temperature, is in no interval: changes of
less than 3 % are not told at all.
"""

from __future__ import annotations

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
        doubt=_doubt(steps),
    )


def _interval(before_ns: Ints, after_ns: Ints, ratio: float) -> tuple[float, float]:
    differences = np.clip(_deviations(after_ns, 1) - _deviations(before_ns, 0), -_WIDEST, _WIDEST)
    low, high = np.expm1(np.log(ratio) + np.percentile(differences, [2.5, 97.5])).tolist()
    return low, high


def _deviations(windows_ns: Ints, seed: int) -> NDArray[np.float64]:
    """How far, as logarithms, the means of runs like this one lie from its own: shape (_RESAMPLES,).

    Of two steps or more.
    """
    rng = np.random.default_rng(seed)
    ranks, steps = windows_ns.shape
    # Resampling ranks and steps apart, the mean is a product of how often each is drawn.
    of_ranks = rng.multinomial(ranks, np.full(ranks, 1 / ranks), _RESAMPLES) / ranks
    of_steps = rng.multinomial(steps, np.full(steps, 1 / steps), _RESAMPLES) / steps
    means = ((of_ranks @ windows_ns.astype(np.float64)) * of_steps).sum(axis=1)
    deviations: NDArray[np.float64] = np.log(np.maximum(means, 1.0) / max(float(windows_ns.mean()), 1.0))
    deviations *= np.sqrt(steps / rng.chisquare(steps - 1, _RESAMPLES))
    return deviations


def _doubt(steps: int) -> str:
    if steps == 1:
        return f"1 step cannot tell chance from change; record {_ENOUGH_STEPS} or more."
    if steps < _ENOUGH_STEPS:
        return f"{steps} steps tell little of what is chance: the interval is wide. Record {_ENOUGH_STEPS} or more."
    return ""
