"""Kernels within a CUDA graph are of the parts of the model that its capture named (`mark_kernels` of torch.cuda)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pftrace_files
import pytest
from torch_events import READERS, event

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.event_modules import event_modules
from tb_ddp_doctor.digest.model import ModuleTime, RankDigest
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.trace.names import Phase
from tb_ddp_doctor.trace.reader import decode

Args = Mapping[str, Any]


def listed(name: str, *, is_backward: bool = False) -> Args:
    """As torch's own recorder writes an annotation to a kernel."""
    phase = {"autograd_phase": "backward"} if is_backward else {}
    return {"annotation": json.dumps([{"name": name} | phase])}


def graph(kernels: Sequence[Args], calls: Sequence[tuple[str, str, int, int]] = ()) -> bytes:
    """Kernels of 10 us in a row, by their arguments, of a graph that is launched at 10 us, and calls on the host."""
    end = 20 + 10 * len(kernels)
    host = [("user_annotation", "ProfilerStep#1", 0, end), *calls, ("cuda_runtime", "cudaGraphLaunch", 10, 5)]
    place = {"device": 0, "stream": 7, "correlation": 1}
    return json.dumps(
        {
            "traceEvents": [
                *(event(*call, 1, **({"correlation": 1} if "Launch" in call[1] else {})) for call in host),
                *(event("kernel", "gemm", 20 + 10 * at, 10, 7, **place, **args) for at, args in enumerate(kernels)),
            ]
        }
    ).encode()


def us(found: RankDigest) -> dict[tuple[str, str], int]:
    """Time of each module, not that of modules within it, and phase, in which something runs."""
    paths, strings, times = found.modules.paths, found.strings, found.modules.times
    texts: list[str] = []
    for name, parent in zip(paths.name.tolist(), paths.parent.tolist(), strict=True):
        texts.append(f"{texts[parent]}.{strings[name]}" if parent > 0 else strings[name])
    sums: dict[tuple[str, str], int] = {}
    columns = (times.module, times.phase, times.kind, times.total_ns)
    for module, phase, kind, total in zip(*(column.tolist() for column in columns), strict=True):
        key = texts[module], Phase(phase).name.lower()
        sums[key] = sums.get(key, 0) + total // 1000 * (kind != ModuleTime.IDLE)
    return sums


@pytest.fixture(params=READERS)
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(data: bytes, by: str, monkeypatch: pytest.MonkeyPatch) -> RankTrace:
    with monkeypatch.context() as patch:
        patch.setenv("DDP_DOCTOR_READER", by)
        return decode([data], "rank0.json")


def test_parts_are_modules_forward_and_backward(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [listed("attention"), listed("attention"), listed("mlp"), {}, listed("attention", is_backward=True)]
    found = digest(read(graph(kernels), by, monkeypatch))
    assert found.modules.named_by == "CUDA graph annotations"
    times = us(found)
    assert times["attention", "forward"] == 20
    assert times["attention", "backward"] == 10
    # Nothing says of what phase the part is that has no backward; what has no annotation is of the whole model.
    assert times["mlp", "other"] == 10
    assert times["", "other"] == 10
    assert found.work.phases.device_ns[0, Phase.BACKWARD] == 10_000
    assert sum(times.values()) == 50


@pytest.mark.parametrize(
    "args",
    [
        {"annotation": '[{"name": "mlp", "autograd_phase": "backward"}]'},
        {"annotation": '{"name": "mlp", "autograd_phase": "backward"}'},
        {"annotation": [{"name": "mlp", "autograd_phase": "backward"}]},
        {"annotation": [{"name": "outer"}, {"str": "of no interest"}, {"name": "mlp", "autograd_phase": "backward"}]},
        {"annotation": '[{"str": "mlp", "autograd_phase": "backward"}]'},
        {"annotation": "mlp", "autograd_phase": "backward"},
        {"name": "mlp", "autograd_phase": "backward"},
        {"str": "mlp", "autograd_phase": "backward"},
        {"str": "of no interest", "name": "mlp", "autograd_phase": "backward"},
    ],
)
def test_however_recorders_write_annotations(args: Args, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert us(digest(read(graph([args]), by, monkeypatch)))["mlp", "backward"] == 10


@pytest.mark.parametrize(
    "annotation", [None, 7, "", "[", '"', [], [7], {}, [{"name": None}], [{"name": [1]}], [{}], "[" * 3000]
)
def test_what_is_no_annotation_names_nothing(annotation: object, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = digest(read(graph([{"annotation": annotation, "autograd_phase": 3}]), by, monkeypatch))
    named = "[" if isinstance(annotation, str) and annotation else ""
    assert {path[0][:1].replace('"', "[") for path in us(found)} <= {"", named}


def test_parts_are_within_the_module_that_launches_the_graph() -> None:
    calls = [("user_annotation", "nn.Module: layers.3", 5, 20)]
    found = digest(decode([graph([listed("attention.scores"), {}], calls)], "rank0.json"))
    assert found.modules.named_by == "Doctor.watch"
    times = us(found)
    assert times["layers.3.attention.scores", "other"] == 10
    assert times["layers.3", "other"] == 10


def test_names_go_before_guesses() -> None:
    layers = [
        ("cpu_op", name, start, 1)
        for at in range(0, 8, 2)
        for name, start in (("aten::mm", at), ("aten::relu", at + 1))
    ]
    found = digest(decode([graph([listed("mlp")], layers)], "rank0.json"))
    assert found.modules.named_by == "CUDA graph annotations"


def test_events_of_slices_have_the_same_modules() -> None:
    trace = decode([graph([listed("attention"), {}, listed("mlp")])], "rank0.json")
    found = digest(trace)
    kernels = np.flatnonzero(trace.events.device == 0)
    modules = event_modules(trace, found).of_rows(kernels)
    assert [modules.paths[index] if index >= 0 else "" for index in modules.module] == ["attention", "", "mlp"]


def test_both_formats_name_the_same_parts(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = graph([listed("attention"), listed("mlp"), listed("mlp", is_backward=True)])
    monkeypatch.setenv("DDP_DOCTOR_READER", by)
    for name, text in (("rank0.json", data), ("rank0.pftrace", pftrace_files.of_json(data))):
        (tmp_path / name).write_bytes(text)
    one, other = (digest(reader.read(path)) for path in sorted(tmp_path.iterdir()))
    assert us(one) == us(other)
    assert msgspec.msgpack.encode(one.strings) == msgspec.msgpack.encode(other.strings)
