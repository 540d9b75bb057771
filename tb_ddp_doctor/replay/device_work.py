"""Tells a slow device from one with more work: compares the kernels that devices run, whatever their speed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest

#: Work that is less by at most this share counts as much.
AS_MUCH = 0.1
#: At most this many ranks of each side are compared.
_ENOUGH = 8
#: A kernel: its name and its grid.
Kind = tuple[str, str]


def as_much(digests: Sequence[RankDigest], chosen: NDArray[np.bool_]) -> bool:
    """Whether some ranks, flags of shape (R,), have as much device work as all others, by name and grid of kernels.

    1. For each kernel, take its typical time: the median over ranks of its mean time.
    2. Sum each rank's kernels with these typical times.
    3. Compare the medians of both sides.

    False if some trace does not record grids.
    """
    some = [
        list(map(_kernels, (digests[rank] for rank in np.flatnonzero(side)[:_ENOUGH]))) for side in (chosen, ~chosen)
    ]
    ranks = [*some[0], *some[1]]
    if not all(some) or not all(ranks) or not all(grid for kernels in ranks for _, grid in kernels):
        return False
    means = defaultdict(list)
    for kernels in ranks:
        for kind, (count, total_ns) in kernels.items():
            means[kind].append(total_ns / max(count, 1))
    typical = {kind: median(each) for kind, each in means.items()}
    work, others = (
        [sum(count * typical[kind] for kind, (count, _) in kernels.items()) for kernels in side] for side in some
    )
    return bool(median(work) >= (1 - AS_MUCH) * median(others))


def _kernels(digest: RankDigest) -> dict[Kind, tuple[int, int]]:
    """For each kernel of a rank, how often it runs and for how long in all, ns."""
    table, text = digest.kernels, digest.strings
    kinds: dict[Kind, tuple[int, int]] = {}
    for name, grid, count, total_ns in zip(
        table.name.tolist(), table.shape.tolist(), table.count.tolist(), table.total_ns.tolist(), strict=True
    ):
        before = kinds.get((text[name], text[grid]), (0, 0))
        kinds[text[name], text[grid]] = (before[0] + count, before[1] + total_ns)
    return kinds
