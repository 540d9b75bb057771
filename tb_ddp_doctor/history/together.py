"""What was recorded beside the steps (memory, clocks, garbage collection) and changed together with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.blocks import QUANTITIES

#: Samples on each side of a change, or of a drift; growth by less of the quantity, or that explains less of its
#: variance, is noise.
_FEWEST, _LEAST_SHARE, _LEAST_EXPLAINED = 6, 0.02, 0.5
#: Samples next to a change on either side that are compared: more would take what grows all the time for a change.
_NEAREST = 30
#: A level has changed by so many of its standard deviations (by the median absolute deviation).
_LEAST_SIGMA = 4.0
_GARBAGE = QUANTITIES.index("garbage")
#: Smaller changes of a quantity explain no event: s.
_LEAST_OF = {"loading time": 1e-3}

_Levels = Callable[[NDArray[Any], NDArray[Any]], tuple[float, float] | None]
#: Rows of `SAMPLE_ROW` by rank.
Samples = Mapping[int, NDArray[Any]]


class ChangedQuantity(msgspec.Struct, frozen=True):
    """A quantity that changed on a rank with an event."""

    quantity: str
    rank: int
    #: Its level before and after, or at both ends of a drift: bytes, MHz, W, degrees Celsius or s.
    before: float
    after: float


def with_drift(samples: Samples, begin_s: float, end_s: float) -> tuple[ChangedQuantity, ...]:
    """Quantities that grew or fell steadily, by the rank on which each did so most."""
    return _most(samples, lambda at_s, values: _line(at_s, values, begin_s, end_s))


def with_change(samples: Samples, at_s: float, end_s: float) -> tuple[ChangedQuantity, ...]:
    """Quantities whose level changed when an event began, by the rank on which each did so most."""

    def levels(when_s: NDArray[Any], values: NDArray[Any]) -> tuple[float, float] | None:
        is_after = (when_s >= at_s) & (when_s < end_s)
        return _levels(values[when_s < at_s][-_NEAREST:], values[is_after][:_NEAREST])

    return _most(samples, levels)


def collected(samples: NDArray[Any], begins_ns: NDArray[Any], lengths_us: NDArray[Any]) -> NDArray[Any]:
    """Whether Python collected garbage in each of a rank's steps, shape (C,), by their begins and lengths."""
    at_ns = np.sort(samples["at_ns"][samples["quantity"] == _GARBAGE])
    ends_ns = begins_ns + np.nan_to_num(lengths_us).astype(np.int64) * 1000
    result: NDArray[Any] = np.searchsorted(at_ns, ends_ns) > np.searchsorted(at_ns, begins_ns)
    return result


def _most(samples: Samples, levels: _Levels) -> tuple[ChangedQuantity, ...]:
    """What `levels` finds of the times and values of each quantity, of the rank with most."""
    most_changed = []
    for number, name in enumerate(QUANTITIES):
        if number == _GARBAGE:
            continue
        of_ranks = []
        for rank, rows in samples.items():
            rows = rows[rows["quantity"] == number]
            both = levels(rows["at_ns"] / 1e9, rows["value"].astype(np.float64))
            if both is not None and abs(both[1] - both[0]) >= _LEAST_OF.get(name, 0.0):
                of_ranks.append(ChangedQuantity(name, rank, *both))
        if of_ranks:
            most_changed.append(max(of_ranks, key=lambda one: abs(one.after - one.before)))
    return tuple(most_changed)


def _line(at_s: NDArray[Any], values: NDArray[Any], begin_s: float, end_s: float) -> tuple[float, float] | None:
    """Both ends of the line through samples; None where that is noise."""
    inside = (at_s >= begin_s) & (at_s <= end_s)
    if np.count_nonzero(inside) < 2 * _FEWEST:
        return None
    when_s, values = at_s[inside] - begin_s, values[inside]
    apart_s = when_s - when_s.mean()
    slope = float((apart_s * values).sum() / max((apart_s**2).sum(), 1e-9))
    explained = slope**2 * (apart_s**2).sum() / max(float(((values - values.mean()) ** 2).sum()), 1e-9)
    first = float(values.mean()) - slope * float(when_s.mean())
    last = first + slope * (end_s - begin_s)
    is_noise = explained < _LEAST_EXPLAINED or abs(last - first) < _LEAST_SHARE * abs(float(values.mean()))
    return None if is_noise else (first, last)


def _levels(before: NDArray[Any], after: NDArray[Any]) -> tuple[float, float] | None:
    """The median before and after; None where they differ by noise."""
    if min(len(before), len(after)) < _FEWEST:
        return None
    first, last = float(np.median(before)), float(np.median(after))
    sigma = 1.4826 * max(float(np.median(np.abs(part - np.median(part)))) for part in (before, after))
    is_noise = abs(last - first) < max(_LEAST_SIGMA * sigma, _LEAST_SHARE * abs(first))
    return None if is_noise else (first, last)
