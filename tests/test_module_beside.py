"""Modules whose kernels run beside communication: for how long, and how much longer these take for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_module_kernels import random_digest
from test_modules import Call, Kernel, of_run, op, paths, read, watched

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.model import ModuleTime, RankDigest

DEMO = Path(__file__).parents[1] / "demo_logs"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def layers(beside: dict[int, int], count: int = 6) -> tuple[list[Call], list[Kernel]]:
    """Layers with a product each of 10, and of some what it takes while an AllReduce runs beside it."""
    calls: list[Call] = [("user_annotation", "ProfilerStep#1", 0, 20 * count + 20, 1, None)]
    kernels: list[Kernel] = []
    for number in range(count):
        at = 20 * number + 1
        calls += [watched(f"layers.{number}", at, at + 6), op("aten::mm", at + 1, at + 5)]
        until = at + 2 + beside.get(number, 10)
        kernels.append((at + 2, 1, at + 2, until, 7, "gemm"))
        if number in beside:
            calls.append(op("nccl:all_reduce", at + 7, at + 9))
            kernels.append((at + 8, 1, at + 2, until, 8, REDUCE))
    return calls, kernels


def times(found: RankDigest) -> dict[str, tuple[int, int, int]]:
    """Of each module's own kernels: µs in all, beside communication, and longer than alone."""
    table, of, told = found.modules.times, paths(found), {}
    for row in range(len(table)):
        if table.kind[row] == ModuleTime.COMPUTE:
            columns = (table.total_ns, table.beside_ns, table.longer_ns)
            total, beside, longer = (int(column[row]) // 1000 for column in columns)
            told[of[table.module[row]]] = (total, beside, longer)
    return told


def test_a_kernel_beside_communication_takes_longer_than_the_same_one_alone() -> None:
    found = times(read(*layers({1: 14, 4: 17})))
    assert found["layers.0"] == (10, 0, 0)
    assert found["layers.1"] == (14, 14, 4)
    assert found["layers.4"] == (17, 17, 7)


def test_where_too_few_run_alone_nobody_knows_how_much_longer_one_takes() -> None:
    assert times(read(*layers({1: 14, 2: 14}, count=4)))["layers.1"] == (14, 14, 0)


@given(st.integers(0, 1 << 30))
def test_no_module_runs_longer_beside_communication_than_at_all(seed: int) -> None:
    table = random_digest(seed).modules.times
    assert (table.beside_ns >= 0).all() and (table.beside_ns <= table.total_ns).all()
    assert not table.beside_ns[table.kind != ModuleTime.COMPUTE].any()


def test_the_terminal_and_the_json_say_which_layers_and_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    job = of_run(tmp_path, layers({1: 14, 4: 17}), layers({1: 14, 4: 17}))
    assert main(["diagnose", job, "--json"]) == 0
    table = msgspec.json.decode(capsys.readouterr().out)["runs"][0]["layers"]
    rows = {row["path"]: (row["beside_ms"], row["beside_longer_ms"]) for row in table["rows"]}
    assert rows["layers.0"] == (0, 0)
    assert rows["layers.4"] == pytest.approx((1.7, 0.7))
    assert rows["layers"] == rows[""] == pytest.approx((3.1, 1.1))
    assert main(["diagnose", job, "--layers"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " beside longer " in said


@pytest.mark.parametrize("shown", ["--layers", "--markdown"])
def test_half_the_layers_of_a_healthy_job_are_slower_beside_an_allreduce(
    shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(DEMO / "healthy"), shown]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Layer 2, layer 3, layer 5 and layer 7 run 64 to 74 % of their backward beside communication" in said
    assert "and take 0.54 to 0.85 ms longer for it, 2.8 ms in all." in said


def test_without_communication_there_is_no_column(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["diagnose", of_run(tmp_path, layers({})), "--json"]) == 0
    table = msgspec.json.decode(capsys.readouterr().out)["runs"][0]["layers"]
    assert table["said"] == [] and all(row["beside_ms"] is None for row in table["rows"])
