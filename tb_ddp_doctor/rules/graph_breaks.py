"""See `GraphBreaks`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CompiledWork, CpuTime
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import CompileReasons
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import compile_log, limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.host_work import shares


class GraphBreaks(Rule):
    """A compiled function is broken in parts, between which the CPU waits for the GPU or runs Python.

    What:
        Gaps between two compiled regions of different code on one thread, in which the CPU waits for the GPU: it reads
        a value (`.item()`, `if tensor:`, printing), which torch.compile cannot compile. Eight or more gaps in a row,
        each between code and code that was compiled later, count without a wait. The cost is what the steps save
        without these gaps.
    Why:
        After a wait the GPU has run all that was launched, and idles until the next region launches; Python that is not
        compiled takes the CPU longer than small regions take the GPU. Kernels cannot be fused over the gap.
    Evidence:
        The step with the longest such gaps.
    Fix:
        Leave the value on the GPU (`torch.where`), or read it after the compiled function; keep what cannot be compiled
        (logging, other libraries) out of the function.
    Limits:
        A few breaks without a wait look like compiled modules in a row, and are not counted. Guards and compilation of
        the code behind a break are op-stall's, launch-bound's and recompilation's. Needs the names of
        compiled regions of PyTorch 2.5 and later (`Torch-Compiled Region: 0/0`). Lines and reasons are said where logs
        of TORCH_TRACE lie beside the traces.
    """

    id = "graph-breaks"
    subject = "The CPU's time at graph breaks of torch.compile"
    of_every_program = True
    refines = ("straggler", "load-imbalance", "host-sync", "launch-bound")

    min_cost: float = threshold(*limits.LAUNCHES)

    def check(
        self, *, frame: Frame, whatif: WhatIf, compiled: CompiledWork, reasons: CompileReasons, places: Places
    ) -> Result:
        if not frame.has_device:
            return NotApplicable("It is about gaps of the GPU, and these traces have none (CPU only).")
        gaps = compiled.break_ns
        if not gaps.any():
            return Clear("No wait for the GPU lies between two compiled regions, and few regions follow each other.")
        if not whatif.plays:
            return NotApplicable("Steps cannot be replayed, so it is not known what graph breaks cost.")
        waits = compiled.break_sync_ns
        # How long a sync takes depends on the device: it is removed by its share of the step's syncs.
        of_syncs = waits / np.maximum(compiled.sync_ns, 1)
        change = Change(host={**shares(whatif, gaps - waits), CpuTime.SYNC: of_syncs})
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Graph breaks cost {wording.ms(cost)} a step.")
        ranks, steps = np.flatnonzero(gaps.any(axis=1)), np.flatnonzero(gaps.any(axis=0))
        numbers = frame.rank_numbers(ranks)
        each = float(compiled.breaks[ranks].mean())
        logged = compile_log.reasons(reasons, "graph-break", numbers)
        does = "waits for the GPU" if 2 * waits.sum() > gaps.sum() else "runs Python"
        on = "" if len(ranks) == len(frame.ranks) else f" on {wording.ranks(numbers)}"
        return Fault(
            change=change,
            ranks=numbers,
            steps=tuple(frame.steps[steps].tolist()),
            confidence="high" if len(steps) > 1 else "medium",
            title=f"Graph breaks end compiled regions, and the CPU {does}: {wording.decimals(each, 1)} a step{on}.",
            why=f"{logged}Between the regions before and after a break the CPU spends "
            f"{wording.ms(float(gaps[ranks].mean()))} a step, {wording.ms(float(waits[ranks].mean()))} of it waiting.",
            fix=compile_log.without_log(_FIX, logged),
            evidence=(places.of_most(gaps, "The step with the longest gaps between compiled regions."),),
            measurements=(Measurement("graph breaks", each, "1", numbers, frame.all_steps),),
        )


_FIX = """\
Find the breaks, and keep their values on the GPU: torch.where in place of `if tensor:`, no .item() and no print in \
the compiled function.

export TORCH_TRACE=LOGDIR/torch_trace            # which line breaks, and why: said here next time
model = torch.compile(model, fullgraph=True)     # fails at the first break"""
