"""Says in which of the model's modules some time lies: in one of them, in all layers alike, or outside of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.modules import BUSY, ModulePart, ModuleTree
from tb_ddp_doctor.trace.model import Floats, Ints

#: What holds this share of a time holds nearly all of it.
_NEARLY_ALL = 0.8
#: A layer has its part of a time from this share of the mean layer's on.
_ITS_PART = 0.25
#: Modules that a sentence names.
_NAMED = 3
#: Fewer modules beside each other are no layers that a time is spread over.
_SEVERAL = 3


def excess_ns(tree: ModuleTree, rank: int, others: Ints) -> Floats:
    """By how much longer a rank (index) computes and copies in each module than the median of others, a step; (M,)."""
    busy = tree.own_ns[:, :, list(BUSY)].sum(axis=2)
    excess: Floats = busy[rank] - np.median(busy[others], axis=0)
    return excess


def behind(tree: ModuleTree, rank: int, others: Ints, slower_ns: float) -> str:
    """A sentence on the modules in which a rank (index) that is slower by some time computes longer than others.

    "" where its compute is not most of what it is slower by.
    """
    excess = excess_ns(tree, rank, others) if len(others) else np.zeros(1)
    if 2 * excess.sum() < slower_ns or not (place := where(tree, excess)):
        return ""
    alone = ""
    if is_outside(excess):
        most = float(tree.own_ns[others][:, 0, list(BUSY)].sum(axis=1).max())
        alone = f", where no other rank computes longer than {wording.ms(most)}"
    return f" Of its longer compute, {place}{alone}."


def exposed_ns(tree: ModuleTree) -> Floats:
    """Exposed communication that each module's forward or backward launches, the median over ranks, a step; (M,)."""
    return _median(tree, ModulePart.COMMUNICATION)


def idle_ns(tree: ModuleTree) -> Floats:
    """Idle time of the device before each module's kernels, the median over ranks, a step; (M,)."""
    return _median(tree, ModulePart.IDLE)


def _median(tree: ModuleTree, part: ModulePart) -> Floats:
    median: Floats = np.median(tree.own_ns[:, :, part], axis=0)
    return median


def is_outside(own_ns: Floats) -> bool:
    """Whether nearly all of a time lies in none of the model's modules; shape (M,), the first for none."""
    return bool(own_ns[0] >= _NEARLY_ALL * own_ns.sum() > 0)


def where(tree: ModuleTree, own_ns: Floats) -> str:
    """Which modules most of a time lies in, as "93 % is in layers.17.mlp"; "" where there is none.

    `own_ns` is the time in each module without its children, shape (M,); in some it may be negative.
    """
    whole = own_ns.copy()
    for module in range(len(whole) - 1, 0, -1):
        whole[tree.parent[module]] += whole[module]
    total = float(whole[0])
    if total <= 0 or len(whole) == 1:
        return ""
    guess = " (layers are guessed)" if tree.layer_events else ""
    at, within = 0, np.flatnonzero(tree.parent == 0)
    while len(within) and whole[within].max() >= _NEARLY_ALL * total:
        at = int(within[whole[within].argmax()])
        within = np.flatnonzero(tree.parent == at)
    if is_outside(own_ns):
        return f"{_share(float(own_ns[0]), total)} is outside the model's layers{guess}"
    if spread := _layers(tree, whole, within):
        return f"{_share(float(whole[within].sum()), total)} is in {spread}{guess}"
    if at:
        return f"{_share(float(whole[at]), total)} is in {tree.path[at]}{guess}"
    most = within[np.argsort(-whole[within], kind="stable")][:_NAMED].tolist()
    named = [f"{tree.path[module]} ({wording.ms(whole[module])})" for module in most if whole[module] > 0]
    return f"most is in {wording.listing(named)}{guess}" if named else ""


def _layers(tree: ModuleTree, whole_ns: Floats, modules: Ints) -> str:
    """All modules of those within one, if nearly each has its part of their time; else ""."""
    total = float(whole_ns[modules].sum())
    if len(modules) < _SEVERAL or total <= 0:
        return ""
    has = modules[whole_ns[modules] >= _ITS_PART * total / len(modules)]
    if len(has) < _NEARLY_ALL * len(modules):
        return ""
    each = wording.interval(float(whole_ns[has].min()) / 1e6, float(whole_ns[has].max()) / 1e6)
    many = f"all {len(has)}" if len(has) == len(modules) else f"{len(has)} of {len(modules)}"
    return f"{many} {_kind(tree, has.tolist())}, {each} ms each"


def _kind(tree: ModuleTree, modules: Sequence[int]) -> str:
    """What some modules within one are called: "modules of layers"."""
    around = tree.path[int(tree.parent[modules[0]])]
    if tree.layer_events and not around:
        return "layers"
    return f"modules of {around}" if around else "modules"


def _share(part_ns: float, total_ns: float) -> str:
    return wording.percent(min(part_ns / total_ns, 1.0))
