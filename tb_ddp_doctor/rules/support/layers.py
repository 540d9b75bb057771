"""Says in which of the model's modules some time lies: in one of them, in all layers alike, or outside of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.modules import BUSY, ModuleMemoryTree, ModulePart, ModuleTree
from tb_ddp_doctor.trace.model import Floats, Ints

#: What holds this share of a time holds nearly all of it.
_NEARLY_ALL = 0.8
#: A layer has its part of a time from this share of the mean layer's on.
_ITS_PART = 0.25
#: Modules that a sentence names.
_NAMED = 3
#: Fewer modules beside each other are no layers that a time is spread over.
_SEVERAL = 3


class Unit(msgspec.Struct, frozen=True):
    """How amounts are written: one, and from the least to the most of several."""

    one: Callable[[float], str]
    between: Callable[[float, float], str]


class Where(msgspec.Struct, frozen=True):
    """Which modules most of a time, or of memory, lies in; a finding says the text, and keeps the modules."""

    #: As "93 % is in layers.17.mlp", or a sentence made of it; "" where that is not known.
    text: str = ""
    #: Their paths.
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)

    def within(self, before: str, after: str) -> Where:
        """The same within a sentence; where nothing is known, that stays nothing."""
        return Where(f"{before}{self.text}{after}", self.modules) if self else self


TIME = Unit(wording.ms, lambda least, most: f"{wording.interval(least / 1e6, most / 1e6)} ms")
BYTES = Unit(wording.size, lambda least, most: f"{wording.size(least)} to {wording.size(most)}")


def excess_ns(tree: ModuleTree, rank: int, others: Ints) -> Floats:
    """By how much longer a rank (index) computes and copies in each module than the median of others, a step; (M,)."""
    busy = tree.own_ns[:, :, list(BUSY)].sum(axis=2)
    excess: Floats = busy[rank] - np.median(busy[others], axis=0)
    return excess


def behind(tree: ModuleTree, rank: int, others: Ints, slower_ns: float) -> Where:
    """A sentence on the modules in which a rank (index) that is slower by some time computes longer than others.

    Nothing where its compute is not most of what it is slower by.
    """
    excess = excess_ns(tree, rank, others) if len(others) else np.zeros(1)
    if 2 * excess.sum() < slower_ns or not (place := where(tree, excess)):
        return Where()
    alone = ""
    if is_outside(excess):
        most = float(tree.own_ns[others][:, 0, list(BUSY)].sum(axis=1).max())
        alone = f", where no other rank computes longer than {wording.ms(most)}"
    return place.within(" Of its longer compute, ", f"{alone}.")


def at_peak(tree: ModuleTree | None, memory: ModuleMemoryTree | None, rank: int) -> str:
    """A sentence, with a space before it, on the modules that allocated what a rank (index) holds at its peak.

    "" where the rank's trace does not tell, or hardly anything was allocated by modules.
    """
    if tree is None or memory is None or np.isnan(memory.own_peak[rank]).any():
        return ""
    of_modules = memory.own_peak[rank].copy()
    whole, of_modules[0] = float(of_modules.sum()), 0.0
    if of_modules.sum() < _ITS_PART * whole:
        return ""
    share = _share(float(of_modules.sum()), whole)
    return f" Modules allocate {share} of what is allocated; of that, {where(tree, of_modules, BYTES)}."


def exposed_ns(tree: ModuleTree) -> Floats:
    """Exposed communication that each module's forward or backward launches, the median over ranks, a step; (M,)."""
    return _median(tree, ModulePart.COMMUNICATION)


def idle_ns(tree: ModuleTree) -> Floats:
    """Idle time of the device before each module's kernels, the median over ranks, a step; (M,)."""
    return _median(tree, ModulePart.IDLE)


def _median(tree: ModuleTree, part: ModulePart) -> Floats:
    return np.median(tree.own_ns[:, :, part], axis=0)


def is_outside(own_ns: Floats) -> bool:
    """Whether nearly all of a time lies in none of the model's modules; shape (M,), the first for none."""
    return bool(own_ns[0] >= _NEARLY_ALL * own_ns.sum() > 0)


def where(tree: ModuleTree, own: Floats, unit: Unit = TIME) -> Where:
    """Which modules most of a time, or of memory, lies in; nothing where there is none.

    `own` is what each module has without its children, shape (M,), in ns or bytes; in some it may be negative.
    """
    whole = own.copy()
    for module in range(len(whole) - 1, 0, -1):
        whole[tree.parent[module]] += whole[module]
    total = float(whole[0])
    if total <= 0 or len(whole) == 1:
        return Where()
    guess = " (layers are guessed)" if tree.layer_events else ""
    at, within = 0, np.flatnonzero(tree.parent == 0)
    while len(within) and whole[within].max() >= _NEARLY_ALL * total:
        at = int(within[whole[within].argmax()])
        within = np.flatnonzero(tree.parent == at)
    if is_outside(own):
        return Where(f"{_share(float(own[0]), total)} is outside the model's layers{guess}")
    kinds = [same_kind for same_kind in _of_one_kind(tree, within) if whole[same_kind].sum() >= _NEARLY_ALL * total]
    for same_kind in (*kinds, within):
        if spread := _layers(tree, whole, same_kind, unit):
            share = _share(float(whole[same_kind].sum()), total)
            return Where(f"{share} is in {spread}{guess}", _longest(tree, whole, same_kind))
    if at:
        return Where(f"{_share(float(whole[at]), total)} is in {tree.path[at]}{guess}", (tree.path[at],))
    most = _longest(tree, whole, within)
    named = [f"{path} ({unit.one(whole[tree.path.index(path)])})" for path in most]
    return Where(f"most is in {wording.listing(named)}{guess}", most) if named else Where()


def _longest(tree: ModuleTree, whole: Floats, modules: Ints) -> tuple[str, ...]:
    """The paths of those of some modules with most of the whole."""
    most = modules[np.argsort(-whole[modules], kind="stable")][:_NAMED].tolist()
    return tuple(tree.path[module] for module in most if whole[module] > 0)


def _of_one_kind(tree: ModuleTree, modules: Ints) -> list[Ints]:
    """Those of some modules within one whose names differ by a number alone, as Block_0, Block_1, ..."""
    kinds: dict[str, list[int]] = {}
    for module in modules.tolist():
        kind = tree.path[module].rstrip("0123456789")
        if kind != tree.path[module]:
            kinds.setdefault(kind, []).append(module)
    return [np.array(same_kind) for same_kind in kinds.values() if _SEVERAL <= len(same_kind) < len(modules)]


def _layers(tree: ModuleTree, whole: Floats, modules: Ints, unit: Unit) -> str:
    """All modules of those within one, if nearly each has its part of the whole; else ""."""
    total = float(whole[modules].sum())
    if len(modules) < _SEVERAL or total <= 0:
        return ""
    has = modules[whole[modules] >= _ITS_PART * total / len(modules)]
    if len(has) < _NEARLY_ALL * len(modules):
        return ""
    least, most = float(whole[has].min()), float(whole[has].max())
    each = unit.one(most) if unit.one(least) == unit.one(most) else unit.between(least, most)
    many = f"all {len(has)}" if len(has) == len(modules) else f"{len(has)} of {len(modules)}"
    return f"{many} {_kind(tree, has.tolist())}, {each} each"


def _kind(tree: ModuleTree, modules: Sequence[int]) -> str:
    """What some modules within one are called: "modules of layers"."""
    parent = int(tree.parent[modules[0]])
    around = tree.path[parent]
    if tree.layer_events and not around:
        return "layers"
    kind = ""
    if len(modules) < int((tree.parent == parent).sum()):
        last = {tree.path[module].rpartition(".")[2].rstrip("0123456789").rstrip("_") for module in modules}
        kind = f"{last.pop()} " if len(last) == 1 and last != {""} else ""
    return f"{kind}modules of {around}" if around else f"{kind}modules"


def _share(part_ns: float, total_ns: float) -> str:
    return wording.percent(min(part_ns / total_ns, 1.0))
