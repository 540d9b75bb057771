"""Attention by separate operations."""

from __future__ import annotations

import pytest
from traces import MS, finding, lies_in_its_step, outcome, ranks, step_ms

RULE = "unfused-attention"
UNFUSED = """
    rank# step     |1
          host     [scores][scale][softmax][values]            [sync..................]
          autograd                                 [undo][bwd]
          gpu       [scores][scale..][softmax...][values][undo...........][bwd....]
          nccl                                                                     [ar]
"""
FUSED = """
    rank# step     |1
          host     [attention]
          autograd            [attention_bwd][bwd]
          gpu      [attention...............][attention_bwd...][bwd......]
          nccl                                                      [ar]
"""
FLASH = """
    rank# step     |1
          host     [flash.]         [sync....]
          autograd         [flash_b][bwd]
          gpu       [flash.][flash_b..][bwd....]
          nccl                                  [ar]
"""
#: Two products of 8 ms; the scaling, the softmax and its gradient between them.
PRODUCTS_MS, PASSES_MS = 16, 9 + 12 + 17
COST_MS = PASSES_MS - 0.17 * PRODUCTS_MS


def test_passes_over_scores_are_found_with_what_fused_attention_saves() -> None:
    found = finding(RULE, ranks(UNFUSED, UNFUSED))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(COST_MS, rel=0.02)
    assert found.severity == "critical"
    assert found.cause == "separate_operations"
    assert found.confidence == "high"
    assert "3 kernels a step" in found.why
    assert "scaled_dot_product_attention" in found.fix


def test_what_is_predicted_holds_for_the_pair_of_math_and_fused_attention() -> None:
    # The products' 16 ms in one kernel forward and one backward, and one GEMM of 3 ms more in backward.
    truth = step_ms(ranks(UNFUSED, UNFUSED)) - step_ms(ranks(FLASH, FLASH))
    found = finding(RULE, ranks(UNFUSED, UNFUSED))
    assert found.range_ms[0] <= truth <= found.range_ms[1]


def test_evidence_is_the_longest_pass() -> None:
    text = ranks(UNFUSED, UNFUSED)
    for window in finding(RULE, text).evidence:
        assert window.end_ns - window.start_ns == 17 * MS
        assert lies_in_its_step(window, text)


def test_fused_attention_is_clear() -> None:
    with_shapes = FUSED.replace("[bwd]", "[scale]").replace("[bwd......]", "[scale....]")
    assert outcome(RULE, ranks(with_shapes, with_shapes)).status == "clear"


@pytest.mark.parametrize("missing", ["scores", "values", "softmax"])
def test_a_softmax_without_products_around_it_is_no_attention(missing: str) -> None:
    other = UNFUSED.replace(f"[{missing}", f"[{'x' * len(missing)}")
    assert outcome(RULE, ranks(other, other)).status == "clear"


def test_scores_that_could_be_queries_are_left_alone() -> None:
    assert outcome(RULE, ranks(UNFUSED, UNFUSED), head=64).status == "clear"
    assert finding(RULE, ranks(UNFUSED, UNFUSED), head=63).ranks == (0, 1)


def test_a_saving_below_the_threshold_is_clear() -> None:
    share = COST_MS / step_ms(ranks(UNFUSED, UNFUSED))
    assert outcome(RULE, ranks(UNFUSED, UNFUSED), settings={"min_cost": share * 1.02}).status == "clear"
    assert finding(RULE, ranks(UNFUSED, UNFUSED), settings={"min_cost": share * 0.98}).ranks == (0, 1)


def test_what_is_computed_again_is_settable() -> None:
    settings = {"recomputed": 1.05 * PASSES_MS / PRODUCTS_MS}
    assert outcome(RULE, ranks(UNFUSED, UNFUSED), settings=settings).status == "clear"


def test_a_fallback_of_fused_attention_is_told_apart() -> None:
    fallen = UNFUSED.replace("[sync..................]", "[_scaled_dot_product_attention_math]")
    found = finding(RULE, ranks(fallen, fallen))
    assert found.cause == "fallback"
    assert "no fused kernel supports its inputs" in found.why
    assert "sdpa_kernel" in found.fix


def test_a_rank_that_alone_does_so_is_named_alone() -> None:
    waits = """
    rank# step     |1
          host     [attention]                 [sync..................................]
          autograd            [attention][bwd]
          gpu       [attention..]      [attention......][bwd....]
          nccl                                                   [ar..................]
    """
    assert finding(RULE, ranks(waits, waits, UNFUSED)).ranks == (2,)


def test_without_shapes_it_says_what_to_record() -> None:
    result = outcome(RULE, ranks(UNFUSED, UNFUSED), shapes=False)
    assert result.status == "not-applicable"
    assert "record_shapes=True" in result.reason


def test_cpus_are_not_judged() -> None:
    text = """
        rank# step |1
              host [scores][softmax][values]
    """
    result = outcome(RULE, ranks(text, text))
    assert result.status == "not-applicable"
    assert "CPU only" in result.reason


def test_one_rank_alone_is_enough() -> None:
    assert finding(RULE, ranks(UNFUSED), world_size=2).ranks == (0,)


def test_its_misaligned_gemms_are_no_fault_of_their_own() -> None:
    """Fused attention works in blocks of its own; the other GEMMs count."""
    text, device = ranks(UNFUSED, UNFUSED), {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}
    odd = {"scores": "volta_fp16_sgemm_scores", "values": "volta_fp16_sgemm_values"}
    assert outcome("no-tensor-cores", text, kernels=odd).status == "clear"
    other = {"bwd": "volta_fp16_sgemm_bwd"}
    both = finding("no-tensor-cores", text, kernels=odd | other, device=device)
    alone = finding("no-tensor-cores", text, kernels=other, device=device)
    assert both.cost_ms == pytest.approx(alone.cost_ms, rel=0.02)
