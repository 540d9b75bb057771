"""Tracing itself slows the traced steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace
from traces import finding, job, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import run

RULE = "profiler-overhead"
STALLED = """
    rank# step |1
          host [a][flush..][b]
          gpu  [a]         [b...........]
          nccl                           [ar]
"""
AHEAD = """
    rank# step |1
          host [a][b][flush..]
          gpu  [a][b.....................]
          nccl                            [ar]
"""
#: Twelve operators and launches in 6 ms, which the device waits for.
RECORDED = """
    rank# step |1
          host [a....][b....]
          gpu  [a]    [b]
          nccl            [ar]
"""


def test_a_stall_that_the_device_waits_for_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(STALLED, STALLED))
    assert found.cost_ms == pytest.approx(9, rel=0.02)
    assert found.cause == "full_buffers"
    assert found.ranks == (0, 1)
    assert "schedule" in found.fix


def test_launch_bound_does_not_claim_it_again() -> None:
    assert outcome("launch-bound", ranks(STALLED, STALLED)).status == "clear"


def test_evidence_is_idle_time() -> None:
    text = ranks(STALLED, STALLED)
    (window,) = finding(RULE, text).evidence
    assert window.end_ns - window.start_ns == pytest.approx(9e6, abs=0.1e6)
    assert lies_in_its_step(window, text)


def test_a_stall_of_a_host_that_is_ahead_is_clear() -> None:
    result = outcome(RULE, ranks(AHEAD, AHEAD))
    assert result.status == "clear"
    assert "enough queued work" in result.reason


def test_recording_is_estimated_and_the_estimate_said() -> None:
    text = ranks(RECORDED, RECORDED)
    found = finding(RULE, text, settings={"min_cost": 0.0001})
    # A step, two operators, three launches, two of `record_param_comms` and theirs: some microseconds.
    assert 0.001 < found.cost_ms < 0.02
    assert (found.cause, found.confidence, found.severity) == ("recording", "medium", "info")


def test_a_cost_below_the_threshold_is_clear() -> None:
    text = ranks(STALLED, STALLED)
    share = finding(RULE, text).cost_ms / step_ms(text)
    assert outcome(RULE, text, settings={"min_cost": share * 1.02}).status == "clear"
    assert finding(RULE, text, settings={"min_cost": share * 0.98})


def test_cpus_are_not_judged() -> None:
    text = """
        rank# step |1
              host [a....][b....]
    """
    assert "CPU only" in outcome(RULE, ranks(text, text)).reason


def test_without_launches_it_is_not_applicable() -> None:
    assert "launch" in outcome(RULE, "gpu [?a...][?b...]").reason


def test_ranks_are_named_where_no_gpu_idles_for_the_recording() -> None:
    given = job(ranks(RECORDED, RECORDED))
    fed = [
        replace(each, work=replace(each.work, late_launch_ns=np.zeros_like(each.work.late_launch_ns)))
        for each in given.digests
    ]
    facts = Facts(replace(given, digests=tuple(fed)))
    _, found = run(dataclasses.replace(CATALOGUE[RULE], min_cost=0.0001), facts)
    assert found and found.faults[0].ranks == (0, 1)
    assert "Seen in 3 of 3 steps" in found.faults[0].why
