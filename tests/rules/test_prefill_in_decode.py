"""Prefill between iterations that decode is found by the server's marks, with what it adds to an iteration."""

from __future__ import annotations

import pytest
from traces import finding, in_row, job, outcome, ranks

from tb_ddp_doctor import engine

RULE = "prefill-in-decode"
#: An iteration of a server decodes eight requests, the next one reads two prompts beside them.
FAULTY = """
    rank# host   [own_context_0_generation_8.][own_context_2_generation_8...............................]
          within [attend][sync.............]  [attend][sync...........................................]
          gpu      [attend.................]    [attend...............................................]
"""
#: The same, with prompts in chunks that fit beside decode.
HEALTHY = """
    rank# host   [own_context_0_generation_8.][own_context_2_generation_8....]
          within [attend][sync.............]  [attend][sync................]
          gpu      [attend.................]    [attend....................]
"""
#: One that only decodes.
DECODE = """
    rank# host   [own_context_0_generation_8.]
          within [attend][sync.............]
          gpu      [attend.................]
"""
LATE, FITTING = ranks(FAULTY, FAULTY), ranks(HEALTHY, HEALTHY)


def test_prompts_that_delay_decode_are_found_with_what_they_add() -> None:
    found = finding(RULE, LATE)
    # 30 ms more in one of two iterations.
    assert found.cost_ms == pytest.approx(30 / 2, rel=0.05)
    assert (found.steps, found.ranks) == ((1, 3, 5), (0, 1))
    assert found.title.startswith("Prefill delays decode: 3 of 6 iterations read prompts and take ")
    assert found.why.startswith("About 8 requests in decode get their next token only after ")
    assert "max-num-batched-tokens" in found.fix


def test_what_prompts_send_more_is_a_part_of_what_they_add() -> None:
    """Computing takes 10 ms more, and the AllReduces of tensor parallelism, of unknown sizes, 20 ms."""
    decode = """
        rank# host   [own_context_0_generation_8..]
              within [attend] [sync.............]
              gpu      [attend..]
              nccl               [ar............]
    """
    mixed = """
        rank# host   [own_context_2_generation_8................................]
              within [attend] [sync...........................................]
              gpu      [attend............]
              nccl                         [ar................................]
    """
    text = in_row(*(ranks(one, one, steps=1) for one in (decode, decode, mixed, decode, decode, decode)))
    assert finding(RULE, text, metadata="nowhere").cost_ms == pytest.approx(30 / 6, rel=0.05)


def test_prefill_alone_between_iterations_that_decode_costs_all_of_itself() -> None:
    alone = LATE.replace("context_2_generation_8", "context_2_generation_0")
    assert finding(RULE, alone).cost_ms == pytest.approx(54 / 3, rel=0.1)


def test_prefill_alone_delays_decode_by_all_of_itself_though_it_takes_as_long() -> None:
    # Requests wait for the prefill, and then for their own iteration: twice as long as without it.
    alone = FITTING.replace("context_2_generation_8", "context_2_generation_0")
    assert finding(RULE, alone).cost_ms == pytest.approx(30 / 3, rel=0.05)


def test_chunks_of_prompts_that_fit_beside_decode_are_clear() -> None:
    assert outcome(RULE, FITTING).status == "clear"


def test_chunks_that_add_less_than_half_are_found_where_they_are_in_most_iterations() -> None:
    """One that adds a third to an iteration is no fault by itself; every second iteration is slower by a third here."""
    third = """
        rank# host   [own_context_0_generation_8.][own_context_2_generation_8............]
              within [attend][sync.............]  [attend][sync........................]
              gpu      [attend.................]    [attend............................]
    """
    found = finding(RULE, ranks(third, third))
    # 11 ms more in one of two iterations.
    assert found.cost_ms == pytest.approx(11 / 2, rel=0.05)
    assert found.steps == (1, 3, 5)
    seldom = in_row(ranks(third, third, steps=1), *[ranks(DECODE, DECODE, steps=1)] * 6)
    assert outcome(RULE, seldom).status == "clear"


def test_prefill_before_any_decode_delays_none() -> None:
    before = LATE.replace("context_0_generation_8", "context_3_generation_0")
    assert outcome(RULE, before).status == "not-applicable"


def test_without_marks_it_is_not_applicable_to_a_server_and_clear_for_others() -> None:
    text = LATE.replace("context", "con").replace("generation", "gen")
    assert outcome(RULE, text.replace("[attend]", "[kvcache_write]")).status == "not-applicable"
    assert outcome(RULE, text).status == "clear"


def test_iterations_are_told_apart_in_the_diagnosis_and_its_headline() -> None:
    found = engine.examine(job(LATE))
    assert found.kind == "inference server"
    assert [(one.kind, one.count, one.prefills, one.decodes) for one in found.iterations] == [
        ("decode", 3, 0, 8),
        ("mixed", 3, 2, 8),
    ]
    decode, mixed = found.iterations
    tokens = 48 / (3 * decode.mean_ms + 3 * mixed.mean_ms) * 1e3
    assert f"3 decode of {decode.mean_ms:.1f} ms, 3 mixed of {mixed.mean_ms:.1f} ms; {tokens:,.0f} tokens/s" in (
        found.headline
    )


def test_what_lies_before_the_first_iteration_belongs_to_none() -> None:
    before = """
        rank# host   [setup............]
              gpu     [setup..........]
    """
    whole, cut = (engine.examine(job(text)) for text in (LATE, in_row(ranks(before, before, steps=1), LATE)))
    assert (cut.step_ms, len(cut.steps)) == (pytest.approx(whole.step_ms, rel=0.05), 6)
