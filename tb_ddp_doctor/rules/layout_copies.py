"""See `LayoutCopies`."""

from __future__ import annotations

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RedundantWork
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import limits
from tb_ddp_doctor.rules.support.base import Clear, Result, Rule, threshold
from tb_ddp_doctor.rules.support.redundant import NeedlessKernels, removable, share_of


class LayoutCopies(Rule):
    """Tensors are copied only to change their memory layout.

    What:
        Kernels of `contiguous` and `reshape`, and those of cuDNN that convert images between NCHW and NHWC.
    Why:
        Such a copy reads and writes the whole tensor and computes nothing. `reshape` copies after a `transpose`, for
        example between attention and its linear layers; cuDNN's tensor cores want NHWC.
    Evidence:
        The longest of these copies. The saving is that of the step without a part of them.
    Fix:
        Choose the layout that the next kernel reads: `channels_last` for convolutions; split q, k and v along a
        dimension that attention takes as it is.
    Limits:
        Some of these copies make a later kernel faster, so only a part is counted: the interval's upper end is the step
        without all of them.
    """

    id = "layout-copies"
    subject = "Copies into another memory layout"
    refines = ("slow-kernels", "lower-precision", "larger-batch")
    is_opportunity = True

    removed: float = threshold(
        0.75,
        "of the kernels' time",
        "Between a half and all: one copy may remain where two kernels want two layouts.",
        least=0.01,
    )
    removed_least: float = threshold(0.5, "of the kernels' time", "The interval's lower end.")
    min_cost: float = threshold(*limits.WORTH_A_LINE)

    def check(self, *, frame: Frame, whatif: WhatIf, redundant: RedundantWork, places: Places) -> Result:
        kernels = NeedlessKernels(
            redundant.layout_ns, redundant.layout_kernels, redundant.layout_start_ns, redundant.layout_end_ns
        )
        gain = removable(kernels, self.removed, frame, whatif, places, "A copy into another layout.")
        if gain is None:
            return Clear("No tensor is copied only for its layout.")
        if gain.cost_ns < self.min_cost * frame.step_ns:
            return Clear(f"Copies into another layout take {gain.of_step}; without, the step is hardly shorter.")
        return gain.fault(
            title=f"{gain.of_step} copy tensors into another layout; one layout would shorten the step.",
            why=f"{wording.decimals(gain.count, 0)} kernels of a step change only the layout of a tensor. Without "
            f"{wording.percent(self.removed)} of their time the step is {wording.ms(gain.cost_ns)} shorter.",
            fix=_FIX,
            remedy="channels_last, no reshape after transpose",
            between=(self.removed_least / self.removed, share_of(kernels, 1.0)),
        )


_FIX = """\
Use one memory layout from op to op. Convolutions: channels_last. Attention: split heads with a view, and give \
scaled_dot_product_attention the transposed views.

model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)

q, k, v = qkv.view(batch, length, 3, heads, size).permute(2, 0, 3, 1, 4).unbind(0)  # no .contiguous()
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)"""
