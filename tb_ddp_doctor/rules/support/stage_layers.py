"""How many of the model's layers each pipeline stage has, and the split that would balance the stages.

Layers are modules of one kind that are numbered, "layers.0" to "layers.23"; where they are guessed, each stage counts
its own from 1. A stage's time is that of its layers and of what else it computes, as the embedding or the head; all
layers are taken to take as long. Three stages of 8, 8 and 8 layers of 2 ms, the last one with a head of 6 ms:

    now    16 ms   16 ms   22 ms
    9 9 6  18 ms   18 ms   18 ms
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.modules import BUSY, ModuleTree
from tb_ddp_doctor.trace.model import Floats, Ints

#: The last part of a path that ends with a number, and what is before it: "Block_" of "Net_0.Block_7".
_NUMBERED = re.compile(r"(?:^|\.)((?:[^.]*[ _])?)\d+$")
#: What to do about a stage that computes longer than the others.
BALANCED = """\
Balance the stages: move layers from the longest stage to other stages. The embedding and the loss belong to the \
first and the last stage, which therefore need fewer layers.

# Megatron-LM
--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split

# torch.distributed.pipelining: choose where to split
pipe = pipeline(model, mb_args=(x,), split_spec={"layers.7": SplitPoint.BEGINNING, ...})"""

#: Another split is worth a sentence if it shortens the longest stage by this share.
_WORTH = 0.03
#: Fewer modules of one kind are no layers.
_SEVERAL = 3
#: Stages whose layers are listed one by one, and layers that are split.
_LISTED, _MOST_LAYERS = 16, 4096


class LayerSplit(msgspec.Struct, frozen=True):
    """Layers of each stage, and how long the longest stage computes in a step, ns: as recorded, and balanced."""

    now: tuple[int, ...]
    then: tuple[int, ...]
    now_ns: float
    then_ns: float


def layer_split(tree: ModuleTree, ranks: Sequence[Ints]) -> LayerSplit | None:
    """The layers of some stages, given the ranks (indices) of each; None where a stage shows none, or none repeats."""
    busy = tree.step_ns[:, :, list(BUSY)].sum(axis=2)
    stages = np.array([busy[its].mean(axis=0) for its in ranks])
    layers = _layers(tree, stages)
    count = (stages[:, layers] > 0).sum(axis=1)
    if not len(layers) or not count.all() or count.sum() > _MOST_LAYERS or len(ranks) < 2:
        return None
    of_layers = stages[:, layers].sum(axis=1)
    each, rest = float(of_layers.sum() / count.sum()), stages[:, 0] - of_layers
    then = _balanced(rest, each, int(count.sum()))
    return LayerSplit(
        now=tuple(count.tolist()),
        then=tuple(then),
        now_ns=float(stages[:, 0].max()),
        then_ns=float((rest + each * np.array(then)).max()),
    )


def said(tree: ModuleTree | None, ranks: Sequence[Ints]) -> str:
    """A sentence on the split that would balance some stages; "" where none would shorten the longest one."""
    split = layer_split(tree, ranks) if tree is not None and len(ranks) <= _LISTED else None
    if tree is None or split is None or split.then_ns > (1 - _WORTH) * split.now_ns:
        return ""
    guess = " (layers are guessed from repeats)" if tree.layer_events else ""
    now, then = (", ".join(map(str, counts)) for counts in (split.now, split.then))
    return (
        f" The stages have {now} layers{guess}; with {then} the longest would compute {wording.ms(split.then_ns)} "
        f"a step instead of {wording.ms(split.now_ns)}."
    )


def _layers(tree: ModuleTree, stages: Floats) -> Ints:
    """The numbered modules of one kind within one that take most time over all stages, as indices."""
    of_kind: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for module in range(1, len(tree.path)):
        if numbered := _NUMBERED.search(tree.path[module]):
            of_kind[int(tree.parent[module]), numbered[1]].append(module)
    groups = [np.array(some) for some in of_kind.values() if len(some) >= _SEVERAL]
    return max(groups, key=lambda some: float(stages[:, some].sum()), default=np.empty(0, np.int64))


def _balanced(rest_ns: Floats, each_ns: float, layers: int) -> list[int]:
    """Layers of each stage, at least one, so that the longest stage is as short as can be."""
    counts = [1] * len(rest_ns)
    for _ in range(layers - len(counts)):
        shortest = int(np.argmin(rest_ns + each_ns * np.array(counts)))
        counts[shortest] += 1
    return counts
