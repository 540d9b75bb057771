"""See `LaunchBound`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import Held, RankOwner, Starved
from tb_ddp_doctor.digest.starvation import LONG_STALL_NS
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.job.removed import Removed
from tb_ddp_doctor.job.whatif import WhatIf
from tb_ddp_doctor.rules import words
from tb_ddp_doctor.rules.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.inputs.compute import Work
from tb_ddp_doctor.rules.inputs.frame import Frame
from tb_ddp_doctor.rules.inputs.host import Starvation
from tb_ddp_doctor.rules.inputs.places import Places
from tb_ddp_doctor.rules.slowness import shared
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True)
class LaunchBound(Rule):
    """The device finishes its kernels faster than the host can launch them.

    What:
        Device idle that an earlier launch would have shortened, with the host inside operations and launches, or in
        Python for less than a millisecond between them.
    Why:
        An eager operation costs the host some ten microseconds; kernels shorter than that leave the device waiting.
    Evidence:
        The longest such gap of the slowest rank, with the number of kernels, their mean time and the host's time for
        each launch.
    Fix:
        Fewer and larger kernels: torch.compile, CUDA graphs, fused optimizers, a larger batch.
    Limits:
        What follows from synchronising, allocating or tracing is left to host-sync, allocator-churn,
        pageable-memcpy and profiler-overhead. A rank that waits hides its own gaps, so the slowest rank of each step
        is judged. Kernels must be joined to their launches. Where one gap is longer than all others together, in all
        steps, the host was blocked in one call: its cause is `one_call`.
    """

    id: ClassVar[str] = "launch-bound"
    looks_again: ClassVar[bool] = True
    yields_to: ClassVar[tuple[str, ...]] = (
        "host-sync",
        "allocator-churn",
        "unfused-optimizer",
        "unfused-attention",
        "find-unused-parameters",
    )

    min_cost: float = threshold(
        0.03, "of the step", "Healthy jobs lose up to 2 % of the untraced step to launches, in places."
    )
    max_gap: float = threshold(
        0.5, "of the idle time", "One gap that is longer than all others together is a blocked call, and no pace."
    )

    def check(self, *, frame: Frame, whatif: WhatIf, work: Work, starvation: Starvation, places: Places) -> Result:
        if frame.is_sampled:
            return NotApplicable("Events were left out of the traces: where none is, the device may be busy.")
        removed = shared(whatif, frame, Held.WORK)
        cost = whatif.cost_ns(removed)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Without launch overhead the untraced step would be {words.ms(cost)} shorter.")
        starved = starvation.of(Starved.LAUNCHES) + starvation.of(Starved.RECORDING)
        worst = whatif.at_slowest(starved)
        shows = worst > self.min_cost * frame.step_ns
        accused = np.union1d(
            whatif.slowest[shows], np.flatnonzero(starved.mean(axis=1) >= self.min_cost * frame.step_ns)
        )
        if not len(accused):
            return Clear("Launch overhead of the host keeps no device idle.")
        level, basis = words.confidence(frame, cost, int(shows.sum()), accused.tolist(), on_host=True)
        kernels = max(float(whatif.at_slowest(work.kernels).mean()), 1.0)
        mean_ns = float(whatif.at_slowest(work.kernel_ns).mean()) / kernels
        issue_ns = float(worst.mean()) / kernels + mean_ns
        step = int(worst.argmax())
        rank = int(whatif.slowest[step])
        gap = places.longest(rank, step, RankOwner.DISPATCH, "Device idle while the host prepares the next launch.")
        gap_ns = gap.end_ns - gap.start_ns
        if max(self.max_gap * float(worst.sum()), LONG_STALL_NS) < gap_ns <= worst.sum():
            blocked = np.zeros(whatif.shape)
            blocked[:, step] = starved[:, step] >= gap_ns
            work_ns = np.maximum(whatif.host_ns(Held.WORK), 1)
            removed = Removed(host={Held.WORK: blocked * np.minimum(gap_ns / work_ns, 1.0)})
            return _in_one_call(removed, np.flatnonzero(blocked.any(axis=1)), gap, frame)
        return Fault(
            removed=removed,
            ranks=frame.rank_numbers(accused),
            steps=frame.all_steps,
            cause=None,
            confidence=level,
            title="The GPU idles, launch-bound: launching a kernel takes the CPU longer than the GPU runs it.",
            why=f"{kernels:.0f} kernels a step take {mean_ns / 1e3:.0f} us each on average, and one comes every "
            f"{issue_ns / 1e3:.0f} us. {basis}",
            fix=_FIXES.get(frame.program, _FIX),
            evidence=(gap,),
        )


def _in_one_call(removed: Removed, blocked: Ints, gap: Evidence, frame: Frame) -> Fault:
    """What is no pace of launches: the host blocked once, for longer than all other gaps together."""
    length = words.ms(gap.end_ns - gap.start_ns)
    return Fault(
        removed=removed,
        ranks=frame.rank_numbers(blocked),
        steps=(gap.step,),
        cause="one_call",
        confidence="low",
        title=f"The GPU idles {length} at once, in {words.steps((gap.step,))}: the CPU is blocked inside one operator.",
        why="That is more than all other gaps between launches together, in the steps that were traced: no overhead of "
        f"launches. The first launch of a kernel loads its code, for example. Seen in 1 of {len(frame.steps)} "
        f"step{'s' * (len(frame.steps) > 1)}.",
        fix=_FIX_OF_ONE_CALL,
        evidence=(gap,),
    )


_FIX = """\
Launch fewer, larger kernels: compile the model, capture the step in a CUDA graph, use fused or foreach optimizers, \
or raise the batch size.

model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"""

_FIXES = {
    "serving": """\
Launch fewer, larger kernels: compile the model, capture an iteration in a CUDA graph (vLLM: no enforce_eager; SGLang: \
no --disable-cuda-graph), or batch more requests.

model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs""",
    "diffusion": """\
Launch fewer, larger kernels: compile the denoising model with CUDA graphs, or make several images at once.

pipeline.transformer = torch.compile(pipeline.transformer, mode="reduce-overhead")  # CUDA graphs""",
    "inference": """\
Launch fewer, larger kernels: compile the model, capture the forward pass in a CUDA graph, or raise the batch size.

model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs""",
}

_FIX_OF_ONE_CALL = """\
Trace later steps, after some of warm-up: what is done once, such as loading a kernel's code or choosing an algorithm, \
is over then. If it comes again, look at what the host does there.

schedule = torch.profiler.schedule(wait=5, warmup=3, active=5)
CUDA_MODULE_LOADING=EAGER torchrun ...   # loads all kernels at the start"""
