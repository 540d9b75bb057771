"""Ranks of data-parallel attention with unequal numbers of requests, by marks or by what their attention takes."""

from __future__ import annotations

import pytest
from traces import finding, in_row, job, outcome, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.without_faults import whatif

RULE = "request-imbalance"
OPTIONS = {"kernels": {"attend": "void flashinfer::BatchDecodeWithPagedKVCacheKernel<0, 128>(flashinfer::Params)"}}


def iteration(requests: int, attends: int, longest: int, gemms: int = 20) -> str:
    """An iteration of a rank with so many requests, whose attention takes so many ms where the longest takes `longest`:
    GEMMs (20 ms on that rank), attention, then experts (20 ms) between an all-gather and a reduce-scatter. Without
    requests a rank only runs the experts.
    """
    own = gemms + attends if requests else 0
    attention = f"{_box('gemm', gemms)}{_box('attend', attends)}" if requests else ""
    launched = "[gemm][attend]" if requests else ""
    return f"""
        rank# host   {_box(f"own_context_0_generation_{requests}", 51 + longest)}
              within {launched}[ag][experts][rs]{_box("sync", 51 + longest - len(launched) - 17)}
              gpu     {attention}{" " * (24 + longest - own)}{_box("experts", 20)}
              nccl    {" " * own}{_box("ag", 24 + longest - own)}{" " * 20}[rs.]
    """


def _box(name: str, length: int) -> str:
    return f"[{name}{'.' * (length - len(name) - 2)}]"


#: Eight requests on one rank, none on the other; and four on either.
FULL, EMPTY, EVEN = iteration(8, 60, 60), iteration(0, 0, 60), iteration(4, 30, 30)


def test_ranks_without_requests_make_those_with_some_late() -> None:
    fault = finding(RULE, ranks(FULL, EMPTY), **OPTIONS)
    # Attention of 60 ms on one of two ranks is 30 ms on each; GEMMs read their weights for 4 requests as for 8.
    assert fault.cost_ms == pytest.approx(30, rel=0.03)
    assert (fault.cause, fault.ranks) == ("steady", (0,))
    assert fault.why.startswith("Rank 0 has 8 requests on average, rank 1 none. ")


def test_the_verdict_is_the_requests_and_no_straggler() -> None:
    diagnosis = engine.examine(job(ranks(FULL, FULL, FULL, EMPTY), **OPTIONS))
    assert [(one.rule, one.ranks) for one in diagnosis.findings if one.severity != "info"] == [(RULE, (0, 1, 2))]
    assert diagnosis.kind == "inference server"


def test_tokens_are_counted_of_all_ranks() -> None:
    """Those of one rank were said, of data-parallel ranks that have 8 and 0 requests half of these."""
    said = [
        engine.examine(job(ranks(*drawn), **OPTIONS)).headline for drawn in ((FULL, EMPTY), (FULL, FULL, EMPTY, EMPTY))
    ]
    # Eight tokens in an iteration of 111 ms; of four ranks each two share theirs, as those of tensor parallelism do.
    assert all("; 72 tokens/s of all ranks)" in one for one in said), said
    assert "tokens/s)" in engine.examine(job(ranks(EVEN, EVEN), **OPTIONS)).headline


def test_turns_are_moving() -> None:
    text = in_row(*(ranks(*pair, steps=1) for pair in ((FULL, EMPTY), (EMPTY, FULL), (FULL, EMPTY), (EMPTY, FULL))))
    fault = finding(RULE, text, **OPTIONS)
    assert (fault.cause, fault.ranks) == ("moving", (0, 1))
    assert fault.cost_ms == pytest.approx(30, rel=0.03)


def test_longer_requests_are_found_by_attention_alone() -> None:
    """All ranks have as many requests, and one has long ones."""
    long, short = iteration(8, 60, 60), iteration(8, 20, 60)
    fault = finding(RULE, ranks(long, short, short, short), **OPTIONS)
    assert fault.ranks == (0,)
    assert fault.cost_ms == pytest.approx(60 - (60 + 3 * 20) / 4, rel=0.03)


def test_a_slow_gpu_has_no_requests_of_its_own() -> None:
    """A rank whose GEMMs take twice as long as well is a straggler."""
    diagnosis = engine.examine(job(ranks(*[iteration(8, 30, 80)] * 3, iteration(8, 60, 80, gemms=40)), **OPTIONS))
    assert [(one.rule, one.ranks) for one in diagnosis.findings if one.severity != "info"] == [("straggler", (3,))]


def test_equal_numbers_are_clear() -> None:
    assert outcome(RULE, ranks(EVEN, EVEN), **OPTIONS).status == "clear"
    assert engine.examine(job(ranks(EVEN, EVEN), **OPTIONS)).verdict == "unknown"


def test_ranks_of_tensor_parallelism_share_their_requests() -> None:
    replay = Facts(job(ranks(EVEN, EVEN), **OPTIONS)).get(whatif).replay
    assert replay is not None and replay.spread is None


def test_kernels_that_extensions_launch_outside_of_operators_are_replayed() -> None:
    """DeepGEMM, DeepEP and Triton launch theirs from no operator: nothing could be told of such servers."""
    full = FULL.replace("[gemm][attend]", "[own_g][own_a]").replace("gemm.", "own_g").replace("attend", "own_a.")
    found = finding(RULE, ranks(full, EMPTY), kernels={"own_a": OPTIONS["kernels"]["attend"]})
    assert found.cost_ms == pytest.approx(30, rel=0.03)
