"""Casts of weights in each micro-batch."""

from __future__ import annotations

import pytest
from traces import finding, lies_in_its_step, outcome, ranks

RULE = "repeated-casts"
#: Two micro-batches, each of which casts a weight of 2 million elements.
FAULTY = """
    rank# step     |1
          host     [to]               [to]             [update][sync.]
          autograd     [a...][grad@2]     [b...][grad@2]
          gpu      [to.][a...................][to.][b................]
          nccl                                          [ar.]
"""
#: The same with one cast.
HEALTHY = """
    rank# step     |1
          host     [to]                                [update]
          autograd     [a...][grad@2]     [b...][grad@2]
          gpu      [to.][a...................][b.....................]
          nccl                                          [ar.]
"""
OPTIONS = {"dims": {"to": [[2_000_000], [], [], [], []]}}
CAST_MS = 5


def test_the_second_cast_is_found() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text, **OPTIONS)
    assert found.cost_ms == pytest.approx(CAST_MS, abs=0.05)
    assert "1 casts of a step" in found.why
    assert all(lies_in_its_step(window, text, **OPTIONS) for window in found.evidence)


def test_the_first_cast_after_an_update_is_needed() -> None:
    assert outcome(RULE, ranks(HEALTHY, HEALTHY), **OPTIONS).status == "clear"


def test_casts_of_other_shapes_are_of_activations() -> None:
    other = {"dims": {"to": [[8, 2_000_000], [], [], [], []]}}
    assert outcome(RULE, ranks(FAULTY, FAULTY), **other).status == "clear"


def test_without_updates_parameters_may_have_changed() -> None:
    text = ranks(FAULTY, FAULTY).replace("[update]", "        ")
    assert outcome(RULE, text, **OPTIONS).status == "clear"
