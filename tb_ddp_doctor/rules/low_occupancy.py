"""See `LowOccupancy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.compute import LongKernels
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold


@dataclass(frozen=True)
class LowOccupancy(Rule):
    """Long kernels keep fewer warps on the device than it has room for.

    What:
        Kernels of some length whose estimated occupancy is low, together for a good part of the step.
    Why:
        A device hides the latency of memory by switching between warps; with few of them it waits. Kernels with fewer
        blocks than the device has multiprocessors leave some of these idle altogether.
    Evidence:
        The longest such kernel; the names of those that take most time, with their occupancy.
    Fix:
        More work in each kernel: a larger batch, several small tensors at once, torch.compile.
    Limits:
        Kineto estimates occupancy from the launch, it is not measured, and not estimated for every kernel. Products of
        matrices need few warps, and are left out. What higher occupancy would bring cannot be told from a trace, so the
        finding is for information.
    """

    id: ClassVar[str] = "low-occupancy"
    of_every_program: ClassVar[bool] = True

    max_occupancy: float = threshold(0.5, "of the warps", "Half of the warps hide the latency of most kernels.")
    min_length: float = threshold(20.0, "us", "Shorter kernels take as long to launch and to drain as to run.")
    min_share: float = threshold(0.05, "of the step", "What takes less is not worth a kernel engineer's day.")

    def check(self, *, frame: Frame, long_kernels: LongKernels, places: Places) -> Result:
        if not long_kernels.estimated:
            return NotApplicable("The traces hold no estimates of kernels' occupancy (CPUs, ROCm and old releases).")
        low = [
            kind
            for kind in long_kernels.kinds
            if kind.occupancy < self.max_occupancy and kind.mean_ns >= self.min_length * 1e3
        ]
        taken_ns = sum(kind.step_ns for kind in low)
        if not low or taken_ns < self.min_share * frame.step_ns:
            return Clear(
                f"Kernels over {self.min_length:.0f} µs with less than {text.percent(self.max_occupancy)} occupancy "
                f"take {text.ms(taken_ns)} a step, products of matrices aside."
            )
        # Instances of a template differ in what is not shown; the costliest stands for the others.
        shown = {text.kernel(kind.name): kind for kind in reversed(low)}
        most = sorted(shown.values(), key=lambda kind: -kind.step_ns)[:3]
        named = text.listing([f"{text.kernel(kind.name)} ({text.percent(kind.occupancy)})" for kind in most])
        return Fault(
            change=Change(),
            ranks=frame.rank_numbers(np.arange(len(frame.ranks))),
            steps=frame.all_steps,
            cause=None,
            confidence="medium",
            title=f"Kernels with low occupancy take {text.ms(taken_ns)} of every {text.ms(frame.step_ns)}.",
            why=f"{len(low)} kernels keep less than {text.percent(self.max_occupancy)} of the warps that the device "
            f"has room for, by Kineto's estimate; most of all {named}.",
            fix=_FIX,
            evidence=tuple(_longest(kind.rank, kind.start_ns, kind.end_ns, places) for kind in most),
        )


def _longest(rank: int, start_ns: int, end_ns: int, places: Places) -> Evidence:
    found = places.between(rank, start_ns, end_ns, RankOwner.COMPUTE, "The longest run of a kernel with low occupancy.")
    return found or places.window(rank, 0, "A step with kernels of low occupancy.")


_FIX = """\
Give each kernel more to do: a larger local batch, or operations that small tensors share. torch.compile fuses \
elementwise kernels and chooses their launch; look at your own kernels' registers and shared memory.

model = torch.compile(model, mode="max-autotune-no-cudagraphs")
# what limits one kernel:
# ncu --set full --kernel-name <name> python train.py"""
