"""See `LowOccupancy`."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tb_ddp_doctor import kernel_names, wording
from tb_ddp_doctor.digest.model import GpuTime, RankOwner
from tb_ddp_doctor.facts.compute import LongKernels
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.roofline import JobRoofline
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules.support import part
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold


class LowOccupancy(Rule):
    """Long kernels have low occupancy: fewer warps than the GPU has room for.

    What:
        Kernels of some length with a low estimated occupancy, which together take a large part of the step.
    Why:
        A GPU hides memory latency by switching between warps; with few warps it waits. Kernels with fewer blocks than
        the GPU has SMs leave some of these idle.
    Evidence:
        The longest such kernel; the names of those that take most time, with their occupancy.
    Fix:
        More work in each kernel: a larger batch, several small tensors at once, torch.compile.
    Limits:
        Kineto estimates occupancy from the launch configuration: it is not measured, and not estimated for every
        kernel. GEMMs need few warps and are not counted. A trace does not show what higher occupancy would save, so
        the finding is info.
    """

    id = "low-occupancy"
    subject = "Low occupancy"
    of_every_program = True

    max_occupancy: float = threshold(0.5, "of the warps", "Half of the warps hide the latency of most kernels.")
    min_length: float = threshold(20.0, "µs", "Shorter kernels take as long to launch and to drain as to run.")
    min_share: float = threshold(0.05, "of the step", "Less is not worth the work on a kernel.")

    at_roof: float = threshold(
        0.75, "of the attainable speed", "A kernel that moves its bytes as fast as memory allows needs no more warps."
    )

    def check(self, *, frame: Frame, long_kernels: LongKernels, roofline: JobRoofline, places: Places) -> Result:
        if not long_kernels.estimated:
            return NotApplicable("The traces have no occupancy estimates (CPUs, ROCm and old releases).")
        fast = {name for name, share in _of_attainable(roofline).items() if share >= self.at_roof}
        low = [
            kind
            for kind in long_kernels.kinds
            if kind.occupancy < self.max_occupancy and kind.mean_ns >= self.min_length * 1e3 and kind.name not in fast
        ]
        by_rank = np.bincount(
            [kind.rank for kind in low], weights=[kind.step_ns for kind in low], minlength=len(frame.ranks)
        )
        rank = int(by_rank.argmax())
        taken = part.mean(by_rank[[rank]], long_kernels.record_step_ns[[rank]])
        if not low or taken.share < self.min_share:
            return Clear(
                f"Kernels over {wording.decimals(self.min_length, 0)} µs with less than "
                f"{wording.percent(self.max_occupancy)} occupancy "
                f"take {wording.ms(taken.ns)} a step, not counting GEMMs."
            )
        low = [kind for kind in low if kind.rank == rank]
        # Instances of a template differ in what is not shown; the costliest stands for the others.
        shown = {kernel_names.short(kind.name): kind for kind in reversed(low)}
        most = sorted(shown.values(), key=lambda kind: -kind.step_ns)[:3]
        named = wording.listing(
            [f"{kernel_names.short(kind.name)} ({wording.percent(kind.occupancy)})" for kind in most]
        )
        of_rank = f" on rank {frame.ranks[rank]}" if len(frame.ranks) > 1 else ""
        return Fault(
            change=Change(),
            ranks=frame.rank_numbers(np.arange(len(frame.ranks))),
            confidence="medium",
            title=f"Kernels with low occupancy take {taken}{of_rank}.",
            why=f"{len(low)} kernels have an occupancy below {wording.percent(self.max_occupancy)} by Kineto's "
            "estimate; "
            f"the longest are {named}.",
            fix=_FIX,
            evidence=tuple(_longest(kind.rank, kind.start_ns, kind.end_ns, places) for kind in most),
        )


def _of_attainable(roofline: JobRoofline) -> dict[str, float]:
    """The share of their attainable speed that kernels reach, by name; of those that are modelled."""
    taken: defaultdict[str, float] = defaultdict(float)
    least: defaultdict[str, float] = defaultdict(float)
    for one in roofline.kernels:
        if one.kind is not GpuTime.NOT_MODELLED and one.limit:
            taken[one.name] += one.step_ns
            least[one.name] += one.attainable_ns
    return {name: least[name] / ns for name, ns in taken.items() if ns}


def _longest(rank: int, start_ns: int, end_ns: int, places: Places) -> Evidence:
    evidence = places.between(
        rank, start_ns, end_ns, RankOwner.COMPUTE, "The longest run of a kernel with low occupancy."
    )
    return evidence or places.window(rank, 0, "A step with kernels of low occupancy.")


_FIX = """\
Give each kernel more to do: a larger batch, or one op for several small tensors. torch.compile fuses \
elementwise kernels and chooses their launch configuration; look at the registers and shared memory of your own kernels.

model = torch.compile(model, mode="max-autotune-no-cudagraphs")
# what limits one kernel:
# ncu --set full --kernel-name <name> python <script>"""
