"""Compares the compute of two ranks: more kernels, larger kernels, or the same kernels slower."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from tb_ddp_doctor.rules.inputs import KernelKind

Kinds = Mapping[tuple[str, str], KernelKind]

#: A grid is larger from this ratio on.
_LARGER = 1.1


def larger_share(mine: Kinds, peer: Kinds) -> float:
    """Share of the time of kernels that both ranks run, by name, in those launched with more blocks than the peer's."""
    own, other = _by_name(mine), _by_name(peer)
    both = [name for name in own if name in other]
    total = sum(own[name].total_ns for name in both)
    larger = sum(
        own[name].total_ns
        for name in both
        if own[name].blocks / own[name].count > _LARGER * other[name].blocks / other[name].count
    )
    return larger / total if total else 0.0


def slowdown(mine: Kinds, peer: Kinds) -> float:
    """How many times as long the same kernels take as on the peer, median weighted by time; 1 if none are the same."""
    both = [key for key in mine if key in peer and peer[key].total_ns > 0]
    if not both:
        return 1.0
    ratio = np.array([mine[key].mean_ns / peer[key].mean_ns for key in both])
    weight = np.array([mine[key].total_ns for key in both], np.float64)
    order = np.argsort(ratio)
    cumulated = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(cumulated, cumulated[-1] / 2)])


def _by_name(kinds: Kinds) -> dict[str, KernelKind]:
    """Launches of each kernel over all its grids; `blocks` is then the sum over launches."""
    merged: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (name, _), kind in kinds.items():
        entry = merged[name]
        entry[0] += kind.count
        entry[1] += kind.total_ns
        entry[2] += kind.blocks * kind.count
    return {name: KernelKind(*entry) for name, entry in merged.items()}
