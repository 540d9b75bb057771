"""Copies of weights, adapters and caches that iterations of a server wait for."""

from __future__ import annotations

import pytest
from traces import finding, in_row, job, outcome, ranks

from tb_ddp_doctor import engine

RULE = "offload-copies"
#: An iteration that loads an adapter before it computes.
FAULTY = """
    rank# host   [own_context_0_generation_8.................................]
          within [pinned][attend][sync.......................................]
          gpu     [pinned............][attend...............................]
"""
#: One that loads the adapter of the next request beside compute.
HEALTHY = """
    rank# host   [own_context_0_generation_8...............]
          within [pinned][attend][sync.....................]
          gpu     [attend.................................]
          copy    [pinned............]
"""
PLAIN = """
    rank# host   [own_context_0_generation_8...............]
          within [attend][sync.............................]
          gpu     [attend.................................]
"""


def test_copies_that_iterations_wait_for_are_found() -> None:
    found = finding(RULE, ranks(FAULTY, FAULTY))
    assert found.cost_ms == pytest.approx(20, abs=0.5)
    assert "16 MB each" in found.why and "--max-loras" in found.fix


def test_adapters_that_are_loaded_now_and_then_are_the_verdict() -> None:
    text = in_row(*(ranks(one, one, steps=1) for one in (PLAIN, PLAIN, FAULTY, PLAIN, PLAIN, FAULTY, PLAIN, PLAIN)))
    diagnosis = engine.examine(job(text))
    assert (diagnosis.verdict, diagnosis.findings[0].steps) == (RULE, (2, 5))
    assert diagnosis.findings[0].cost_ms == pytest.approx(20 * 2 / 8, rel=0.1)


def test_copies_beside_compute_cost_nothing() -> None:
    assert outcome(RULE, ranks(HEALTHY, HEALTHY)).status == "clear"


def test_batches_of_a_training_loop_are_for_others() -> None:
    training = FAULTY.replace("own_context_0_generation_8", "own_something_and_no_gener")
    assert outcome(RULE, ranks(training, training)).status == "clear"
