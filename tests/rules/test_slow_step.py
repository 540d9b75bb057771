"""Steps that are slow on all ranks are named, with what of them is slow."""

from __future__ import annotations

import pytest
from traces import finding, in_row, lies_in_its_step, outcome, ranks

RULE = "slow-step"
USUAL = """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd....][bwd.]
          nccl                [ar....]
"""
SLOW_KERNELS = """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd...............][bwd.]
          nccl                           [ar....]
"""
SLOW_NETWORK = """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd....][bwd.]
          nccl                [ar...............]
"""
SAVING = """
    rank# step |1
          host [fwd]          [bwd]
          gpu  [fwd....]      [bwd.]
          nccl                      [ar....]
"""
WITH_HOST = """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd....][bwd.]
          nccl                [ar....]
"""


def once(usual: str, odd: str, *, at: tuple[int, ...] = (2,), steps: int = 5) -> str:
    """Steps of two ranks, of which some are odd on both; steps count from 1."""
    return in_row(*(ranks(*[odd if step in at else usual] * 2, steps=1) for step in range(1, steps + 1)))


def test_kernels_that_are_slow_once_on_all_ranks_are_told() -> None:
    found = finding(RULE, once(USUAL, SLOW_KERNELS))
    assert found.headline.endswith(" %), seen once in 5 steps.")
    assert (found.steps, found.ranks, found.cause) == ((2,), (0, 1), "device")
    assert found.cost_ms == pytest.approx(11 / 5, rel=0.05)
    assert found.confidence == "low"
    assert found.title.startswith("Step 2 is slow on all ranks (1 of 5 steps): the same kernels take longer")
    assert "longer capture" in found.why


def test_one_slow_collective_is_told_and_not_called_slow_communication() -> None:
    text = once(USUAL, SLOW_NETWORK)
    found = finding(RULE, text)
    assert (found.steps, found.cause) == ((2,), "communication")
    assert found.cost_ms == pytest.approx(11 / 5, rel=0.05)
    assert "Send fewer bytes" not in found.fix


def test_of_one_rank_it_is_not_said_that_all_are_slow() -> None:
    alone = [ranks(SLOW_KERNELS if step == 2 else USUAL, steps=1) for step in range(1, 6)]
    assert finding(RULE, in_row(*alone), world_size=1).title.startswith("Step 2 is slow (1 of 5 steps): the same")


def test_what_all_hosts_do_in_one_step_is_told() -> None:
    found = finding(RULE, once(WITH_HOST, SAVING, at=(3,)))
    assert (found.cause, found.ranks) == ("host", (0, 1))


def test_steps_that_come_regularly_are_told_with_their_period() -> None:
    found = finding(RULE, once(USUAL, SLOW_KERNELS, at=(2, 5, 8), steps=9))
    assert found.steps == (2, 5, 8)
    assert "It comes every 3 steps." in found.why


def test_steps_that_are_alike_are_clear() -> None:
    assert outcome(RULE, once(USUAL, USUAL)).status == "clear"


def test_two_steps_cannot_tell_which_is_odd() -> None:
    assert outcome(RULE, once(USUAL, SLOW_KERNELS, steps=2)).status == "not-applicable"


def test_one_slow_rank_is_no_slow_step() -> None:
    # The others' AllReduce ends with its own, as of a slow network.
    odd = ranks(SLOW_NETWORK, SLOW_KERNELS, SLOW_NETWORK, steps=1)
    usual = ranks(USUAL, USUAL, USUAL, steps=1)
    assert outcome(RULE, in_row(usual, odd, usual, usual)).status == "clear"


def test_evidence_is_the_slow_step() -> None:
    text = once(USUAL, SLOW_KERNELS)
    (window,) = finding(RULE, text).evidence
    assert window.step == 2 and lies_in_its_step(window, text)
