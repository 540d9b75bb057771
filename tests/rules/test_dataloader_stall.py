"""The devices wait for the DataLoader."""

from __future__ import annotations

import pytest
from traces import MS, finding, lies_in_its_step, outcome, ranks, step_ms

RULE = "dataloader-stall"
STALLED = """
    rank# step |1
          host [load....][fwd]
          gpu            [fwd......]
          nccl                      [ar..]
"""
HIDDEN = """
    rank# step |1
          host [fwd][load....]
          gpu  [fwd..............]
          nccl                    [ar....]
"""
HALF_HIDDEN = """
    rank# step |1
          host [load....][fwd]
          gpu  [?old]    [fwd......]
          nccl                      [ar..]
"""
LOADED = """
    rank# step |1
          host [fwd]
          gpu  [fwd......]
          nccl            [ar............]
"""


def test_waiting_for_the_loader_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(STALLED, STALLED))
    assert found.ranks == (0, 1)
    assert found.steps == (1, 2, 3)
    assert found.cost_ms == pytest.approx(10, rel=0.02)
    assert found.severity == "critical"
    assert found.confidence == "high"


def test_a_loader_in_the_training_process_is_named() -> None:
    found = finding(RULE, ranks(STALLED, STALLED))
    assert found.cause == "single_process"
    assert "num_workers=0" in found.why
    assert "num_workers=4" in found.fix and "pin_memory=True" in found.fix


def test_a_loader_with_too_few_workers_is_named() -> None:
    text = ranks(STALLED, STALLED).replace("[load....]", "[fetch...]")
    found = finding(RULE, text)
    assert found.cause == "slow_workers"
    assert "worker processes, but too few" in found.why


def test_evidence_is_the_wait() -> None:
    text = ranks(STALLED, STALLED)
    for window in finding(RULE, text).evidence:
        assert window.end_ns - window.start_ns == 10 * MS
        assert lies_in_its_step(window, text)


def test_loading_that_hides_is_clear() -> None:
    result = outcome(RULE, ranks(HIDDEN, HIDDEN))
    assert result.status == "clear"
    assert "hides behind the device" in result.reason


def test_only_what_is_exposed_costs() -> None:
    assert finding(RULE, ranks(HALF_HIDDEN, HALF_HIDDEN, steps=1)).cost_ms == pytest.approx(4, rel=0.02)


def test_a_wait_below_the_threshold_is_clear() -> None:
    share = 10 / step_ms(ranks(STALLED, STALLED))
    assert outcome(RULE, ranks(STALLED, STALLED), settings={"min_share": share * 1.02}).status == "clear"
    assert finding(RULE, ranks(STALLED, STALLED), settings={"min_share": share * 0.98}).ranks == (0, 1)


@pytest.mark.parametrize("fast", [1, 2, 3])
def test_one_rank_that_waits_is_a_straggler(fast: int) -> None:
    text = ranks(*[LOADED] * fast, STALLED)
    straggler = finding("straggler", text)
    assert (straggler.ranks, straggler.cause) == ((fast,), "input")
    result = outcome(RULE, text)
    assert result.status == "clear"
    assert "Only some ranks wait" in result.reason


def test_without_a_loader_it_is_not_applicable() -> None:
    result = outcome(RULE, ranks(LOADED, LOADED))
    assert result.status == "not-applicable"
    assert "No DataLoader appears" in result.reason


def test_one_rank_alone_is_enough() -> None:
    assert finding(RULE, ranks(STALLED), world_size=2).ranks == (0,)


def test_cpus_wait_for_it_too() -> None:
    text = """
        rank# step |1
              host [load....][fwd......]
    """
    assert finding(RULE, ranks(text)).cost_ms == pytest.approx(10, rel=0.02)
