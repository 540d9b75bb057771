"""Ranks and pairs that are worse than comparable ones.

A rank is an outlier where it is worse than the median rank by more than a stated share, by more than the ranks differ
from each other anyway (the median absolute deviation), and not only now and then: in most of the repeats, which all
ranks make at the same time.

R = ranks, W = repeats, P = pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.calibration.model import Measure, Outlier, Pair

Floats = NDArray[np.float64]

#: An outlier is worse than the median by this share at least. GPUs of one kind differ by up to 5 % in their GEMM rate;
#: CPUs that share their cores with other processes by 20 %.
LEAST_OF_DEVICE, LEAST_OF_CPU = 0.10, 0.25
#: Links are measured while the other pairs of the round use theirs.
LEAST_OF_PAIRS = 0.25
#: And by so many standard deviations, estimated by the median absolute deviation.
_DEVIATIONS = 4.0
_OF_NORMAL = 1.4826
#: In so many of its repeats it is worse by half of that share.
_REPEATS = 0.8
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
    # As costs: twice the cost is half the rate.
    known = repeats[having]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = known / np.nanmedian(known, axis=0)
        deficit = 1 - ratio if more_is_better else ratio - 1
    usual = np.nanmedian(deficit, axis=1)
    middle = float(np.median(usual))
    scatter = _OF_NORMAL * float(np.median(np.abs(usual - middle)))
    limit = max(least, _DEVIATIONS * scatter)
    often = np.nanmean(deficit - middle > least / 2, axis=1) >= _REPEATS
    result[having] = np.where((usual - middle > limit) & often, usual - middle, 0.0)
    return result


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
