"""Reinforcement learning without ProfilerSteps: its rounds are the steps, by the annotations of its roles."""

from __future__ import annotations

import pytest
from traces import finding, job, ranks

from tb_ddp_doctor import engine

#: Two ranks generate, then two train on the samples and send the weights; then the next round begins.
GENERATES = """
    rank# host   [own_generate_sequences][own_sync_weights..................]
          within [attend][sync.........]    [sync..........................]
          gpu      [attend.............]
          nccl                            [bc..............................]
"""
TRAINS = """
    rank# host                           [own_update_actor][own_sync_weights]
          within                         [fwd][sync......]         [sync...]
          gpu                             [fwd...........]
          nccl                                                   [bc.......]
"""
#: One process does both.
IN_TURN = """
    rank# host   [own_generate_sequences][own_update_actor.]
          within [attend][sync.........]  [fwd][sync......]
          gpu      [attend.............]    [fwd..........]
"""


def test_rounds_end_with_the_sync_of_weights_on_all_ranks() -> None:
    text = ranks(GENERATES, GENERATES, TRAINS, TRAINS, steps=5)
    found = engine.examine(job(text))
    # Four rounds end with a sync; what comes before the end of the first sync is of none.
    assert (found.kind, found.ranks, found.steps) == ("RL", (0, 1, 2, 3), (0, 1, 2, 3))
    assert found.verdict == "role-bubble"
    assert finding("role-bubble", text).cost_ms == pytest.approx(23, rel=0.03)


def test_a_process_of_all_roles_begins_a_round_with_each_rollout() -> None:
    found = engine.examine(job(ranks(IN_TURN, IN_TURN, steps=5)))
    assert (found.kind, len(found.steps)) == ("RL", 4)


def test_a_role_alone_makes_no_rounds() -> None:
    text = ranks(GENERATES, GENERATES, steps=5).replace("sync_weights", "any_other_name_at_all")
    assert len(job(text).steps) == 1
