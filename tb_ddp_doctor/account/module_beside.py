"""Which of the model's modules run beside communication, and how much longer their kernels take for it."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.modules import ModuleBeside, ModulePart, ModuleTree
from tb_ddp_doctor.trace.model import Floats, Ints

#: A module is named from this share of its backward (or forward) on that runs beside communication, and this share of
#: the step that it takes longer for it.
_BESIDE, _LONGER = 0.2, 0.002
#: Modules that are named one by one; of more, their number is said.
_NAMED = 6
#: Modules beside each other, with names that differ by a number, are layers from so many on.
_SEVERAL = 3
_NUMBER = re.compile(r"\d+$")
_PARTS = {
    ModulePart.FORWARD: "forward",
    ModulePart.BACKWARD: "backward",
    ModulePart.RECOMPUTED: "recomputed forward",
}


def beside_sentences(tree: ModuleTree, beside: ModuleBeside) -> tuple[str, ...]:
    """A sentence for each of forward and backward in which layers take longer beside communication; of median ranks."""
    every, ran, longer = (np.median(times, axis=0) for times in (tree.step_ns, beside.step_ns, beside.longer_ns))
    least = _LONGER * float(every[0].sum())
    sentences = []
    for part, called in _PARTS.items():
        layers = _layers(tree, every[:, part])
        share = ran[layers, part] / np.maximum(every[layers, part], 1.0)
        chosen = (share >= _BESIDE) & (longer[layers, part] >= least)
        if chosen.any():
            sentences.append(_sentence(tree, layers, chosen, share[chosen], longer[layers[chosen], part], called))
    return tuple(sentences)


def _sentence(tree: ModuleTree, layers: Ints, chosen: Floats, share: Floats, longer_ns: Floats, part: str) -> str:
    names = [tree.path[module] for module in layers[chosen].tolist()]
    named = wording.listing(names) if len(names) <= _NAMED else f"{len(names)} of {len(layers)} layers"
    if len(names) == 1:
        shares, times = wording.percent(float(share[0])), wording.ms(float(longer_ns[0]))
        return f"{named} runs {shares} of its {part} beside communication, and takes {times} longer for it."
    least, most = (wording.percent(float(one)) for one in (share.min(), share.max()))
    shares = f"{least.removesuffix(' %')} to {most}" if least != most else most
    times = f"{wording.interval(float(longer_ns.min()) / 1e6, float(longer_ns.max()) / 1e6)} ms"
    total = wording.ms(float(longer_ns.sum()))
    return f"{named} run {shares} of their {part} beside communication, and take {times} longer for it, {total} in all."


def _layers(tree: ModuleTree, time_ns: Floats) -> Ints:
    """The numbered modules beside each other that take most of a time, shape (M,); else those right below the model."""
    of_kind: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for module in range(1, len(tree.path)):
        if _NUMBER.search(tree.path[module]):
            of_kind[int(tree.parent[module]), _NUMBER.sub("", tree.path[module])].append(module)
    groups = [np.array(some) for some in of_kind.values() if len(some) >= _SEVERAL]
    return max(groups, key=lambda some: float(time_ns[some].sum()), default=np.flatnonzero(tree.level == 1))
