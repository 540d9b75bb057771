"""See `RepeatedCasts`."""

from __future__ import annotations

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RedundantWork
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.base import Clear, Result, Rule, threshold
from tb_ddp_doctor.rules.support.redundant import NeedlessKernels, removable


class RepeatedCasts(Rule):
    """Autocast casts the same weights again in each micro-batch.

    What:
        Casts of parameters in forward, after a backward pass and before the next update of the parameters.
    Why:
        Autocast keeps the cast weights until its context ends. With a context for each micro-batch of gradient
        accumulation, each micro-batch casts all weights once more, though they change only in the optimizer's step.
    Evidence:
        The longest of these casts. The saving is that of the step without them.
    Fix:
        Cast once for all micro-batches: keep the parameters in bfloat16, with a float32 copy in the optimizer, as
        FSDP's mixed precision does.
    Limits:
        A cast is of a parameter where a gradient has the same shape, so it needs shapes and the autograd ops. The CPU
        time of these casts is not counted.
    """

    id = "repeated-casts"
    subject = "Casting weights again"
    refines = ("slow-kernels", "lower-precision", "larger-batch")
    is_opportunity = True

    min_cost: float = threshold(
        0.002, "of the step", "Casts are small; the fix is a line, so that less is worth it than for other rules."
    )

    def check(self, *, frame: Frame, whatif: WhatIf, redundant: RedundantWork, places: Places) -> Result:
        kernels = NeedlessKernels(
            redundant.recast_ns, redundant.recast_kernels, redundant.recast_start_ns, redundant.recast_end_ns
        )
        gain = removable(kernels, 1.0, frame, whatif, places, "A weight is cast again.")
        if gain is None:
            return Clear("No weight is cast twice between two updates.")
        if gain.cost_ns < self.min_cost * frame.step_ns:
            return Clear(f"Casting weights again takes {gain.of_step}; without, the step is no shorter.")
        return gain.fault(
            title=f"{gain.of_step} cast weights that were cast before; one cast each would shorten the step.",
            why=f"{wording.decimals(gain.count, 0)} casts of a step are of weights that have not changed since their "
            f"last cast. Without them the step is {wording.ms(gain.cost_ns)} shorter.",
            fix=_FIX,
            remedy="bfloat16 weights",
        )


_FIX = """\
Keep the weights in bfloat16 and a float32 copy of them in the optimizer; or open autocast once around all \
micro-batches.

with torch.autocast("cuda", dtype=torch.bfloat16):  # once: its cache of cast weights lives as long
    for batch in micro_batches:
        (criterion(model(batch), target) / len(micro_batches)).backward()"""
