"""A rank's memory, step by step: how much is allocated, of what, and how much is reserved beside it.

The caching allocator serves requests from blocks that it reserved and that are free. It asks the device for more only
where no free block is large enough: if as many free bytes were reserved as were asked for, they were in pieces.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.allocator import BEFORE, ON_CPU, Allocations, AllocatorEvents, Blocks
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.memory_categories import PhaseRuns, categories, gradient_blocks
from tb_ddp_doctor.digest.memory_places import AllocationPlaces, kept, largest, modules
from tb_ddp_doctor.digest.model import (
    AllocatorMemory,
    Collectives,
    KeptBlocks,
    LargestBlocks,
    MemoryCategory,
    ModuleMemory,
    StateBytes,
    Steps,
)
from tb_ddp_doctor.digest.model_states import persistent, states
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase

#: Smaller requests are served from a pool of their own, in segments of 2 MB, whatever is free elsewhere, bytes.
_LARGE = 1 << 20
#: Points of the series: one for each pixel or two of a plot.
POINTS = 256
#: Torch's CUDA allocator serves multiples of this, bytes.
_ROUNDED = 512


def no_memory(steps: int) -> AllocatorMemory:
    """Of a trace without what the allocator did."""
    unknown, zero, nothing = np.full(steps, -1, np.int64), np.zeros(steps, np.int64), np.empty(0, np.int64)
    kinds, phases = len(MemoryCategory), len(Phase)
    return AllocatorMemory(
        on_host=False,
        peak_allocated=unknown,
        reserved_at_peak=unknown,
        peak_ns=unknown,
        peak_phase=unknown,
        categories=np.zeros((steps, kinds), np.int64),
        category_peaks=np.zeros((steps, kinds), np.int64),
        phase_change=np.zeros((steps, phases), np.int64),
        phase_peak=np.full((steps, phases), -1, np.int64),
        end_allocated=nothing,
        peak_reserved=unknown,
        scattered=zero,
        unusable=zero,
        released=zero,
        time_ns=nothing,
        allocated=nothing,
        reserved=nothing,
        series=np.zeros((0, kinds), np.int64),
        states=StateBytes(-1, -1, -1, 0, ""),
        largest=empty(LargestBlocks),
        kept=empty(KeptBlocks),
        modules=empty(ModuleMemory),
    )


def memory(
    host: HostCalls,
    device: int,
    allocations: Allocations,
    steps: Steps,
    phases: HostPhases,
    collectives: Collectives,
    words: Vocabulary,
) -> AllocatorMemory:
    """The memory of a device (`ON_CPU`: the CPU's) in each step, by the host's windows: the allocator works when the
    host does.
    """
    events, each, step, peak = allocations.events, allocations.blocks, allocations.step, allocations.peak
    size = len(steps)
    if not len(events) or not size:
        return no_memory(size)
    runs = PhaseRuns.of(phases, events)
    category = categories(each, runs, _communicates(host, events, each))
    gradients = int(gradient_blocks(category, each, runs.at(each.born)).sum())
    model = states(host, phases, collectives, words.strings(), gradients)
    content = _content(events, each, category, model, has_buckets=_has_buckets(collectives, words))
    seen, at, alive = peak >= 0, np.maximum(peak, 0), allocations.alive()
    shown = _shown(events.time_ns, events.allocated)
    places = AllocationPlaces.of(host, events, each)
    # Without marked steps, what precedes the first update sets all up, and what follows the last one is cut off.
    turn = step if size > 1 else runs.updates_until(runs.of_event) - 1
    change, most = _by_phase(step, runs.event_phase, events, size)
    return AllocatorMemory(
        on_host=device == ON_CPU,
        peak_allocated=np.where(seen, events.allocated[at], -1),
        reserved_at_peak=np.where(seen, events.reserved[at], -1),
        peak_ns=np.where(seen, events.time_ns[at], -1),
        peak_phase=np.where(seen, runs.event_phase[at], -1),
        categories=np.where(seen[:, None], content[at], 0),
        category_peaks=_peak_of_each(step, content, size),
        phase_change=change,
        phase_peak=most,
        end_allocated=events.allocated[_ends(turn)[: None if size > 1 else -1]],
        **_reserving(events, step, size),
        time_ns=events.time_ns[shown],
        allocated=events.allocated[shown],
        reserved=events.reserved[shown],
        series=content[shown],
        states=model,
        largest=largest(places, category, runs, alive, words),
        kept=kept(places, category, turn, words),
        modules=modules(places, alive[category[alive] == MemoryCategory.ACTIVATION], words),
    )


def _reserving(events: AllocatorEvents, step: Ints, size: int) -> dict[str, Ints]:
    """Of each step: the most that is reserved, what is reserved although as much is free, but scattered, how much that
    is at most, and what is released; shape (S,), bytes.
    """
    added = np.diff(events.reserved, prepend=events.reserved[:1])
    free = np.concatenate(([0], (events.reserved - events.allocated)[:-1]))
    scattered = (added > 0) & (events.bytes >= _LARGE) & (free >= events.bytes)
    return {
        "peak_reserved": _most(step, events.reserved, size),
        "scattered": summed(step, np.where(scattered, added, 0), size),
        "unusable": np.maximum(_most(step, np.where(scattered, free, 0), size), 0),
        "released": summed(step, np.maximum(-added, 0), size),
    }


def _content(events: AllocatorEvents, each: Blocks, category: Ints, model: StateBytes, *, has_buckets: bool) -> Ints:
    """What is allocated after each event, by category, shape (events, len(MemoryCategory)); rows sum to it."""
    kinds, count = len(MemoryCategory), len(events)
    change = np.zeros((count + 1, kinds), np.int64)
    first = np.zeros(kinds, np.int64)
    seen = each.born != BEFORE
    change[each.born[seen], category[seen]] += each.bytes[seen]
    change[each.died, category] -= each.bytes
    np.add.at(first, category[~seen], each.bytes[~seen])
    content = first + np.cumsum(change[:-1], axis=0)
    rest = events.allocated - content.sum(axis=1)
    base = max(int(rest.min()), 0)
    # Parameters stay, gradients come again in each step: their most is what the recording shows of them.
    content += persistent(base, model, content.max(axis=0), has_buckets)
    content[:, MemoryCategory.OTHER] += rest - base
    return _without_negatives(content)


def _without_negatives(content: Ints) -> Ints:
    """The same sums without negative parts, which come of lost events: the largest parts make up for them."""
    odd = np.flatnonzero((content < 0).any(axis=1))
    if len(odd):
        rows = content[odd]
        lacking = -np.minimum(rows, 0).sum(axis=1)
        rows = np.maximum(rows, 0)
        for kind in np.argsort(-rows.sum(axis=0)):
            taken = np.minimum(rows[:, kind], lacking)
            rows[:, kind] -= taken
            lacking -= taken
        content[odd] = rows
    return content


def _communicates(host: HostCalls, events: AllocatorEvents, each: Blocks) -> Mask:
    """Which blocks an all-gather fills or a reduce-scatter reads: of the size of its message, the last one before."""
    comms, strings = host.trace.comms, host.trace.strings
    communicates = np.zeros(len(each), np.bool_)
    kind_of = {name: names.collective(strings[name]) for name in np.unique(comms.collective).tolist() if name >= 0}
    wanted = [name for name, kind in kind_of.items() if kind in ("all_gather", "reduce_scatter")]
    calls = np.flatnonzero(np.isin(comms.collective, wanted) & (host.index[comms.event] >= 0))
    if not len(calls):
        return communicates
    width = [max(0, names.element_bytes(strings[dtype])) if dtype >= 0 else 0 for dtype in comms.dtype[calls].tolist()]
    elements = np.maximum(comms.elements_in[calls], comms.elements_out[calls])
    size = -(-elements * np.array(width) // _ROUNDED) * _ROUNDED
    instant = host.start_ns[host.index[comms.event[calls]]]
    seen = np.flatnonzero(each.born != BEFORE)
    for wanted_size in np.unique(size[size > 0]).tolist():
        same = seen[each.bytes[seen] == wanted_size]
        if len(same):
            at = searchsorted(events.time_ns[each.born[same]], instant[size == wanted_size], side="right") - 1
            chosen = same[at[at >= 0]]
            died = np.append(events.time_ns, np.iinfo(np.int64).max)[each.died[chosen]]
            communicates[chosen[died >= instant[size == wanted_size][at >= 0]]] = True
    return communicates


def _has_buckets(collectives: Collectives, words: Vocabulary) -> bool:
    """Whether gradients are all-reduced during backward, as DDP does from buckets of its own."""
    kinds = np.array(words.strings(), object)[collectives.kind] if len(collectives) else np.empty(0, object)
    return bool(((kinds == "all_reduce") & (collectives.backward >= 0)).any())


def _by_phase(step: Ints, phase: Ints, events: AllocatorEvents, size: int) -> tuple[Ints, Ints]:
    """Change and peak of allocated memory, shape (size, len(Phase)) each; a peak of -1 where nothing happens."""
    change, most = np.zeros((size, len(Phase)), np.int64), np.full((size, len(Phase)), -1, np.int64)
    inside = step >= 0
    np.add.at(change, (step[inside], phase[inside]), events.bytes[inside])
    np.maximum.at(most, (step[inside], phase[inside]), events.allocated[inside])
    return change, most


def _peak_of_each(step: Ints, content: Ints, steps: int) -> Ints:
    """The most of each column in each step, shape (steps, columns); 0 for none."""
    peaks = np.zeros((steps, content.shape[1]), np.int64)
    inside = np.flatnonzero(step >= 0)
    if len(inside):
        first = np.flatnonzero(np.diff(step[inside], prepend=-1))
        peaks[step[inside[first]]] = np.maximum.reduceat(content[inside], first, axis=0)
    return peaks


def _ends(turn: Ints) -> Ints:
    """The last event of each turn, ascending; -1 is none."""
    inside = np.flatnonzero(turn >= 0)
    return inside[np.flatnonzero(np.diff(turn[inside], append=-1))]


def _most(step: Ints, values: Ints, steps: int) -> Ints:
    """The largest value of each step; -1 for none."""
    most = np.full(steps, -1, np.int64)
    np.maximum.at(most, step[step >= 0], values[step >= 0])
    return most


def _shown(time: Ints, allocated: Ints) -> Ints:
    """The events with most allocated in each of `POINTS` equal stretches of time, ascending."""
    width = max(int(time[-1]) - int(time[0]), 1) // POINTS + 1
    stretch = (time - time[0]) // width
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    peak = np.repeat(np.maximum.reduceat(allocated, starts), np.diff(starts, append=len(time)))
    at = np.flatnonzero(allocated == peak)
    return at[np.unique(stretch[at], return_index=True)[1]]
