"""Which part of the model the ranks' steps are spent in: one tree of modules over all ranks.

M = modules, R = ranks of the job, as `Job.ranks` has them. A module is the same on all ranks by its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import ModulePaths, ModuleTime, ModuleTimes, RankDigest
from tb_ddp_doctor.digest.module_paths import GUESSED
from tb_ddp_doctor.facts import Facts, MissingFactError, fact
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase

#: Of a module's name: every path repeats the names of all modules around.
_MOST_LETTERS = 256


class ModulePart(IntEnum):
    """What a module's time is spent in."""

    #: Compute and copies.
    FORWARD = 0
    BACKWARD = 1
    #: Forward that is computed again within backward.
    RECOMPUTED = 2
    #: Compute and copies in loading, in the optimizer, and outside forward/backward/optimizer.
    OTHER = 3
    #: Communication beside which no compute and no copy runs.
    COMMUNICATION = 4
    #: Nothing runs, before the module's next event.
    IDLE = 5


#: The parts in which kernels and copies run.
BUSY = (ModulePart.FORWARD, ModulePart.BACKWARD, ModulePart.RECOMPUTED, ModulePart.OTHER)


class ModuleTree(msgspec.Struct, frozen=True, eq=False):
    """The model's modules, with their times on each rank."""

    #: What names modules: "Doctor.watch" or "stacks", or "repeats" where layers are guessed from operators that repeat;
    #: several, with "and", where ranks differ.
    named_by: str
    #: Device events (operators on a CPU) of a guessed layer in a step, the median over layers and ranks; 0 if named.
    layer_events: int
    #: Shape (M,): the module around (-1 for the whole model, which is the first; parents come before children), the
    #: path, as "layers.0.mlp", and how many modules are around.
    parent: Ints
    path: tuple[str, ...]
    level: Ints
    #: Mean time in a step without the module's children, ns, shape (R, M, len(Part)).
    own_ns: NDArray[np.float64]
    #: The same with all modules within it: of the whole model it is the step.
    step_ns: NDArray[np.float64]


@fact
def module_tree(facts: Facts) -> ModuleTree | None:
    """The model's modules, or its layers where these are guessed; None where the traces show neither."""
    try:
        return modules(facts.job.digests)
    except MissingFactError:
        return None


def modules(digests: Sequence[RankDigest]) -> ModuleTree:
    """The tree over all ranks of a job. Raises MissingFactError where no trace names modules."""
    named = sorted({digest.modules.named_by for digest in digests} - {""})
    if not named:
        raise MissingFactError(
            "No trace names the model's modules, and no operators repeat from layer to layer: capture with "
            "Doctor.watch(model), or profile with with_stack=True."
        )
    index: dict[tuple[int, str], int] = {(-1, ""): 0}
    places = [_places(digest, index) for digest in digests]
    parent = np.array([around for around, _ in index], np.int64)
    own = np.zeros((len(digests), len(index), len(ModulePart)))
    for rank, (digest, place) in enumerate(zip(digests, places, strict=True)):
        table = digest.modules.times
        np.add.at(own[rank], (place[table.module], _parts(table)), table.total_ns / max(len(digest.steps), 1))
    whole, path, level = own.copy(), [""], [0]
    for module in range(len(index) - 1, 0, -1):
        whole[:, parent[module]] += whole[:, module]
    for around, name in list(index)[1:]:
        path.append(f"{path[around]}.{name}" if around else name)
        level.append(level[around] + 1)
    sources = " and ".join(named)
    return ModuleTree(sources, _layer_events(digests), parent, tuple(path), np.array(level, np.int64), own, whole)


def in_order(tree: ModuleTree) -> list[int]:
    """The modules from the root on, each followed by those within it, in the order in which traces name them."""
    within: list[list[int]] = [[] for _ in tree.path]
    for module, parent in enumerate(tree.parent.tolist()):
        if module:
            within[parent].append(module)
    order, ahead = [], [0]
    while ahead:
        order.append(ahead.pop())
        ahead += reversed(within[order[-1]])
    return order


def _layer_events(digests: Sequence[RankDigest]) -> int:
    """How many device events a guessed layer has in a step, the median over layers and ranks; 0 without one."""
    counts: list[NDArray[np.float64]] = []
    for digest in digests:
        if digest.modules.named_by == GUESSED:
            table = digest.modules.times
            events = np.bincount(table.module, table.events, len(digest.modules.paths))
            counts.append(events[1:] / max(len(digest.steps), 1))
    return round(float(np.median(np.concatenate(counts)))) if counts else 0


def _places(digest: RankDigest, index: dict[tuple[int, str], int]) -> Ints:
    """Where each of a rank's modules is in the job's tree, new ones added."""
    paths: ModulePaths = digest.modules.paths
    places = [0]
    for parent, name in zip(paths.parent[1:].tolist(), paths.name[1:].tolist(), strict=True):
        places.append(index.setdefault((places[max(parent, 0)], digest.strings[name][:_MOST_LETTERS]), len(index)))
    return np.array(places, np.int64)


def _parts(table: ModuleTimes) -> Ints:
    """The `ModulePart` of each row of a rank's table."""
    again, kind, phase = table.recomputed == 1, table.kind, table.phase
    return np.select(
        [
            kind == ModuleTime.IDLE,
            kind == ModuleTime.COMMUNICATION,
            again,
            phase == Phase.FORWARD,
            phase == Phase.BACKWARD,
        ],
        [ModulePart.IDLE, ModulePart.COMMUNICATION, ModulePart.RECOMPUTED, ModulePart.FORWARD, ModulePart.BACKWARD],
        ModulePart.OTHER,
    ).astype(np.int64)
