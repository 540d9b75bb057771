"""Ranks and pairs that are worse than comparable ones.

A rank is an outlier where it is worse than the median rank by more than a stated share, by more than the ranks differ
from each other anyway (the median absolute deviation), and not only now and then: in most rounds. Repeats of a round
are compared with each other, since all ranks made them within a second.

R = ranks, W = repeats, P = pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.model import Measure, Outlier, Pair
from tb_ddp_doctor.check import core_share

Floats = NDArray[np.float64]

#: An outlier is worse than the median by this share at least. Chosen, not fitted: the share of devices was tried on no
#: GPU; that of CPUs was raised when 0.25 named a healthy rank on two cores with a load of 12. Shares of a core are even
#: to some hundredths; one step of nice takes a tenth, two take a fifth.
LEAST_OF_DEVICE, LEAST_OF_CPU, LEAST_OF_SHARE = 0.10, 0.33, 0.15
#: Links are measured while the other pairs of the round use theirs.
LEAST_OF_PAIRS = 0.25
#: And by so many standard deviations, estimated by the median absolute deviation.
_DEVIATIONS = 4.0
_OF_NORMAL = 1.4826
#: In such a share of the rounds a rank must be worse by half of the least share.
_MOST_ROUNDS = 0.75
#: A rank is on one side of the least share if its median is so many standard errors away from it; that of a median is
#: 1.25 times that of a mean.
_SURE, _OF_MEDIAN = 2.5, 1.25
#: Of fewer there is no usual one.
_FEWEST = 3


def least(measure: str, *, is_gpu: bool) -> float:
    """The least share by which an outlier of a measure is worse."""
    if measure == core_share.KIND.name:
        return LEAST_OF_SHARE
    return LEAST_OF_DEVICE if is_gpu else LEAST_OF_CPU


def worse(repeats: Floats, *, more_is_better: bool, least: float) -> Floats:
    """How much worse each rank is than the median one, as a share of it, where it is an outlier; else 0. Shape (R,).

    `repeats` has shape (R, W), NaN where a rank did not measure; an infinite share stands for a rank that has nothing.
    """
    result = np.zeros(len(repeats))
    having, deficit, level = _deficits(repeats, more_is_better=more_is_better)
    if not len(having):
        return result
    scatter = _OF_NORMAL * float(np.median(np.abs(level)))
    often = np.nanmean(np.where(np.isnan(deficit), np.nan, deficit > least / 2), axis=1) >= _MOST_ROUNDS
    result[having] = np.where((level > max(least, _DEVIATIONS * scatter)) & often, level, 0.0)
    return result


def is_clear(repeats: Floats, *, more_is_better: bool, least: float) -> bool:
    """Whether more repeats would name no other ranks: each is far from the least share, beside its own spread."""
    _, deficit, level = _deficits(repeats, more_is_better=more_is_better)
    count = np.isfinite(deficit).sum(axis=1)
    with np.errstate(invalid="ignore"):
        error = _OF_MEDIAN * np.nanstd(deficit, axis=1) / np.sqrt(np.maximum(count, 1))
        return not (np.abs(level - least) < _SURE * error).any()


def _deficits(repeats: Floats, *, more_is_better: bool) -> tuple[NDArray[np.int64], Floats, Floats]:
    """The ranks with repeats; by how much each repeat is worse than the round's median, over that of the median rank.

    The latter has the shape (ranks, W), with its median over the rounds, shape (ranks,). Empty where too few compare.
    """
    having = np.flatnonzero(np.isfinite(repeats).any(axis=1))
    if len(having) < _FEWEST:
        return having[:0], np.empty((0, repeats.shape[1])), np.empty(0)
    known = repeats[having]
    known = known[:, np.isfinite(known).any(axis=0)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = known / np.nanmedian(known, axis=0)
        deficit = 1 - ratio if more_is_better else ratio - 1
    level = np.nanmedian(deficit, axis=1)
    middle = float(np.median(level))
    return having, deficit - middle, level - middle


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
        sentence=f"{who} on {node}: {measure} {wording.decimals(100 * amount, 0)} % {side} the median "
        f"({value:.3g} against {median:.3g} {unit}).",
    )
