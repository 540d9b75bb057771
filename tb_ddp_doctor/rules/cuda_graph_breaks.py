"""See `CudaGraphBreaks`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CompiledWork, CpuTime, KernelWork
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.cells import lower_median
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.host_work import shares
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.program_names import Program


class CudaGraphBreaks(Rule):
    """Some steps launch their kernels without the CUDA graph of most steps, or capture a graph again.

    What:
        Steps with fewer graph launches than the median step of the rank: they launch kernels one by one (`eager`). And
        steps in which a graph is captured (`capture`). The cost is what the steps save with a capture's CPU time
        (from the sync and the garbage collection before it on) and the kernels of its warm-up removed, and with the
        CPU's work of an eager step as short as that of the other steps.
    Why:
        A graph holds for one set of shapes and addresses. With another shape the program runs eagerly, or captures once
        more, which takes the CPU some tens of milliseconds and synchronises the GPU.
    Evidence:
        The step that loses most.
    Fix:
        Pad to the shapes that are captured, or capture all shapes before the first step.
    Limits:
        At least three steps, most of which launch graphs. Captures are seen where the trace has the runtime's calls
        (cudaStreamBeginCapture, cudaGraphInstantiate).
    """

    id = "cuda-graph-breaks"
    subject = "Capturing again or launching without the CUDA graph"
    of_every_program = True
    refines = (
        "straggler", "load-imbalance", "op-stall", "host-stall", "iteration-gap", "host-sync", "launch-bound",
        "slow-step",
    )  # fmt: skip

    min_cost: float = threshold(*limits.LAUNCHES)

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        compiled: CompiledWork,
        kernels: KernelWork,
        budget: Budget,
        places: Places,
    ) -> Result:
        launches = compiled.graph_launches
        median = lower_median(launches.T)[:, None]
        if not median.any():
            return Clear("These steps launch no CUDA graphs, or most of them do not.")
        if not whatif.plays:
            return NotApplicable("Steps cannot be replayed, so it is not known what steps without a graph cost.")
        if len(frame.steps) < _FEWEST_STEPS:
            return NotApplicable("Fewer than three steps cannot show which of them lacks its graph.")
        eager, captures = launches < median, compiled.captures > 0
        odd = eager | captures
        if not odd.any():
            return Clear("Every step launches its CUDA graphs, and none captures one.")
        change, removed = _without(odd, whatif, compiled, kernels, budget)
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Steps without their CUDA graph cost {wording.ms(cost)} a step.")
        ranks, steps = np.flatnonzero(odd.any(axis=1)), np.flatnonzero(odd.any(axis=0))
        cause = "capture" if compiled.capture_ns[odd].sum() * 2 > removed.sum() else "eager"
        numbers = frame.rank_numbers(ranks)
        on = "" if len(ranks) == len(frame.ranks) else f" on {wording.ranks(numbers)}"
        return Fault(
            change=change,
            ranks=numbers,
            steps=tuple(frame.steps[steps].tolist()),
            cause=cause,
            subject=_SUBJECTS[cause],
            confidence="high" if len(steps) > 1 else "medium",
            title=f"{_WHAT[cause]} in {wording.steps_seen(len(steps), len(frame.steps))}{on}.",
            why=f"The CPU works up to {wording.ms(float(removed.max()))} longer in such a step. {_WHY[cause]}",
            fix=_FIX_OF_SERVERS if frame.program_of(ranks) == Program.SERVING.value else _FIX,
            evidence=(places.of_most(removed, "The step that loses most."),),
        )


def _without(
    odd: Flags, whatif: WhatIf, compiled: CompiledWork, kernels: KernelWork, budget: Budget
) -> tuple[Change, Ints]:
    """The change that makes odd steps as the others are, and the CPU's time that it removes, shape (R, S), ns.

    A rank that captures in every step has no others: then what the captures take is removed, first outside of ops.
    """
    launching, outside = (CpuTime.OP_STALL, CpuTime.WORK), (CpuTime.STALL, CpuTime.ALLOC)
    spent, stalled = (np.sum([whatif.host_ns(kind) for kind in kinds], axis=0) for kinds in (launching, outside))
    captured = compiled.capture_ns * odd
    inside = np.minimum(spent, np.maximum(captured - stalled, 0))
    works = np.where(odd.all(axis=1, keepdims=True), inside, _excess(spent, odd))
    stalls = _excess(stalled, odd)
    # Of a capture what is no more work is outside any op: garbage collection, freeing memory.
    idle = np.maximum(captured - works, np.minimum(stalls, captured))
    # Before a capture the same kernels run once without a graph.
    again = _excess(kernels.kernels, odd) * (captured > 0) / np.maximum(kernels.kernels, 1)
    change = Change(
        host={**shares(whatif, works, launching), **shares(whatif, idle, outside)},
        device_ns=(whatif.device_ns * again).astype(np.int64),
        transfer_ns=(budget.of("transfer") * again).astype(np.int64),
    )
    return change, works + idle


def _excess(spent_ns: Ints, odd: Flags) -> Ints:
    """How much longer odd steps take for something than the mean of the rank's other steps, shape (R, S), ns; 0 without
    any.
    """
    others = (~odd).sum(axis=1, keepdims=True)
    typical = np.where(others, np.where(odd, 0, spent_ns).sum(axis=1, keepdims=True) / np.maximum(others, 1), np.inf)
    excess: Ints = (np.maximum(spent_ns - typical, 0) * odd).astype(np.int64)
    return excess


#: Of two steps none is odd.
_FEWEST_STEPS = 3
_SUBJECTS = {"capture": "Capturing a CUDA graph again", "eager": "Launching without the CUDA graph"}
_WHAT = {
    "capture": "A CUDA graph is captured again",
    "eager": "Kernels are launched one by one instead of in the CUDA graph",
}
_WHY = {
    "capture": "A new shape or address makes the graph invalid, and the program captures another.",
    "eager": "No graph was captured for the shapes of these steps.",
}
_FIX = """\
Pad inputs to the shapes that are captured, keep them in the same tensors, or capture every shape before the first step.

for length in (512, 1024, 2048):                 # all lengths that batches are padded to
    step(example(length))
torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True"""

_FIX_OF_SERVERS = """\
Let the server capture a graph for the batch sizes of these iterations: a batch larger than all of them runs without \
one. Iterations with prompts run without a graph on purpose, where the server does not capture them in pieces.

vllm serve MODEL --max-num-seqs 64 --compilation-config '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}'
python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs 64"""
