"""A finding in one number: who or what costs how much of the step."""

from __future__ import annotations

import pytest
from traces import job, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.account.headline import is_seen_once
from tb_ddp_doctor.rules import CATALOGUE

USUAL = """
    rank# step |1
          host [fwd]
          gpu  [fwd....][bwd.]
          nccl                [ar............]
"""
LATE = """
    rank# step |1
          host             [fwd]
          gpu              [fwd....][bwd.]
          nccl                            [ar]
"""
TWO_NODES = {0: "node0", 1: "node0", 2: "node1", 3: "node1", 4: "node1"}


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ((USUAL, LATE, USUAL, USUAL, USUAL), "Rank 1 (node0) costs "),
        ((USUAL, LATE, LATE, USUAL, USUAL), "Ranks 1 and 2 (node0 and node1) cost "),
    ],
)
def test_slow_ranks_are_named_with_their_nodes(drawn: tuple[str, ...], said: str) -> None:
    found = engine.examine(job(ranks(*drawn), nodes=TWO_NODES)).findings[0]
    assert found.headline.startswith(said)
    assert f" {found.cost_ms:.1f} ms of " in found.headline


def test_every_rule_that_is_not_about_slow_ranks_says_what_costs_the_time() -> None:
    assert {rule.id for rule in CATALOGUE.values() if not rule.subject} == {"straggler"}


def test_of_one_recorded_step_and_of_tracing_no_headline_says_how_often() -> None:
    straggler, tracing = CATALOGUE["straggler"], CATALOGUE["profiler-overhead"]
    assert not is_seen_once(straggler, (3,), 1)
    assert not is_seen_once(tracing, (3,), 6)
    assert is_seen_once(straggler, (3,), 6)
