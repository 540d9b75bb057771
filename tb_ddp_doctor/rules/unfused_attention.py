"""See `UnfusedAttention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.compute import Attentions, Work
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


@dataclass(frozen=True)
class UnfusedAttention(Rule):
    """Attention is computed as product, softmax and product, with the scores in memory between them.

    What:
        Softmaxes between two batched matrix products of matching shapes, and everything else, forward and backward,
        that reads or writes a matrix of the scores' shape: scaling, masks, dropout, casts.
    Why:
        The scores of all queries against all keys are the largest tensors of a model, and each of these operations
        moves them through memory. Fused attention keeps them on the chip.
    Evidence:
        The longest such pass over the scores. The cost is that of the time of these passes, less what fused attention
        computes again in backward, and of their share of the host's launches. The products stay.
    Fix:
        torch.nn.functional.scaled_dot_product_attention.
    Limits:
        Needs the shapes of operators. Compiled attention has no such operators; scores no larger than the queries
        (sequences shorter than a head is wide) cannot be told from these. Fused products are often faster too, which
        is not counted. launch-bound leaves its cost out.
    """

    id: ClassVar[str] = "unfused-attention"
    of_every_program: ClassVar[bool] = True

    recomputed: float = threshold(
        0.17, "of the products' time", "Fused attention multiplies queries and keys once more: one product beside six."
    )
    min_cost: float = threshold(0.005, "of the step", "Below this it is not worth a line.")

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        work: Work,
        attentions: Attentions,
        places: Places,
    ) -> Result:
        passes, passes_ns = attentions.score_passes, attentions.score_passes_ns
        if not passes.any():
            return Clear("No attention by separate operations appears, with scores that are larger than its queries.")
        faster = passes_ns - attentions.score_products_ns * self.recomputed
        change = Change(
            host={CpuTime.WORK: np.minimum(passes / np.maximum(work.kernels, 1), 1)},
            device_ns=np.maximum(faster, 0).astype(np.int64),
        )
        cost = whatif.cost_ns(change)
        mean = passes_ns.mean(axis=1)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Passes over attention scores take {text.ms(float(mean.max()))} a step, and cost nothing.")
        affected = np.flatnonzero(mean >= 0.5 * mean.max())
        seen = int((whatif.at_slowest(passes) > 0).sum())
        level, basis = text.confidence(frame, cost, seen)
        fell_back = bool(attentions.attention_fallbacks.any())
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            steps=frame.all_steps,
            cause="fallback" if fell_back else "separate_operations",
            confidence=level,
            title=f"Attention moves its scores through memory: {text.ms(float(mean[affected].mean()))} of every "
            f"{text.ms(frame.step_ns)}.",
            why=f"{float(passes[affected].mean()):.0f} kernels a step read or write whole score matrices, beside "
            f"{text.ms(float(attentions.score_products_ns[affected].mean()))} of products. "
            f"{_FELL_BACK if fell_back else ''}{basis}",
            fix=_FALLBACK if fell_back else _FIX,
            evidence=tuple(_longest(attentions, places, int(rank)) for rank in affected[:2]),
        )


def _longest(attentions: Attentions, places: Places, rank: int) -> Evidence:
    length = attentions.score_pass_end_ns[rank] - attentions.score_pass_start_ns[rank]
    step = int(length.argmax())
    start, end = int(attentions.score_pass_start_ns[rank, step]), int(attentions.score_pass_end_ns[rank, step])
    found = places.between(
        rank, start, end, RankOwner.COMPUTE, "A pass over the attention scores that fused attention does not make."
    )
    return found or places.longest(rank, step, RankOwner.COMPUTE, "Passes over attention scores.")


_FELL_BACK = "scaled_dot_product_attention is called, but no fused kernel took its inputs. "

_FIX = """\
Hand queries, keys and values to torch's fused attention, whatever scales, masks and drops out between them.

y = torch.nn.functional.scaled_dot_product_attention(
    q, k, v, is_causal=causal, dropout_p=dropout if model.training else 0.0
)  # (batch, heads, sequence, width of a head); attn_mask=mask for other masks"""

_FALLBACK = """\
Let torch say why: allow only the fused kernels, and it warns of each reason. Usual ones are float64, a mask that \
needs gradients, heads wider than 256 or of a width that is no multiple of 8.

from torch.nn.attention import SDPBackend, sdpa_kernel

with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v)"""
