"""The step in the user's units: tokens/s, samples/s, money, MFU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from rules.test_layout_copies import FAULTY
from traces import job, ranks, write

from tb_ddp_doctor import engine, wording
from tb_ddp_doctor.account.rates import rates
from tb_ddp_doctor.api import diagnose
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.evidence.model import GpuState, RankEvidence
from tb_ddp_doctor.facts.compute import Utilization
from tb_ddp_doctor.findings import Workload
from tb_ddp_doctor.trace.reader import decode

#: A step of 52 ms on two ranks, 9 ms of which are an opportunity.
STEP_S, SAVED_S = 0.052, 0.009
WORKLOAD = Workload(tokens_per_step=2080.0, samples_per_step=4.0, gpu_hour=2.5)


def test_a_step_in_tokens_and_money(tmp_path: Path) -> None:
    write(tmp_path / "job", ranks(FAULTY, FAULTY))
    (diagnosis,) = diagnose(tmp_path / "job", cache=None, workload=WORKLOAD)
    found = diagnosis.rates
    assert found and found.workload == WORKLOAD
    assert found.tokens_per_second == pytest.approx(2080 / 2 / STEP_S)
    assert found.samples_per_second == pytest.approx(4 / 2 / STEP_S)
    assert found.money_per_day == 2 * 24 * 2.5
    (gain,) = found.gains
    assert gain.finding == "layout-copies"
    assert gain.tokens_per_second == pytest.approx(1040 / (STEP_S - SAVED_S) - 1040 / STEP_S, rel=0.01)
    assert gain.money_per_day == pytest.approx(120 * SAVED_S / STEP_S, rel=0.01)
    assert found.mfu is None


def test_users_flops_stand_beside_those_that_are_counted() -> None:
    drawn = msgspec.structs.replace(job(ranks(FAULTY, FAULTY)), workload=Workload(model_flops_per_step=5.2e12))
    flops = (drawn.budget.window_ns * 0 + int(1e12), drawn.budget.window_ns * 0 + int(1.5e12))
    known = Utilization(model_flops=flops[0], flops=flops[1], device="", precision="bf16", peak=1e14)
    found = rates(drawn, (), known)
    assert found
    assert (found.mfu, found.counted_mfu) == pytest.approx((2.6e12 / STEP_S / 1e14, 1e12 / STEP_S / 1e14))
    assert (found.hfu, found.counted_hfu) == pytest.approx((3.1e12 / STEP_S / 1e14, 1.5e12 / STEP_S / 1e14))


def test_energy_is_known_where_every_rank_has_its_gpus_power() -> None:
    drawn = job(ranks(FAULTY, FAULTY))
    power = {rank: RankEvidence(gpu=GpuState(source="NVML", power_w=400.0 + 200 * rank)) for rank in range(2)}
    with_power = msgspec.structs.replace(drawn, rank_evidence=power)
    found = engine.examine(with_power).rates
    assert found and found.energy_kwh_per_day == pytest.approx((0.4 + 0.6) * 24)
    (gain,) = found.gains
    assert gain.energy_kwh_per_day == pytest.approx(24 * SAVED_S / STEP_S, rel=0.01)
    assert wording.rates(found) == "up to 24.0 kWh a day"
    of_one = msgspec.structs.replace(drawn, rank_evidence={0: power[0]})
    assert engine.examine(of_one).rates is None


def test_without_a_workload_there_are_no_rates() -> None:
    assert engine.examine(job(ranks(FAULTY, FAULTY))).rates is None


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        ({"tokens_per_step": 8192}, 8192.0),
        ({"tokens_per_step": 8192.5}, 8192.5),
        ({"tokens_per_step": -1}, None),
        ({"tokens_per_step": 1e300}, None),
        ({"tokens_per_step": "many"}, None),
        ({"tokens_per_step": True}, None),
        ({"tokens_per_step": "nan"}, None),
        ([], None),
    ],
)
def test_what_the_doctor_was_told_is_in_the_trace(told: object, tokens: float | None) -> None:
    trace = decode([json.dumps({"ddp_doctor": told, "traceEvents": []}).encode()], "a.json")
    assert trace.header.workload == Workload(tokens_per_step=tokens)


def test_the_commands_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(FAULTY, FAULTY))
    options = ["--tokens-per-step", "2080", "--gpu-hour", "2.50"]
    assert main(["diagnose", str(tmp_path / "job"), *options, "--currency", "EUR"]) == 0
    line = r"^ A  Possible +9\.0 ms +17 %  20\.77 EUR a day  layout-copies, all 2 ranks$"
    assert re.search(line, capsys.readouterr().out, re.MULTILINE)
    assert main(["diagnose", str(tmp_path / "job"), "-v", *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "20,000 tokens/s per GPU, 120.00 a day." in said
    assert "Its fix brings: +4,186 tokens/s per GPU, 20.77 a day." in said
    assert main(["diagnose", str(tmp_path / "job"), "--markdown", *options]) == 0
    assert "20,000 tokens/s per GPU, 120.00 a day" in capsys.readouterr().out
