"""Steps that are much longer than those around them: how often they come, and on which ranks."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

#: A long step is longer than its bin's median by so many robust standard deviations and by this share of a step.
_LEAST_SIGMA, _LEAST_SHARE = 8.0, 0.1
#: A period is seen this often, and in this share of the steps that it should be in.
_LEAST_TIMES, _LEAST_SEEN = 4, 0.7
#: Shorter ones are how the job trains, such as accumulating gradients.
_SHORTEST = 5
#: Distances are those to the next few outliers; so many of the most frequent ones are tried.
_LAGS, _CANDIDATES = 6, 16
#: Random outliers have a period in fewer than one of this many jobs.
_RARITY = 1e4


class LongSteps(msgspec.Struct, frozen=True):
    """Steps of ranks that are much longer than those around them, an entry each."""

    #: Row and column in the job's grid of ranks and steps.
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    #: Busy time beyond the median of the bin, and in all, µs.
    excess_us: NDArray[np.float32]
    busy_us: NDArray[np.float32]

    def where(self, mask: NDArray[Any]) -> LongSteps:
        """Those that the mask has."""
        return LongSteps(self.rows[mask], self.columns[mask], self.excess_us[mask], self.busy_us[mask])


def long_steps_of(busy_us: NDArray[Any], medians_us: NDArray[Any], bin_steps: int, step_us: float) -> NDArray[Any]:
    """Columns of a rank's long steps: busy times of shape (N,), medians of its bins of shape (B,), B at least 1."""
    excess = busy_us - of_bins(medians_us, bin_steps, len(busy_us))
    spread = 1.4826 * np.nanmedian(np.abs(excess)) if not np.isnan(excess).all() else np.inf
    return np.flatnonzero(excess > max(_LEAST_SIGMA * spread, _LEAST_SHARE * step_us))


def of_bins(medians_us: NDArray[Any], bin_steps: int, count: int) -> NDArray[Any]:
    """The value of its bin for each of `count` steps; of steps after the last whole bin, that of this one."""
    return medians_us[np.minimum(np.arange(count) // bin_steps, len(medians_us) - 1)]


def period(columns: NDArray[Any]) -> int | None:
    """The period of most of the columns: steps from one to the next, 5 or more; None where there is none.

    With 260, 520, 780, 801, 1040, 1300 that is 260: outliers between those of the period do no harm.
    """
    columns = np.unique(columns)
    if len(columns) <= _LEAST_TIMES:
        return None
    span = int(columns[-1] - columns[0])
    lags = range(1, min(_LAGS, len(columns) - 1) + 1)
    apart, counts = np.unique(np.concatenate([columns[lag:] - columns[:-lag] for lag in lags]), return_counts=True)
    best, most = None, 0
    for candidate in apart[np.argsort(-counts, kind="stable")][:_CANDIDATES].tolist():
        hits = len(np.unique(of_period(columns, candidate) // candidate))
        if candidate < _SHORTEST or hits <= most or hits < max(_LEAST_TIMES, _LEAST_SEEN * (span // candidate)):
            continue
        # Of as many outliers at random steps, so many share a remainder; the tail of their Poisson distribution.
        expected = 3 * len(columns) / candidate
        if hits - expected - hits * math.log(hits / expected) < -math.log(_RARITY * candidate):
            best, most = int(candidate), hits
    return best


def of_period(columns: NDArray[Any], steps: int) -> NDArray[Any]:
    """The columns that most of them share the remainder with, within a step."""
    remainder = columns % steps
    best = int(np.bincount(remainder, minlength=steps).argmax())
    away = np.abs(remainder - best)
    chosen: NDArray[Any] = columns[np.minimum(away, steps - away) <= 1]
    return chosen
