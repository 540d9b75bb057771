"""Every nanosecond of a rank's steps is of one module: forward, backward, and forward that is computed again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from torch_events import event
from traces import write

import tb_ddp_doctor
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.event_modules import event_modules
from tb_ddp_doctor.digest.model import ModuleTime, RankDigest, RankOwner
from tb_ddp_doctor.digest.modules import MOST_MODULES
from tb_ddp_doctor.trace.names import Phase
from tb_ddp_doctor.trace.reader import decode

RUNS = "autograd::engine::evaluate_function: "
#: Category, name, first and last µs, thread, sequence number.
Call = tuple[str, str, int, int, int, int | None]
#: Launched at µs, on thread, runs from µs to µs, on stream; name.
Kernel = tuple[int, int, int, int, int, str]
STEP: Call = ("user_annotation", "ProfilerStep#1", 0, 100, 1, None)


def watched(name: str, start: int, end: int, thread: int = 1) -> Call:
    return ("user_annotation", f"nn.Module: {name}", start, end, thread, None)


def step_of_two_modules(number: int) -> list[Call]:
    """A step of 100 in which module "a" calls an operator, then module "b" another one."""
    at = 100 * number
    return [
        ("user_annotation", f"ProfilerStep#{number}", at, at + 100, 1, None),
        watched("a", at + 1, at + 5),
        op("aten::relu", at + 2, at + 4),
        watched("b", at + 6, at + 10),
        op("aten::mm", at + 7, at + 9),
    ]


def called(name: str, start: int, end: int, thread: int = 1) -> Call:
    return ("python_function", f"nn.Module: {name}", start, end, thread, None)


def op(name: str, start: int, end: int, thread: int = 1, sequence: int | None = None) -> Call:
    return ("cpu_op", name, start, end, thread, sequence)


def read(calls: Sequence[Call], kernels: Sequence[Kernel] = (), unit: int = 1000) -> RankDigest:
    """The digest of a trace with these events; their times are in `unit` ns."""
    return digest(decode([trace(calls, kernels, unit)], "rank0.json"))


def trace(calls: Sequence[Call], kernels: Sequence[Kernel], unit: int) -> bytes:
    """A trace of these events."""

    def spanning(category: str, name: str, start: int, end: int, tid: int, **args: Any) -> dict[str, Any]:
        return event(category, name, start * unit / 1000, (end - start) * unit / 1000, tid, **args)

    events = [
        spanning(category, name, start, end, tid, **({} if number is None else {"Sequence number": number}))
        for category, name, start, end, tid, number in calls
    ]
    for number, (at, tid, start, end, stream, name) in enumerate(kernels, 1):
        events.append(spanning("cuda_runtime", "cudaLaunchKernel", at, at + 1, tid, correlation=number))
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        events.append(spanning(category, name, start, end, stream, device=0, stream=stream, correlation=number))
    return json.dumps({"traceEvents": events}).encode()


def paths(found: RankDigest) -> list[str]:
    """The path of each module."""
    texts: list[str] = []
    of = found.modules.paths
    for parent, name in zip(of.parent.tolist(), of.name.tolist(), strict=True):
        around = f"{texts[parent]}." if parent > 0 else ""
        texts.append(around + found.strings[name])
    return texts


def times(found: RankDigest, unit: int = 1000) -> dict[tuple[str, str, str], int]:
    """Time by path, phase (or "recomputed") and kind, where there is any."""
    table, texts = found.modules.times, paths(found)
    return {
        (
            texts[module],
            "recomputed" if again else Phase(phase).name.lower(),
            ModuleTime(kind).name.lower(),
        ): total // unit
        for module, phase, again, kind, total in zip(
            *(getattr(table, name).tolist() for name in ("module", "phase", "recomputed", "kind", "total_ns")),
            strict=True,
        )
    }


FORWARD = [
    STEP,
    watched("layers.0", 1, 20),
    watched("layers.0.mlp", 10, 19),
    op("aten::relu", 2, 9, sequence=5),
    op("aten::mm", 11, 18, sequence=6),
    op(f"{RUNS}MmBackward0", 30, 40, thread=2, sequence=6),
    op(f"{RUNS}ReluBackward0", 41, 50, thread=2, sequence=5),
]


def of_events(calls: Sequence[Call], kernels: Sequence[Kernel]) -> list[tuple[str, str]]:
    """Name and module of each event of a trace, as a slice has them, in the order of the file."""
    read = decode([trace(calls, kernels, 1000)], "rank0.json")
    rows = np.arange(-1, len(read.events))
    found = event_modules(read, digest(read)).of_rows(rows)
    assert found.module[0] == -1, "a Python function has none"
    names = [read.strings[name] for name in read.events.name.tolist()]
    modules = [found.paths[at] if at >= 0 else "" for at in found.module[1:].tolist()]
    return list(zip(names, modules, strict=True))


def test_an_event_of_a_slice_is_of_the_module_that_it_or_its_launch_is_of() -> None:
    kernels = [(12, 1, 20, 40, 7, "gemm"), (31, 2, 45, 75, 7, "backward of it"), (90, 1, 91, 95, 7, "other")]
    found = of_events(FORWARD, kernels)
    assert set(found) >= {
        ("aten::relu", "layers.0"),
        ("aten::mm", "layers.0.mlp"),
        (f"{RUNS}MmBackward0", "layers.0.mlp"),
        ("gemm", "layers.0.mlp"),
        ("backward of it", "layers.0.mlp"),
        ("other", ""),
    }


def test_a_slice_of_a_trace_that_names_no_modules_has_none() -> None:
    assert {module for _, module in of_events([STEP, op("aten::mm", 11, 18)], [(12, 1, 20, 40, 7, "gemm")])} == {""}


def test_kernels_are_of_the_innermost_module_and_of_the_forward_of_their_node() -> None:
    kernels = [
        (3, 1, 10, 20, 7, "relu"),
        (12, 1, 20, 40, 7, "gemm"),
        (31, 2, 45, 75, 7, "gemm"),
        (42, 2, 75, 80, 7, "relu"),
        (90, 1, 91, 95, 7, "other"),
    ]
    found = read(FORWARD, kernels)
    assert found.modules.named_by == "Doctor.watch"
    expected = {
        ("layers.0", "forward", "compute"): 10,
        ("layers.0.mlp", "forward", "compute"): 20,
        ("layers.0.mlp", "backward", "compute"): 30,
        ("layers.0", "backward", "compute"): 5,
        ("", "other", "compute"): 4,
        # Before the kernel of the last launch, and from its end on nothing runs.
        ("layers.0.mlp", "backward", "idle"): 5,
        ("", "other", "idle"): 11,
    }
    assert {key: times(found).get(key) for key in expected} == expected


def test_of_what_runs_beside_each_other_the_first_to_start_has_the_time() -> None:
    kernels = [
        (3, 1, 10, 30, 7, "relu"),
        (12, 1, 20, 50, 8, "gemm"),
        (31, 2, 40, 70, 9, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        (42, 2, 65, 80, 10, "Memcpy HtoD (Pinned -> Device)"),
    ]
    found = times(read(FORWARD, kernels))
    assert found["layers.0", "forward", "compute"] == 20
    assert found["layers.0.mlp", "forward", "compute"] == 20
    assert found["layers.0.mlp", "backward", "communication"] == 15
    assert found["layers.0", "backward", "copy"] == 15


def test_calls_of_stacks_are_paths_by_what_is_around_them() -> None:
    """A class called twice, within itself, and beside a wrapper; in ms, since short functions are not recorded."""
    calls = [
        STEP,
        called("DistributedDataParallel_0", 1, 60),
        called("Net_0", 2, 59),
        called("Block_0", 3, 30),
        called("Block_0", 10, 20),
        called("Block_0", 31, 50),
        op("aten::a", 4, 9),
        op("aten::b", 11, 19),
        op("aten::c", 32, 40),
    ]
    kernels = [(5, 1, 5, 8, 7, "a"), (12, 1, 12, 16, 7, "b"), (33, 1, 33, 38, 7, "c"), (70, 1, 71, 72, 7, "d")]
    found = read(calls, kernels, unit=1_000_000)
    assert found.modules.named_by == "stacks"
    computed = {path: time for (path, _, kind), time in times(found, 1_000_000).items() if kind == "compute"}
    assert computed == {"Net_0.Block_0": 8, "Net_0.Block_0.Block_0": 4, "": 1}


def test_what_is_computed_again_is_of_its_own_module() -> None:
    """A checkpoint that is not reentrant runs forward within the first node that needs what was not kept."""
    calls = [
        *FORWARD[:5],
        op(f"{RUNS}MmBackward0", 30, 60, thread=2, sequence=6),
        watched("layers.0", 31, 45, thread=2),
        op("aten::dropout", 32, 40, thread=2),
        op("aten::native_dropout", 33, 39, thread=2),
    ]
    kernels = [(12, 1, 13, 20, 7, "gemm"), (34, 2, 35, 40, 7, "dropout"), (50, 2, 51, 57, 7, "gemm")]
    found = times(read(calls, kernels))
    assert found["layers.0.mlp", "forward", "compute"] == 7
    assert found["layers.0", "recomputed", "compute"] == 5
    assert found["layers.0.mlp", "backward", "compute"] == 6


def test_on_a_cpu_a_nanosecond_is_the_innermost_operators() -> None:
    found = times(read(FORWARD))
    assert found["layers.0", "forward", "compute"] == 7
    assert found["layers.0.mlp", "forward", "compute"] == 7
    assert found["layers.0.mlp", "backward", "compute"] == 10
    assert found["layers.0", "backward", "compute"] == 9


def test_modules_beyond_those_that_are_kept_are_their_parents() -> None:
    count = MOST_MODULES + 100
    calls: list[Call] = [("user_annotation", "ProfilerStep#1", 0, 10 * count + 20, 1, None)]
    for number in range(count):
        calls.append(watched(f"layers.{number}", 10 * number + 1, 10 * number + 9))
        calls.append(op("aten::mm", 10 * number + 2, 10 * number + 4 + (number < 100)))
    found = read(calls)
    assert len(found.modules.paths) == MOST_MODULES
    computed = {path: time for (path, _, kind), time in times(found).items() if kind == "compute"}
    assert computed["layers.1"] == 3
    assert sum(computed.values()) == 2 * count + 100
    # The root and "layers" are kept, too. Of the first module only the idle time before it is short.
    assert computed["layers"] == 3 + 2 * (count - MOST_MODULES + 1)


@pytest.mark.parametrize("seed", range(20))
def test_times_sum_to_the_budget(seed: int) -> None:
    """Nested modules on two threads, streams that overlap, several steps and a window that cuts kernels."""
    random = np.random.default_rng(seed)
    calls: list[Call] = [("user_annotation", f"ProfilerStep#{n}", 100 * n, 100 * n + 99, 1, None) for n in range(3)]
    kernels: list[Kernel] = []
    for number in range(60):
        start = int(random.integers(0, 290))
        end, thread = start + int(random.integers(1, 30)), int(random.integers(1, 3))
        calls.append(watched(f"layers.{random.integers(4)}.{random.integers(3)}", start, end, thread))
        node = f"{RUNS}MmBackward0" if thread == 2 else "aten::mm"
        calls.append(op(node, start, end, thread, sequence=int(random.integers(40))))
        at = start + int(random.integers(0, 40))
        names = ("gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy HtoD (Pinned -> Device)")
        stream = int(random.integers(7, 10))
        kernels.append((start, thread, at, at + int(random.integers(0, 25)), stream, names[number % 3]))
    for found in (read(calls, kernels), read(calls)):
        table = found.modules.times
        owner_ns = found.work.owner_ns.sum(axis=0)
        sums = [int(table.total_ns[table.kind == kind].sum()) for kind in ModuleTime]
        owners = (RankOwner.COMPUTE, RankOwner.COPY, RankOwner.COMMUNICATION)
        assert sums[:3] == owner_ns[list(owners)].tolist()
        assert sum(sums) == int(owner_ns.sum())
        assert (found.modules.paths.parent < np.arange(len(found.modules.paths))).all()
        assert (found.modules.kernels.p99_ns <= found.modules.kernels.total_ns).all()
        lengths = found.steps.end_ns - found.steps.start_ns
        assert found.modules.paths.p99_ns[0] == lengths.max()


def of_run(folder: Path, *ranks: tuple[Sequence[Call], Sequence[Kernel]]) -> str:
    """A run of these calls and kernels of each rank; times are in 100 µs."""
    for rank, (calls, kernels) in enumerate(ranks):
        (folder / "job").mkdir(exist_ok=True)
        (folder / "job" / f"rank{rank}.pt.trace.json").write_bytes(trace(calls, kernels, 100_000))
    return str(folder / "job")


def with_mlp_until(end: int) -> tuple[Sequence[Call], Sequence[Kernel]]:
    """Two modules, and the end of the second one's kernel."""
    return FORWARD, [(3, 1, 10, 20, 7, "relu"), (12, 1, 20, end, 7, "gemm"), (42, 2, end, end + 5, 7, "relu")]


def test_the_terminal_lists_modules_of_the_median_rank_and_the_longest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 42, 60)))
    assert main(["diagnose", job, "--layers", "--depth", "3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "layers 4.70 100 % 3.20 0.50 1.00 6.50 2" in said
    assert "mlp 2.20 47 % 2.20 0.00 0.00 4.00 2" in said


def test_the_terminal_lists_modules_of_a_rank_to_a_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 60)))
    assert main(["diagnose", job, "--layers", "--depth", "1", "--rank", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "step of rank 1, ms (named by Doctor.watch)" in said
    assert "layers 6.50 100 %" in said
    assert "mlp" not in said
    assert main(["diagnose", job, "--layers", "--rank", "7"]) == 0
    assert "There is no rank 7 among ranks 0 and 1." in " ".join(capsys.readouterr().out.split())


def test_the_json_a_data_frame_and_markdown_have_the_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 42, 60)))
    assert main(["diagnose", job, "--json"]) == 0
    table = msgspec.json.decode(capsys.readouterr().out)["runs"][0]["layers"]
    assert (table["named_by"], table["layer_events"]) == ("Doctor.watch", 0)
    whole, *rows = table["rows"]
    assert (whole["path"], whole["level"], whole["longest_rank"]) == ("", 0, 2)
    (mlp,) = [row for row in rows if row["path"].endswith(".mlp")]
    assert (mlp["level"], mlp["step_ms"], mlp["forward_ms"], mlp["backward_ms"]) == (3, 2.2, 2.2, 0)
    assert (mlp["longest_ms"], mlp["longest_rank"]) == (4.0, 2)
    parts = ("forward", "backward", "recomputed", "other", "communication", "idle")
    assert whole["step_ms"] == pytest.approx(sum(whole[f"{part}_ms"] for part in parts), abs=0.5)
    (diagnosis,) = tb_ddp_doctor.diagnose(job, cache=None)
    frame = diagnosis.to_pandas("layers")
    assert frame.set_index("path").loc[mlp["path"], "longest_ms"] == 4.0
    assert main(["diagnose", job, "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "named by Doctor.watch" in said and "| layers | 4.70 | 3.20 | 0.50 | 1.00 | 6.50 | 2 |" in said


def test_traces_that_name_no_modules_say_what_to_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", "step |1\nhost [work]")
    assert main(["diagnose", str(tmp_path / "job"), "--layers"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "No trace names the model's modules, and no operators repeat from layer to layer: capture with" in said


def test_the_terminal_shows_a_rank_beside_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 40, 60)))
    assert main(["diagnose", job, "--layers", "--depth", "3", "--rank", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "others more" in said
    assert "layers 6.50 100 % 5.00 0.50 1.00 4.50 +2.00" in said


def test_two_runs_are_compared_by_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, end in (("one", 40), ("two", 60)):
        (tmp_path / run).mkdir()
        of_run(tmp_path / run, with_mlp_until(end))
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--layers", "--depth", "3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Modules by their time in a step of the median rank, ms; by part, what it is more" in said
    assert "mlp 2.00 4.00 +2.00 +2.00 +0.00" in said


def test_a_run_is_shown_against_an_earlier_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, end in (("one", 40), ("two", 60)):
        (tmp_path / run).mkdir()
        of_run(tmp_path / run, with_mlp_until(end))
    asked = ["diagnose", str(tmp_path / "two"), "--layers", "--depth", "3", "--against"]
    for more, of in (([], "the median rank"), (["--rank", "0"], "rank 0")):
        assert main([*asked, str(tmp_path / "one"), *more]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"Modules by their time in a step of {of}, ms; by part, what it is more" in said
        assert "mlp 2.00 4.00 +2.00 +2.00 +0.00" in said
    assert main([*asked, str(tmp_path / "one"), "--rank", "7"]) == 0
    assert "There is no rank 7 in" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, str(tmp_path / "nothing")]) == 2
    assert main(["diagnose", str(tmp_path / "two"), "--against", str(tmp_path / "one")]) == 2
    assert "--against compares the modules of two runs: it goes with --layers." in capsys.readouterr().err


def test_modules_that_are_computed_again_have_the_path_of_their_forward() -> None:
    """In backward no frame of the model is around; what nothing else calls is a path of its own."""
    calls = [
        STEP,
        called("Gpt_0", 1, 30),
        called("Block_0", 2, 20),
        called("Linear_0", 3, 19),
        op("aten::mm", 4, 18, sequence=5),
        called("Block_0", 40, 60, thread=2),
        called("Linear_0", 41, 59, thread=2),
        op("aten::mm", 42, 58, thread=2, sequence=1),
        called("Loss_0", 70, 80),
        op("aten::sum", 71, 79),
    ]
    assert set(paths(read(calls))) == {"", "Gpt_0", "Gpt_0.Block_0", "Gpt_0.Block_0.Linear_0", "Loss_0"}


def test_backward_in_a_node_is_of_the_forward_in_that_node() -> None:
    """A reentrant checkpoint: the thread of autograd has numbers of its own, which forward has had before."""
    calls = [
        STEP,
        watched("other", 1, 5),
        op("aten::relu", 2, 4, sequence=7),
        op("CheckpointFunction", 6, 10, sequence=8),
        op(f"{RUNS}CheckpointFunctionBackward", 20, 90, thread=2, sequence=8),
        op("CheckpointFunctionBackward", 21, 89, thread=2, sequence=8),
        watched("mlp", 22, 40, thread=2),
        op("aten::mm", 23, 39, thread=2, sequence=7),
        op(f"{RUNS}MmBackward0", 50, 60, thread=2, sequence=7),
        op("MmBackward0", 51, 59, thread=2, sequence=7),
        op(f"{RUNS}torch::autograd::AccumulateGrad", 60, 70, thread=2),
        op(f"{RUNS}ReluBackward0", 91, 96, thread=2, sequence=7),
    ]
    kernels = [(52, 2, 53, 63, 7, "gemm"), (61, 2, 64, 68, 7, "add"), (92, 2, 93, 95, 7, "relu")]
    found = times(read(calls, kernels))
    by_path = {path: time for (path, _, kind), time in found.items() if kind == "compute"}
    assert by_path == {"mlp": 14, "other": 2}


def test_a_module_that_fsdp2_shards_is_no_wrapper() -> None:
    calls = [STEP, called("FSDPGpt_0", 1, 30), called("FSDPBlock_0", 2, 20), op("aten::mm", 4, 18)]
    assert paths(read(calls)) == ["", "FSDPGpt_0", "FSDPGpt_0.FSDPBlock_0"]
