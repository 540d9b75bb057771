"""Which kernels run in each module: by operator and line of source, top-down and bottom-up, on all ranks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_modules import FORWARD, STEP, Call, Kernel, called, of_run, op, paths, read, watched, with_mlp_until

import tb_ddp_doctor
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.model import ModuleTime, RankDigest
from tb_ddp_doctor.digest.module_kernels import MOST_KERNELS
from tb_ddp_doctor.facts.modules import kernel_table, modules
from tb_ddp_doctor.trace.names import Phase


def rows(found: RankDigest) -> dict[tuple[str, str, str, str, str], tuple[int, int]]:
    """µs and events by path, phase (or "idle"), operator, kernel and function."""
    table, kernels, text = found.modules.times, found.modules.kernels, found.strings
    of = paths(found)
    named: dict[tuple[str, str, str, str, str], tuple[int, int]] = {}
    for row in range(len(kernels)):
        time = kernels.of[row]
        idle = table.kind[time] == ModuleTime.IDLE
        key = (
            of[table.module[time]],
            "idle" if idle else Phase(table.phase[time]).name.lower(),
            text[kernels.operator[row]],
            text[kernels.kernel[row]],
            text[kernels.function[row]],
        )
        named[key] = (int(kernels.total_ns[row]) // 1000, int(kernels.events[row]))
    return named


def test_a_kernel_has_the_operator_that_launched_it() -> None:
    kernels = [
        (3, 1, 10, 20, 7, "relu"),
        (12, 1, 20, 40, 7, "gemm"),
        (31, 2, 45, 75, 7, "gemm"),
        (90, 1, 91, 95, 7, "x"),
    ]
    found = rows(read(FORWARD, kernels))
    assert found["layers.0", "forward", "aten::relu", "relu", ""] == (10, 1)
    assert found["layers.0.mlp", "forward", "aten::mm", "gemm", ""] == (20, 1)
    assert found["layers.0.mlp", "backward", "autograd::engine::evaluate_function: MmBackward0", "gemm", ""][0] == 30
    # What no operator launched has none; idle time is of the kernel that follows it.
    assert found["", "other", "", "x", ""] == (4, 1)
    assert found["", "idle", "", "x", ""] == (16, 0)


def test_with_stacks_a_kernel_has_its_line_of_source_and_backward_that_of_its_forward() -> None:
    calls: list[Call] = [
        STEP,
        called("Net_0", 1, 25),
        ("python_function", "model.py(88): forward", 2, 20, 1, None),
        op("aten::mm", 3, 9, sequence=6),
        op("autograd::engine::evaluate_function: MmBackward0", 30, 40, thread=2, sequence=6),
    ]
    kernels: list[Kernel] = [(4, 1, 10, 20, 7, "gemm"), (31, 2, 40, 60, 7, "gemm of backward")]
    found = rows(read(calls, kernels, unit=1_000_000))
    assert found["Net_0", "forward", "aten::mm", "gemm", "model.py(88): forward"] == (10_000, 1)
    node = "autograd::engine::evaluate_function: MmBackward0"
    assert found["Net_0", "backward", node, "gemm of backward", "model.py(88): forward"] == (20_000, 1)


def test_on_a_cpu_operators_are_the_kernels() -> None:
    assert rows(read(FORWARD))["layers.0.mlp", "forward", "aten::mm", "", ""] == (7, 1)


def test_rows_beyond_those_that_are_kept_are_summed_without_a_name() -> None:
    count = MOST_KERNELS + 200
    calls: list[Call] = [
        ("user_annotation", "ProfilerStep#1", 0, 10 * count + 20, 1, None),
        watched("head", 0, 10 * count + 10),
        *(op(f"aten::op{number}", 10 * number, 10 * number + (9 if number < 100 else 5)) for number in range(count)),
    ]
    found = read(calls)
    named = rows(found)
    compute = {key: value for key, value in named.items() if key[1] != "idle"}
    assert len(found.modules.kernels) <= MOST_KERNELS + len(found.modules.times)
    assert named["head", "other", "aten::op99", "", ""] == (9, 1)
    rest = named["head", "other", "", "", ""]
    assert rest[1] == count - (len(compute) - 1) and rest[0] == 5 * rest[1]


def random_digest(seed: int) -> RankDigest:
    """Nested modules, forward, backward, copies and collectives that overlap, in two steps."""
    random = np.random.default_rng(seed)
    calls: list[Call] = [("user_annotation", f"ProfilerStep#{n}", 100 * n, 100 * n + 99, 1, None) for n in range(2)]
    kernels: list[Kernel] = []
    for _ in range(30):
        start, thread = int(random.integers(0, 180)), int(random.integers(1, 3))
        calls.append(watched(f"layers.{random.integers(3)}.{random.integers(2)}", start, start + 12, thread))
        node = "autograd::engine::evaluate_function: MmBackward0" if thread == 2 else f"aten::mm{random.integers(3)}"
        calls.append(op(node, start + 1, start + 11, thread, sequence=int(random.integers(20))))
        name = ("gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy HtoD (Pinned -> Device)")[random.integers(3)]
        begin = start + int(random.integers(2, 30))
        kernels.append(
            (start + 2, thread, begin, begin + int(random.integers(0, 20)), int(random.integers(7, 10)), name)
        )
    return read(calls, kernels if random.integers(4) else ())


@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=3))
def test_children_and_own_time_sum_to_each_node_and_the_root_is_the_step(seeds: list[int]) -> None:
    digests = [random_digest(seed) for seed in seeds]
    if not any(digest.modules.named_by for digest in digests):
        return
    tree = modules(digests)
    table = kernel_table(tree, digests)
    for rank, digest in enumerate(digests):
        steps = len(digest.steps)
        own = np.rint(tree.own_ns[rank] * steps).astype(int)
        total = np.rint(tree.step_ns[rank] * steps).astype(int)
        children = np.zeros_like(total)
        np.add.at(children, tree.parent[1:], total[1:])
        assert (own + children == total).all()
        assert total[0].sum() == digest.work.owner_ns.sum()
        # The kernels of a module are its own time, in every part.
        of_kernels = np.zeros_like(own)
        np.add.at(of_kernels, (table.module, table.part), np.rint(table.step_ns[rank] * steps).astype(int))
        assert (of_kernels == own).all()


def test_ranks_with_the_same_kernels_share_rows() -> None:
    first, second = (read(*with_mlp_until(end)) for end in (40, 60))
    table = kernel_table(modules([first, second]), [first, second])
    (row,) = [i for i, kernel in enumerate(table.kernel) if kernel == "gemm" and table.events[0, i]]
    assert table.step_ns[:, row].tolist() == [20_000, 40_000]
    assert table.operator[row] == "aten::mm"


def test_the_terminal_lists_kernels_below_their_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 42, 60)))
    assert main(["diagnose", job, "--layers", "--depth", "3", "--kernels"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    (mlp,) = [number for number, line in enumerate(lines) if line.startswith("mlp ")]
    assert lines[mlp + 1].startswith("aten::mm: gemm 2.20 47 % 2.20")
    assert main(["diagnose", job, "--layers", "--depth", "1", "--kernels"]) == 0
    assert "aten::mm: gemm 2.20 47 %" in " ".join(capsys.readouterr().out.split()), "of a module that has no line"


def test_the_terminal_lists_modules_below_their_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 42, 60)))
    assert main(["diagnose", job, "--layers", "--bottom-up"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "aten::mm: gemm 2.20 47 % 2.20" in said and "layers.0.mlp 2.20 47 % 2.20" in said


def test_two_ranks_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 42, 60)))
    assert main(["diagnose", job, "--layers", "--depth", "3", "--rank", "2", "--against-rank", "0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rank 0 more" in said and "mlp 4.00 62 % 4.00 0.00 0.00 2.00 +2.00" in said
    assert main(["diagnose", job, "--layers", "--rank", "2", "--against-rank", "5"]) == 0
    assert "There is no rank 5" in " ".join(capsys.readouterr().out.split())


def test_the_json_and_a_data_frame_have_the_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 42, 60)))
    assert main(["diagnose", job, "--json"]) == 0
    first = msgspec.json.decode(capsys.readouterr().out)["runs"][0]["layers"]["kernels"][0]
    assert (first["path"], first["part"], first["operator"], first["kernel"]) == (
        "layers.0.mlp",
        "forward",
        "aten::mm",
        "gemm",
    )
    assert (first["step_ms"], first["calls"], first["longest_ms"], first["longest_rank"]) == (2.2, 1, 4.0, 2)
    (diagnosis,) = tb_ddp_doctor.diagnose(job, cache=None)
    assert diagnosis.to_pandas("layer_kernels").kernel.tolist()[0] == "gemm"
