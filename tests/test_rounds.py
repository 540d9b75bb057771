"""Reinforcement learning without ProfilerSteps: its rounds are the steps, by the annotations of its roles."""

from __future__ import annotations

import pytest
from traces import finding, in_row, job, ranks

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


def test_rollouts_that_are_long_in_turn_are_no_fault_of_data_loading() -> None:
    long = """
        rank# host   [own_generate_sequences..............][own_update_actor..]
              within [attend][sync.......................] [fwd][sync.........]
              gpu      [attend...........................]   [fwd....]
              nccl                                                    [ar...]
    """
    short = """
        rank# host   [own_generate_sequences..............][own_update_actor..]
              within [attend][sync......]                  [fwd][sync.........]
              gpu      [attend..........]                    [fwd....]
              nccl                                                    [ar...]
    """
    turns = [[long if rank == turn else short for rank in range(3)] for turn in (0, 1, 2, 0)]
    found = engine.examine(job(in_row(*[ranks(*each, steps=1) for each in turns])))
    assert (found.kind, found.verdict) == ("RL", "load-imbalance"), found.headline
    assert "generates longer answers" in found.findings[0].why
    assert "partial-rollout" in found.findings[0].fix and "DataLoader" not in found.findings[0].fix
