"""Kernels that torch.compile generated have the file that holds them as their source: "kernel_file" of their launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pftrace_files
import pytest
from test_graph_parts import by, read
from test_modules import of_run
from torch_events import event

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import CodeOf, RankDigest
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.trace import names, reader
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.view import stacks

__all__ = ["by"]
HASH = "culetdsvvlkrqsd7juujlgbpmjwp4tl6neeryz5tquvuslmdky4o"
FILE = f"/tmp/torchinductor_root/ul/{HASH}.py"
OTHER = f"/tmp/torchinductor_root/xo/cxo{HASH[3:]}.py"
KERNEL = "triton_poi_fused_add_mul_0"


def launched(*ops: tuple[str, dict[str, Any]], frames: tuple[tuple[str, int, int], ...] = ()) -> bytes:
    """Operators of 10 us, by their arguments, each of which launches a kernel of 10 us that has its name."""
    events = [event("user_annotation", "ProfilerStep#1", 0, 20 * len(ops) + 500, 1)]
    events += [event("python_function", name, start, end - start, 1) for name, start, end in frames]
    for at, (name, args) in enumerate(ops):
        events += [
            event("cpu_op", name, 20 * at, 10, 1, **args),
            event("cuda_runtime", "cuLaunchKernel", 20 * at + 2, 3, 1, correlation=at + 1),
            event("kernel", name, 20 * at + 5, 10, 7, device=0, stream=7, correlation=at + 1, grid=[4, 1, 1])
            | {"pid": 0},
        ]
        events[-1]["args"]["est. achieved occupancy %"] = 30 + at
    return json.dumps({"traceEvents": events}).encode()


def sources(found: RankDigest) -> dict[str, set[str]]:
    """The functions of each kernel."""
    kernels, text = found.modules.kernels, found.strings
    of: dict[str, set[str]] = {}
    for kernel, function, events in zip(kernels.kernel, kernels.function, kernels.events, strict=True):
        if events:
            of.setdefault(text[kernel], set()).add(text[function])
    return of


def functions(trace: RankTrace) -> list[str]:
    """What the reader makes of the files of operators, in the order of the file."""
    return [trace.strings[at] if at >= 0 else "" for at in trace.events.occupancy[trace.events.category == 0].tolist()]


def test_a_compiled_kernel_has_its_file_and_kernels_of_one_name_are_told_apart(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = launched((KERNEL, {"kernel_file": FILE}), (KERNEL, {"kernel_file": OTHER}), ("aten::mm", {}))
    trace = read(data, by, monkeypatch)
    assert functions(trace) == [f"{FILE}(1): {KERNEL}", f"{OTHER}(1): {KERNEL}", ""]
    # Estimates of occupancy, in the same column, are left as they are.
    assert trace.events.occupancy[trace.events.device >= 0].tolist() == [30, 31, 32]
    found = digest(trace)
    assert sources(found) == {KERNEL: {f"{FILE}(1): {KERNEL}", f"{OTHER}(1): {KERNEL}"}, "aten::mm": {""}}
    # Evidence has it, too.
    assert {found.strings[at] for at in found.code.function} == {f"{FILE}(1): {KERNEL}", f"{OTHER}(1): {KERNEL}"}
    assert set(found.code.of.tolist()) == {CodeOf.COMPUTE}


@pytest.mark.parametrize(
    "file",
    [
        None,
        7,
        1.5,
        True,
        "",
        [FILE],
        {"path": FILE},
        "/tmp/ul/kernel.cpp",
        "/tmp/a\nb.py",
        "\x00.py",
        "\ud800.py",
        "x" * 5000 + ".py",
        "/tmp/a.py(3): f",
        f"{FILE}(1): {KERNEL}",
        '"quoted".py',
        "C:\\cache\\ul\\c.py",
        "/tmp/two  spaces.py",
        "<script>alert(1)</script>.py",
        "javascript:alert(1).py",
    ],
)
def test_whatever_stands_there_readers_agree_and_a_source_is_a_file(
    file: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = launched((KERNEL, {"kernel_file": file}), (KERNEL, {}))
    one, other = (read(data, by, monkeypatch) for by in ("native", "msgspec"))
    assert functions(one) == functions(other)
    found = digest(one)
    for function in sources(found)[KERNEL] - {""}:
        source = names.source(function)
        assert source is not None and source[0].endswith(".py") and "\n" not in source[0] and len(source[0]) <= 4096
    expected = isinstance(file, str) and file.endswith(".py") and "\n" not in file and len(file) <= 4096
    assert (functions(one)[0] != "") == expected


def test_with_stacks_generated_code_is_not_the_users_own() -> None:
    """What a compiled region calls otherwise is of the user's function that is compiled."""
    frames = (("model.py(40): forward", 0, 400), (f"{OTHER}(231): call", 0, 390))
    found = digest(
        reader.decode([launched((KERNEL, {"kernel_file": FILE}), ("aten::mm", {}), frames=frames)], "r.json")
    )
    assert sources(found) == {KERNEL: {f"{FILE}(1): {KERNEL}"}, "aten::mm": {"model.py(40): forward"}}
    assert {found.strings[at] for at in found.code.function} == {"model.py(40): forward"}


@pytest.mark.parametrize(
    ("path", "is_generated"),
    [
        (FILE, True),
        (f"ul/{HASH}.py", True),
        (f"C:\\cache\\ul\\{HASH}.py", True),
        (f"/tmp/torchinductor_root/um/{HASH}.py", False),
        ("/home/me/ul/culet.py", False),
        ("/home/me/model.py", False),
    ],
)
def test_generated_files_are_known_by_their_place(path: str, is_generated: bool) -> None:
    assert names.is_generated(f"{path}(3): call") == is_generated
    assert names.is_own_code(f"{path}(3): call") != is_generated


def test_both_formats_have_the_same_files(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = launched((KERNEL, {"kernel_file": FILE, "num_warps": 4}), (KERNEL, {"kernel_file": OTHER}), ("aten::mm", {}))
    monkeypatch.setenv("DDP_DOCTOR_READER", by)
    for name, text in (("rank0.json", data), ("rank0.pftrace", pftrace_files.of_json(data))):
        (tmp_path / name).write_bytes(text)
    one, other = (reader.read(path) for path in sorted(tmp_path.iterdir()))
    assert functions(one) == functions(other) == [f"{FILE}(1): {KERNEL}", f"{OTHER}(1): {KERNEL}", ""]


def test_the_json_and_the_terminal_say_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled kernels in a module that Doctor.watch marks."""
    monkeypatch.setenv("COLUMNS", "160")
    job = Path(of_run(tmp_path, ([], [])))
    trace = json.loads(launched(*[(KERNEL, {"kernel_file": FILE})] * 3))
    trace["traceEvents"].append(event("user_annotation", "nn.Module: layers.0", 0, 90, 1))
    (path,) = job.iterdir()
    path.write_text(json.dumps(trace))
    assert main(["diagnose", str(job), "--json"]) == 0
    (run,) = msgspec.json.decode(capsys.readouterr().out)["runs"]
    kernel = next(one for one in run["layers"]["kernels"] if one["kernel"] == KERNEL and one["part"] != "idle")
    assert kernel["path"] == "layers.0"
    assert kernel["source"] == {"file": FILE, "line": 1, "function": KERNEL}
    assert main(["diagnose", str(job), "--layers", "--kernels"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"{KERNEL} {HASH}.py:1: {KERNEL}" in out


@pytest.mark.parametrize(("own", "lacks"), [((), True), ((("model.py(40): forward", 0, 400),), False)])
def test_files_of_compiled_kernels_are_no_stacks(own: tuple[tuple[str, int, int], ...], lacks: bool) -> None:
    """So that how to record stacks is still said."""
    found = digest(reader.decode([launched((KERNEL, {"kernel_file": FILE}), frames=own)], "rank0.json"))
    assert len(found.code)
    job = build("job", {0: found}, {0: "node"}, 1)
    assert stacks.lacking(job) == lacks
