"""The optimizer's loop over its tensors."""

from __future__ import annotations

import pytest
from traces import MS, finding, job, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor import engine

RULE = "unfused-optimizer"
LOOP = """
    rank# step |1
          host [fwd][optim....][optim....][optim..]
          gpu  [fwd.][optim*60][optim*60] [optim*60]
          nccl                                      [ar]
"""
FOREACH = """
    rank# step |1
          host [fwd][multi_tensor_apply.....]
          gpu  [fwd.][multi_tensor_apply*300]
          nccl                               [ar]
"""
AHEAD = """
    rank# step |1
          host [fwd][optim][optim] [sync...............]
          gpu  [fwd............][optim*60][optim*60]
          nccl                                      [ar]
"""
#: From the loop's first kernel to the end of the last, ms; idle and kernels in it.
IDLE_MS, KERNELS_MS = 1, 30
COST_MS = 0.75 * IDLE_MS + 0.65 * KERNELS_MS


def test_a_loop_is_found_with_what_a_fused_step_would_save() -> None:
    found = finding(RULE, ranks(LOOP, LOOP))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(COST_MS, rel=0.02)
    assert found.severity == "critical"
    assert found.confidence == "high"
    assert "180 kernels" in found.why
    assert "fused=True" in found.fix


def test_evidence_is_the_loop() -> None:
    text = ranks(LOOP, LOOP)
    for window in finding(RULE, text).evidence:
        assert window.end_ns - window.start_ns == pytest.approx((IDLE_MS + KERNELS_MS) * MS, abs=100)
        assert lies_in_its_step(window, text)


def test_kernels_for_lists_of_tensors_are_clear() -> None:
    assert outcome(RULE, ranks(FOREACH, FOREACH)).status == "clear"


def test_few_kernels_are_clear() -> None:
    assert outcome(RULE, ranks(LOOP, LOOP), settings={"min_kernels": 181.0}).status == "clear"
    assert finding(RULE, ranks(LOOP, LOOP), settings={"min_kernels": 180.0}).ranks == (0, 1)


def test_a_saving_below_the_threshold_is_clear() -> None:
    share = COST_MS / step_ms(ranks(LOOP, LOOP))
    assert outcome(RULE, ranks(LOOP, LOOP), settings={"min_cost": share * 1.02}).status == "clear"
    assert finding(RULE, ranks(LOOP, LOOP), settings={"min_cost": share * 0.98}).ranks == (0, 1)


def test_a_loop_that_the_host_runs_ahead_of_costs_only_its_kernels() -> None:
    assert finding(RULE, ranks(AHEAD, AHEAD)).cost_ms == pytest.approx(0.65 * 20, rel=0.02)


def test_a_loop_that_is_hidden_in_waiting_costs_nothing() -> None:
    slow = """
        rank# step |1
              host [fwd]
              gpu  [fwd...........................................]
              nccl                                                 [ar]
    """
    waits = LOOP.replace("[ar]", "[ar............]")
    assert outcome(RULE, ranks(waits, slow)).status == "clear"


def test_launch_bound_leaves_its_cost_out() -> None:
    starved = """
        rank# step |1
              host [a........][b........][c........][optim.........][optim.........]
              gpu  [a]        [b]        [c]        [optim*60]      [optim*60]
              nccl                                                            [ar]
    """
    text = ranks(starved, starved)
    costs = {found.rule: found.cost_ms for found in engine.examine(job(text)).findings}
    assert costs[RULE] == finding(RULE, text).cost_ms
    assert 0 < costs["launch-bound"] < finding("launch-bound", text).cost_ms
    assert costs[RULE] + costs["launch-bound"] < step_ms(text)


def test_a_trace_without_an_optimizer_says_so() -> None:
    text = """
        rank# step |1
              host [fwd]
              gpu  [fwd.......]
              nccl             [ar]
    """
    result = outcome(RULE, ranks(text, text))
    assert result.status == "not-applicable"
    assert "No optimizer's step" in result.reason


def test_cpus_launch_nothing() -> None:
    text = """
        rank# step |1
              host [a....][optim.......]
    """
    result = outcome(RULE, ranks(text, text))
    assert result.status == "not-applicable"
    assert "CPU only" in result.reason


def test_one_rank_alone_is_enough() -> None:
    assert finding(RULE, ranks(LOOP), world_size=2).ranks == (0,)


def test_an_optimizer_within_another_counts_once() -> None:
    nested = LOOP.replace("gpu  ", "within    [update.]\n          gpu  ", 1)
    assert finding(RULE, ranks(nested, nested)).title == finding(RULE, ranks(LOOP, LOOP)).title


def test_products_of_matrices_are_no_loop_of_small_operations() -> None:
    text = LOOP.replace("optim*60", "gmma*60")
    assert outcome(RULE, ranks(text, text)).status == "clear"


def test_a_stall_within_the_step_is_no_launching() -> None:
    stalled = """
        rank# step   |1
              host   [fwd][optim....][optim....][optim..]
              within      [update................................................]
              gpu    [fwd.][optim*60][optim*60] [optim*60]
              nccl                                                                [ar]
    """
    launching = sum(len(block) for block in ("[optim....]", "[optim....]", "[optim..]"))
    assert f"takes the CPU {launching}." in finding(RULE, ranks(stalled, stalled)).title
