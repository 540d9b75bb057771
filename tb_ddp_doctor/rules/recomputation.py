"""See `Recomputation`."""

from __future__ import annotations

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RedundantWork
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import limits
from tb_ddp_doctor.rules.support.base import Clear, Result, Rule, threshold
from tb_ddp_doctor.rules.support.redundant import NeedlessKernels, removable


class Recomputation(Rule):
    """Backward computes forward again, for activation checkpointing.

    What:
        Kernels that ops of forward launch within backward.
    Why:
        Activation checkpointing keeps the inputs of a block and computes the rest again in backward. It costs up to a
        third of the GPU's work and saves the memory of the block's activations. Where that memory is free, the time is
        given away.
    Evidence:
        The longest of these kernels. The saving is that of the step without all of them.
    Fix:
        Checkpoint fewer blocks, or keep the results that take longest to compute (selective checkpointing).
    Limits:
        It needs the memory that checkpointing saves: `--memory` shows what is free. What torch.compile computes again
        cannot be seen in a trace.
    """

    id = "recomputation"
    subject = "Activation checkpointing"
    refines = ("slow-kernels", "lower-precision", "larger-batch")
    is_opportunity = True

    kept_least: float = threshold(
        0.5,
        "of the kernels' time",
        "Half of the blocks without checkpoints is the least that the fix saves where not all memory is free.",
    )
    min_cost: float = threshold(*limits.WORTH_A_LINE)

    def check(self, *, frame: Frame, whatif: WhatIf, redundant: RedundantWork, places: Places) -> Result:
        kernels = NeedlessKernels(
            redundant.recomputed_ns,
            redundant.recomputed_kernels,
            redundant.recomputed_start_ns,
            redundant.recomputed_end_ns,
        )
        gain = removable(kernels, 1.0, frame, whatif, places, "Forward, computed again in backward.")
        if gain is None:
            return Clear("Backward does not compute forward again, as far as ops show.")
        if gain.cost_ns < self.min_cost * frame.step_ns:
            return Clear(f"Backward computes forward again for {gain.of_step}; without, the step is no shorter.")
        return gain.fault(
            title=f"{gain.of_step} compute forward again; keeping activations would shorten the step.",
            why=f"{wording.decimals(gain.count, 0)} kernels of a step are launched within backward by ops of forward. "
            f"Without them the step is {wording.ms(gain.cost_ns)} shorter, and needs the memory of these activations.",
            fix=_FIX,
            remedy="fewer activation checkpoints",
            between=(self.kept_least, gain.change),
        )


_FIX = """\
Checkpoint only as many blocks as memory needs, or keep the results of the GEMMs and of attention.

for block in model.blocks[:checkpointed]:  # fewer than all
    apply_activation_checkpointing(block)

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
keep = [torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default]
contexts = functools.partial(create_selective_checkpoint_contexts, keep)
out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False, context_fn=contexts)"""
