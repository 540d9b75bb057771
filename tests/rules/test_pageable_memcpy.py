"""Copies between host and device through pageable memory."""

from __future__ import annotations

import pytest
from traces import MS, finding, lies_in_its_step, outcome, ranks, step_ms

RULE = "pageable-memcpy"
PAGEABLE = """
    rank# step |1
          host           [fwd]
          gpu  [pageable][fwd..........]
          nccl                          [ar..]
"""
PINNED = """
    rank# step |1
          host [fwd]
          gpu  [fwd..................]
          copy      [pinned]
          nccl                   [ar..]
"""
BOTH = """
    rank# step |1
          host           [fwd]
          gpu  [pageable][pinned][fwd..]
          nccl                          [ar..]
"""
FASTER = """
    rank# step |1
          host         [fwd]
          gpu  [pinned][fwd..........]
          nccl                        [ar....]
"""
#: 16 MB at 20 GB/s.
PINNED_MS = 0.8


def test_pageable_copies_are_found_with_what_pinned_ones_would_save() -> None:
    found = finding(RULE, ranks(PAGEABLE, PAGEABLE))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(10 - PINNED_MS, rel=0.02)
    assert found.severity == "critical"
    assert found.cause == "pageable_memory"
    assert found.confidence == "high"
    assert "16 MB at 1.6 GB/s" in found.why
    assert "pin_memory=True" in found.fix and "non_blocking=True" in found.fix


def test_copies_are_removed_where_they_are() -> None:
    """Each rank copies before an AllReduce that the other one waits in: what the copy saves comes all before it."""
    first = """
        rank# step |1
              host   [pageable][fwd][ar][bwd][ar][sync....]
              within  [sync...]
              gpu    [pageable][fwd]    [bwd]
              nccl                  [ar]     [ar..........]
    """
    second = """
        rank# step |1
              host   [fwd][ar][pageable..........][bwd][ar]
              within           [sync.............]
              gpu    [fwd]              [pageable][bwd]
              nccl        [ar..........]               [ar]
    """
    found = finding(RULE, ranks(first, second))
    assert found.alone_ms == pytest.approx(2 * (10 - PINNED_MS), rel=0.05)


def test_pinned_copies_in_the_trace_tell_the_rate() -> None:
    # The drawn pinned copy moves as many bytes in 8 ms.
    assert finding(RULE, ranks(BOTH, BOTH)).cost_ms == pytest.approx(10 - 8, rel=0.02)


def test_small_pinned_copies_tell_no_rate() -> None:
    """Pinned memory is never slower than pageable memory."""
    slow = BOTH.replace("[pinned][fwd..]", "[pinned.......][fwd..]").replace("[ar..]", "       [ar..]")
    assert finding(RULE, ranks(slow, slow)).cost_ms == pytest.approx(10 - PINNED_MS, rel=0.02)


def test_evidence_is_the_copy() -> None:
    text = ranks(PAGEABLE, PAGEABLE)
    for window in finding(RULE, text).evidence:
        assert window.end_ns - window.start_ns == 10 * MS
        assert lies_in_its_step(window, text)


def test_pinned_copies_are_clear() -> None:
    assert outcome(RULE, ranks(PINNED, PINNED)).status == "clear"


def test_a_copy_that_hides_is_clear() -> None:
    hidden = """
        rank# step |1
              host [fwd]         [sync.....]
              gpu  [fwd.............]
              copy   [pageable]
              nccl                   [ar..]
    """
    assert outcome(RULE, ranks(hidden, hidden)).status == "clear"


def test_a_saving_below_the_threshold_is_clear() -> None:
    share = (10 - PINNED_MS) / step_ms(ranks(PAGEABLE, PAGEABLE))
    assert outcome(RULE, ranks(PAGEABLE, PAGEABLE), settings={"min_cost": share * 1.02}).status == "clear"
    assert finding(RULE, ranks(PAGEABLE, PAGEABLE), settings={"min_cost": share * 0.98})


def test_a_rank_that_alone_copies_so_is_named_alone() -> None:
    assert finding(RULE, ranks(FASTER, FASTER, PAGEABLE)).ranks == (2,)


def test_copies_that_do_not_say_their_memory_are_not_judged() -> None:
    rocm = PAGEABLE.replace("pageable", "hostcopy")
    result = outcome(RULE, ranks(rocm, rocm))
    assert result.status == "not-applicable"
    assert "ROCm" in result.reason


def test_cpus_copy_nothing() -> None:
    text = """
        rank# step |1
              host [a....][b....]
    """
    result = outcome(RULE, ranks(text, text))
    assert result.status == "not-applicable"
    assert "CPU only" in result.reason


def test_one_rank_alone_is_enough() -> None:
    assert finding(RULE, ranks(PAGEABLE), world_size=2).ranks == (0,)


def test_a_copy_that_waits_for_all_before_it_is_charged_with_the_wait() -> None:
    waits = """
        rank# step |1
              host   [a][pageable.............................][b.......][c.......][d.......][e.......][ar]
              within                [sync......................]
              gpu    [a............................][pageable]  [b...]    [c...]    [d...]    [e...]
              nccl                                                                                     [ar..]
    """
    found = finding(RULE, ranks(waits, waits))
    assert "make the CPU wait for the GPU for 38.0 ms of every" in found.title
    assert found.why.startswith("1 copy a step, 16 MB, waits for all that was launched before: 1 cuda")
    assert {lies_in_its_step(window, ranks(waits, waits)) for window in found.evidence} == {True}
    assert found.cost_ms > 20
