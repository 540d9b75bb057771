"""Copies of the CUPTI monitor in torch are called "Memcpy": their arguments tell what goes where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pftrace_files
import pytest
from test_graph_parts import by, read
from torch_events import READERS, event

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.model import Category, RankTrace

__all__ = ["by"]
BYTES = 1 << 24
TO_DEVICE = {"copy kind": "HtoD", "src kind": "pageable", "dst kind": "device"}
TO_HOST = {"copy kind": "DtoH", "src kind": "device", "dst kind": "pinned"}
WITHIN = {"copy kind": "DtoD", "src kind": "device", "dst kind": "device"}


def copies(*args: dict[str, Any], name: str = "Memcpy") -> bytes:
    """Copies of 10 us, by what their arguments say."""
    events = [event("user_annotation", "ProfilerStep#1", 0, 20 * len(args) + 500, 1)]
    for at, more in enumerate(args):
        launch, given = at + 1, {"device": 0, "stream": 7, "bytes": BYTES}
        events += [
            event("cuda_runtime", "cudaMemcpyAsync", 20 * at + 2, 3, 1, correlation=launch),
            event("gpu_memcpy", name, 20 * at + 5, 10, 7, correlation=launch, **given, **more) | {"pid": 0},
        ]
    # A GPU computes, too.
    events += [
        event("cpu_op", "aten::mm", 20 * len(args), 10, 1),
        event("cuda_runtime", "cudaLaunchKernel", 20 * len(args) + 2, 3, 1, correlation=1000),
        event("kernel", "gemm", 20 * len(args) + 6, 100, 7, device=0, stream=7, correlation=1000) | {"pid": 0},
    ]
    return json.dumps({"traceEvents": events}).encode()


def named(trace: RankTrace) -> list[str]:
    return [trace.strings[at] for at in trace.events.name[trace.events.category == Category.MEMCPY].tolist()]


@pytest.mark.parametrize("packed", [False, True], ids=["JSON", "packets"])
def test_copies_are_named_as_kineto_does(
    by: str, packed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = copies(TO_DEVICE, TO_HOST, WITHIN, {"annotation": '[{"name": "attention"}]', **TO_DEVICE})
    monkeypatch.setenv("DDP_DOCTOR_READER", by)
    file = tmp_path / ("rank0.pftrace" if packed else "rank0.json")
    file.write_bytes(pftrace_files.of_json(data) if packed else data)
    trace = reader.read(file)
    to_device, to_host = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)"
    assert named(trace) == [to_device, to_host, "Memcpy DtoD (Device -> Device)", to_device]
    # What stood in for it is gone, and what else a copy has stays.
    mine = trace.events.category == Category.MEMCPY
    assert set(trace.events.shape[mine].tolist()) | set(trace.events.types[mine].tolist()) == {-1}
    assert (trace.events.values[mine] >= 0).tolist() == [False, False, False, True]
    work = digest(trace).work.copies
    assert (work.pageable_copies.tolist(), work.pageable_bytes.tolist()) == ([2], [2 * BYTES])
    assert (work.pinned_bytes.tolist(), work.unnamed_copies.tolist()) == ([BYTES], [0])


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"copy kind": None},
        {"copy kind": 1},
        {"copy kind": ""},
        {"copy kind": "sideways", "src kind": "pinned"},
        {"copy kind": "HtoD"},
        {"copy kind": "HtoD", "src kind": 7},
        {"copy kind": "HtoD", "src kind": "\ud800"},
        {"copy kind": ["HtoD"], "src kind": {"a": 1}},
        {"grid": [1, 2, 3], "est. achieved occupancy %": 50},
        {"grid": "HtoD", "autograd_phase": "forward"},
    ],
)
def test_whatever_stands_there_readers_agree(args: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [named(read(copies(args, TO_DEVICE), by, monkeypatch)) for by in READERS]
    assert all(one == found[0] for one in found)
    assert found[0][1] == "Memcpy HtoD (Pageable -> Device)"


def test_names_that_tell_it_stay(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Memcpy HtoD (Pinned -> Device)"
    assert named(read(copies(TO_HOST, name=name), by, monkeypatch)) == [name]
