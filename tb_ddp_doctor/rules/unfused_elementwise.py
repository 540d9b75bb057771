"""See `UnfusedElementwise`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, GpuTime, KernelWork
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.facts.roofline import JudgedRoofline
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.redundant import of_step
from tb_ddp_doctor.rules.support.roofline import in_modules, longest, operators

#: Classes of kernels that are loops over elements.
_LOOPS = (GpuTime.ELEMENTWISE, GpuTime.COPY, GpuTime.NORM)


class UnfusedElementwise(Rule):
    """Elementwise kernels read what the kernel before them wrote, which one fused kernel would keep on the chip.

    What:
        Memory-bound kernels of one stream, each of which reads what one before wrote: norms, activations, casts,
        losses, the passes of an optimizer over all parameters.
    Why:
        Each of these kernels reads its tensor from memory and writes it back. One fused kernel reads and writes it
        once. torch.compile fuses them; fused ops do so for norms, activations and losses.
    Evidence:
        The longest of these kernels. The saving is the step without the reads of what was just written, without the
        launches of kernels that read so, and without those writes that hardly anything else needs: of backward, of the
        optimizer, and of what is cast at once. The lower end of its interval is without the reads and launches alone;
        the upper end is without all these writes, and with what remains of such kernels at the speed that memory
        allows, as compiled kernels often are.
    Fix:
        `torch.compile`, or fused ops.
    Limits:
        A kernel is taken to read what the last one before it wrote that has as many elements and bytes, so it needs
        shapes.
    """

    id = "unfused-elementwise"
    subject = "Unfused elementwise kernels"
    refines = ("slow-kernels", "lower-precision", "larger-batch")
    is_opportunity = True
    of_every_program = True

    min_cost: float = threshold(*limits.WORTH_A_LINE)

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        computed: KernelWork,
        roofline: JudgedRoofline,
        modules: ModuleTree | None,
        places: Places,
    ) -> Result:
        loops = [one for one in roofline.kernels if one.kind in _LOOPS or one.operator.startswith("aten::_foreach_")]
        taken = of_step(sum(one.step_ns for one in loops), frame.step_ns)
        fewer = roofline.fused_calls() / np.maximum(computed.kernels.sum(axis=1), 1)
        launches = np.broadcast_to(np.minimum(fewer, 1.0)[:, None], computed.kernels.shape)
        reads = Change(host={CpuTime.WORK: launches}, row_ns=roofline.times.fused_reads)
        change = reads | Change(row_ns=roofline.times.fused_temporaries)
        cost = 0.0 if change.is_nothing else whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Elementwise kernels take {taken}; fusion would avoid {wording.ms(cost)} of it.")
        times = roofline.times
        most = Change(host=reads.host)
        for some in (roofline.above(_LOOPS), times.avoidable, times.possible):
            most |= Change(row_ns=some)
        whatif.foresee([reads, most])
        level, basis = certainty.confidence(frame, cost, len(frame.steps))
        count = sum(one.count for one in loops)
        where = in_modules(loops, roofline, modules, frame.ranks)
        return Fault(
            change=change,
            modules=where.modules,
            confidence=level,
            title=f"{taken} are elementwise kernels that fusion would shorten.",
            why=f"{wording.decimals(count, 0)} kernels of a step are loops over elements: most time is in "
            f"{operators(loops)}.{where} Reads of what a kernel before "
            f"wrote take {wording.ms(whatif.cost_ns(reads))} of the step, with those writes that hardly anything else "
            f"needs {wording.ms(cost)}. Without all of these writes, at the speed that memory allows, the step would "
            f"be {wording.ms(whatif.cost_ns(most))} shorter. {basis}",
            fix=_FIX if frame.trains else _OF_A_MODEL,
            evidence=longest(sorted(loops, key=lambda one: -one.step_ns)[:2], places),
            remedy="torch.compile",
            between=(reads, most),
        )


_FIX = """\
Compile the model: torch.compile fuses elementwise kernels, norms and casts. Where it cannot, use fused ops, as the \
optimizer's.

model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"""

_OF_A_MODEL = """\
Compile the model: torch.compile fuses elementwise kernels, norms and casts (vLLM: without --enforce-eager; SGLang: \
--enable-torch-compile).

model = torch.compile(model)"""
