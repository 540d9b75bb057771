"""See `UnfusedAttention`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import AttentionWork, CpuTime, KernelWork, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.roofline import JobRoofline
from tb_ddp_doctor.facts.shortened_calls import ShortenedCalls
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits, part
from tb_ddp_doctor.rules.support.affected import most_affected
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.roofline import listed


class UnfusedAttention(Rule):
    """Attention runs as separate GEMM, softmax and GEMM kernels, with the scores in memory between them.

    What:
        Softmaxes between two batched GEMMs of matching shapes, and all other ops, forward and backward, that read or
        write a matrix of the scores' shape: scaling, masks, dropout, casts.
    Why:
        The scores of all queries against all keys are the largest tensors of a model, and each of these ops reads or
        writes them in GPU memory. Fused attention keeps them on the chip.
    Evidence:
        The longest such op on the scores. The cost is the GPU time of these ops and their share of the launches, and
        what the GEMMs take longer than in fused attention, where they read and write no scores either and one more
        computes them again in backward. The lower end of its interval has the GEMMs as they are, and that one more; the
        upper end has them at the speed of the fastest fused attention.
    Fix:
        torch.nn.functional.scaled_dot_product_attention.
    Limits:
        Needs the shapes of operators. Compiled attention has no such operators. If scores are no larger than the
        queries (sequences shorter than the head dimension), they cannot be distinguished. How fast fused attention is
        on this GPU with these shapes is not known. launch-bound does not charge this cost again.
    """

    id = "unfused-attention"
    subject = "Unfused attention"
    of_every_program = True
    refines = "launch-bound"

    recomputed: float = threshold(
        0.17, "of the GEMMs' time", "Fused attention computes the scores again in backward: one GEMM more beside six."
    )
    reached: float = threshold(
        0.35,
        "of the peak FLOPS",
        "FlashAttention 2 on an H100, forward and backward; 50 to 73 % on an A100 (arXiv 2307.08691, 2407.08608).",
    )
    fastest: float = threshold(0.75, "of the peak FLOPS", "FlashAttention 3 on an H100 (arXiv 2407.08608).")
    min_cost: float = threshold(*limits.WORTH_A_LINE)

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        computed: KernelWork,
        attentions: AttentionWork,
        calls: ShortenedCalls,
        roofline: JobRoofline,
        places: Places,
    ) -> Result:
        passes, passes_ns = attentions.score_passes, attentions.score_passes_ns
        if not passes.any():
            return Clear("No unfused attention is seen whose scores are larger than its queries.")
        least, change, most = (
            self._without_scores(share, attentions, computed, calls)
            for share in (
                1 + self.recomputed,
                self._fused(roofline, self.reached),
                self._fused(roofline, self.fastest),
            )
        )
        cost = whatif.cost_ns(change)
        mean = passes_ns.mean(axis=1)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Ops on attention scores take {wording.ms(float(mean.max()))} a step, and cost nothing.")
        affected = most_affected(passes_ns)
        seen = int((whatif.at_slowest(passes) > 0).sum())
        level, basis = certainty.confidence(frame, cost, seen)
        number = float(passes[affected].mean())
        what = "kernel a step reads or writes" if round(number) == 1 else "kernels a step read or write"
        known = [one for one in roofline.kernels if one.on_scores and one.limit in ("memory", "compute")]
        speeds = f"Of their attainable speed: {listed(known)}. " if known else ""
        fell_back = bool(attentions.attention_fallbacks.any())
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            cause="fallback" if fell_back else "separate_operations",
            confidence=level,
            title=f"Unfused attention reads and writes its scores in GPU memory: "
            f"{part.mean(passes_ns[affected], frame.window_ns[affected])}.",
            why=f"{wording.decimals(number, 0)} {what} whole score matrices, "
            f"beside {wording.ms(float(attentions.score_products_ns[affected].mean()))} of GEMMs. {speeds}"
            f"{_FELL_BACK if fell_back else ''}{basis}",
            fix=_FALLBACK if fell_back else _FIX,
            evidence=places.longest_spans(
                affected[:2],
                attentions.score_pass_start_ns,
                attentions.score_pass_end_ns,
                "An op on the attention scores that fused attention does not need.",
                (RankOwner.COMPUTE, "Ops on attention scores."),
            ),
            between=(least, most),
        )

    def _fused(self, roofline: JobRoofline, reached: float) -> float:
        """The time of the GEMMs in fused attention that reaches so much of the peak, as a share of theirs."""
        products = [one for one in roofline.kernels if one.on_scores and one.flops and one.peak_flops]
        took = sum(one.step_ns for one in products)
        least = sum(one.flops * one.count / one.peak_flops * 1e9 for one in products)
        longer = 1 + self.recomputed
        return min(longer * least / (reached * took), longer) if took else longer

    def _without_scores(
        self, share: float, attentions: AttentionWork, computed: KernelWork, calls: ShortenedCalls
    ) -> Change:
        """Attention without passes over its scores, whose GEMMs take such a share of their time."""
        passes, passes_ns = attentions.score_passes, attentions.score_passes_ns
        faster = np.maximum(passes_ns + attentions.score_products_ns * (1 - share), 0)
        return Change(
            host={CpuTime.WORK: np.minimum(passes / np.maximum(computed.kernels, 1), 1)},
            device_ns=faster.astype(np.int64),
            of_calls=calls.on_scores(faster, passes_ns),
        )


_FELL_BACK = "scaled_dot_product_attention is called, but no fused kernel supports its inputs. "

_FIX = """\
Pass queries, keys and values to torch's fused attention, which also does scaling, masks and dropout.

y = torch.nn.functional.scaled_dot_product_attention(
    q, k, v, is_causal=causal, dropout_p=dropout if model.training else 0.0
)  # (batch, heads, sequence, head dimension); attn_mask=mask for other masks"""

_FALLBACK = """\
To see why, allow only the fused kernels: torch then warns with each reason. Common ones are float64, a mask that \
needs gradients, a head dimension above 256 or not a multiple of 8.

from torch.nn.attention import SDPBackend, sdpa_kernel

with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v)"""
