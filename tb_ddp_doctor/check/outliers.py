"""Ranks and pairs that are worse than comparable ones.

A rank is an outlier where it is worse than the median rank by more than a stated share, by more than the ranks differ
from each other anyway (the median absolute deviation), and not only now and then: in most blocks of repeats, which all
ranks make at the same time.

R = ranks, W = repeats, P = pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.calibration.model import Measure, Outlier, Pair

Floats = NDArray[np.float64]

#: An outlier is worse than the median by this share at least. Chosen, not fitted: the share of devices was tried on no
#: GPU; that of CPUs was raised when 0.25 named a healthy rank on two cores with a load of 12.
LEAST_OF_DEVICE, LEAST_OF_CPU = 0.10, 0.33
#: Links are measured while the other pairs of the round use theirs.
LEAST_OF_PAIRS = 0.25
#: And by so many standard deviations, estimated by the median absolute deviation.
_DEVIATIONS = 4.0
_OF_NORMAL = 1.4826
#: Repeats are pooled into so many blocks, each long beside a scheduler's time slice; in such a share of them a rank
#: must be worse by half of the least share.
_BLOCKS, _MOST_BLOCKS = 4, 0.75
#: Of fewer there is no usual one.
_FEWEST = 3


def worse(repeats: Floats, *, more_is_better: bool, least: float) -> Floats:
    """How much worse each rank is than the median one, as a share of it, where it is an outlier; else 0. Shape (R,).

    `repeats` has shape (R, W), NaN where a rank did not measure; an infinite share stands for a rank that has nothing.
    """
    result = np.zeros(len(repeats))
    having = np.flatnonzero(np.isfinite(repeats).any(axis=1))
    if len(having) < _FEWEST:
        return result
    known = _blocks(repeats[having])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = known / np.nanmedian(known, axis=0)
        deficit = 1 - ratio if more_is_better else ratio - 1
    level = np.nanmean(deficit, axis=1)
    middle = float(np.median(level))
    scatter = _OF_NORMAL * float(np.median(np.abs(level - middle)))
    limit = max(least, _DEVIATIONS * scatter)
    often = np.nanmean(deficit - middle > least / 2, axis=1) >= _MOST_BLOCKS
    result[having] = np.where((level - middle > limit) & often, level - middle, 0.0)
    return result


def _blocks(repeats: Floats) -> Floats:
    """The mean of each block of repeats, shape (R, blocks); NaN where a rank has none in it."""
    parts = np.array_split(repeats, min(_BLOCKS, repeats.shape[1]), axis=1)
    counts = [np.isfinite(part).sum(axis=1) for part in parts]
    sums = [np.nansum(part, axis=1) for part in parts]
    columns = [
        np.where(count > 0, total / np.maximum(count, 1), np.nan) for total, count in zip(sums, counts, strict=True)
    ]
    return np.stack(columns, axis=1)


def of_all_measures(
    measured: Sequence[tuple[Measure, Floats]], nodes: Sequence[str], least: float, named: Collection[int]
) -> Iterator[Outlier]:
    """Ranks, other than those that are named, that are slow in most measures, each with its repeats, shape (R, W).

    On a machine that is shared, one measure alone may differ too much from repeat to repeat to tell.
    """
    speeds = []
    for measure, repeats in measured:
        if measure.more_is_better is not None and repeats.shape[1] >= _BLOCKS:
            known = _blocks(repeats)
            ratio = known / np.median(known, axis=0)
            speeds.append(np.nanmean(ratio if measure.more_is_better else 1 / ratio, axis=1))
    if len(speeds) < _FEWEST or not np.isfinite(speeds).all():
        return
    speed = np.stack(speeds, axis=1)
    share = worse(speed, more_is_better=True, least=least)
    for rank in np.flatnonzero(share).tolist():
        if rank not in named:
            yield _outlier((rank,), nodes[rank], "speed over all measures", 1 - share[rank], 1.0, "of the median rank")


def of_measure(measure: Measure, repeats: Floats, nodes: Sequence[str], least: float) -> Iterator[Outlier]:
    """The outliers of a measure with these repeats, shape (R, W), worst first."""
    if measure.more_is_better is None:
        return
    share = worse(repeats, more_is_better=measure.more_is_better, least=least)
    known = [value for value in measure.values if value is not None]
    for rank in sorted(np.flatnonzero(share).tolist(), key=lambda rank: -share[rank]):
        value, median = measure.values[rank], float(np.median(known))
        if value is not None and median > 0:
            yield _outlier((rank,), nodes[rank], measure.name, value, median, measure.unit)


def of_pairs(pairs: Sequence[Pair], nodes: Sequence[str], *, of_cpus: bool) -> Iterator[Outlier]:
    """Pairs with less bandwidth than others that are as far apart.

    Of CPUs on one node they are not compared: their messages are copies in memory, as fast as the scheduler lets them.
    """
    for within in (True, False):
        compared = [pair for pair in pairs if pair.within_node is within and not (of_cpus and within)]
        gbs = np.array([pair.gbs for pair in compared], np.float64)
        share = worse(gbs[:, None], more_is_better=True, least=LEAST_OF_PAIRS)
        for i in np.flatnonzero(share).tolist():
            ranks = compared[i].ranks
            places = " and ".join(dict.fromkeys(nodes[rank] for rank in ranks))
            yield _outlier(ranks, places, "pair bandwidth", compared[i].gbs, float(np.median(gbs)), "GB/s")


def _outlier(ranks: tuple[int, ...], node: str, measure: str, value: float, median: float, unit: str) -> Outlier:
    amount = abs(value / median - 1)
    side = "below" if value < median else "above"
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} and {ranks[1]}"
    return Outlier(
        ranks=ranks,
        node=node,
        measure=measure,
        value=value,
        median=median,
        unit=unit,
        worse=amount,
        sentence=f"{who} on {node}: {measure} {100 * amount:.0f} % {side} the median "
        f"({value:.3g} against {median:.3g} {unit}).",
    )
