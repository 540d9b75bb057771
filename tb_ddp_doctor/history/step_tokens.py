"""Times of steps of other lengths, as if all had as many tokens: a longer batch is no slower rank.

Where a rank says how many tokens each of its steps has, its time grows with them along a line. Its slope is that of the
median pair of steps that follow one another and differ in tokens, each weighed by that difference: what changes or
drifts over the job does not lie between two such steps, and rare long steps are few. A step counts by how much longer
it takes than the line has it, as a share: who is slow is slow in proportion to the work.

    tokens   4,000  8,000  4,100  |  8,200  4,000  8,100      100 ms and 8 us a token, a tenth more from the fourth on
    busy, ms   132    164    133  |    182    145    181
    at 4,000   132    132    132  |    145    145    145
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Steps that differ by less than this share of the reference from the one before say nothing of the slope, and of
#: fewer such pairs none is told.
_LEAST_APART, _FEWEST = 0.02, 32


def of_equal_tokens(busy_us: NDArray[Any], tokens: NDArray[Any] | None, reference: float) -> NDArray[Any]:
    """Busy times of steps, shape (N,), as if each had `reference` tokens; NaN stays, and times of unknown tokens stay.

    `tokens`, shape (N,), are 0 where they are unknown; None where none are known.
    """
    if tokens is None:
        return busy_us
    known = np.flatnonzero((tokens > 0) & ~np.isnan(busy_us))
    more, longer = np.diff(tokens[known].astype(np.float64)), np.diff(busy_us[known].astype(np.float64))
    apart = np.abs(more) > _LEAST_APART * reference
    if np.count_nonzero(apart) < _FEWEST:
        return busy_us
    slope = max(_weighed_median(longer[apart] / more[apart], np.abs(more[apart])), 0.0)
    beside = max(float(np.median(busy_us[known] - slope * tokens[known])), 0.0)
    equal: NDArray[Any] = busy_us.copy()
    equal[known] *= (beside + slope * reference) / np.maximum(beside + slope * tokens[known], 1)
    return equal


def _weighed_median(values: NDArray[Any], weights: NDArray[Any]) -> float:
    order = np.argsort(values)
    weight = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(weight, weight[-1] / 2)]])
