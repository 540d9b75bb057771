"""Ranks without a trace that the others wait for."""

from __future__ import annotations

import numpy as np
import pytest
from traces import MS, finding, in_row, job, lies_in_its_step, outcome, ranks

RULE = "missing-straggler"
#: The first AllReduce of the step waits for a rank that is not drawn; those after it show what a transfer takes.
LATE = """
    rank# step |1
          host [a][ar][ar][ar]
          gpu  [a...............................]
          nccl     [ar@8................][ar@8][ar@8]
"""
#: They take as long, one after the other.
USUAL = """
    rank# step |1
          host [a][ar][ar][ar]
          gpu  [a..]
          nccl     [ar@8][ar@8][ar@8]
"""
#: The same beside compute.
HIDDEN = """
    rank# step |1
          host [a][ar][ar][ar]
          gpu  [a...............................]
          nccl     [ar@8][ar@8][ar@8]
"""
EXPOSED = """
    rank# step |1
          host [a][ar][ar][ar][sync.................]
          gpu  [a.]
          nccl     [ar@8................][ar@8][ar@8]
"""


@pytest.mark.parametrize("drawn", [1, 2])
def test_a_rank_without_a_trace_that_is_waited_for_is_found(drawn: int) -> None:
    text = ranks(*[EXPOSED] * drawn)
    found = finding(RULE, text, world_size=drawn + 1)
    assert found.ranks == tuple(range(drawn))
    assert found.steps == (1, 2, 3)
    # The second and third take 6 ms, the first 22.
    assert found.cost_ms == pytest.approx(22 - 6, rel=0.02)
    assert f"16.0 ms of every 38.0 ms for rank {drawn}, which has no usable trace" in found.title
    (window,) = found.evidence
    assert window.end_ns - window.start_ns == 16 * MS
    assert lies_in_its_step(window, text)


def test_several_missing_ranks_are_counted() -> None:
    assert "some of the 3 ranks that have no usable trace" in finding(RULE, ranks(EXPOSED), world_size=4).title


def test_waiting_that_hides_behind_compute_costs_nothing() -> None:
    assert outcome(RULE, ranks(LATE), world_size=2).status == "clear"


def test_waiting_in_few_steps_is_chance() -> None:
    text = in_row(ranks(USUAL, steps=1), ranks(EXPOSED, steps=1), ranks(USUAL, steps=1))
    result = outcome(RULE, text, world_size=2)
    assert (result.status, result.reason) == (
        "clear",
        "Straggler wait for ranks without a trace is seen in 1 of 3 steps only.",
    )


@pytest.mark.parametrize("drawing", [USUAL, HIDDEN])
def test_collectives_that_are_alike_are_clear(drawing: str) -> None:
    assert outcome(RULE, ranks(drawing), world_size=2).status == "clear"


def test_a_larger_message_may_take_longer() -> None:
    larger = EXPOSED.replace("[ar@8................]", "[ar@30...............]")
    assert outcome(RULE, ranks(larger), world_size=2).status == "clear"


def test_a_message_takes_no_longer_than_a_larger_one() -> None:
    smaller = EXPOSED.replace("[ar@8................]", "[ar@2................]")
    assert finding(RULE, ranks(smaller), world_size=2).cost_ms == pytest.approx(22 - 6, rel=0.02)


def test_where_all_ranks_have_a_trace_the_late_one_is_no_missing_one() -> None:
    result = outcome(RULE, ranks(EXPOSED, EXPOSED))
    assert (result.status, result.reason) == ("clear", "All ranks have a trace.")


def test_what_is_waited_for_is_no_transfer() -> None:
    budget = job(ranks(EXPOSED, EXPOSED), world_size=3).budget
    assert budget.of("transfer") == pytest.approx(np.full((2, 3), 18 * MS))
    assert budget.of("wait") == pytest.approx(np.full((2, 3), 16 * MS))


def test_sends_and_receives_wait_for_their_partner_only() -> None:
    text = """
        rank0 step |1                          |2
              host [a]                         [a]
              gpu  [a.]                        [a.]
              nccl     [p2ps1................]      [p2ps1..]
    """
    assert outcome(RULE, text, world_size=4).status == "clear"
