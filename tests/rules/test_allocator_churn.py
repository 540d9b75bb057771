"""Device memory is allocated and freed in every step."""

from __future__ import annotations

import pytest
from traces import finding, lies_in_its_step, outcome, ranks, step_ms

RULE = "allocator-churn"
CHURNS = """
    rank# step |1
          host [free...][alloc][a..][b]
          gpu                  [a]  [b...........]
          nccl                                    [ar]
"""
GROWS = CHURNS.replace("[free...]", "[alloc..]")
HIDDEN = """
    rank# step |1
          host [a][b][alloc]
          gpu  [a............][b............]
          nccl                               [ar]
"""


def test_freeing_and_allocating_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(CHURNS, CHURNS))
    # 9 and 7 ms in the calls; of the 2 ms until b is launched all, since the host would have come 16 ms earlier.
    assert found.cost_ms == pytest.approx(9 + 7 + 2, rel=0.15)
    assert found.cause == "freed_and_allocated"
    assert found.ranks == (0, 1)
    assert "1 allocations and 1 releases" in found.why
    assert "empty_cache" in found.fix


def test_memory_that_grows_is_told_apart() -> None:
    found = finding(RULE, ranks(GROWS, GROWS))
    assert found.cause == "allocated"
    assert "empty_cache" not in found.fix


def test_no_other_rule_claims_it_again() -> None:
    for other in ("host-sync", "host-stall"):
        assert outcome(other, ranks(CHURNS, CHURNS)).status == "clear"


def test_evidence_lies_in_its_step() -> None:
    text = ranks(CHURNS, CHURNS)
    windows = finding(RULE, text).evidence
    assert len(windows) == 2
    assert all(lies_in_its_step(window, text) for window in windows)
    assert {"cudaFree", "cudaMalloc"} == {window.what.split()[4] for window in windows}


def test_allocating_beside_a_busy_device_is_clear() -> None:
    result = outcome(RULE, ranks(HIDDEN, HIDDEN))
    assert result.status == "clear"
    assert "enough queued work" in result.reason


def test_a_cost_below_the_threshold_is_clear() -> None:
    text = ranks(CHURNS, CHURNS)
    share = finding(RULE, text).cost_ms / step_ms(text)
    assert outcome(RULE, text, settings={"min_cost": share * 1.02}).status == "clear"
    assert finding(RULE, text, settings={"min_cost": share * 0.98})


def test_steps_that_allocate_nothing_are_clear() -> None:
    text = ranks(HIDDEN.replace("alloc", "c...."), HIDDEN.replace("alloc", "c...."))
    assert outcome(RULE, text).reason == "No GPU memory is allocated or freed in the steps."


def test_cpus_are_not_judged() -> None:
    text = """
        rank# step |1
              host [a....][b....]
    """
    assert "CPU only" in outcome(RULE, ranks(text, text)).reason
