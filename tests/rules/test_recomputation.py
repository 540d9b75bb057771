"""Activation checkpointing."""

from __future__ import annotations

import pytest
from traces import finding, job, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor import engine

RULE = "recomputation"
#: Backward of a block computes the block's norm again.
FAULTY = """
    rank# step     |1
          host     [linear]                    [sync..................]
          autograd         [block.............]
          again             [layer_norm][mm]
          gpu      [linear..............][layer_norm][mm..............]
          nccl                                   [ar.]
"""
HEALTHY = """
    rank# step     |1
          host     [linear]
          autograd         [block.............]
          again                         [mm]
          gpu      [linear..............][mm..........................]
          nccl                                   [ar.]
"""
AGAIN_MS = 12


def test_forward_within_backward_is_found() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text)
    assert found.severity == "opportunity"
    assert found.cost_ms == pytest.approx(AGAIN_MS, abs=0.05)
    assert found.range_ms == pytest.approx((AGAIN_MS / 2, AGAIN_MS), abs=0.5)
    assert found.headline.startswith(f"{AGAIN_MS}.0 of 52.0 ms compute forward again")
    assert "shorten the step by 6 to 12 ms (fewer activation checkpoints)." in found.headline
    assert all(lies_in_its_step(window, text) for window in found.evidence)


def test_the_nodes_own_kernels_are_not_forward() -> None:
    assert outcome(RULE, ranks(HEALTHY, HEALTHY)).status == "clear"


def test_a_reentrant_checkpoint_is_forward_but_for_the_nodes_within() -> None:
    reentrant = FAULTY.replace("[block.............]", "[checkpoint........]").replace("layer_norm", "addmm.....")
    assert finding(RULE, ranks(reentrant, reentrant)).cost_ms > 0


def test_it_is_no_fault_of_a_healthy_job() -> None:
    diagnosis = engine.examine(job(ranks(FAULTY, FAULTY)))
    assert (diagnosis.verdict, diagnosis.level, diagnosis.findings) == ("healthy", "healthy", ())
    (found,) = diagnosis.opportunities
    assert diagnosis.headline == f"Healthy. The largest opportunity: {found.headline}"
    assert found.cost_ms < diagnosis.account.line("floor").ms <= step_ms(ranks(FAULTY, FAULTY))
