"""See `LaunchBound`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, KernelWork, LaunchDelay, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import HostOverheads, LateLaunches, StallsInOps
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.findings import Severity
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, host_overheads, layers, limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.slowness import shared
from tb_ddp_doctor.trace.model import Ints


class LaunchBound(Rule):
    """Launch-bound: the GPU finishes kernels faster than the CPU launches them.

    What:
        GPU idle that an earlier launch would have shortened, with the CPU inside ops and launches, or in Python for
        less than a millisecond between them: many short delays, and no long stalls.
    Why:
        An eager op costs the CPU about 10 µs; with kernels shorter than that the GPU waits for launches.
    Evidence:
        The longest such gap on the slowest rank, with the number of kernels, their mean time and the CPU time per
        launch; and the modules or guessed layers before whose kernels the GPU idles. Where the traces show them: the
        CPU time of torch.compile's guards, and a server's scheduling, sampling and detokenising while the GPU idles.
    Fix:
        Fewer and larger kernels: torch.compile, CUDA graphs, fused optimizers, a larger batch.
    Limits:
        GPU idle caused by syncs, allocations or tracing is host-sync's, allocator-churn's, pageable-memcpy's and
        profiler-overhead's, and long stalls inside single ops are op-stall's. Straggler wait hides such gaps, so the
        slowest rank of each step is judged. Kernels must be joined to their launches. Where recording takes more CPU
        time than the finding costs, the finding is at most major, since recording may be the reason.
    """

    id = "launch-bound"
    subject = "Launching kernels (CPU overhead)"
    of_every_program = True
    looks_again = True

    min_cost: float = threshold(*limits.LAUNCHES)

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        computed: KernelWork,
        late_launches: LateLaunches,
        op_stalls: StallsInOps,
        modules: ModuleTree | None,
        overheads: HostOverheads,
        places: Places,
    ) -> Result:
        if frame.is_sampled:
            return NotApplicable("The traces are sampled: the GPU may be busy where no event is recorded.")
        change = shared(whatif, frame, CpuTime.WORK)
        cost = whatif.cost_ns(change)
        if not whatif.plays:
            return NotApplicable("Steps cannot be replayed, so it is not known what launching costs.")
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Without launch overhead the untraced step would be {wording.ms(cost)} shorter.")
        idle = late_launches.of(LaunchDelay.LAUNCHES) + late_launches.of(LaunchDelay.RECORDING)
        least = self.min_cost * frame.step_ns
        worst = whatif.at_slowest(idle)
        affected = np.union1d(whatif.slowest[worst > least], np.flatnonzero(idle.mean(axis=1) >= least))
        if not len(affected) and whatif.fixes_something:
            worst, affected = _once_others_are_fixed(whatif, change, cost, least)
        if not len(affected):
            return Clear("No GPU is idle because of launch overhead.")
        seen = int((worst > least).sum())
        level, basis = certainty.confidence(frame, cost, seen, affected.tolist(), on_host=True)
        # What recording takes is an estimate, which may err by half: what is left beside it may be recording too.
        mostly_traced = float(frame.recording_ns[affected].max()) > cost
        step = int(worst.argmax())
        rank = int(whatif.slowest[step])
        where = _in_modules(modules)
        return Fault(
            change=change,
            modules=where.modules,
            ranks=frame.rank_numbers(affected),
            confidence=level,
            title="The GPU idles, launch-bound: launching a kernel takes the CPU longer than the GPU runs it.",
            why=f"{_pace(whatif, computed, worst)}{host_overheads.said(overheads, affected, frame.step_ns)}"
            f"{where}{basis}"
            + (" Without the profiler it may be far less: time untraced steps first." if mostly_traced else ""),
            at_most=Severity.MAJOR if mostly_traced else Severity.CRITICAL,
            fix=host_overheads.GUARDS * host_overheads.guards_are_most(overheads, affected, cost)
            + _FIXES.get(frame.program_of(affected), _FIX),
            evidence=(
                places.longest(
                    rank,
                    step,
                    RankOwner.DISPATCH,
                    "GPU idle while the CPU prepares the next launch.",
                    apart_from=op_stalls.spans(rank),
                ),
            ),
        )


def _once_others_are_fixed(whatif: WhatIf, change: Change, cost_ns: float, least_ns: float) -> tuple[Ints, Ints]:
    """What launching costs in each step once the faults found so far are fixed, and the ranks (indices) it slows.

    Until then other faults keep the GPUs waiting while the CPUs launch: it is idle time of the played job, on ranks
    whose CPU takes longer to launch than the GPU to run; or, when no rule finds more, on all where it is most of what
    is left.
    """
    gains = whatif.gains_alone_ns(change)
    is_slower = whatif.host_ns(CpuTime.WORK).mean(axis=1) > whatif.device_ns.mean(axis=1)
    is_most = whatif.is_last_look and 2 * cost_ns >= whatif.cost_ns(whatif.faultless)
    return gains.max(axis=0), np.flatnonzero((is_slower | is_most) & (gains.mean(axis=1) >= least_ns))


def _pace(whatif: WhatIf, computed: KernelWork, idle_ns: Ints) -> str:
    """How often the slowest rank's kernels come and how long they run, and a space; `idle_ns` of each step."""
    kernels = max(float(whatif.at_slowest(computed.kernels).mean()), 1.0)
    mean_ns = float(whatif.at_slowest(computed.kernel_ns).mean()) / kernels
    apart_ns = float(idle_ns.mean()) / kernels + mean_ns
    return (
        f"{wording.decimals(kernels, 0)} kernels a step take {wording.decimals(mean_ns / 1e3, 0)} µs each on average, "
        f"and one comes every {wording.decimals(apart_ns / 1e3, 0)} µs. "
    )


def _in_modules(modules: ModuleTree | None) -> layers.Where:
    """Before which modules' kernels the GPU idles, and a space; nothing where that is not known."""
    place = layers.where(modules, layers.idle_ns(modules)) if modules else layers.Where()
    return place.within("Of the GPU's idle time, ", ". ")


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
