"""How much of the critical path lies in each module: on the rank that the others wait for, and not in their waiting."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_module_kernels import random_digest
from test_modules import Call, Kernel, of_run, op, paths, read, step_of_two_modules

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.module_kernels import TimeParts
from tb_ddp_doctor.digest.module_segments import MOST_SEGMENTS, module_segments, row_segments
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import LayerTable

DEMO = Path(__file__).parents[1] / "demo_logs"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def of_rank(length: int, steps: int = 2) -> tuple[list[Call], list[Kernel]]:
    """Two modules, of which the second has a product as long as is given, then an AllReduce that ends at 90."""
    calls: list[Call] = []
    kernels: list[Kernel] = []
    for number in range(steps):
        at = 100 * number
        calls += [
            *step_of_two_modules(number),
            op("nccl:all_reduce", at + 12, at + 14),
            ("cuda_runtime", "cudaDeviceSynchronize", at + 15, at + 91, 1, None),
        ]
        kernels += [
            (at + 2, 1, at + 3, at + 13, 7, "relu"),
            (at + 7, 1, at + 13, at + 13 + length, 7, "gemm"),
            (at + 12, 1, at + 14 + length, at + 90, 8, REDUCE),
        ]
    return calls, kernels


def test_times_lie_in_segments_between_collectives() -> None:
    found = read(*of_rank(40))
    assert row_segments(found.track).max() >= 0
    table, times, of = found.modules.segments, found.modules.times, paths(found)
    before = {of[times.module[row]] for row, segment in zip(table.of, table.segment, strict=True) if segment == 0}
    assert {"a", "b"} <= before
    for row in range(len(times)):
        assert table.total_ns[table.of == row].sum() <= times.total_ns[row]


@given(st.integers(0, 1 << 30))
def test_segments_have_no_more_than_the_modules(seed: int) -> None:
    found = random_digest(seed)
    table = found.modules.segments
    assert len(table) <= MOST_SEGMENTS and (table.segment >= 0).all()
    sums = np.bincount(table.of, table.total_ns, len(found.modules.times))
    assert (sums <= found.modules.times.total_ns).all()


def test_of_too_many_segments_the_longest_are_kept() -> None:
    count = MOST_SEGMENTS + 10
    every = np.arange(count)
    parts = TimeParts(every, np.zeros(count, np.int64), np.zeros(count, np.int64), every + 1, np.ones(count, np.bool_))
    kept = module_segments(every, parts, 1)
    assert len(kept) == MOST_SEGMENTS and kept.total_ns.min() == count - MOST_SEGMENTS + 1
    assert not len(module_segments(np.full(count, -1), parts, 1))


def layers_of(name: str) -> tuple[LayerTable, float]:
    """The modules of a demo job, and its critical path's mean length in a step, ms."""
    (run,) = discover(DEMO / name)
    diagnosis = engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).diagnosis
    assert diagnosis.layers is not None
    path = sum(piece.ms for part in diagnosis.critical_path for piece in part.pieces) / len(diagnosis.critical_path)
    return diagnosis.layers, path


@pytest.mark.parametrize("name", ["healthy", "straggler_cpu", "no_overlap"])
def test_the_whole_step_has_all_of_the_path(name: str) -> None:
    layers, path = layers_of(name)
    whole, below = layers.rows[0], [row for row in layers.rows if row.level == 1]
    assert whole.critical_ms == pytest.approx(path, rel=1e-6)
    assert 0 < sum(row.critical_ms or 0 for row in below) < path


def test_a_module_that_waits_is_not_on_the_path() -> None:
    """One rank of straggler_cpu is late: what the others wait in a layer is not on the path, and its CPU is in none."""
    layers, _ = layers_of("straggler_cpu")
    waits = max(layers.rows[1:], key=lambda row: row.communication_ms)
    assert waits.critical_ms is not None
    assert waits.critical_ms < waits.step_ms - 0.5 * waits.communication_ms


def test_the_slow_ranks_module_is_on_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    job = of_run(tmp_path, of_rank(20, steps=4), of_rank(60, steps=4))
    assert main(["diagnose", job, "--json"]) == 0
    table = msgspec.json.decode(capsys.readouterr().out)["runs"][0]["layers"]
    rows = {row["path"]: row["critical_ms"] for row in table["rows"]}
    assert rows["b"] == pytest.approx(6, abs=0.1), "the slow rank's product, in every step"
    assert rows["a"] + rows["b"] < rows[""]
    assert main(["diagnose", job, "--layers"]) == 0
    assert " critical " in " ".join(capsys.readouterr().out.split())
