"""Experts that get unequal numbers of tokens, on another rank from layer to layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from traces import MS, finding, job, outcome, ranks

from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.uneven_experts import balanced

RULE = "load-imbalance"


def layers(lengths: Sequence[Sequence[int]], *, attention: Sequence[int] = (), kind: str = "a2a") -> str:
    """A step of layers of attention (5 ms, or as long for each rank), an exchange (5 ms from the last arrival), experts
    and the exchange back; `lengths` are those of the experts by layer and rank, ms.
    """
    gpu, nccl = ([""] * len(lengths[0]) for _ in range(2))

    def draw(length: Sequence[int]) -> None:
        last = max(length)
        for rank, mine in enumerate(length):
            gpu[rank] += f"[k{'.' * (mine - 3)}]" + " " * (last - mine + 5)
            nccl[rank] += " " * mine + f"[{kind}{'.' * (last - mine + 3 - len(kind))}]"

    for of_layer in lengths:
        draw(attention or [5] * len(of_layer))
        draw(of_layer)
    calls = f"[k][{kind}]" * 2 * len(lengths)
    texts = [
        f"rank# step |1\n      host {calls}\n      gpu       {one}\n      nccl      {other}\n"
        for one, other in zip(gpu, nccl, strict=True)
    ]
    return ranks(*texts, steps=3)


#: Another rank of three has 14 ms to do in each layer where the others have 5: the mean is 8.
TURNS = [[14, 5, 5], [5, 14, 5], [5, 5, 14]]


def test_a_hot_rank_that_changes_from_layer_to_layer_is_load_imbalance_of_experts() -> None:
    found = finding(RULE, layers(TURNS))
    assert found.cause == "experts"
    assert found.ranks == (0, 1, 2)
    assert found.cost_ms == pytest.approx(3 * 6, rel=0.05)
    assert found.steps == (1, 2, 3)


def test_it_says_the_wait_the_layers_and_the_ranks() -> None:
    found = finding(RULE, layers(TURNS))
    # In each layer two of three ranks wait 9 ms.
    assert found.title.startswith("Experts get unequal loads: ranks wait 18.0 ms a step")
    assert "Before 3 of 6 exchanges of tokens a step, the slowest rank computes 1.8 times as long" in found.why
    assert "step 1, exchange 2: rank 0, 6.0 ms above the mean" in found.why


def test_experts_with_equal_loads_are_no_imbalance() -> None:
    assert outcome(RULE, layers([[8, 8, 8]] * 3)).status == "clear"


def test_loads_that_differ_by_less_than_a_fifth_are_no_imbalance() -> None:
    assert outcome(RULE, layers([[9, 8, 8], [8, 9, 8], [8, 8, 9]])).status == "clear"


def test_collectives_that_exchange_no_tokens_share_no_work() -> None:
    whatif = WhatIf.of(job(layers(TURNS, kind="ar")))
    assert whatif.plays
    assert balanced(whatif).is_nothing


def test_a_rank_that_is_slow_in_all_it_does_is_no_uneven_routing() -> None:
    text = layers([[6, 12, 6]] * 3, attention=[5, 10, 5])
    whatif = WhatIf.of(job(text))
    assert whatif.cost_ns(balanced(whatif)) < 0.1 * MS


def test_a_rank_that_is_always_hot_is_the_straggler() -> None:
    text = layers([[5, 14, 5, 5]] * 3)
    assert finding("straggler", text).ranks == (1,)
    assert outcome(RULE, text).status == "clear"


def test_balanced_work_is_the_mean_of_the_ranks_that_meet() -> None:
    whatif = WhatIf.of(job(layers(TURNS)))
    assert whatif.replay is not None
    excess = whatif.replay.routing.excess_ns(np.ones(whatif.shape, np.bool_))
    assert sorted((excess[excess > 0] / MS).round(2).tolist()) == [6.0] * 9


def test_ranks_that_are_not_among_them_keep_their_work() -> None:
    whatif = WhatIf.of(job(layers(TURNS)))
    assert whatif.replay is not None
    among = np.ones(whatif.shape, np.bool_)
    among[0] = False
    pieces = whatif.replay.routing
    assert not pieces.excess_ns(among)[pieces.rank == 0].any()
