"""Change points and drift of a series of medians: a line with steps in it, found by binary segmentation.

    y = level + slope * bin + sum of (shift from its bin on)

Noise is estimated from differences of bins next to each other and eight apart, so that slow noise does not look like a
change. A change needs a t of 6 and half a percent of the step: of 4,096 quiet ranks with 512 bins each, one in some
hundred days would have one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Changes below this t are noise: of 2e6 places a day, 4e-3 have one, and smaller ones still fail the least share.
LEAST_T = 6.0
#: Changes of less of the step are not worth a word.
LEAST_SHARE = 0.005
#: Bins between changes.
_LEAST_BINS = 3
#: A series with more steps than this has no levels.
_MOST_CHANGES = 20


class Shift(NamedTuple):
    """The level from bin `at` on is higher by this much than before, in the unit of the series."""

    at: int
    height: float
    #: Its standard error.
    error: float


class Levels(NamedTuple):
    """What a series is made of beside its noise."""

    shifts: tuple[Shift, ...]
    #: A bin; 0 where there is no drift.
    slope: float
    #: Its standard error.
    slope_error: float


def noise(series: NDArray[Any]) -> NDArray[Any]:
    """Standard deviation of each series' noise, shape (...), of series of shape (..., B); 0 of one bin."""
    if series.shape[-1] < 2:
        return np.zeros(series.shape[:-1])
    estimates = [
        1.4826 / math.sqrt(2) * np.median(np.abs(series[..., lag:] - series[..., :-lag]), axis=-1)
        for lag in (1, min(8, max(series.shape[-1] // 4, 1)))
    ]
    result: NDArray[Any] = np.maximum(*estimates)
    return result


def largest_t(series: NDArray[Any], sigma: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The t of the most significant change of each series, shape (...), and its bin; 0 for short ones."""
    count = series.shape[-1]
    at = np.arange(_LEAST_BINS, count - _LEAST_BINS + 1)
    if not len(at):
        return np.zeros(series.shape[:-1]), np.zeros(series.shape[:-1], dtype=int)
    sums = np.cumsum(series, axis=-1)
    left = sums[..., at - 1] / at
    right = (sums[..., -1:] - sums[..., at - 1]) / (count - at)
    t = np.abs(right - left) / np.sqrt(1 / at + 1 / (count - at)) / np.maximum(sigma, 1e-12)[..., None]
    best = np.argmax(t, axis=-1)
    return np.take_along_axis(t, best[..., None], axis=-1)[..., 0], at[best]


def levels(series: NDArray[Any], least: float, least_noise: float = 0.0) -> Levels:
    """Shifts and drift of a series of shape (B,), without NaN; none is smaller than `least` in all.

    The standard deviation of its noise is at least `least_noise`, where more is known of it than the series shows.
    """
    count = len(series)
    if count < 4 * _LEAST_BINS:
        return Levels((), 0.0, 0.0)
    sigma = max(float(noise(series)), least_noise, least / 20)
    bins = np.arange(count)
    lag = max(count // 16, 1)
    # Few pairs of bins have a change between them: the median of all slopes is that of the drift.
    slope = float(np.median(series[lag:] - series[:-lag])) / lag
    best = Levels((), 0.0, 0.0)
    for _ in range(3):
        at = _segments(series - slope * bins, sigma)
        best = _fit(series, at, sigma, least)
        if best.slope == slope:
            break
        slope = best.slope
    return best


def fitted(series_levels: Levels, count: int) -> NDArray[Any]:
    """The series that levels make, from 0 on, shape (count,)."""
    bins = np.arange(count)
    result: NDArray[Any] = series_levels.slope * bins
    for shift in series_levels.shifts:
        result = result + shift.height * (bins >= shift.at)
    return result


def _segments(series: NDArray[Any], sigma: float) -> list[int]:
    """First bins of the segments after the first."""
    splits: list[int] = []
    todo = [(0, len(series))]
    while todo and len(splits) < _MOST_CHANGES:
        begin, end = todo.pop()
        t, at = largest_t(series[begin:end], np.array(sigma))
        if t >= LEAST_T:
            split = begin + int(at)
            splits.append(split)
            # A change within a bin leaves its median between both levels: on neither side does it count.
            todo += [(begin, split - 1), (split + 1, end)]
    return sorted(splits)


def _fit(series: NDArray[Any], at: list[int], sigma: float, least: float) -> Levels:
    """Least squares of drift and shifts, without those that are insignificant or too small."""
    count = len(series)
    bins = np.arange(count)
    with_drift = True
    while True:
        columns = [np.ones(count), *([bins] if with_drift else []), *(bins >= first for first in at)]
        design = np.stack(columns, axis=1).astype(float)
        inverse = np.linalg.pinv(design.T @ design)
        value = inverse @ design.T @ series
        error = sigma * np.sqrt(np.diag(inverse)) + 1e-12
        size = np.abs(value) * np.where(np.arange(len(value)) == 1, count if with_drift else 1, 1)
        weight = np.minimum(np.abs(value) / error / LEAST_T, size / least)[1:]
        if not len(weight) or weight.min() >= 1:
            break
        worst = int(np.argmin(weight))
        if with_drift and worst == 0:
            with_drift = False
        else:
            del at[worst - with_drift]
    shifts = zip(at, value[1 + with_drift :].tolist(), error[1 + with_drift :].tolist(), strict=True)
    slope = (float(value[1]), float(error[1])) if with_drift else (0.0, 0.0)
    return Levels(tuple(Shift(*shift) for shift in shifts), *slope)
