"""See `LowMfu`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.compute import Utilization
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.expected import Expected
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold


class LowMfu(Rule):
    """The model uses little of the peak FLOPS of the GPU (low MFU).

    What:
        FLOP of the model's GEMMs, convolutions and attention, forward and backward, over the step time and the GPU's
        peak in the precision of most of its GEMMs.
    Why:
        MFU is the one number that compares jobs, GPUs and frameworks: waits, copies and all other work lower it.
    Evidence:
        FLOP of a step, from the shapes of operators; with recomputed ones, HFU.
    Fix:
        The fixes of the other findings; if there are none, larger GEMMs.
    Limits:
        Needs shapes of operators (record_shapes=True) and a GPU that the table of peaks has, the threshold `peak`, or
        a calibration, whose GEMM rate is then the peak.
        GEMMs inside compiled kernels are not counted, and convolutions only where they are trained. Recomputation is
        detected by checkpoint functions, and by forward operators in the backward pass. MFU names no fault of its own,
        so it is info.
    """

    id = "low-mfu"
    subject = "Low MFU"

    min_mfu: float = threshold(
        0.10,
        "of the peak",
        "Well-tuned transformers reach 0.4 to 0.55 on A100 and H100 (PaLM, Megatron-LM); small models a quarter.",
    )
    peak: float = threshold(0.0, "TFLOPS", "The GPU's peak; 0 takes it from the table, by the GPU's name.")

    def check(self, *, frame: Frame, utilization: Utilization, expected: Expected | None, places: Places) -> Result:
        measured = expected.gemm_rate(utilization.precision) if expected else None
        peak = self.peak * 1e12 or utilization.peak or measured
        if peak is None:
            return NotApplicable(
                f"The peak of {utilization.device or 'this GPU'} in {utilization.precision} is not known: set it "
                "with --set low-mfu.peak=TFLOPS, or measure GEMMs with torchrun ... -m tb_ddp_doctor.check."
            )
        seconds = frame.step_ns / 1e9
        model, executed = (float(amount.mean()) / seconds for amount in (utilization.model_flops, utilization.flops))
        mfu, hfu = model / peak, executed / peak
        computed_again = f", {wording.percent(hfu)} with recomputation (HFU)" if hfu > 1.01 * mfu else ""
        sentence = (
            f"{_tera(model)} of {_tera(peak)} TFLOPS in {utilization.precision}: "
            f"an MFU of {wording.percent(mfu)}{computed_again}."
        )
        if measured:
            sentence += f" Large GEMMs reach {_tera(measured)} TFLOPS on these GPUs, by the calibration."
        if mfu >= self.min_mfu:
            return Clear(f"The model computes {sentence}")
        per_rank = utilization.model_flops.mean(axis=1)
        return Fault(
            change=Change(),
            ranks=frame.rank_numbers(np.arange(len(frame.ranks))),
            confidence="medium",
            title=f"The MFU is {wording.percent(mfu)}: the share of the peak FLOPS of the GPU that the model uses.",
            why=f"The model computes {sentence} That is {_tera(float(per_rank.mean()))} TFLOP a step and rank.",
            fix=_FIX,
            evidence=(places.window(int(per_rank.argmin()), 0, "A whole step."),),
        )


def _tera(value: float) -> str:
    return wording.figures(value / 1e12, 3)


_FIX = """\
First fix the other findings: every wait lowers the MFU. Then use larger GEMMs: a larger local batch, fewer and wider \
layers; and torch.compile for all other kernels.

model = torch.compile(model)"""
