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
        """Those that the mask or the positions have."""
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


def periodic(long_steps: LongSteps) -> tuple[int, NDArray[Any]] | None:
    """The period that explains most of their excess, and a mask of those that it has; None where there is none.

    A checkpoint of seconds every 1,000 steps is not hidden by steps between that take 0.1 s longer, however many and
    however regular: the longest are looked at by themselves.
    """
    by_length = np.argsort(-long_steps.excess_us, kind="stable")
    count, most_us, best = 2 * _LEAST_TIMES, 0.0, None
    while count < 2 * len(by_length):
        of_longest = by_length[:count]
        every = period(long_steps.columns[of_longest])
        if every is not None:
            of_longest = of_longest[_in_phase(long_steps.columns[of_longest], every, long_steps.columns[of_longest])]
            median_us = float(np.median(long_steps.excess_us[of_longest]))
            is_as_long = long_steps.excess_us >= median_us / 4
            chosen = is_as_long & _in_phase(long_steps.columns, every, long_steps.columns[of_longest])
            # Those that are much longer have another reason.
            explained_us = float(np.minimum(long_steps.excess_us[chosen], 4 * median_us).sum(dtype=np.float64))
            if explained_us > most_us:
                most_us, best = explained_us, (every, chosen)
        count *= 2
    return best


def of_period(columns: NDArray[Any], steps: int) -> NDArray[Any]:
    """The columns that most of them share the remainder with, within a step."""
    chosen: NDArray[Any] = columns[_in_phase(columns, steps, columns)]
    return chosen


def _in_phase(columns: NDArray[Any], steps: int, most: NDArray[Any]) -> NDArray[Any]:
    """Which columns share the remainder that most of `most` have, within a step."""
    best = int(np.bincount(most % steps, minlength=steps).argmax())
    away = np.abs(columns % steps - best)
    result: NDArray[Any] = np.minimum(away, steps - away) <= 1
    return result
