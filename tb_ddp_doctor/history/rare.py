"""Steps that are much longer than those around them: how often they come, and on which ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: An outlier is longer than its bin's median by so many robust standard deviations and by this share of a step.
_LEAST_SIGMA, _LEAST_SHARE = 8.0, 0.1
#: A period is seen this often, by this share of the distances between outliers.
_LEAST_TIMES, _LEAST_EQUAL = 4, 0.7


class Outliers(NamedTuple):
    """Long steps, one row each: which row of the grid, which column, and the excess over the bin's median, µs."""

    rows: NDArray[Any]
    columns: NDArray[Any]
    excess_us: NDArray[Any]

    def where(self, mask: NDArray[Any]) -> Outliers:
        """Those that the mask has."""
        return Outliers(self.rows[mask], self.columns[mask], self.excess_us[mask])


def outliers(busy_us: NDArray[Any], medians_us: NDArray[Any], bin_steps: int, step_us: float) -> Outliers:
    """The long steps of all ranks, busy times of shape (R, N), medians of bins of shape (R, B)."""
    rows, columns, excesses = [], [], []
    count = busy_us.shape[1]
    at = np.minimum(np.arange(count) // bin_steps, medians_us.shape[1] - 1)
    for row, (busy, medians) in enumerate(zip(busy_us, medians_us, strict=True)):
        excess = busy - medians[at]
        spread = 1.4826 * np.nanmedian(np.abs(excess)) if not np.isnan(excess).all() else np.inf
        found = np.flatnonzero(excess > max(_LEAST_SIGMA * spread, _LEAST_SHARE * step_us))
        rows.append(np.full(len(found), row))
        columns.append(found)
        excesses.append(excess[found])
    return Outliers(np.concatenate(rows), np.concatenate(columns), np.concatenate(excesses))


def period(columns: NDArray[Any]) -> int | None:
    """How many steps lie between columns, ascending, most of which are as far apart, or some times as far; or None.

    With 260, 520, 780, 801, 1040 that is 260: one more outlier is not of the period. None for less than 10 steps.
    """
    if len(columns) <= _LEAST_TIMES:
        return None
    apart = np.diff(np.unique(columns))
    pairs = np.concatenate([apart, apart[1:] + apart[:-1]])
    values, counts = np.unique(pairs, return_counts=True)
    for candidate in values[np.argsort(-counts, kind="stable")][:8].tolist():
        if candidate < 5:
            continue
        if len(of_period(columns, candidate)) >= max(_LEAST_EQUAL * len(columns), _LEAST_TIMES):
            # Not by coincidence: some times the period as often as it would be seen.
            span = int(columns[-1] - columns[0])
            if len(columns) >= 0.5 * span / candidate:
                return int(candidate)
    return None


def of_period(columns: NDArray[Any], steps: int) -> NDArray[Any]:
    """The columns that most of them share the remainder with, within a step."""
    remainder = columns % steps
    best = int(np.bincount(remainder, minlength=steps).argmax())
    away = np.abs(remainder - best)
    chosen: NDArray[Any] = columns[np.minimum(away, steps - away) <= 1]
    return chosen
