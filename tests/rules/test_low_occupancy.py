"""Long kernels that fill little of the device."""

from __future__ import annotations

from traces import finding, lies_in_its_step, outcome, ranks

RULE = "low-occupancy"
LONG = """
    rank# step |1
          host [norm][loss]
          gpu  [norm........][loss....]
          nccl                         [ar]
"""
SHORT = LONG.replace("[norm........]", "[norm*1000...]")
LOW = {"norm": 20, "loss": 80}


def test_long_kernels_of_low_occupancy_are_told_for_information() -> None:
    found = finding(RULE, ranks(LONG, LONG), occupancy=LOW)
    assert (found.severity, found.cost_ms, found.ranks) == ("info", 0, (0, 1))
    assert "norm_kernel (20 %)" in found.why and "loss" not in found.why
    assert "14.0 ms of every 28.0 ms" in found.title


def test_evidence_is_the_longest_one() -> None:
    text = ranks(LONG, LONG)
    (window,) = finding(RULE, text, occupancy=LOW).evidence
    assert window.end_ns - window.start_ns == 14_000_000
    assert lies_in_its_step(window, text, occupancy=LOW)


def test_short_kernels_are_clear() -> None:
    assert outcome(RULE, ranks(SHORT), occupancy=LOW).status == "clear"
    assert finding(RULE, ranks(SHORT), occupancy=LOW, settings={"min_length": 10.0})


def test_occupancy_above_the_threshold_is_clear() -> None:
    assert outcome(RULE, ranks(LONG), occupancy={"norm": 51}).status == "clear"
    assert finding(RULE, ranks(LONG), occupancy={"norm": 49})


def test_a_small_share_of_the_step_is_clear() -> None:
    assert outcome(RULE, ranks(LONG), occupancy=LOW, settings={"min_share": 0.51}).status == "clear"


def test_products_need_few_warps() -> None:
    text = ranks(LONG.replace("norm", "gmma").replace("loss", "loss"))
    assert outcome(RULE, text, occupancy={"gmma": 13}).status != "finding"


def test_no_estimate_is_no_low_one() -> None:
    for unknown in ({}, {"norm": 0}):
        result = outcome(RULE, ranks(LONG), occupancy=unknown)
        assert result.status == "not-applicable"
        assert "no occupancy estimates" in result.reason


def test_nonsense_over_a_hundred_is_a_hundred() -> None:
    assert outcome(RULE, ranks(LONG), occupancy={"norm": 2**31 - 1}).status == "clear"
