"""See `MemoryFragmentation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.memory import MemoryUse
from tb_ddp_doctor.findings import Confidence
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MemoryFragmentation(Rule):
    """The allocator holds device memory in pieces that nobody can use.

    What:
        Memory that is taken from the device in steady steps although enough is free, but in pieces (cause growing);
        memory that is held and not in use even when most is (unused); memory that is nearly full (near_limit).
    Why:
        PyTorch's allocator serves a request from one free block. Where tensors of many sizes come and go beside some
        that stay, free blocks become many and small, and it asks the device for more, until that has none: then it
        frees what it can, which stops the device, or the job ends with "out of memory".
    Evidence:
        The step in which the worst rank takes most, or has most in use. Taken although enough is free: a request of
        1 MB or more for which the allocator asked the device while it held as many free bytes.
    Fix:
        Segments that can grow; few shapes; nothing small that stays allocated between large tensors.
    Limits:
        It costs no time by itself, so it is told for information: what freeing and allocating anew costs is
        allocator-churn's. Blocks of one stream do not serve another, which looks the same. Memory that other
        processes have, or that was allocated past PyTorch (NCCL's buffers), is not seen.
    """

    id: ClassVar[str] = "memory-fragmentation"
    of_every_device: ClassVar[bool] = True

    min_growth: float = threshold(
        0.005, "of what is held, a step", "At this rate, 200 steps double what is held; steady jobs take nothing."
    )
    min_unused: float = threshold(0.2, "of what is held", "Rounding and partly used segments take up to a tenth.")
    min_unused_gb: float = threshold(1.0, "GB", "Jobs that hold little have segments of 20 MB to spare.")
    near_limit: float = threshold(0.9, "of the device's memory", "CUDA and NCCL need some gigabytes themselves.")

    def check(self, *, frame: Frame, memory: MemoryUse, places: Places) -> Result:
        held = memory.peak_reserved.max(axis=1)
        growth = self._growth(memory)
        unused = np.median(memory.reserved_at_peak - memory.peak_allocated, axis=1)
        is_growing = growth > self.min_growth * held
        is_unused = (unused > self.min_unused * held) & (unused > self.min_unused_gb * 1e9)
        is_full = (memory.capacity > 0) & (held > self.near_limit * memory.capacity)
        worst = int((is_growing * 4 + is_unused * 2 + is_full + held / (held.max() + 1)).argmax())
        holds = f"{text.gigabytes(held[worst])} of device memory"
        if not (is_growing | is_unused | is_full).any():
            return Clear(
                f"Rank {frame.ranks[worst]} holds {holds}, {text.gigabytes(unused[worst])} more than it has in use "
                "at most, and takes no more while enough is free."
            )
        cause, level, what = self._cause(
            bool(is_growing[worst]), bool(is_unused[worst]), float(growth[worst]), float(unused[worst])
        )
        ranks = np.flatnonzero({"growing": is_growing, "unused": is_unused, "near_limit": is_full}[cause])
        step = int((memory.scattered if cause == "growing" else memory.peak_allocated)[worst].argmax())
        limit = f" of the device's {text.gigabytes(memory.capacity[worst])}" if memory.capacity[worst] else ""
        return Fault(
            change=Change(),
            ranks=frame.rank_numbers(ranks),
            steps=frame.all_steps,
            cause=cause,
            confidence=level,
            title=f"Rank {frame.ranks[worst]} holds {holds}{what}.",
            why=f"At most {text.gigabytes(memory.peak_allocated[worst].max())} are in use; "
            f"{text.gigabytes(held[worst])}{limit} are held, {text.gigabytes(memory.scattered[worst].sum())} of them "
            f"taken in {text.steps_seen(int((memory.scattered[worst] > 0).sum()), len(frame.steps))} while as much "
            f"was free, in pieces. {_OUTLOOK[bool(is_full[worst])]}",
            fix=_FULL if cause == "near_limit" else _FIX,
            evidence=(places.window(worst, step, _SHOWS[cause]),),
        )

    def _growth(self, memory: MemoryUse) -> Floats:
        """Bytes that each rank takes in a step while enough is free, shape (R,); 0 where most steps take none.

        Steps that give memory back take it again: that is allocator-churn's.
        """
        taken = np.where(memory.released > 0, 0, memory.scattered)
        usual = (taken > 0).mean(axis=1) >= 0.5
        growth: Floats = np.where(usual, taken.mean(axis=1), 0.0)
        return growth

    def _cause(self, is_growing: bool, is_unused: bool, growth: float, unused: float) -> tuple[str, Confidence, str]:
        """The cause, how sure it is, and what is said of the memory held."""
        if is_growing:
            return "growing", "high", f" and takes {text.gigabytes(growth)} more in a step, although enough is free"
        if is_unused:
            # A larger step before the trace, say of an evaluation, may have needed it.
            return "unused", "medium", f", of which {text.gigabytes(unused)} are not in use even when most is"
        return "near_limit", "high", f", which is more than {text.percent(self.near_limit)} of what there is"


_SHOWS = {
    "growing": "Memory is taken from the device although enough is free.",
    "unused": "Most memory is in use here, and much of what is held is not.",
    "near_limit": "Most memory is in use here.",
}
_OUTLOOK = {
    False: "The device still has some: it costs nothing yet.",
    True: "The device is nearly full: soon memory is freed and allocated anew, or runs out.",
}

_FIX = """\
Let segments grow, so that free pieces join. Pad inputs to a few lengths, allocate first what stays (optimizer state, \
buffers), and keep no views of large tensors: they keep the whole tensor.

PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...

torch.cuda.memory._record_memory_history()         # who allocates what:
...
torch.cuda.memory._dump_snapshot("memory.pickle")  # look at it at pytorch.org/memory_viz"""

_FULL = """\
Leave room: recompute activations, shard the optimizer's state, lower the batch size a little. Let segments grow, so \
that what is free can be used.

PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...

torch.cuda.memory_stats()["num_alloc_retries"]  # above 0: the device was full"""
