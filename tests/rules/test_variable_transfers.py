"""The same collective takes far longer at some times than at others: the network is shared."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import finding, in_row, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.rules.variable_transfers import _median_ns

RULE = "variable-transfers"
USUAL = """
    rank# step |1
          gpu  [fwd...][bwd...]
          nccl                 [ar@8]
"""
CONGESTED = """
    rank# step |1
          gpu  [fwd...][bwd...]
          nccl                 [ar@8.........................]
"""
#: As long, but all of it more data.
LARGER = CONGESTED.replace("ar@8.", "ar@80")


def drawn(*steps: str, number: int = 2) -> str:
    return in_row(*(ranks(*[step] * number, steps=1) for step in steps))


ONCE = drawn(USUAL, USUAL, CONGESTED, USUAL, USUAL)


def test_a_transfer_that_is_slow_once_is_found_with_its_step() -> None:
    found = finding(RULE, ONCE)
    assert found.steps == (3,)
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(25 / 5, rel=0.05)
    assert "take 6.0 ms (p50) and 30.0 ms (p99)" in found.why
    assert "1 of 5 are slow, in step 3" in found.why
    assert lies_in_its_step(found.evidence[0], ONCE)


def test_transfers_that_are_alike_are_clear() -> None:
    assert outcome(RULE, drawn(*[USUAL] * 4)).status == "clear"


def test_a_transfer_that_is_slow_in_every_step_does_not_vary() -> None:
    assert outcome(RULE, drawn(*[CONGESTED] * 4)).status == "clear"


def test_a_larger_message_is_no_variation() -> None:
    assert outcome(RULE, drawn(USUAL, USUAL, USUAL, LARGER)).status == "clear"


def test_messages_of_unknown_size_are_compared_with_those_between_the_same_ranks() -> None:
    """In odd steps ranks 0 and 1 meet first, in even ones 2 and 3, whose messages are larger."""
    short, long, steps = 4_000_000, 20_000_000, np.repeat(np.arange(6), 2)
    among = np.where(steps % 2 == 0, [0, 1] * 6, [1, 0] * 6)
    took, nothing = np.where(among == 0, short, long), np.zeros(12, np.int64)
    columns = (np.arange(12), steps, among, np.full(12, -1), took, took, nothing)
    traffic = Traffic("send_recv", "", "", np.arange(4), 4, (), 6, *columns, None)
    same = np.zeros(6, np.int64)
    assert _median_ns(traffic, same).tolist() == took.tolist()
    # Of all ranks together the n-th of each step are no two alike.
    assert _median_ns(replace(traffic, among=nothing), same).tolist() != took.tolist()
    # Nor are steps of other workloads; those of none have no like.
    assert not _median_ns(traffic, np.arange(6)).any() and not _median_ns(traffic, same - 1).any()


def test_waiting_for_a_late_rank_is_no_variation() -> None:
    late = """
        rank# step |1
              gpu  [fwd...][bwd............................]
              nccl                                          [ar@8]
    """
    text = in_row(drawn(*[USUAL] * 3), ranks(CONGESTED, late, steps=1))
    assert outcome(RULE, text).status == "clear"


def test_without_sizes_the_same_place_in_each_step_is_compared() -> None:
    assert finding(RULE, ONCE, metadata="nowhere").steps == (3,)


#: An iteration of a server with an AllReduce of tensor parallelism, whose size a custom kernel does not say.
ITERATION = """
    rank# host   [own_context_0_generation_8..]
          within [attend] [sync.............]
          gpu      [attend..]
          nccl               [ar............]
"""
#: A longer one: of prompts, or of a congested link.
LONG = """
    rank# host   [own_context_0_generation_8..........................................]
          within [attend] [sync.....................................................]
          gpu      [attend..]
          nccl               [ar....................................................]
"""
PROMPTS = LONG.replace("context_0", "context_2")


def test_iterations_that_read_prompts_send_more() -> None:
    congested, prompts = (drawn(ITERATION, ITERATION, one, *[ITERATION] * 4) for one in (LONG, PROMPTS))
    found = finding(RULE, congested, metadata="nowhere")
    assert found.steps == (2,)
    assert "comparable ones take 16.0 ms (p50)" in found.why
    assert outcome(RULE, prompts, metadata="nowhere").status == "clear"


def test_two_steps_have_no_usual_time() -> None:
    assert outcome(RULE, drawn(USUAL, CONGESTED)).status == "not-applicable"


def test_what_hides_behind_compute_costs_nothing() -> None:
    hidden = """
        rank# step |1
              gpu  [fwd...][bwd...............................]
              nccl         [ar@8.........................]
    """
    assert outcome(RULE, drawn(USUAL, USUAL, USUAL, USUAL, hidden)).status == "clear"


def test_the_group_that_is_slow_is_named() -> None:
    assert "The same all_reduce of group 0 takes up to 5 times as long" in finding(RULE, ONCE).title
