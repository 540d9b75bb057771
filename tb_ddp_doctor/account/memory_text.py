"""Describes a job's memory, and snapshots of it, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from tb_ddp_doctor import step_parts, wording
from tb_ddp_doctor.findings import Memory, MemoryFailure, MemoryHolder, MemorySnapshot, Source

#: At most this many ranks with more memory than the median rank have a sentence each.
_RANKS = 4
#: At most this many blocks are named that keep a segment from being released.
_PLACES = 3
#: From this share of what is allocated on, blocks without stacks are said.
_MOST_WITHOUT_STACK = 0.1


def sentences(memory: Memory) -> list[str]:
    """The sentences on a job's memory: the peak, what is unusable, leaks, ranks with more, and larger batches."""
    peak, where = memory.peak, "the CPU" if memory.on_cpu else "the GPU"
    said = (
        f"{wording.size(peak.allocated)} allocated at the peak, on rank {peak.rank} in step {peak.step}, in "
        f"{peak.phase}"
    )
    if memory.on_cpu:
        said += f", on {where}, whose allocator counts from the beginning of the recording"
    else:
        of = f" of the GPU's {wording.size(memory.capacity)}" if memory.capacity else ""
        said += f". Reserved then: {wording.size(peak.reserved)}{of}; reserved but unallocated: "
        said += wording.size(memory.reserved_but_unallocated)
    lines = [f"{said}."]
    if memory.unusable:
        lines.append(
            f"The allocator reserved more although {wording.size(memory.unusable)} were reserved but unallocated: they "
            "were in pieces too small for what was asked for, so nothing could use them."
        )
    states = memory.states
    if memory.on_cpu and states.parameters and not peak.categories["parameters"]:
        kept = (
            f", and {states.optimizer}'s states {wording.size(states.optimizer_states)}"
            if states.optimizer_states
            else ""
        )
        lines.append(
            "Not counted, since it was there before: by the gradients' sizes, parameters take "
            f"{wording.size(states.parameters)}{kept}."
        )
    if growth := memory.growth:
        places = "; ".join(
            f"{place.op or 'an unknown op'}{_at(place.source)}: {wording.size(place.bytes)}" for place in growth.places
        )
        lines.append(
            f"Rank {growth.rank} has {wording.size(growth.bytes)} more allocated after each step: a leak, if it "
            "goes on." + (f" Allocated in most steps and not released: {places}." if places else "")
        )
    lines += [
        f"Rank {one.rank} has {wording.size(one.excess)} more than the median rank, most of it in "
        f"{step_parts.MEMORY[one.excess_category].title}."
        for one in memory.ranks
        if one.excess_category
    ][:_RANKS]
    if memory.largest_batch:
        lines.append(
            f"If activations and temporary memory grow with the batch, {wording.decimals(memory.largest_batch, 1)} "
            "times the batch fits in 90 % of the GPU."
        )
    return lines


def snapshot_sentences(one: MemorySnapshot) -> list[str]:
    """The sentences on a snapshot of torch.cuda.memory."""
    whose = f"Rank {one.rank}" if one.rank is not None else PurePath(one.file).name
    if not one.allocated and not one.failure:
        return [_nothing_allocated(whose, one)]
    parts = sorted(((size, name) for name, size in one.categories.items() if size), reverse=True)
    listed = wording.listing([f"{step_parts.MEMORY[name].title} {wording.size(size)}" for size, name in parts])
    lines = [
        f"{whose} has {wording.size(one.allocated)} allocated of {wording.size(one.reserved)} reserved"
        + (f": {listed}." if listed else ".")
    ]
    if len(one.devices) > 1:
        each = wording.listing([f"{wording.size(size)} on GPU {device}" for device, size in one.devices.items()])
        lines.append(f"The process has memory of {len(one.devices)} GPUs: {each}.")
    if one.without_stack > _MOST_WITHOUT_STACK * one.allocated:
        lines.append(
            f"{wording.size(one.without_stack)} of what is allocated has no stack, so what it is for is not known: "
            "torch.cuda.memory._record_memory_history(max_entries=100_000), called before the model is made, records "
            "stacks."
        )
    if one.free_blocks:
        lines.append(
            f"{wording.size(one.reserved_but_unallocated)} are reserved but unallocated, in {one.free_blocks} "
            f"block{'s' if one.free_blocks > 1 else ''}, the largest of {wording.size(one.largest_free)}."
        )
    if one.segments:
        worst = one.segments[0]
        kept = f", kept by {_places(worst.holders)}" if worst.holders else ""
        lines.append(
            f"Most of it in one segment: {wording.size(worst.inactive)} of {wording.size(worst.bytes)}, the largest "
            "piece "
            f"{wording.size(worst.largest_free)}{kept}."
        )
    if one.failure:
        lines.append(_failed(one, one.failure))
    return lines


def _failed(one: MemorySnapshot, failure: MemoryFailure) -> str:
    """What the last request that failed asked for and lacked."""
    asked = f"A request of {wording.size(failure.bytes)}{_at(failure.source)} failed"
    if failure.went_on:
        return f"{asked}, and the job went on: more than that was allocated since."
    gpu = f"GPU {failure.device}" if len(one.devices) > 1 else "the GPU"
    pools = (
        f" {wording.size(failure.free_in_pools)} are free in private pools, as those of CUDA graphs, which other "
        "requests do not get."
        if failure.free_in_pools
        else ""
    )
    if not failure.to_release:
        return (
            f"{asked}. When the snapshot was taken, as much was free in one place: it was released after the failure."
        )
    return (
        f"{asked}, with {wording.size(failure.device_free)} of {gpu} free. "
        f"For it {wording.size(failure.to_release)} would have to be released"
        + (", in whole segments" if failure.whole_segments else ", in one place")
        + (f": {_places(failure.holders)}." if failure.holders else ".")
        + pools
    )


def _nothing_allocated(whose: str, one: MemorySnapshot) -> str:
    """What is said of a snapshot in which no tensor has memory."""
    if not one.reserved:
        return (
            f"{whose} has nothing allocated or reserved: the snapshot was taken before the first tensor, or after the "
            "last one and torch.cuda.empty_cache()."
        )
    return (
        f"{whose} has nothing allocated, and {wording.size(one.reserved)} reserved in {one.free_blocks} "
        f"block{'s' if one.free_blocks > 1 else ''}: the snapshot was taken after all tensors were released. To see "
        "what needs the memory, take one while a step runs, or when memory runs out."
    )


def _places(holders: Sequence[MemoryHolder]) -> str:
    """The largest of some allocations, each with its category, place and size."""
    return wording.listing(
        [
            f"{step_parts.MEMORY[each.category].title}{_at(each.source)} ({wording.size(each.bytes)})"
            for each in holders[:_PLACES]
        ]
    )


def _at(source: Source | None) -> str:
    return f" at {source.file}:{source.line} ({source.function})" if source else ""
