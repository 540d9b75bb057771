"""Compares the compute of two ranks: more kernels, larger kernels, or the same kernels slower."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from tb_ddp_doctor.facts.compute import KernelKind

Kinds = Mapping[tuple[str, str], KernelKind]

#: A grid is larger from this ratio on.
_LARGER = 1.1


class Difference(msgspec.Struct, frozen=True):
    """The kernel that differs most between two ranks: its name, and what each has of it in a step."""

    name: str
    mine: float
    peers: float


def most_launched(mine: Kinds, peer: Kinds) -> Difference | None:
    """The kernel that the peer launches least often in comparison: launches of each; None if none is launched less."""
    own, other = _by_name(mine), _by_name(peer)
    more = {name: kind.count - (other[name].count if name in other else 0) for name, kind in own.items()}
    name = max(more, key=lambda name: more[name], default="")
    if more.get(name, 0) <= 0:
        return None
    return Difference(name, own[name].count, other[name].count if name in other else 0)


def most_enlarged(mine: Kinds, peer: Kinds) -> Difference | None:
    """The kernel that takes longest of those with larger grids than the peer's: mean blocks of each."""
    larger = _larger(mine, peer)
    name = max(larger, key=lambda name: larger[name][0].total_ns, default="")
    return Difference(name, *(kind.blocks / kind.count for kind in larger[name])) if larger else None


def most_slowed(mine: Kinds, peer: Kinds) -> Difference | None:
    """Of the kernels that both launch with one grid the one that loses most time in all: mean ns of each."""
    lost = {key: (kind.mean_ns - peer[key].mean_ns) * kind.count for key, kind in mine.items() if key in peer}
    worst = max(lost, key=lambda key: lost[key], default=None)
    return Difference(worst[0], mine[worst].mean_ns, peer[worst].mean_ns) if worst and lost[worst] > 0 else None


def larger_share(mine: Kinds, peer: Kinds) -> float:
    """Share of the time of kernels that both ranks run, by name, in those launched with more blocks than the peer's."""
    own, other = _by_name(mine), _by_name(peer)
    total = sum(kind.total_ns for name, kind in own.items() if name in other)
    larger = sum(kind.total_ns for kind, _ in _larger(mine, peer).values())
    return larger / total if total else 0.0


def blocks_explain(mine: Kinds, peer: Kinds, tolerance: float) -> bool:
    """Whether a rank takes longer since it has more to do: kernels with more blocks take as long for each block as on
    the peer, and have as many times as many as the kernels of one grid take longer, both within a tolerance.

    A GEMM that fills the device has the same grid for more tokens. On a slow device each block takes longer, too, or,
    where memory binds it, there are no more.
    """
    larger = list(_larger(mine, peer).values())
    took, taken = (sum(kinds[side].total_ns for kinds in larger) for side in (0, 1))
    as_quick = sum(kind.blocks * other.total_ns / other.blocks for kind, other in larger)
    more = sum(kind.blocks / kind.count * other.count / other.blocks * other.total_ns for kind, other in larger)
    least = slowdown(mine, peer) / (1 + tolerance)
    return bool(larger) and took < (1 + tolerance) * as_quick and more > least * taken


def launched_share(mine: Kinds, peer: Kinds) -> float:
    """Which share of the time that a rank computes longer is in further launches of kernels that both launch."""
    own, other = _by_name(mine), _by_name(peer)
    longer = sum(kind.total_ns for kind in own.values()) - sum(kind.total_ns for kind in other.values())
    further = sum((own[name].count - other[name].count) * own[name].mean_ns for name in own if name in other)
    return further / longer if longer > 0 else 0.0


def slowdown_without(mine: Kinds, peer: Kinds, chosen: Callable[[str], bool]) -> float:
    """How many times as long all kernels but some chosen ones take as on the peer, of those that both launch."""
    both = [key for key in mine if key in peer and not chosen(key[0])]
    total = sum(peer[key].total_ns for key in both)
    return sum(mine[key].mean_ns * peer[key].count for key in both) / total if total else math.inf


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


def _larger(mine: Kinds, peer: Kinds) -> dict[str, tuple[KernelKind, KernelKind]]:
    """The kernels that are launched with more blocks than the peer's, by name, as both have them."""
    own, other = _by_name(mine), _by_name(peer)
    return {name: (kind, other[name]) for name, kind in own.items() if name in other and _is_larger(kind, other[name])}


def _is_larger(mine: KernelKind, peers: KernelKind) -> bool:
    """Whether launches have more blocks, given kernels of `_by_name`."""
    return mine.blocks / mine.count > _LARGER * peers.blocks / peers.count


def _by_name(kinds: Kinds) -> dict[str, KernelKind]:
    """Launches of each kernel over all its grids; `blocks` is then the sum over launches."""
    merged: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    for (name, _), kind in kinds.items():
        entry = merged[name]
        entry[0] += kind.count
        entry[1] += kind.total_ns
        entry[2] += kind.blocks * kind.count
    return {name: KernelKind(*entry) for name, entry in merged.items()}
