"""See `MemoryFragmentation`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.memory import MemoryUse
from tb_ddp_doctor.facts.modules import ModuleMemoryTree, ModuleTree
from tb_ddp_doctor.findings import Confidence, Memory
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules.support import layers
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.step_parts import MEMORY
from tb_ddp_doctor.trace.model import Floats


class MemoryFragmentation(Rule):
    """GPU memory is fragmented: reserved but unallocated memory in pieces that cannot be used.

    What:
        Memory that the allocator reserves in steady steps although enough of it is reserved but unallocated, in pieces
        (cause growing); memory that is reserved but unallocated even at the peak of allocated memory (unused); memory
        that is nearly full (near_limit).
    Why:
        PyTorch's allocator serves a request from one free block. If tensors of many sizes are freed beside some that
        stay, free blocks become many and small, and the allocator calls cudaMalloc. If the GPU has no memory left, it
        frees what it can, which syncs the GPU, or the job ends with "out of memory".
    Evidence:
        The step in which the worst rank reserves most, or has most allocated. Reserved although enough is free: a
        request of 1 MB or more that led to cudaMalloc while as many bytes were reserved but unallocated.
    Fix:
        Expandable segments; few shapes; no small tensors that stay allocated between large ones.
    Limits:
        Fragmentation alone costs no time, so it is info: what freeing and reallocating costs is allocator-churn's.
        Blocks of one stream do not serve another, which looks the same. Memory of other processes, or allocated outside
        PyTorch (NCCL's buffers), is not seen.
    """

    id = "memory-fragmentation"
    subject = "Memory fragmentation"
    of_every_device = True

    min_growth: float = threshold(
        0.005,
        "of reserved memory, a step",
        "At this rate, 200 steps double reserved memory; steady jobs reserve no more.",
    )
    min_unused: float = threshold(0.2, "of reserved memory", "Rounding and partly used segments take up to a tenth.")
    min_unused_gb: float = threshold(1.0, "GB", "In jobs that reserve little, single segments of 20 MB matter.")
    near_limit: float = threshold(0.9, "of the GPU's memory", "CUDA and NCCL themselves need some gigabytes.")

    def check(
        self,
        *,
        frame: Frame,
        memory: MemoryUse,
        memory_contents: Memory | None,
        modules: ModuleTree | None,
        of_modules: ModuleMemoryTree | None,
        places: Places,
    ) -> Result:
        reserved = memory.peak_reserved.max(axis=1)
        growth = self._growth(memory)
        unused = np.median(memory.reserved_at_peak - memory.peak_allocated, axis=1)
        is_growing = growth > self.min_growth * reserved
        is_unused = (unused > self.min_unused * reserved) & (unused > self.min_unused_gb * 1e9)
        is_full = (memory.capacity > 0) & (reserved > self.near_limit * memory.capacity)
        worst = int((is_growing * 4 + is_unused * 2 + is_full + reserved / (reserved.max() + 1)).argmax())
        amount = f"{wording.size(reserved[worst])} of GPU memory"
        if not (is_growing | is_unused | is_full).any():
            return Clear(
                f"Rank {frame.ranks[worst]} reserves {amount}, {wording.size(unused[worst])} more than is allocated "
                "at the peak, and reserves no more while enough is unallocated."
            )
        cause, level, what = self._cause(
            bool(is_growing[worst]), bool(is_unused[worst]), float(growth[worst]), float(unused[worst])
        )
        ranks = np.flatnonzero({"growing": is_growing, "unused": is_unused, "near_limit": is_full}[cause])
        step = int((memory.scattered if cause == "growing" else memory.peak_allocated)[worst].argmax())
        limit = f" of the GPU's {wording.size(memory.capacity[worst])}" if memory.capacity[worst] else ""
        return Fault(
            change=Change(),
            ranks=frame.rank_numbers(ranks),
            cause=cause,
            confidence=level,
            title=f"Rank {frame.ranks[worst]} reserves {amount}{what}.",
            why=f"Allocated at the peak: {wording.size(memory.peak_allocated[worst].max())}"
            f"{_made_of(memory_contents, int(frame.ranks[worst]))}.{layers.at_peak(modules, of_modules, worst)} "
            f"Reserved: {wording.size(reserved[worst])}{limit}. "
            f"{_unusable(memory, worst, len(frame.steps))}{_grows(memory_contents)}{_OUTLOOK[bool(is_full[worst])]}"
            f"{_would_save(memory_contents) if cause != 'growing' else ''}",
            fix=_FULL if cause == "near_limit" else _FIX,
            evidence=(places.window(worst, step, _SHOWS[cause]),),
        )

    def _growth(self, memory: MemoryUse) -> Floats:
        """Bytes that each rank takes in a step while enough is free, shape (R,); 0 where most steps take none.

        Steps that give memory back take it again: that is allocator-churn's.
        """
        taken = np.where(memory.released > 0, 0, memory.scattered)
        grows = (taken > 0).mean(axis=1) >= 0.5
        return np.where(grows, taken.mean(axis=1), 0.0)

    def _cause(self, is_growing: bool, is_unused: bool, growth: float, unused: float) -> tuple[str, Confidence, str]:
        """The cause, how sure it is, and what is said of reserved memory."""
        if is_growing:
            return "growing", "high", f" and {wording.size(growth)} more in each step, although enough is unallocated"
        if is_unused:
            # A larger step before the trace, say of an evaluation, may have needed it.
            return "unused", "medium", f", of which {wording.size(unused)} are unallocated even at the peak"
        return "near_limit", "high", f", which is more than {wording.percent(self.near_limit)} of all"


def _made_of(contents: Memory | None, rank: int) -> str:
    """What most of a rank's allocated memory is, in brackets; "" if it is not known."""
    for one in contents.ranks if contents else ():
        if one.rank == rank:
            most = sorted(one.categories.items(), key=lambda item: -item[1])[:_NAMED]
            parts = [f"{MEMORY[name].title} {wording.size(size)}" for name, size in most if size]
            return f" ({wording.listing(parts)})" if parts else ""
    return ""


def _unusable(memory: MemoryUse, worst: int, steps: int) -> str:
    """What was reserved although enough was reserved but unallocated, a sentence and a space; "" if nothing was."""
    added = memory.scattered[worst]
    if not added.any():
        return ""
    seen = wording.steps_seen(int((added > 0).sum()), steps)
    return (
        f"{wording.size(added.sum())} of it were added in {seen}, while up to "
        f"{wording.size(memory.unusable[worst].max())} were reserved but unallocated, in pieces too small to use. "
    )


def _grows(contents: Memory | None) -> str:
    """Whether allocated memory grows too, a sentence and a space."""
    growth = contents.growth if contents else None
    if growth is None:
        return ""
    by = f", allocated by {growth.places[0].op}" if growth.places and growth.places[0].op else ""
    return f"Allocated memory grows too, by {wording.size(growth.bytes)} a step on rank {growth.rank}{by}. "


def _would_save(contents: Memory | None) -> str:
    """What would save most of allocated memory, a space and a sentence."""
    named = [
        f"{one.title} ({wording.size(one.bytes)}, "
        f"{f'{wording.duration(one.cost_ms)} a step' if one.cost_ms else 'no cost'})"
        for one in (contents.savings if contents else ())
        if one.cost_ms is not None
    ][:_NAMED]
    return f" What saves most: {'; '.join(named)}." if named else ""


#: Categories and savings that are named.
_NAMED = 3
_SHOWS = {
    "growing": "Memory is reserved here although enough is unallocated.",
    "unused": "Allocated memory peaks here, and much of the reserved memory is unallocated.",
    "near_limit": "Allocated memory peaks here.",
}
_OUTLOOK = {
    False: "The GPU has memory left: it costs no time yet.",
    True: "GPU memory is nearly full: soon memory is freed and reallocated, or runs out.",
}

_FIX = """\
Use expandable segments, so that free pieces join. Pad inputs to a few lengths, allocate first what stays (optimizer \
state, buffers), and keep no views of large tensors: they keep the whole tensor.

PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...

torch.cuda.memory._record_memory_history()         # who allocates what:
...
torch.cuda.memory._dump_snapshot("memory.pickle")  # look at it at pytorch.org/memory_viz"""

_FULL = """\
Use less memory: recompute activations, shard the optimizer's state, lower the batch size a little. Use expandable \
segments, so that unallocated memory can be used.

PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...

torch.cuda.memory_stats()["num_alloc_retries"]  # above 0: GPU memory was full"""
