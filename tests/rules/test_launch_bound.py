"""The device waits for launches."""

from __future__ import annotations

import numpy as np
import pytest
from traces import finding, in_row, job, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor.digest import late_launches
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import run

RULE = "launch-bound"
STARVED = """
    rank# step |1
          host [a....][b....][c....][d....]
          gpu  [a]    [b]    [c]    [d....]
          nccl                             [ar]
"""
FED = """
    rank# step |1
          host [a][b][c][d]
          gpu  [a....][b....][c....][d....]
          nccl                             [ar]
"""
FASTER = """
    rank# step |1
          host [a][b][c]
          gpu  [a....][b....][c....]
          nccl                      [ar.......]
"""
STALLED = """
    rank# step |1
          host [a]    [b]    [c]    [d]
          gpu  [a]    [b]    [c]    [d....]
          nccl                             [ar]
"""


def test_a_device_that_starves_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(STARVED, STARVED))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(12, rel=0.02)
    assert found.severity == "critical"
    assert found.confidence == "high"
    assert "4 kernels a step" in found.why
    assert "torch.compile" in found.fix


#: Kernels wait for all-reduces, and the CPU launches meanwhile: no gap shows that it takes 4 ms a kernel.
BEHIND_TRANSFERS = """
    rank# step |1
          host [a.][ar][b.][ar][c.][ar][d.]
          gpu   [a]           [b]         [c]         [d.]
          nccl     [ar.......]   [ar.....]   [ar.....]
"""


def test_launches_that_hide_behind_another_fault_are_found_once_that_is_fixed() -> None:
    facts = Facts(job(ranks(BEHIND_TRANSFERS, BEHIND_TRANSFERS)))
    assert run(CATALOGUE[RULE], facts)[0].status == "clear"
    played = facts.get(whatif)
    without_transfers = Change(transfer_ns=np.full(played.shape, 30_000_000))
    outcome, found = run(CATALOGUE[RULE], facts.replaced(whatif, played.after(without_transfers)))
    assert outcome.status == "finding" and found
    assert found.faults[0].ranks == (0, 1)
    assert played.after(without_transfers).cost_ns(found.change) == pytest.approx(28_000_000, rel=0.1)


#: The same after a kernel that takes the GPU longer than all launches take the CPU: it falls behind later on alone.
BEHIND_IN_PART = """
    rank# step |1
          host [f.][sync..................................][a.][ar][b.][ar][c.][ar][d.]
          gpu   [f........................................] [a]           [b]         [c]         [d.]
          nccl                                                 [ar.......]   [ar.....]   [ar.....]
"""


def test_launches_that_are_behind_in_part_of_the_step_are_named_where_most_is_left_of_them() -> None:
    facts = Facts(job(ranks(BEHIND_IN_PART, BEHIND_IN_PART)))
    played = facts.get(whatif)
    assert (played.host_ns(CpuTime.WORK) < played.device_ns).all()
    fixes = Change(transfer_ns=np.full(played.shape, 30_000_000))
    for is_last, status in ((False, "clear"), (True, "finding")):
        later = played.after(fixes)
        later.is_last_look = is_last
        outcome, found = run(CATALOGUE[RULE], facts.replaced(whatif, later))
        assert outcome.status == status
    assert found and found.faults[0].ranks == (0, 1)


def test_evidence_is_a_gap() -> None:
    text = ranks(STARVED, STARVED)
    (window,) = finding(RULE, text).evidence
    assert window.end_ns - window.start_ns == pytest.approx(4_000_000, abs=10_000)
    assert lies_in_its_step(window, text)


def test_a_device_that_is_fed_is_clear() -> None:
    assert outcome(RULE, ranks(FED, FED)).status == "clear"


def test_starving_below_the_threshold_is_clear() -> None:
    text = ranks(STARVED, STARVED)
    share = finding(RULE, text).cost_ms / step_ms(text)
    assert outcome(RULE, text, settings={"min_cost": share * 1.02}).status == "clear"
    assert finding(RULE, text, settings={"min_cost": share * 0.98})


def test_long_gaps_in_no_operation_are_no_launches() -> None:
    assert outcome(RULE, ranks(STALLED, STALLED)).status == "clear"
    assert finding("host-stall", ranks(STALLED, STALLED))


def test_a_starved_rank_is_named_alone() -> None:
    assert finding(RULE, ranks(FASTER, FASTER, STARVED)).ranks == (2,)


def test_gaps_that_a_rank_hides_in_waiting_cost_nothing() -> None:
    victim = """
        rank# step |1
              host [a....][b....]
              gpu  [a]    [b]
              nccl            [ar.................]
    """
    slow = """
        rank# step |1
              host [a][b]
              gpu  [a.............][b..........]
              nccl                              [ar]
    """
    assert outcome(RULE, ranks(victim, slow)).status == "clear"


def test_cpus_launch_nothing() -> None:
    text = """
        rank# step |1
              host [a....][b....]
    """
    result = outcome(RULE, ranks(text, text))
    assert result.status == "not-applicable"
    assert "CPU only" in result.reason


def test_one_rank_alone_is_enough() -> None:
    assert finding(RULE, ranks(STARVED), world_size=2).ranks == (0,)


def test_a_rank_that_is_slow_for_another_reason_is_not_named() -> None:
    text = in_row(ranks(STARVED, FASTER, steps=2), ranks(FASTER, FED, steps=1))
    assert finding(RULE, text).ranks == (0,)


def test_what_recording_may_explain_is_not_critical(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = """
        rank# step |1
              host [a........][b........][c........][d........]
              gpu  [a]        [b]        [c]        [d........]
    """
    assert finding(RULE, ranks(slower)).severity == "critical"
    monkeypatch.setattr(late_launches, "_RECORDING_NS", 4 * (1_400_000,))
    found = finding(RULE, ranks(slower))
    assert found.cost_ms > 0.2 * step_ms(ranks(slower))
    assert found.severity == "major"
    assert "time untraced steps first" in found.why
