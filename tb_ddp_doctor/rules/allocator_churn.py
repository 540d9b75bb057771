"""See `AllocatorChurn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tb_ddp_doctor.digest.model import CpuTime, Starved
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import Starvation
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.rules.support import blocking_calls, text
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


@dataclass(frozen=True)
class AllocatorChurn(Rule):
    """Device memory is allocated and freed in every step, and the device waits for it.

    What:
        cudaMalloc, cudaFree and their kin (HIP's, the driver's, pinned host memory) in steady steps, with the device
        idle within them or starved after them.
    Why:
        A call takes about a tenth of a millisecond, cudaFree also waits for the device. PyTorch's caching allocator
        calls them only until it has met the largest step: after that they mean that the cache is emptied, that memory
        is nearly full so that blocks are freed and allocated anew, or that shapes grow.
    Evidence:
        For each of the costliest calls, by the operator around it, the one that starves the device longest. The cost
        is what the device starves for these calls and would not if the host had come earlier by as long as they held
        it.
    Fix:
        No empty_cache() in the loop; segments that can grow; padding to few shapes; fewer bytes.
    Limits:
        The first steps of a job allocate rightly: trace steady ones. What the calls cost other processes of the same
        device is not seen.
    """

    id: ClassVar[str] = "allocator-churn"
    looks_again: ClassVar[bool] = True

    min_cost: float = threshold(0.005, "of the step", "Below it a few allocations in a step are not worth a line.")

    def check(self, *, frame: Frame, whatif: WhatIf, starvation: Starvation, places: Places) -> Result:
        calls = starvation.calls(Starved.ALLOC)
        if not calls:
            return Clear("No device memory is allocated or freed in the steps.")
        starved = starvation.of(Starved.ALLOC)
        change = whatif.without(CpuTime.ALLOC)
        cost = whatif.cost_ns(change)
        number = sum(call.count for call in calls)
        blocked = sum(call.blocked_ns for call in calls)
        if cost < self.min_cost * frame.step_ns:
            return Clear(
                f"{blocking_calls.count(number)} allocations and releases a step hold the host for {text.ms(blocked)}, "
                "and the device has enough to do meanwhile."
            )
        ranks = blocking_calls.affected(starved)
        seen = int((whatif.at_slowest(starved) > 0).sum())
        level, basis = text.confidence(frame, cost, seen, ranks.tolist(), on_host=True)
        frees = sum(call.count for call in calls if "free" in call.call.lower())
        return Fault(
            change=change,
            ranks=frame.rank_numbers(ranks),
            steps=frame.all_steps,
            cause="freed_and_allocated" if frees > 0 else "allocated",
            confidence=level,
            title=f"Device memory is {'freed and allocated anew' if frees > 0 else 'allocated'} in every step, and the "
            "device waits for it.",
            why=f"{blocking_calls.count(number - frees)} allocations and {blocking_calls.count(frees)} releases a step "
            f"hold the host for {text.ms(blocked)}: {blocking_calls.named(calls)}. {basis}",
            fix=_FREES if frees > 0 else _ALLOCATES,
            evidence=blocking_calls.evidence(
                calls, places, "The host is in {call} in {op}; the device waits for it, and then for launches."
            ),
        )


_FREES = """\
Take torch.cuda.empty_cache() out of the loop. If there is none, memory is nearly full and PyTorch frees cached blocks \
to make room: let segments grow, lower the batch size a little, or recompute activations.

# torch.cuda.empty_cache()   <- in no step
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...

torch.cuda.memory_stats()["num_alloc_retries"]  # above 0: memory is nearly full"""

_ALLOCATES = """\
Memory still grows in these steps: shapes change from step to step, or something is kept. Pad to a few lengths, run \
the largest batch first so that the cache is large enough, and let segments grow.

PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...

torch.cuda.memory_stats()["reserved_bytes.all.current"]  # should not grow after the first steps"""
