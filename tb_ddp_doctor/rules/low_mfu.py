"""See `LowMfu`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.compute import Utilization
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold


@dataclass(frozen=True)
class LowMfu(Rule):
    """The model uses little of what the device can compute (MFU).

    What:
        The model's matrix products, convolutions and attention, forward and backward, over the time of the step and
        the device's peak in the precision of most of its products.
    Why:
        It is the one number that compares jobs, devices and frameworks: whatever waits, copies or computes something
        else lowers it.
    Evidence:
        Operations of a step, from the shapes of operators; with those that were computed again, HFU.
    Fix:
        What the other findings say; where there are none, larger products.
    Limits:
        Needs shapes of operators (record_shapes=True) and a device that the table of peaks knows, or the threshold
        `peak`. Products inside of compiled kernels are not counted, and convolutions only where they are trained. What
        is computed again is known by checkpoints, and by operators that backward alone has no use for. It names no
        fault of its own, so it is for information.
    """

    id: ClassVar[str] = "low-mfu"

    min_mfu: float = threshold(
        0.10,
        "of the peak",
        "Well-tuned transformers reach 0.4 to 0.55 on A100 and H100 (PaLM, Megatron-LM); small models a quarter.",
    )
    peak: float = threshold(0.0, "TFLOPS", "The device's peak; 0 takes it from the table, by the device's name.")

    def check(self, *, frame: Frame, utilization: Utilization, places: Places) -> Result:
        peak = self.peak * 1e12 or utilization.peak
        if peak is None:
            return NotApplicable(
                f"The peak of {utilization.device or 'this device'} in {utilization.precision} is not known: set it "
                "with --set low-mfu.peak=TFLOPS."
            )
        seconds = frame.step_ns / 1e9
        model, executed = (float(amount.mean()) / seconds for amount in (utilization.model_flops, utilization.flops))
        mfu, hfu = model / peak, executed / peak
        computed_again = f", {text.percent(hfu)} with what is computed again (HFU)" if hfu > 1.01 * mfu else ""
        told = (
            f"{model / 1e12:.3g} of {peak / 1e12:.3g} TFLOPS in {utilization.precision}: "
            f"an MFU of {text.percent(mfu)}{computed_again}."
        )
        if mfu >= self.min_mfu:
            return Clear(f"The model computes {told}")
        per_rank = utilization.model_flops.mean(axis=1)
        return Fault(
            change=Change(),
            ranks=frame.rank_numbers(np.arange(len(frame.ranks))),
            steps=frame.all_steps,
            cause=None,
            confidence="medium",
            title=f"The model uses {text.percent(mfu)} of what the device can compute (MFU).",
            why=f"The model computes {told} That is {float(per_rank.mean()) / 1e12:.3g} TFLOP a step and rank.",
            fix=_FIX,
            evidence=(places.window(int(per_rank.argmin()), 0, "A whole step."),),
        )


_FIX = """\
First what the other findings say: all that waits lowers the MFU. Then larger products: a larger local batch, fewer \
and wider layers, torch.compile for what is beside them.

model = torch.compile(model)"""
