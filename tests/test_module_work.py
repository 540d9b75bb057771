"""What the operators of each module have to do: FLOPs, bytes, and time above attainable, by module and by kernel."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_module_kernels import random_digest
from test_modules import FORWARD, paths, trace

import tb_ddp_doctor
from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.trace.reader import decode

DEMO = Path(__file__).parents[1] / "demo_logs"
SIDE = 4096
#: Of one product, at 989 TFLOPS 0.139 ms; the bytes of three matrices.
GEMM_FLOPS, GEMM_BYTES = 2 * SIDE**3, 3 * 2 * SIDE**2


def with_sizes(end: int = 40, device: str = "NVIDIA H100 80GB HBM3") -> bytes:
    """A ReLU in layers.0, and in layers.0.mlp a product of 20 * 0.1 ms; backward has no sizes."""
    kernels = [(3, 1, 10, 20, 7, "relu"), (12, 1, 20, end, 7, "gemm"), (42, 2, end, end + 5, 7, "relu")]
    told = json.loads(trace(FORWARD, kernels, 100_000))
    told["deviceProperties"] = [{"id": 0, "name": device, "numSms": 132}]
    for event in told["traceEvents"]:
        if event["name"] in ("aten::mm", "aten::relu"):
            tensors = 2 if event["name"] == "aten::mm" else 1
            event["args"] |= {"Input Dims": [[SIDE, SIDE]] * tensors, "Input type": ["c10::BFloat16"] * tensors}
    return json.dumps(told).encode()


def flops_of(found: RankDigest) -> dict[str, int]:
    """FLOPs of each module without modules within it."""
    work, kernels, calls, of = found.modules.work, found.modules.kernels, found.roofline.calls, paths(found)
    sums: dict[str, int] = {}
    for row, call, count in zip(work.of.tolist(), work.call.tolist(), work.count.tolist(), strict=True):
        path = of[found.modules.times.module[kernels.of[row]]]
        sums[path] = sums.get(path, 0) + int(calls.flops[call]) * count
    return sums


def test_a_call_counts_for_the_module_that_launched_it() -> None:
    assert flops_of(digest(decode([with_sizes()], "rank0.json"))) == {"layers.0": 0, "layers.0.mlp": GEMM_FLOPS}


@given(st.integers(0, 1 << 30))
def test_each_call_is_in_one_module_at_most_and_their_time_in_all(seed: int) -> None:
    found = random_digest(seed)
    work, calls = found.modules.work, found.roofline.calls
    assert (work.count > 0).all() and work.count.sum() <= calls.count.sum()
    assert work.ns.sum() <= calls.total_ns.sum()
    if work.count.sum() == calls.count.sum():
        assert work.ns.sum() == calls.total_ns.sum()


@pytest.mark.parametrize("name", ["healthy", "straggler_cpu"])
def test_the_work_of_all_modules_is_the_rooflines(name: str) -> None:
    (run,) = discover(DEMO / name)
    result = engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
    for found in result.job.digests:
        calls = found.roofline.calls
        assert sum(flops_of(found).values()) == int((calls.flops * calls.count).sum()) > 0
    layers = result.diagnosis.layers
    assert layers is not None
    whole, below = layers.rows[0], [row for row in layers.rows if row.level == 1]
    assert whole.flops and whole.moved_bytes and whole.above_ms
    assert sum(row.flops or 0 for row in below) <= whole.flops * (1 + 1e-9)
    assert sum(row.above_ms or 0 for row in below) <= whole.above_ms * 1.01
    # Forward and backward of layers that are alike have the same work.
    assert len({row.flops for row in below}) == 1


def test_the_json_and_a_data_frame_have_the_work_of_modules_and_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, end in enumerate((40, 42, 60)):
        (tmp_path / f"rank{rank}.pt.trace.json").write_bytes(with_sizes(end))
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    table = msgspec.json.decode(capsys.readouterr().out)["runs"][0]["layers"]
    rows = {row["path"]: row for row in table["rows"]}
    mlp = rows["layers.0.mlp"]
    assert (mlp["flops"], mlp["moved_bytes"]) == (GEMM_FLOPS, GEMM_BYTES)
    # 2.2 ms on the median rank, of which 0.139 ms are attainable.
    assert mlp["above_ms"] == pytest.approx(2.2 - 0.139, abs=0.001)
    assert rows["layers.0"]["flops"] == GEMM_FLOPS and rows["layers.0"]["moved_bytes"] > GEMM_BYTES
    (gemm,) = [one for one in table["kernels"] if one["kernel"] == "gemm" and one["part"] == "forward"]
    assert (gemm["flops"], gemm["above_ms"]) == (GEMM_FLOPS, mlp["above_ms"])
    backward = [one for one in table["kernels"] if one["part"] == "backward"]
    assert backward and all(one["flops"] is None and one["above_ms"] is None for one in backward), "no sizes"
    (diagnosis,) = tb_ddp_doctor.diagnose(str(tmp_path), cache=None)
    assert diagnosis.to_pandas("layers").set_index("path").flops["layers.0.mlp"] == GEMM_FLOPS


def test_of_an_unknown_gpu_there_is_work_and_no_time_above_attainable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank0.pt.trace.json").write_bytes(with_sizes(device="Some GPU"))
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    rows = msgspec.json.decode(capsys.readouterr().out)["runs"][0]["layers"]["rows"]
    assert {(row["flops"], row["above_ms"]) for row in rows if row["path"].endswith("mlp")} == {(GEMM_FLOPS, None)}


def test_the_terminal_and_markdown_have_time_above_attainable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank0.pt.trace.json").write_bytes(with_sizes())
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["diagnose", str(tmp_path), "--layers", "--depth", "3"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.endswith("above GFLOP GB") for line in lines)
    assert any(line.startswith("mlp 2.00") and line.endswith("1.86 137 0.10") for line in lines)
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["diagnose", str(tmp_path), "--layers", "--depth", "3"]) == 0
    assert "GFLOP" not in capsys.readouterr().out, "names have more need of the room"
    assert main(["diagnose", str(tmp_path), "--markdown"]) == 0
    assert "| module | step | fwd | bwd | idle | longest | rank | above |" in capsys.readouterr().out
