"""How much of the critical path lies in each module: on the rank that the others wait for, and not in their waiting."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_traces import OF_JOBS, joined
from test_module_kernels import random_digest
from test_modules import Call, Kernel, of_run, op, paths, read, step_of_two_modules, watched

from tb_ddp_doctor import engine
from tb_ddp_doctor.account.module_path import path_times
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.model import ModuleKernels, RankDigest
from tb_ddp_doctor.digest.module_kernels import TimeParts
from tb_ddp_doctor.digest.module_segments import MOST_SEGMENTS, module_segments, row_segments
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.facts.modules import ModulePart, kernel_table, modules
from tb_ddp_doctor.findings import LayerTable
from tb_ddp_doctor.replay.whatif import WhatIf

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


def test_kernels_lie_in_segments_between_collectives() -> None:
    found = read(*of_rank(40))
    assert row_segments(found.track).max() >= 0
    table, times, of = found.modules.segments, found.modules.times, paths(found)
    kernels = found.modules.kernels
    before = {
        (of[times.module[kernels.of[row]]], found.strings[kernels.kernel[row]])
        for row, segment in zip(table.of, table.segment, strict=True)
        if segment == 0
    }
    assert {("a", "relu"), ("b", "gemm")} <= before


@given(st.integers(0, 1 << 30))
def test_segments_have_no_more_than_the_kernels(seed: int) -> None:
    found = random_digest(seed)
    table, kernels = found.modules.segments, found.modules.kernels
    assert len(table) <= MOST_SEGMENTS and (table.segment >= 0).all()
    sums = np.bincount(table.of, table.total_ns, len(kernels))
    assert len(sums) == len(kernels) and (sums <= kernels.total_ns).all()


@pytest.mark.parametrize("more", [10, MOST_SEGMENTS + 10])
def test_of_too_many_segments_the_longest_are_kept_and_others_summed_by_module(more: int) -> None:
    """Rows of kernels in one segment each, all of one row of the modules' times: the shortest are summed there."""
    count = MOST_SEGMENTS + more
    every, nothing = np.arange(count), np.zeros(count, np.int64)
    parts = TimeParts(every, nothing, nothing, every + 1, np.ones(count, np.bool_))
    kernels = ModuleKernels(**dict.fromkeys(ModuleKernels.__struct_fields__, nothing))
    kept = module_segments(every, parts, every, kernels, 1)
    named = kept.of < count
    assert named.sum() == MOST_SEGMENTS and kept.total_ns[named].min() == more + 1
    assert (kept.of[~named] == count).all() and (~named).sum() == min(more, MOST_SEGMENTS)
    assert (np.diff(kept.segment) > 0).all()
    if more <= MOST_SEGMENTS:
        assert kept.total_ns.sum() == parts.length_ns.sum()
    assert not len(module_segments(np.full(count, -1), parts, every, kernels, 1))


@OF_JOBS
@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=3), st.booleans())
def test_children_and_own_sum_to_each_node_and_the_root_is_the_path(seeds: list[int], few: bool) -> None:
    """Also where most kernels are summed by module in the digest."""
    with patch("tb_ddp_doctor.digest.module_segments.MOST_SEGMENTS", 3 if few else MOST_SEGMENTS):
        digests = [random_digest(seed) for seed in seeds]
    found = joined(digests)
    if not found or not (bindings := WhatIf.of(found).bindings) or not any(one.modules.named_by for one in digests):
        return
    tree = modules(found.digests)
    table = kernel_table(tree, found.digests)
    times = path_times(table, found.digests, bindings)
    steps = len(bindings.end_ns)
    # Whole ns: what a step has times the number of steps.
    every = times.of_ranks(table) * steps
    of_kernels, total = times.of_kernels(table) * steps, times.of_modules(tree, table) * steps
    assert (every >= 0).all() and np.abs(every - np.rint(every)).max() < 1e-6
    assert np.abs(every.sum(axis=0) - np.append(of_kernels, times.outside_ns * steps)).max() < 1e-6
    own = np.bincount(table.module, of_kernels, len(tree.path))
    own[0] += times.outside_ns * steps
    children = np.zeros_like(total)
    np.add.at(children, tree.parent[1:], total[1:])
    assert np.abs(own + children - total).max() < 1e-6
    assert round(total[0]) == bindings.end_ns[-1] - bindings.start_ns[0]


def test_of_a_modules_kernels_those_are_on_the_path_that_a_rank_runs_last() -> None:
    """Rank 0 is late before the first collective, by gemm, and rank 1 before the second one, by norm: in one module."""

    def of_late(first: int, second: int) -> RankDigest:
        calls: list[Call] = []
        kernels: list[Kernel] = []
        for number in range(3):
            at = 200 * number
            calls += [
                ("user_annotation", f"ProfilerStep#{number}", at, at + 199, 1, None),
                watched("a", at + 1, at + 12),
                op("aten::mm", at + 2, at + 4),
                op("nccl:all_reduce", at + 5, at + 6),
                op("aten::norm", at + 7, at + 9),
                op("nccl:all_reduce", at + 10, at + 11),
                ("cuda_runtime", "cudaDeviceSynchronize", at + 15, at + 191, 1, None),
            ]
            kernels += [
                (at + 2, 1, at + 5, at + 5 + first, 7, "gemm"),
                (at + 5, 1, at + 5 + first, at + 90, 7, REDUCE),
                (at + 8, 1, at + 90, at + 90 + second, 7, "norm"),
                (at + 10, 1, at + 90 + second, at + 190, 7, REDUCE),
            ]
        return read(calls, kernels)

    found = joined([of_late(70, 20), of_late(20, 70)])
    assert found
    bindings = WhatIf.of(found).bindings
    assert bindings
    table = kernel_table(modules(found.digests), found.digests)
    times = path_times(table, found.digests, bindings)
    us = {
        (rank, table.kernel[row]): times.of_ranks(table)[rank, row] / 1e3
        for rank in range(2)
        for row in np.flatnonzero(table.part != ModulePart.IDLE)
        if table.kernel[row] != REDUCE
    }
    # The 15 µs in which nothing runs before the second and the third step are gemm's, too.
    assert us == pytest.approx({(0, "gemm"): 80, (1, "gemm"): 0, (0, "norm"): 0, (1, "norm"): 70}, abs=0.001)


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
    kernels = {(row["path"], row["kernel"], row["part"]): row["critical_ms"] for row in table["kernels"]}
    assert kernels["b", "gemm", "other"] == pytest.approx(6, abs=0.1)
    assert main(["diagnose", job, "--layers", "--kernels"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (heads,) = [line for line in lines if line[:1] == ["module"]]
    (gemm,) = [line for line in lines if line[:2] == ["aten::mm:", "gemm"]]
    assert float(gemm[heads.index("critical") - len(heads)]) == pytest.approx(6, abs=0.1)
    assert main(["diagnose", job, "--markdown"]) == 0
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if line.startswith("| b | other | aten::mm | gemm |")]
    assert float(row.split("|")[-2]) == pytest.approx(6, abs=0.1)
