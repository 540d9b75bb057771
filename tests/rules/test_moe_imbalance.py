"""Experts that get unequal numbers of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from traces import MS, finding, job, outcome, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf

RULE = "moe-imbalance"


def layers(lengths: Sequence[Sequence[int]], **options: Any) -> str:
    """Three steps of `drawings`."""
    return ranks(*drawings(lengths, **options), steps=3)


def drawings(
    lengths: Sequence[Sequence[int]], *, attention: Sequence[int] = (), kind: str = "a2a", even: bool = False
) -> list[str]:
    """Each rank's step of layers of attention (5 ms, or as long for each rank), an exchange (9 ms from the last
    arrival), experts and the exchange back; `lengths` are those of the experts by layer and rank, ms. Ranks exchange a
    million elements for each ms of their experts, or equal parts.
    """
    gpu, nccl = ([""] * len(lengths[0]) for _ in range(2))

    def draw(length: Sequence[int], tokens: Sequence[int]) -> None:
        last = max(length)
        for rank, mine in enumerate(length):
            named = f"{kind}@{1 if even else tokens[rank]}"
            gpu[rank] += f"[k{'.' * (mine - 3)}]" + " " * (last - mine + 9)
            nccl[rank] += " " * mine + f"[{named}{'.' * (last - mine + 7 - len(named))}]"

    for of_layer in lengths:
        draw(attention or [5] * len(of_layer), of_layer)
        draw(of_layer, of_layer)
    calls = f"[k][{kind}]" * 2 * len(lengths)
    return [
        f"rank# step |1\n      host {calls}\n      gpu       {one}\n      nccl      {other}\n"
        for one, other in zip(gpu, nccl, strict=True)
    ]


#: Another rank of three has 14 ms to do in each layer where the others have 5: the mean is 8.
TURNS = [[14, 5, 5], [5, 14, 5], [5, 5, 14]]


def test_a_hot_rank_that_changes_from_layer_to_layer_is_found() -> None:
    found = finding(RULE, layers(TURNS))
    assert found.cause == "moving"
    assert found.ranks == (0, 1, 2)
    # The slowest of three is 6 ms above the mean in each layer, and six AllToAlls of 9 ms have parts of 5 to 14.
    assert found.cost_ms == pytest.approx(3 * 6 + 6 * 9 * (1 - 5 / 14), rel=0.05)
    assert found.steps == (1, 2, 3)


def test_a_rank_whose_experts_always_have_most_is_no_straggler_but_steady() -> None:
    text = layers([[5, 14, 5, 5]] * 3)
    found = finding(RULE, text)
    assert (found.cause, found.ranks) == ("steady", (1,))
    assert "always the same ranks" in found.why
    verdict = engine.examine(job(text))
    assert [one.rule for one in verdict.findings if one.severity != "info"] == [RULE]


def test_experts_of_a_server_are_placed_by_their_load() -> None:
    text, serves = layers([[5, 14, 5, 5]] * 3), {"k": "void paged_attention_v1_kernel<1>"}
    diagnosis = engine.examine(job(text, kernels=serves))
    assert diagnosis.kind == "inference server"
    (found,) = (one for one in diagnosis.findings if one.rule == RULE)
    assert found.ranks == (1,) and "straggler" not in {one.rule for one in diagnosis.findings}
    assert "--enable-eplb" in found.fix and "Megatron" not in found.fix


def test_ranks_without_any_tokens_are_no_stragglers_once_the_load_is_balanced() -> None:
    verdict = engine.examine(job(layers([[14, 14, 3, 3]] * 3)))
    assert [(one.rule, one.ranks) for one in verdict.findings if one.severity != "info"] == [(RULE, (0, 1))]


def test_a_straggler_beside_hot_experts_is_found_as_well() -> None:
    slow = layers([[5, 14, 5, 10]] * 3, attention=[5, 5, 5, 10])
    verdict = engine.examine(job(slow))
    assert {(one.rule, one.ranks) for one in verdict.findings if one.severity != "info"} == {
        (RULE, (1,)),
        ("straggler", (3,)),
    }


def test_sizes_say_how_many_more_tokens_the_ranks_with_most_get() -> None:
    found = finding(RULE, layers(TURNS))
    assert "the largest part has 2.8 times the elements of the smallest" in found.why
    # Over a link that ranks share, as many tokens as before take as long as before.
    assert found.range_ms[0] < 0.95 * found.cost_ms


def test_equal_parts_deal_out_no_tokens() -> None:
    ended = outcome(RULE, layers(TURNS, even=True))
    assert ended.status == "clear" and ended.reason.startswith("AllToAlls have equal sizes on all ranks")


@pytest.mark.parametrize(
    "kernel",
    [
        "void split_embedding_codegen_forward_unweighted_kernel<float>()",
        "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>",
    ],
)
def test_exchanges_of_embedding_tables_are_no_tokens(kernel: str) -> None:
    ended = outcome(RULE, layers(TURNS), kernels={"k": kernel})
    assert ended.reason == "What AllToAlls exchange is embeddings, not tokens."


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
    ended = outcome(RULE, layers([[6, 5, 5], [5, 6, 5], [5, 5, 6]], kind="ar", even=True))
    assert (ended.status, ended.reason[:27]) == ("clear", "No exchange of tokens betwe")


def test_a_rank_that_is_slow_in_all_it_does_is_no_uneven_routing() -> None:
    text = layers([[6, 12, 6]] * 3, attention=[5, 10, 5])
    whatif = WhatIf.of(job(text))
    assert whatif.cost_ns(Change(balanced=np.ones(whatif.shape, np.bool_))) < 0.1 * MS


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


#: One layer: tokens dealt out evenly, and most of them to rank 0.
DEALT_EVENLY = drawings([[45] * 3], attention=[45] * 3)
DEALT_UNEVENLY = drawings([[60, 30, 30]], attention=[45] * 3)
