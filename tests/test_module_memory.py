"""Which modules allocate the memory: at the peak and in all, so that all modules sum to the allocator's own count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_modules import FORWARD, Call, Kernel, paths, trace

import tb_ddp_doctor
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.trace.reader import decode

MB = 1_000_000
KERNELS: list[Kernel] = [(12, 1, 20, 40, 7, "gemm"), (31, 2, 45, 75, 7, "gemm")]
#: At µs, on thread, MB (negative: released), address.
Allocation = tuple[int, int, int, int]
#: relu keeps 2 MB, mm 30; backward of mm takes 5, and the end of the step releases all.
ALLOCATIONS: list[Allocation] = [
    (3, 1, 2, 0xA),
    (12, 1, 30, 0xB),
    (31, 2, 5, 0xC),
    (42, 2, -30, 0xB),
    (60, 1, 4, 0xD),
    (62, 1, -5, 0xC),
    (63, 1, -7, 0xE),
]


def with_memory(calls: list[Call], allocations: list[Allocation], before: int = 10) -> bytes:
    """A trace with these allocations on the device, of which so many MB are allocated before it begins."""
    events: dict[str, Any] = json.loads(trace(calls, KERNELS, 1000))
    total = before
    for at, thread, size, address in allocations:
        total += size
        args = {"Bytes": size * MB, "Addr": address, "Device Type": 1, "Device Id": 0}
        args |= {"Total Allocated": total * MB, "Total Reserved": 100 * MB}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "pid": 1, "tid": thread, "s": "t"}
        events["traceEvents"].append({**event, "args": args})
    return json.dumps(events).encode()


def bytes_of(found: RankDigest) -> dict[str, tuple[int, int]]:
    """MB at the peak and in all, by path."""
    of, table = paths(found), found.modules.memory
    return {
        of[module]: (peak // MB, every // MB)
        for module, peak, every in zip(
            table.module.tolist(), table.peak_bytes.tolist(), table.allocated_bytes.tolist(), strict=True
        )
    }


def test_a_block_is_of_the_module_that_allocates_it_forward_or_backward() -> None:
    found = digest(decode([with_memory(FORWARD, ALLOCATIONS)], "rank0.json"))
    # What was there before is the whole model's, and so is what no module allocates.
    assert bytes_of(found) == {"": (10, 4), "layers.0": (2, 2), "layers.0.mlp": (35, 35)}
    assert found.modules.memory.peak_bytes.sum() == found.memory.peak_allocated.max() == 47 * MB


def test_a_trace_without_memory_has_none() -> None:
    assert not len(digest(decode([trace(FORWARD, KERNELS, 1000)], "rank0.json")).modules.memory)


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "job").mkdir()
    for rank, more in enumerate((0, 2, 40)):
        allocations = [(at, on, size + more * (address == 0xB) * (1 if size > 0 else -1), address)
                       for at, on, size, address in ALLOCATIONS]  # fmt: skip
        (tmp_path / "job" / f"rank{rank}.pt.trace.json").write_bytes(with_memory(FORWARD, allocations))
    return str(tmp_path / "job")


def test_the_json_has_the_memory_of_modules(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", job, "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)["runs"][0]
    rows = {row["path"]: (row["peak_bytes"], row["allocated_bytes"]) for row in told["layers"]["rows"]}
    assert rows["layers.0.mlp"] == (37 * MB, 37 * MB), "the median rank's"
    assert rows["layers.0"] == rows["layers"] == (39 * MB, 39 * MB), "with all modules within"
    assert rows[""] == (49 * MB, 43 * MB)
    said = told["memory"]["said"][-1]
    assert said == "At the peak: Modules allocate 89 % of what is allocated; of that, 97 % is in layers.0.mlp."
    (diagnosis,) = tb_ddp_doctor.diagnose(job, cache=None)
    assert diagnosis.to_pandas("layers").set_index("path").peak_bytes["layers.0.mlp"] == 37 * MB


def test_the_terminal_has_the_memory_of_modules(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", job, "--layers", "--depth", "3"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("mlp ") and line.endswith(" 37.0") for line in lines)
    assert any("peak MB" in line for line in lines)
