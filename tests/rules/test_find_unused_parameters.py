"""DDP's search for unused parameters: the walk of the graph, and the AllReduce of what was used."""

from __future__ import annotations

import pytest
from traces import MS, finding, in_row, job, lies_in_its_step, outcome, ranks, repeat

from tb_ddp_doctor.facts.needless_allreduces import unused_search

RULE = "find-unused-parameters"
#: The device waits for launches after the walk.
SEARCHED = """
    rank# step     |1
          host     [fwd]     [walk....]            [sync....]
          autograd                     [bwd][used]
          gpu       [fwd]               [bwd......]
          nccl                               [ar......][used]
"""
#: The host is far ahead of its device.
AHEAD = """
    rank# step     |1
          host     [fwd][walk]
          autograd            [bwd][used]
          gpu       [fwd..................][bwd......]
          nccl                               [used]
"""
PLAIN = """
    rank# step     |1
          host     [fwd]
          autograd      [bwd]
          gpu       [fwd][bwd........]
          nccl               [ar.....]
"""
CPU = """
    rank# step |1
          host [fwd...][walk][bwd......]
          gloo                  [ar..]
"""


def test_the_walk_and_the_reduction_are_measured() -> None:
    found = unused_search(job(ranks(SEARCHED, SEARCHED)))
    assert (found.walks == 1).all() and (found.walk_ns == 10 * MS).all()
    assert (found.calls == 1).all() and (found.exposed_ns == 6 * MS).all()
    assert found.parameters == 1_000_000


def test_a_walk_that_the_device_waits_for_costs_what_it_takes() -> None:
    # What the walk takes is spread over the operations of its step, of which a few run beside the device.
    assert finding(RULE, ranks(SEARCHED, SEARCHED)).cost_ms == pytest.approx(16, rel=0.2)


def test_a_walk_that_hides_costs_nothing_and_informs() -> None:
    found = finding(RULE, ranks(AHEAD, AHEAD))
    assert found.severity == "info"
    assert found.cost_ms == pytest.approx(0, abs=0.05)


def test_the_finding_says_what_was_seen() -> None:
    found = finding(RULE, ranks(SEARCHED, SEARCHED))
    assert found.ranks == (0, 1)
    assert "The walk of the autograd graph takes the CPU 10.0 ms a step" in found.why
    assert "of the bitmap of 1000000 used parameters is exposed for 6.0 ms" in found.why
    assert "static_graph=True" in found.fix


def test_evidence_is_the_step_of_the_longest_walk() -> None:
    text = ranks(SEARCHED, SEARCHED)
    (window,) = finding(RULE, text).evidence
    assert lies_in_its_step(window, text)


def test_without_the_search_it_is_clear() -> None:
    assert outcome(RULE, ranks(PLAIN, PLAIN)).status == "clear"


def test_integers_that_others_reduce_are_no_search() -> None:
    counted = PLAIN.replace("[ar......]", "[ar......][used]")
    assert outcome(RULE, ranks(counted, counted)).status == "clear"


def test_a_search_in_few_steps_is_clear() -> None:
    """A static graph is searched once."""
    text = in_row(ranks(SEARCHED, SEARCHED, steps=1), ranks(PLAIN, PLAIN, steps=2))
    assert outcome(RULE, text).status == "clear"
    assert finding(RULE, text, settings={"min_steps": 0.3})


def test_without_metadata_the_walk_still_shows() -> None:
    found = finding(RULE, ranks(SEARCHED, SEARCHED), metadata="nowhere")
    # The walk's share is taken from all of the step's launching, some of which is after the last launch.
    assert found.cost_ms == pytest.approx(10, rel=0.25)
    assert "AllReduce of which" not in found.why


def test_a_walk_on_cpus_costs_its_time() -> None:
    assert finding(RULE, ranks(CPU, CPU)).cost_ms == pytest.approx(6)


def test_one_rank_alone_searches_too() -> None:
    assert finding(RULE, repeat(SEARCHED.replace("#", "0"), 3), world_size=2).ranks == (0,)
