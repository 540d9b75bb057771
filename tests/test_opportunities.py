"""Opportunities: no faults, charged after all faults; together they save what all of their fixes save."""

from __future__ import annotations

from pathlib import Path

import pytest
from rules.test_layout_copies import FAULTY as COPIES
from rules.test_slow_kernels import FAULTY as SLOW_KERNEL
from rules.test_slow_kernels import LEAST_MS
from rules.test_slow_kernels import SLOW as FLOAT32
from traces import job, ranks, write

from tb_ddp_doctor import api, engine, examination
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.findings import Severity
from tb_ddp_doctor.rules import CATALOGUE

#: A norm computed again, and a copy for a layout.
BOTH = """
    rank# step     |1
          host     [linear][contiguous]        [sync..........................]
          autograd                     [block.............]
          again                         [layer_norm][mm]
          gpu      [linear......][contiguous..][layer_norm...][mm.............]
          nccl                                                    [ar]
"""
#: The same, while rank 1 computes longer.
SLOW = BOTH.replace("[sync..", "[sync............").replace("[mm....", "[mm...............")


def test_savings_add_up_to_that_of_all_fixes() -> None:
    drawn = job(ranks(BOTH, BOTH))
    diagnosis = engine.examine(drawn)
    assert [one.rule for one in diagnosis.opportunities] == ["recomputation", "layout-copies"]
    assert 0 < sum(one.cost_ms for one in diagnosis.opportunities) <= diagnosis.account.line("floor").ms
    assert all(one.range_ms[0] <= one.cost_ms <= one.range_ms[1] for one in diagnosis.opportunities)


def test_faults_cost_the_same_with_and_without_opportunities(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = job(ranks(BOTH, SLOW, BOTH))
    found = engine.examine(drawn)
    assert found.verdict not in ("healthy", "unexplained") and found.opportunities
    monkeypatch.setattr(
        examination, "CATALOGUE", {name: rule for name, rule in CATALOGUE.items() if not rule.is_opportunity}
    )
    without = engine.examine(drawn)
    assert (found.findings, found.account, found.headline) == (without.findings, without.account, without.headline)


def test_no_share_of_the_step_makes_an_opportunity_of_a_fault() -> None:
    assert Severity.OPPORTUNITY < Severity.INFO == Severity.of_share(0.0)
    assert Severity.of_share(1.0) is Severity.CRITICAL


@pytest.mark.parametrize(("severity", "status"), [("opportunity", 1), ("info", 0)])
def test_only_fail_on_opportunity_fails_on_one(tmp_path: Path, severity: str, status: int) -> None:
    write(tmp_path / "job", ranks(COPIES, COPIES))
    assert main(["diagnose", str(tmp_path / "job"), "--fail-on", severity]) == status


def test_it_has_a_letter_and_would_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(COPIES, COPIES))
    assert main(["diagnose", str(tmp_path / "job"), "-v"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Healthy. The largest opportunity: 12.0 of 52.0 ms copy tensors into another layout;" in said
    assert "A Possible 9.0 ms 17 % layout-copies, all 2 ranks" in said
    assert "A Opportunity layout-copies, would save 9.0 ms a step" in said
    assert main(["diagnose", str(tmp_path / "job"), "--markdown"]) == 0
    assert "| opportunity | would save a step |" in capsys.readouterr().out


def test_its_fix_can_be_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(COPIES, COPIES))
    assert main(["whatif", str(tmp_path / "job"), "--without", "layout-copies"]) == 0
    assert "43.0" in capsys.readouterr().out


def test_opportunities_of_one_rule_share_its_saving_as_in_the_job_without_faults() -> None:
    # Beside the straggler none of them saves anything, which would make four equal parts.
    (found,) = api.diagnose(Path(__file__).parents[1] / "demo_logs" / "straggler_cpu", cache=None)
    kernels = {one.cause: one for one in found.opportunities if one.rule == "slow-kernels"}
    assert len(kernels) == 4
    assert all(one.cost_ms == pytest.approx(one.alone_ms, rel=0.1) for one in kernels.values())
    assert kernels["gemm"].cost_ms < 0.6 * kernels["copy"].cost_ms


def test_a_narrower_type_is_charged_with_what_faster_kernels_leave() -> None:
    # Of 20 ms, a kernel at three quarters of its roof takes 1.31; in bfloat16 it saves three quarters of half of that.
    found = {one.rule: one for one in engine.examine(job(ranks(SLOW_KERNEL, SLOW_KERNEL), **FLOAT32)).opportunities}
    left_ms = LEAST_MS / 0.75
    assert found["slow-kernels"].cost_ms == pytest.approx(20 - left_ms, rel=0.01)
    assert found["lower-precision"].cost_ms == pytest.approx(0.75 * left_ms / 2, rel=0.02)
