"""Which part of the model the ranks' steps are spent in: one tree of modules over all ranks.

M = modules, R = ranks of the job, as `Job.ranks` has them, K = rows of kernels. A module is the same on all ranks by
its path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.columns import distinct
from tb_ddp_doctor.digest.model import ModuleKernels, ModulePaths, ModuleTime, ModuleTimes, RankDigest
from tb_ddp_doctor.digest.module_paths import GUESSED, MOST_LETTERS
from tb_ddp_doctor.facts import Facts, MissingFactError, fact
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.names import Phase


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

    #: What names modules: "Doctor.watch", "NVTX ranges", "stacks", "torch.compile" where its regions stand for modules,
    #: or "repeats" where layers are guessed from operators that repeat; several, with "and", where ranks differ.
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
    #: For each rank, the module here of each module of its digest, shape (modules of the rank,) each.
    places: tuple[Ints, ...]


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
    places = tuple(_places(digest, index) for digest in digests)
    parent = np.array([around for around, _ in index], np.int64)
    shape = (len(digests), len(index), len(ModulePart))
    times, row = _joined(digests, places, shape)
    steps = np.repeat([max(len(digest.steps), 1) for digest in digests], [len(one.modules.times) for one in digests])
    own = np.bincount(row, times.total_ns / steps, math.prod(shape)).astype(np.float64).reshape(shape)
    whole, path, level = own.copy(), [""], [0]
    for module in range(len(index) - 1, 0, -1):
        whole[:, parent[module]] += whole[:, module]
    for around, name in list(index)[1:]:
        path.append(f"{path[around]}.{name}" if around else name)
        level.append(level[around] + 1)
    sources = " and ".join(named)
    return ModuleTree(
        sources, _layer_events(digests), parent, tuple(path), np.array(level, np.int64), own, whole, places
    )


def _joined(digests: Sequence[RankDigest], places: Sequence[Ints], shape: tuple[int, ...]) -> tuple[ModuleTimes, Ints]:
    """All ranks' tables in one, and which cell of `shape` (R, M, len(ModulePart)) each row is of."""
    tables = [digest.modules.times for digest in digests]
    rank = np.repeat(np.arange(len(digests)), [len(table) for table in tables])
    place = np.concatenate([place[table.module] for table, place in zip(tables, places, strict=True)])
    joined = ModuleTimes(
        *(np.concatenate([getattr(table, name) for table in tables]) for name in ModuleTimes.__struct_fields__)
    )
    return joined, np.ravel_multi_index((rank, place, _parts(joined)), shape)


class ModuleBeside(msgspec.Struct, frozen=True, eq=False):
    """The time of modules in which communication runs beside their kernels; shape (R, M, len(ModulePart)) each.

    Mean over steps, ns, with all modules within each.
    """

    step_ns: Floats
    #: How much longer these kernels take than the same ones without communication beside them.
    longer_ns: Floats


def beside_communication(tree: ModuleTree, digests: Sequence[RankDigest]) -> ModuleBeside | None:
    """What runs beside communication in each module; None where nothing does."""
    if not any(digest.modules.times.beside_ns.any() for digest in digests):
        return None
    shape = tree.own_ns.shape
    joined, row = _joined(digests, tree.places, shape)
    steps = np.array([max(len(digest.steps), 1) for digest in digests])[:, None, None]
    own = np.stack(
        [
            np.bincount(row, column, math.prod(shape)).reshape(shape) / steps
            for column in (joined.beside_ns, joined.longer_ns)
        ]
    )
    whole = with_children(tree, own.swapaxes(-1, -2)).swapaxes(-1, -2)
    return ModuleBeside(whole[0], whole[1])


def with_children(tree: ModuleTree, own: Floats) -> Floats:
    """Sums of modules with all modules within them, given those of the modules alone; modules are the last axis."""
    whole: Floats = own.copy()
    for module in range(len(tree.path) - 1, 0, -1):
        whole[..., tree.parent[module]] += whole[..., module]
    return whole


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
    """Where each of a rank's modules is in the job's tree, by parent and name; new ones are added to `index`."""
    paths: ModulePaths = digest.modules.paths
    places = [0]
    for parent, name in zip(paths.parent[1:].tolist(), paths.name[1:].tolist(), strict=True):
        places.append(index.setdefault((places[max(parent, 0)], digest.strings[name][:MOST_LETTERS]), len(index)))
    return np.array(places, np.int64)


#: The parts of what has a phase, a kind or is done again, each before those that it gives way to.
_BY_PHASE = ((int(Phase.FORWARD), int(ModulePart.FORWARD)), (int(Phase.BACKWARD), int(ModulePart.BACKWARD)))
_COMMUNICATION, _IDLE, _OPTIMIZER = int(ModuleTime.COMMUNICATION), int(ModuleTime.IDLE), int(Phase.OPTIMIZER)
_BY_KIND = ((_COMMUNICATION, int(ModulePart.COMMUNICATION)), (_IDLE, int(ModulePart.IDLE)))
_OTHER, _RECOMPUTED = int(ModulePart.OTHER), int(ModulePart.RECOMPUTED)


def _parts(table: ModuleTimes) -> Ints:
    """The `ModulePart` of each row of a rank's table."""
    part = np.full(len(table), _OTHER, np.int64)
    for phase, of_phase in _BY_PHASE:
        part[table.phase == phase] = of_phase
    part[table.recomputed == 1] = _RECOMPUTED
    for kind, of_kind in _BY_KIND:
        part[table.kind == kind] = of_kind
    return part


class ModuleMemoryTree(msgspec.Struct, frozen=True, eq=False):
    """Memory that the model's modules allocate, bytes; NaN on ranks whose traces do not record it."""

    #: Without the module's children, when most is allocated on that rank; shape (R, M). Of all modules it is the peak.
    own_peak: NDArray[np.float64]
    #: With all modules within it: when most is allocated, and all that is allocated in a step; shape (R, M) each.
    peak: NDArray[np.float64]
    allocated: NDArray[np.float64]


@fact
def module_memory(facts: Facts) -> ModuleMemoryTree | None:
    """The memory of the model's modules; None where no trace has modules and events of the allocator."""
    tree = facts.get(module_tree)
    digests = facts.job.digests
    if tree is None or not any(len(digest.modules.memory) for digest in digests):
        return None
    own = np.full((2, len(digests), len(tree.path)), np.nan)
    for rank, (digest, place) in enumerate(zip(digests, tree.places, strict=True)):
        table = digest.modules.memory
        if len(table):
            own[:, rank] = 0
            np.add.at(own[0, rank], place[table.module], table.peak_bytes)
            np.add.at(own[1, rank], place[table.module], table.allocated_bytes / max(len(digest.steps), 1))
    return ModuleMemoryTree(own[0], *with_children(tree, own))


def optimizer_ns(tree: ModuleTree, digests: Sequence[RankDigest]) -> Floats | None:
    """An estimate of how long the optimizer works on the parameters of each module, with all modules within it.

    The time of what the optimizer launches, mean over steps, in proportion to the elements of the modules' gradients;
    ns, shape (M,), the median over the ranks whose traces show both. None where none does.
    """
    spent = []
    for digest, place in zip(digests, tree.places, strict=True):
        times, gradients = digest.modules.times, digest.modules.gradients
        runs = (times.phase == _OPTIMIZER) & (times.kind != _IDLE) & (times.kind != _COMMUNICATION)
        total = float(times.total_ns[runs].sum()) / max(len(digest.steps), 1)
        elements = np.bincount(place[gradients.module], gradients.elements, len(tree.path))
        if total > 0 and elements.any():
            spent.append(elements * (total / elements.sum()))
    return np.median(with_children(tree, np.stack(spent)), axis=0) if spent else None


class ModuleKernelTable(msgspec.Struct, frozen=True, eq=False):
    """The kernels of the model's modules, with their times on each rank; rows with most time first.

    The rows of a module and part sum to the module's own time of it on each rank (`ModuleTree.own_ns`).
    """

    #: Index into `ModuleTree.path`, and a `ModulePart`; shape (K,).
    module: Ints
    part: Ints
    #: The innermost operator, the device's event (of idle time, the one that follows) and the user's function. All ""
    #: for what the ranks' digests do not keep by name.
    operator: tuple[str, ...]
    kernel: tuple[str, ...]
    function: tuple[str, ...]
    #: Mean time in a step, ns, and device events (operators on a CPU) in a step; shape (R, K).
    step_ns: NDArray[np.float64]
    events: NDArray[np.float64]
    #: Of each rank, the row here for each row of its `ModuleKernels`.
    row_of: tuple[Ints, ...]


def kernel_table(tree: ModuleTree, digests: Sequence[RankDigest]) -> ModuleKernelTable:
    """The table over all ranks of a job, given the tree of their modules."""
    texts: dict[str, int] = {"": 0}
    rank, total, events, *names = _kernel_rows(tree, digests, texts)
    kinds, which = _kinds(*names)
    steps = np.array([max(len(digest.steps), 1) for digest in digests], np.float64)
    shape = (len(digests), kinds.shape[1])
    step_ns, count = (
        np.bincount(rank * shape[1] + which, column, shape[0] * shape[1]).reshape(shape) / steps[:, None]
        for column in (total, events)
    )
    order, known = np.argsort(-np.median(step_ns, axis=0), kind="stable"), list(texts)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    begins = np.cumsum([len(digest.modules.kernels) for digest in digests])[:-1]
    operator, kernel, function = (
        tuple(known[index] for index in kinds[column, order].tolist()) for column in (2, 3, 4)
    )
    return ModuleKernelTable(
        module=kinds[0, order],
        part=kinds[1, order],
        operator=operator,
        kernel=kernel,
        function=function,
        step_ns=step_ns[:, order],
        events=count[:, order],
        row_of=tuple(np.split(place[which], begins)),
    )


def module_kernels(facts: Facts) -> ModuleKernelTable | None:
    """The kernels of the model's modules; None where the traces show no modules."""
    tree = facts.get(module_tree)
    return None if tree is None else kernel_table(tree, facts.job.digests)


def kernel_times(table: ModuleKernelTable, columns: Sequence[Ints]) -> Floats:
    """The sums of a column of each rank's `ModuleKernels` by row of the table, shape (R, K)."""
    size = table.step_ns.shape
    row = np.concatenate([rank * size[1] + rows for rank, rows in enumerate(table.row_of)])
    return np.bincount(row, np.concatenate(columns), size[0] * size[1]).reshape(size).astype(np.float64)


def module_times(tree: ModuleTree, table: ModuleKernelTable, times: Floats) -> Floats:
    """The sums of times of kernels, shape (R, K), by module with all modules within it, shape (R, M)."""
    own = np.zeros((len(tree.path), len(times)))
    for module, of_kernel in zip(table.module.tolist(), times.T, strict=True):
        own[module] += of_kernel
    return with_children(tree, own.T)


def calls_ns(tree: ModuleTree, rank: int, digest: RankDigest, chosen: NDArray[np.bool_]) -> Floats:
    """What some of a rank's calls of operators take in each module without its children, a step, ns, shape (M,).

    `rank` is its index among the job's, `digest` its digest; `chosen` flags rows of its `RooflineCalls`.
    """
    table, work = digest.modules, digest.modules.work
    mine = chosen[work.call]
    module = tree.places[rank][table.times.module[table.kernels.of[work.of[mine]]]]
    return np.bincount(module, work.ns[mine], len(tree.path)) / max(len(digest.steps), 1)


def p99_ns(tree: ModuleTree, digests: Sequence[RankDigest]) -> Floats:
    """The 99th percentile over steps of each module's time, with all modules within it, ns, shape (R, M)."""
    p99 = np.zeros((len(digests), len(tree.path)))
    for rank, (digest, place) in enumerate(zip(digests, tree.places, strict=True)):
        p99[rank, place] = digest.modules.paths.p99_ns
    return p99


def _kernel_rows(tree: ModuleTree, digests: Sequence[RankDigest], texts: dict[str, int]) -> list[Ints]:
    """The rows of all ranks: rank, time, events, module, part, and the numbers of operator, kernel and function.

    These number the names in `texts`, to which new ones are added.
    """
    columns: list[tuple[Ints, ...]] = []
    for rank, (digest, place) in enumerate(zip(digests, tree.places, strict=True)):
        kernels, times = digest.modules.kernels, digest.modules.times
        module, part = place[times.module[kernels.of]], _parts(times)[kernels.of]
        of_rank = np.full(len(kernels), rank, np.int64)
        named = _numbered(digest, kernels, texts)
        columns.append((of_rank, kernels.total_ns, kernels.events, module, part, *named))
    return [np.concatenate(column) for column in zip(*columns, strict=True)]


def _numbered(digest: RankDigest, kernels: ModuleKernels, texts: dict[str, int]) -> list[Ints]:
    """The numbers, in `texts`, of the operator, kernel and function of each row of a rank; new ones are added."""
    columns = [kernels.operator, kernels.kernel, kernels.function]
    number = np.zeros(len(digest.strings), np.int64)
    for index in np.unique(np.concatenate(columns)).tolist():
        number[index] = texts.setdefault(digest.strings[index], len(texts))
    return [number[column] for column in columns]


def _kinds(*columns: Ints) -> tuple[Ints, Ints]:
    """The different rows of some columns, shape (columns, kinds), and which of them each row is."""
    which, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        kinds, which = distinct(which * width + column, size * width)
        size = max(len(kinds), 1)
    first = np.zeros(size, np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    chosen = first if len(which) else np.empty(0, np.int64)
    return np.stack([column[chosen] for column in columns]), which
