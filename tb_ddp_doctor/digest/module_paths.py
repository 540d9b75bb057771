"""Which module of the model the host runs at an instant, by the module calls that a trace records.

Three recorders name modules: `Doctor.watch` marks calls by the module's whole path ("nn.Module: layers.0.mlp"), so do
layerwise NVTX markers of servers ("{'Module': 'layers.0.mlp', ...}"), and with_stack=True records calls by class and
number ("nn.Module: Block_0"), whose path is that of the calls around. Where a trace has several, the marks are used.
Wrappers (DDP, FSDP, torch.compile and its graphs) are no level of their own.

Where none does, annotations may be paths of modules by themselves ("layers.0.mlp"), as jobs make them.

Where none is, or stacks have the whole model alone, layers are guessed from what repeats (`digest.repeated_layers`) and
called "layer 1" to "layer n". Where nothing repeats either, what torch.compile made stands for modules: its regions
("compiled region 1"), or Inductor's graphs.

Kernels within a CUDA graph may be named by its capture (`digest.graph_parts`): then nothing is guessed.

A node of autograd belongs to the module whose forward operator has its sequence number (`digest.autograd_nodes`).
Forward that is computed again within a node belongs to its own module. Its stack has none of the modules around: the
module's class and number tell its path.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import msgspec
import numpy as np

from tb_ddp_doctor.digest.autograd_nodes import nodes, nodes_within
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import ModulePaths, Steps
from tb_ddp_doctor.digest.nesting import around, enclosing
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.repeated_layers import layer_calls
from tb_ddp_doctor.digest.vocabulary import Names, Vocabulary
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Indices, Ints

#: Modules deeper than this belong to the module around: a recursion may go on without end.
MOST_LEVELS = 24
#: The whole model.
ROOT = 0
#: Of a module's name: each path repeats the names of all modules around.
MOST_LETTERS = 256
#: The percentile over steps.
PERCENTILE = 0.99
#: What names layers that are guessed from what repeats.
GUESSED = "repeats"
_RANGES = "NVTX ranges"
_PATHS = "annotations"
#: A path up to its first number, as "layers.3" of "layers.3.mlp"; fewer of them with the same beginning are no layers.
_LAYER = re.compile(r"^(.*?)\.(\d+)(?![^.])")
_LEAST_LAYERS = 3
#: Length of a table of one module and the root.
_ONE_MODULE = 2
_WRAPPER = re.compile(
    r"(DistributedDataParallel|FullyShardedDataParallel|FSDP|OptimizedModule|GraphModule|DataParallel)_\d+"
)


def percentile(step_ns: Ints) -> Ints:
    """The 99th percentile over steps (nearest rank) of times of shape (rows, S); zeros without steps."""
    rows, steps = step_ns.shape
    if not steps:
        return np.zeros(rows, np.int64)
    at = steps - 1 - int((1 - PERCENTILE) * steps)
    return np.partition(step_ns, at, axis=1)[:, at]


class PathTable:
    """Paths of modules, each once, in an order in which parents come first."""

    def __init__(self) -> None:
        self._index: dict[tuple[int, str], int] = {(-1, ""): ROOT}

    def __len__(self) -> int:
        return len(self._index)

    def child(self, parent: int, name: str) -> int:
        """Index of a module within another one."""
        return self._index.setdefault((parent, name), len(self._index))

    def below_root(self, path: str) -> int:
        """Index of the module of a whole path, as "layers.0.mlp"."""
        return self.below(ROOT, path)

    def below(self, at: int, path: str) -> int:
        """Index of the module of a path within another one."""
        for part in path.split(".", MOST_LEVELS - 1):
            at = self.child(at, part)
        return at

    def parents(self) -> Ints:
        """The index of each module's parent, -1 for the root; shape (M,)."""
        return np.array([parent for parent, _ in self._index], np.int64)

    def paths(self, chosen: Sequence[int], letters: int) -> tuple[str, ...]:
        """The whole paths of the chosen modules, as "layers.0.mlp"; of each name at most so many letters."""
        keys = list(self._index)

        def path(module: int) -> str:
            parent, name = keys[module]
            return f"{path(parent)}.{name[:letters]}" if parent > ROOT else name[:letters]

        return tuple(path(module) for module in chosen)

    def kept(self, chosen: Ints, step_ns: Ints, words: Vocabulary) -> ModulePaths:
        """The table of the chosen modules (ascending indices, with all of their parents).

        `step_ns` is the time of each of them in each step, without modules within it, shape (chosen, S).
        """
        keys = list(self._index)
        place = np.full(len(keys) + 1, -1, np.int64)
        place[chosen] = np.arange(len(chosen))
        picked = [keys[index] for index in chosen.tolist()]
        parent = place[np.array([parent for parent, _ in picked], np.int64)]
        whole = step_ns.copy()
        for module in range(len(chosen) - 1, ROOT, -1):
            whole[parent[module]] += whole[module]
        return ModulePaths(parent.astype(np.int32), words.indices(name for _, name in picked), percentile(whole))


class ModuleCalls(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The recorded calls of modules; shape (calls,)."""

    host: HostCalls
    #: What recorded them: "Doctor.watch", "NVTX ranges", "stacks", "annotations" or "torch.compile"; "repeats" where
    #: they are guessed, "" for none. Names within CUDA graphs are of no call (`digest.graph_parts`).
    named_by: str
    table: PathTable
    #: Index into the table.
    module: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Indices

    @classmethod
    def of(cls, host: HostCalls, phases: HostPhases, steps: Steps) -> ModuleCalls:
        """The calls of modules in a trace."""
        marks = np.flatnonzero(host.is_annotation & host.named(names.is_module))
        if len(marks):
            start, end, thread = host.start_ns[marks], host.end_ns[marks], host.thread[marks]
            name = host.name[marks].astype(np.int32)
            are_ranges = any(names.is_module_range(host.trace.strings[one]) for one in np.unique(name).tolist())
            return cls._of(host, _RANGES if are_ranges else "Doctor.watch", name, start, end, thread)
        frames = host.trace.frames
        chosen = np.flatnonzero(Names(host.trace.strings, frames.name).among(frames.name, names.is_module))
        start = frames.start_ns[chosen]
        end = start + frames.duration_ns[chosen]
        named = cls._of(host, "stacks", frames.name[chosen], start, end, frames.thread[chosen])
        if len(named.table) > _ONE_MODULE:
            return named
        if (layers := cls._by_paths(host)) is not None:
            return layers
        guessed = cls._guessed(host, phases, steps)
        if not len(named.module):
            return guessed if guessed.named_by else cls._compiled(host)
        # Stacks of a model that is compiled as one show the model alone.
        within = named.at(guessed.start_ns, guessed.thread) != ROOT
        return guessed if within.sum() > max(len(named.module), len(within) / 2) else named

    @classmethod
    def _by_paths(cls, host: HostCalls) -> ModuleCalls | None:
        """The calls in annotations that are paths of modules in layers; None for fewer layers than three."""
        table, is_path = PathTable(), partial(_is_called, names.module_path)
        rows = np.flatnonzero(host.is_annotation & host.named(is_path))
        name = host.name[rows].astype(np.int32)
        plain = {index: names.module_path(host.trace.strings[index]) for index in np.unique(name).tolist()}
        layers = {layer for path in plain.values() for layer in _LAYER.findall(path)[:1]}
        if max(Counter(layers_of for layers_of, _ in layers).values(), default=0) < _LEAST_LAYERS:
            return None
        module = np.array([table.below_root(plain[index]) for index in name.tolist()], np.int64)
        return cls(host, _PATHS, table, module, host.start_ns[rows], host.end_ns[rows], host.thread[rows])

    @classmethod
    def _guessed(cls, host: HostCalls, phases: HostPhases, steps: Steps) -> ModuleCalls:
        table, layers = PathTable(), layer_calls(host, phases, steps)
        for number in range(1, int(layers.number.max(initial=0)) + 1):
            table.child(ROOT, f"layer {number}")
        start, end = host.start_ns[layers.first], host.end_ns[layers.last]
        named_by = GUESSED if len(layers) else ""
        # Layers are children of the root, in the order of their numbers: layer n is the n-th module.
        return cls(host, named_by, table, layers.number, start, end, host.thread[layers.first])

    @classmethod
    def _compiled(cls, host: HostCalls) -> ModuleCalls:
        table, strings = PathTable(), host.trace.strings
        for chosen, called in ((host.is_operator, _region), (host.is_annotation, names.compiled_graph)):
            rows = np.flatnonzero(chosen & host.named(partial(_is_called, called)))
            if len(rows):
                start, end, thread = host.start_ns[rows], host.end_ns[rows], host.thread[rows]
                name = host.name[rows].astype(np.int32)
                plain = {index: called(strings[index]) for index in np.unique(name).tolist()}
                module = _nested(table, plain, name, around(start, end, thread))
                return cls(host, "torch.compile", table, module, start, end, thread)
        return cls.without_calls(host, "")

    @classmethod
    def without_calls(cls, host: HostCalls, named_by: str) -> ModuleCalls:
        """No calls, and no module but the root."""
        nothing = np.empty(0, np.int64)
        return cls(host, named_by, PathTable(), nothing, nothing, nothing, nothing.astype(np.int32))

    @classmethod
    def _of(cls, host: HostCalls, named_by: str, name: Indices, start: Ints, end: Ints, thread: Indices) -> ModuleCalls:
        table, strings = PathTable(), host.trace.strings
        plain = {index: names.module_name(strings[index]) for index in np.unique(name).tolist()}
        keep = np.array([not _WRAPPER.fullmatch(plain[index]) for index in name.tolist()], np.bool_)
        order = np.flatnonzero(keep)[np.lexsort((-end[keep], start[keep], thread[keep]))]
        name, start, end, thread = name[order], start[order], end[order], thread[order]
        if named_by != "stacks":
            whole = {index: table.below_root(text) for index, text in plain.items()}
            module = np.array([whole[index] for index in name.tolist()], np.int64)
        else:
            module = _nested(table, plain, name, around(start, end, thread), by_name=True)
        return cls(host, named_by, table, module, start, end, thread)

    @cached_property
    def _with_backward(self) -> tuple[Ints, Ints, Ints, Indices]:
        """Module, start, end and thread of the calls, and of the autograd nodes of their operators."""
        host = self.host
        node, operator = np.concatenate((nodes(host), nodes_within(host)), axis=1)
        made = operator >= 0
        node, operator = node[made], operator[made]
        call = enclosing(self.start_ns, self.end_ns, self.thread, host.start_ns[operator], host.thread[operator])
        node, call = node[call >= 0], call[call >= 0]
        return (
            np.concatenate((self.module, self.module[call])),
            np.concatenate((self.start_ns, host.start_ns[node])),
            np.concatenate((self.end_ns, host.end_ns[node])),
            np.concatenate((self.thread, host.thread[node])),
        )

    def paths_at(self, instant: Ints, thread: Indices) -> tuple[str, ...]:
        """The path of the innermost module that each thread runs at each instant; "" outside of all."""
        return self.table.paths(self.at(instant, thread).tolist(), MOST_LETTERS)

    def at(self, instant: Ints, thread: Indices) -> Ints:
        """The innermost module that each thread runs at each instant, forward or backward; ROOT outside of all."""
        path = np.full(len(instant), ROOT, np.int64)
        if len(self.module):
            module, start, end, on = self._with_backward
            call = enclosing(start, end, on, instant, thread)
            path[call >= 0] = module[call[call >= 0]]
        return path


def _place_by_name(table: PathTable, plain: dict[int, str], own: int, outer_names: dict[int, int]) -> tuple[int, int]:
    """The module that holds the one of a name, and how many are around the latter; `outer_names` are names by names."""
    around_own: list[int] = []
    while (own := outer_names.get(own, -1)) >= 0 and own not in around_own and len(around_own) < MOST_LEVELS:
        around_own.append(own)
    within = ROOT
    for one in reversed(around_own):
        within = table.child(within, plain[one])
    return within, len(around_own)


def _region(operator: str) -> str:
    """What a compiled region is called, of whichever recompilation; "" for other operators."""
    number = names.compiled_region(operator)
    return f"compiled region {number}" if number else ""


def _is_called(called: Callable[[str], str], name: str) -> bool:
    return called(name) != ""


def _nested(table: PathTable, plain: dict[int, str], name: Indices, outer: Ints, *, by_name: bool = False) -> Ints:
    """The module of each call, by the names of the calls around it; calls in the order of starts on each thread.

    With `by_name`, a call with none around is within those that the first call of its name with any around is within.
    """
    names_in_order = name.tolist()
    outer_names: dict[int, int] = {}
    if by_name:
        for own, parent in zip(names_in_order, outer.tolist(), strict=True):
            if parent >= 0:
                outer_names.setdefault(own, names_in_order[parent])
    module: list[int] = []
    level: list[int] = []
    for own, parent in zip(names_in_order, outer.tolist(), strict=True):
        within, depth = (
            (module[parent], level[parent]) if parent >= 0 else _place_by_name(table, plain, own, outer_names)
        )
        module.append(table.child(within, plain[own]) if depth < MOST_LEVELS else within)
        level.append(depth + 1)
    return np.array(module, np.int64)
