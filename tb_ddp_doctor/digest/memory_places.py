"""Where memory is allocated: the op, the module and the user's own function around it.

Modules and functions are told where stacks are recorded (with_stack=True). The backward pass, on a thread without
Python, has no calls of modules; its functions are those of forward.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import numpy as np

from tb_ddp_doctor.digest.allocator import BEFORE, AllocatorEvents, Blocks
from tb_ddp_doctor.digest.frames import own_function
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.memory_categories import PhaseRuns
from tb_ddp_doctor.digest.model import KeptBlocks, LargestBlocks, MemoryCategory, ModuleMemory
from tb_ddp_doctor.digest.nesting import around, enclosing
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Indices, Ints

#: Allocations that are named at the peak; places at which memory is kept, and classes of modules, that are told.
LARGEST, _PLACES, _MODULES = 10, 20, 20
_OF_THE_MODEL = (MemoryCategory.PARAMETER, MemoryCategory.GRADIENT, MemoryCategory.OPTIMIZER_STATE)
#: Modules within modules: deeper ones count for those that far out.
_DEEPEST = 64
_NUMBER = re.compile(r"_\d+\Z")


class CallsOfModules(ColumnTable, frozen=True, eq=False):
    """Calls of modules, by thread and start; shape (calls,)."""

    #: Index into `trace.strings`.
    name: Indices
    start_ns: Ints
    end_ns: Ints
    thread: Indices
    #: The call around it, -1 for none.
    parent: Ints

    @classmethod
    def of(cls, host: HostCalls) -> CallsOfModules:
        """Those of a rank that last (`trace.model.Frames`)."""
        frames = host.trace.frames
        named = np.array([names.is_module(text) for text in host.trace.strings], np.bool_)
        rows = np.flatnonzero(named[frames.name]) if len(frames) else np.empty(0, np.int64)
        rows = rows[np.lexsort((-frames.duration_ns[rows], frames.start_ns[rows], frames.thread[rows]))]
        start, thread = frames.start_ns[rows], frames.thread[rows]
        end = start + frames.duration_ns[rows]
        return cls(frames.name[rows], start, end, thread, around(start, end, thread))


class AllocationPlaces(msgspec.Struct, frozen=True, eq=False):
    """Where blocks are allocated: the op, the module and the user's own function around it."""

    host: HostCalls
    events: AllocatorEvents
    blocks: Blocks
    modules: CallsOfModules
    #: Which calls say what memory is for.
    names_place: Mask

    @classmethod
    def of(cls, host: HostCalls, events: AllocatorEvents, blocks: Blocks) -> AllocationPlaces:
        """Those of some blocks."""
        names_place = host.is_operator & ~host.named(names.only_allocates)
        return cls(host, events, blocks, CallsOfModules.of(host), names_place)

    def ops(self, chosen: Ints) -> list[str]:
        """The op of each chosen block."""
        instant, thread = self._when(chosen)
        call = np.full(len(chosen), -1, np.int64)
        for one in np.unique(thread).tolist():
            here = thread == one
            call[here] = self.host.innermost(instant[here], one, self.names_place)
            lacks = np.flatnonzero(here & (call < 0))
            call[lacks] = self.host.innermost(instant[lacks], one, self.host.is_operator)
        return self.host.texts(call)

    def module(self, chosen: Ints) -> Ints:
        """The innermost call in `modules` around each chosen block; -1 for none."""
        calls = self.modules
        return enclosing(calls.start_ns, calls.end_ns, calls.thread, *self._when(chosen))

    def own(self, chosen: Ints) -> Ints:
        """The user's own function around each chosen block, an index into `trace.strings` or -1."""
        return own_function(self.host, *self._when(chosen))

    def texts(self, indices: Iterable[int]) -> list[str]:
        """Strings of the trace, "" for -1."""
        return [self.host.trace.strings[index] if index >= 0 else "" for index in indices]

    def _when(self, chosen: Ints) -> tuple[Ints, Indices]:
        born = self.blocks.born[chosen]
        return self.events.time_ns[born], self.events.thread[born]


def largest(places: AllocationPlaces, category: Ints, runs: PhaseRuns, alive: Ints, words: Vocabulary) -> LargestBlocks:
    """The largest of the blocks that are alive."""
    each = places.blocks
    alive = alive[each.born[alive] != BEFORE]
    chosen = alive[np.argsort(-each.bytes[alive], kind="stable")[:LARGEST]]
    name = np.append(places.modules.name, -1)[places.module(chosen)]
    return LargestBlocks(
        bytes=each.bytes[chosen],
        category=category[chosen].astype(np.int32),
        phase=runs.event_phase[each.born[chosen]].astype(np.int32),
        op=words.indices(places.ops(chosen)),
        module=words.indices(map(names.module_name, places.texts(name.tolist()))),
        own=words.indices(places.texts(places.own(chosen).tolist())),
    )


def kept(places: AllocationPlaces, category: Ints, turn: Ints, words: Vocabulary) -> KeptBlocks:
    """What is allocated in a turn (a step, or an update) but the last, and stays without being a part of the model."""
    each = places.blocks
    lasting = (each.died == len(places.events)) & (each.born != BEFORE)
    lasting &= ~np.isin(category, _OF_THE_MODEL)
    chosen = np.flatnonzero(lasting)
    of = turn[each.born[chosen]]
    # What the last one leaves may yet be released.
    inside = (of >= 0) & (of < turn.max(initial=0))
    chosen, of = chosen[inside], of[inside]
    texts = list(zip(places.ops(chosen), places.texts(places.own(chosen).tolist()), strict=True))
    kinds = {place: index for index, place in enumerate(dict.fromkeys(texts))}
    which = np.array([kinds[place] for place in texts], np.int64)
    total, count = summed(which, each.bytes[chosen], len(kinds)), np.bincount(which, minlength=len(kinds))
    pairs = np.unique(np.stack([which, of]), axis=1)
    steps = np.bincount(pairs[0], minlength=len(kinds))
    most = np.argsort(-total, kind="stable")[:_PLACES]
    listed = list(kinds)
    return KeptBlocks(
        op=words.indices(listed[index][0] for index in most.tolist()),
        own=words.indices(listed[index][1] for index in most.tolist()),
        count=count[most].astype(np.int64),
        bytes=total[most],
        steps=steps[most].astype(np.int64),
    )


def modules(places: AllocationPlaces, alive: Ints, words: Vocabulary) -> ModuleMemory:
    """The chosen activations by class of module: each counts for all modules around it."""
    blocks, calls = places.blocks, places.modules
    alive = alive[blocks.born[alive] != BEFORE]
    at = places.module(alive)
    size, output, last = (np.zeros(len(calls), np.int64) for _ in range(3))
    for _ in range(_DEEPEST):
        inside = at >= 0
        if not inside.any():
            break
        alive, at = alive[inside], at[inside]
        np.add.at(size, at, blocks.bytes[alive])
        # By birth: the last one of each call stays.
        later = blocks.born[alive] > last[at]
        last[at[later]], output[at[later]] = blocks.born[alive[later]], blocks.bytes[alive[later]]
        at = calls.parent[at]
    allocated = np.flatnonzero(size)
    text = [_NUMBER.sub("", names.module_name(name)) for name in places.texts(calls.name[allocated].tolist())]
    kinds = {name: index for index, name in enumerate(dict.fromkeys(text))}
    which = np.array([kinds[name] for name in text], np.int64)

    def total(values: Ints) -> Ints:
        return summed(which, values[allocated], len(kinds))

    largest = np.zeros(len(kinds), np.int64)
    np.maximum.at(largest, which, size[allocated])
    allocated_bytes = total(size)
    most = np.argsort(-allocated_bytes, kind="stable")[:_MODULES]
    listed = list(kinds)
    return ModuleMemory(
        module=words.indices(listed[index] for index in most.tolist()),
        count=np.bincount(which, minlength=len(kinds))[most].astype(np.int64),
        bytes=allocated_bytes[most],
        largest_bytes=largest[most],
        output_bytes=total(output)[most],
        forward_ns=total(calls.end_ns - calls.start_ns)[most],
    )
