"""See `AllocatorChurn`."""

from __future__ import annotations

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, LaunchDelay
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import LateLaunches
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import blocking_calls, certainty
from tb_ddp_doctor.rules.support.affected import most_affected
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


class AllocatorChurn(Rule):
    """GPU memory is allocated and freed in every step, and the GPU idles meanwhile.

    What:
        cudaMalloc, cudaFree and similar calls (HIP's, the driver's, pinned host memory) in steady steps. The GPU is
        idle during the calls, or idle after them, waiting for launches.
    Why:
        A call takes about a tenth of a millisecond, and cudaFree also waits for the GPU. PyTorch's caching allocator
        calls them only until it has seen the largest step. Later calls mean that the cache is emptied, that memory is
        nearly full so that blocks are freed and reallocated, or that shapes grow.
    Evidence:
        The calls that cost most, by the operator around them: for each the one after which the GPU is idle longest. The
        cost is the GPU idle time that would go away if the CPU had been earlier by the time that the calls block it.
    Fix:
        No empty_cache() in the loop; expandable segments; padding to few shapes; less memory.
    Limits:
        The first steps of a job have to allocate: trace steady ones. What the calls cost other processes on the same
        GPU is not seen.
    """

    id = "allocator-churn"
    subject = "Freeing and reallocating GPU memory"
    looks_again = True
    of_every_program = True
    refines = "launch-bound"

    min_cost: float = threshold(0.005, "of the step", "Below it a few allocations in a step are not worth a line.")

    def check(self, *, frame: Frame, whatif: WhatIf, late_launches: LateLaunches, places: Places) -> Result:
        calls = late_launches.calls(LaunchDelay.ALLOC)
        if not calls:
            return Clear("No GPU memory is allocated or freed in the steps.")
        idle = late_launches.of(LaunchDelay.ALLOC)
        change = Change({CpuTime.ALLOC: blocking_calls.removable(whatif, CpuTime.ALLOC, idle)})
        cost = whatif.cost_ns(change)
        number = sum(call.count for call in calls)
        blocked = sum(call.blocked_ns for call in calls)
        if cost < self.min_cost * frame.step_ns or not idle.any():
            return Clear(
                f"{blocking_calls.count(number)} allocations and releases a step block the CPU for "
                f"{wording.ms(blocked)}, "
                "and the GPU has enough queued work meanwhile."
            )
        ranks = most_affected(idle)
        seen = int((whatif.at_slowest(idle) > 0).sum())
        level, basis = certainty.confidence(frame, cost, seen, ranks.tolist(), on_host=True)
        frees = sum(call.count for call in calls if "free" in call.call.lower())
        return Fault(
            change=change,
            ranks=frame.rank_numbers(ranks),
            cause="freed_and_allocated" if frees > 0 else "allocated",
            confidence=level,
            title=f"GPU memory is {'freed and reallocated' if frees > 0 else 'allocated'} in every step, and the GPU "
            "idles meanwhile.",
            why=f"{blocking_calls.count(number - frees)} allocations and {blocking_calls.count(frees)} releases a step "
            f"block the CPU for {wording.ms(blocked)}: {blocking_calls.named(calls)}. {basis}",
            fix=_ALLOCATES if not frees else _FREES_IN_TRAINING if frame.trains else _FREES,
            evidence=blocking_calls.evidence(
                calls, places, "The CPU is in {call} in {op}; the GPU is idle, then waits for launches."
            ),
        )


_FREES_IN_TRAINING = """\
Remove torch.cuda.empty_cache() from the loop. If there is none, memory is nearly full and PyTorch frees cached blocks \
to make room: use expandable segments, lower the batch size a little, or recompute activations.

# torch.cuda.empty_cache()   <- never in a step
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torch.cuda.memory_stats()["num_alloc_retries"]  # above 0: memory is nearly full"""

_ALLOCATES = """\
Memory still grows in these steps: shapes change from step to step, or tensors are kept. Pad to a few lengths, run \
the largest batch first so that the cache is large enough, and use expandable segments.

PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torch.cuda.memory_stats()["reserved_bytes.all.current"]  # should not grow after the first steps"""

_FREES = """\
Remove torch.cuda.empty_cache() from the loop. If there is none, memory is nearly full and PyTorch frees cached blocks \
to make room: use expandable segments, smaller batches, or leave more memory free (vLLM: a smaller \
--gpu-memory-utilization; SGLang: --mem-fraction-static).

# torch.cuda.empty_cache()   <- never between iterations
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torch.cuda.memory_stats()["num_alloc_retries"]  # above 0: memory is nearly full"""
