"""What is said of a job's memory, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from tb_ddp_doctor import step_parts, wording
from tb_ddp_doctor.findings import Memory, MemoryHolder, MemorySnapshot, Source

#: Ranks with more than their peers that have a sentence each.
_RANKS = 4
#: Holders of a segment that are named.
_PLACES = 3


def sentences(memory: Memory) -> list[str]:
    """What is said of a job's memory, a sentence or two for each thing."""
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
    found = [f"{said}."]
    if memory.unusable:
        found.append(
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
        found.append(
            f"Not counted, since it was there before: by the gradients' sizes, parameters take "
            f"{wording.size(states.parameters)}{kept}."
        )
    if growth := memory.growth:
        places = "; ".join(
            f"{place.op or 'an unknown op'}{_at(place.source)}: {wording.size(place.bytes)}" for place in growth.places
        )
        found.append(
            f"Rank {growth.rank} has {wording.size(growth.bytes)} more allocated after each step: a leak, if it "
            "goes on." + (f" Allocated in most steps and not released: {places}." if places else "")
        )
    found += [
        f"Rank {one.rank} has {wording.size(one.excess)} more than the median rank, most of it in "
        f"{step_parts.MEMORY[one.excess_category].title}."
        for one in memory.ranks
        if one.excess_category
    ][:_RANKS]
    if memory.largest_batch:
        found.append(
            f"If activations and temporary memory grow with the batch, {memory.largest_batch:.1f} times the batch fits "
            "in 90 % of the GPU."
        )
    return found


def snapshot_sentences(one: MemorySnapshot) -> list[str]:
    """What is said of a snapshot of torch.cuda.memory."""
    whose = f"Rank {one.rank}" if one.rank is not None else "A rank"
    parts = sorted(((size, name) for name, size in one.categories.items() if size), reverse=True)
    listed = wording.listing([f"{step_parts.MEMORY[name].title} {wording.size(size)}" for size, name in parts])
    found = [
        f"{whose} has {wording.size(one.allocated)} allocated of {wording.size(one.reserved)} reserved"
        + (f": {listed}." if listed else ".")
    ]
    if one.free_blocks:
        found.append(
            f"{wording.size(one.reserved_but_unallocated)} are reserved but unallocated, in {one.free_blocks} "
            f"block{'s' if one.free_blocks > 1 else ''}, the largest of {wording.size(one.largest_free)}."
        )
    if one.segments:
        worst = one.segments[0]
        kept = f", kept by {_held(worst.holders)}" if worst.holders else ""
        found.append(
            f"Most of it in one segment: {wording.size(worst.inactive)} of {wording.size(worst.bytes)}, the largest "
            "piece "
            f"{wording.size(worst.largest_free)}{kept}."
        )
    if failure := one.failure:
        found.append(
            f"A request of {wording.size(failure.bytes)}{_at(failure.source)} failed, with "
            f"{wording.size(failure.device_free)} of the GPU free. "
            f"For it {wording.size(failure.to_release)} would have to be released"
            + (", in whole segments" if failure.whole_segments else ", in one place")
            + (f": {_held(failure.holders)}." if failure.holders else ".")
        )
    return found


def _held(holders: Sequence[MemoryHolder]) -> str:
    return wording.listing(
        [
            f"{step_parts.MEMORY[each.category].title}{_at(each.source)} ({wording.size(each.bytes)})"
            for each in holders[:_PLACES]
        ]
    )


def _at(source: Source | None) -> str:
    return f" at {source.file}:{source.line} ({source.function})" if source else ""
