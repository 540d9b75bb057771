"""The logs of TORCH_TRACE: why functions were compiled again, and why graphs were broken.

`compile_logs/` has a log that torch 2.13 wrote, without the records that are of no interest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tb_ddp_doctor import engine
from tb_ddp_doctor.compile_logs.model import CompileReason
from tb_ddp_doctor.compile_logs.read import read_logs
from tb_ddp_doctor.discover.recorders.nccl_logs import NcclLogs
from tb_ddp_doctor.discover.recorders.torch_traces import TorchTraces
from tb_ddp_doctor.discover.runs import discover

(LOG,) = (Path(__file__).parent / "compile_logs").glob("*.log")
PID = "28192"
SCRIPT = """
import torch

def scaled(x, scale):
    return (x * scale).relu()

def summed(x):
    y = x * 2
    if y.sum().item() > 0:
        y = y + 1
    return y

by_shape = torch.compile(scaled, dynamic=False, backend="eager")
broken = torch.compile(summed, backend="eager")
for rows in (4, 4, 6):
    by_shape(torch.ones(rows, 8), 1.0)
broken(torch.ones(4))
"""


def briefly(reasons: tuple[CompileReason, ...]) -> list[tuple[str, str, str, str]]:
    return [(one.kind, one.function, one.place, one.reason) for one in reasons]


def test_reasons_are_read_of_a_real_log() -> None:
    found = read_logs([LOG], {PID: 3})
    assert {one.rank for one in found} == {3}
    recompiled = [one for one in briefly(found) if one[0] == "recompile"]
    assert recompiled[:2] == [
        ("recompile", "torch_dynamo_resume_in_forward_at_8", "train.py:8", "___stack0 == 5.193787097930908"),
        ("recompile", "forward", "train.py:6", "tensor 'x' size mismatch at index 0. expected 4, actual 6"),
    ]
    assert ("recompile", "torch_dynamo_resume_in_forward_at_8", "train.py:9", "scale == 1.0") in recompiled
    assert len(recompiled) == 8
    breaks = [one for one in found if one.kind == "graph-break"]
    assert briefly((breaks[0],)) == [
        ("graph-break", "forward", "train.py:8", "Unsupported Tensor.item() call with capture_scalar_outputs=False")
    ]
    assert breaks[0].hint.startswith("Set `torch._dynamo.config.capture_scalar_outputs = True`")
    assert (breaks[0].start_ns // 10**6, breaks[0].duration_ns) == (1795766445747, 469_718_000)


def test_the_rank_is_that_of_the_name_or_the_record_or_the_process(tmp_path: Path) -> None:
    assert read_logs([LOG], {}) == ()
    named = tmp_path / "dedicated_log_torch_trace_rank_5_x7.log"
    shutil.copy(LOG, named)
    assert {one.rank for one in read_logs([named], {PID: 3})} == {5}
    prefixed = tmp_path / "dedicated_log_torch_trace_x.log"
    prefixed.write_text(
        "".join(f"[rank6]:{line}" if line[0] == "V" else line for line in LOG.read_text().splitlines(keepends=True))
    )
    assert {one.rank for one in read_logs([prefixed], {})} == {6}


def test_older_logs_say_the_reason_in_a_line_of_their_own(tmp_path: Path) -> None:
    record = json.dumps(
        {"artifact": {"name": "dynamo_graph_break_reason"}, "rank": 1, "frame_id": 2, "frame_compile_id": 0}
    )
    log = tmp_path / "old.log"
    log.write_text(
        f"V0203 10:20:30.123456 77 torch/_dynamo/symbolic_convert.py:417] {record}\n"
        "\tGraph break in user code at /job/my model.py:41\n\tReason: Unsupported: call_function print\n"
        "\tUser code traceback:\n\t  File x\n"
    )
    assert briefly(read_logs([log], {})) == [("graph-break", "", "my model.py:41", "Unsupported: call_function print")]


@given(st.binary(max_size=300), st.integers(0, 39_000), st.integers(0, 200))
def test_any_bytes_are_read(data: bytes, at: int, removed: int) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"compile_log_{os.getpid()}.log"
    whole = LOG.read_bytes()
    for text in (data, whole[:at] + data + whole[at + removed :]):
        path.write_bytes(text)
        assert all(one.rank == 3 and one.reason and len(one.reason) <= 300 for one in read_logs([path], {PID: 3}))
    path.unlink()


def test_its_files_are_no_logs_of_nccl() -> None:
    assert TorchTraces().matches(LOG.name)
    assert not NcclLogs().matches(LOG.name)


def test_torch_writes_what_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(SCRIPT)
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path)}
    subprocess.run([sys.executable, tmp_path / "job.py"], env=environment, check=True, timeout=300)
    found = read_logs(sorted(tmp_path.glob("*.log")), dict.fromkeys(map(str, range(1 << 22)), 0))
    reasons = {(one.kind, one.function, one.place): one.reason for one in found}
    assert reasons["recompile", "scaled", "job.py:4"].startswith("tensor 'x' size mismatch at index 0. expected 4")
    assert "item()" in reasons["graph-break", "summed", "job.py:9"]
    assert all(one.start_ns > 1.7e18 and one.duration_ns > 0 for one in found)


# -- in the diagnosis

OPTIONS = {"names": {"aten::compile": "_compile.compile_inner (dynamo_timed)"}}
JOB = """
    rank# step     |1
          host     [compile...............................][fwd..]
          autograd                                                [bwd.......]
          gpu                                              [fwd..........][bwd.]
"""


def test_a_log_beside_the_traces_says_why(tmp_path: Path) -> None:
    # The drawn traces begin in 2023: compilations of the log lie outside of their steps.
    traces.write(tmp_path / "job", traces.ranks(JOB, JOB), **OPTIONS)
    (tmp_path / "job" / "torch_trace").mkdir()
    shutil.copy(LOG, tmp_path / "job" / "torch_trace" / "dedicated_log_torch_trace_rank_1_fmsjiv75.log")
    (run,) = discover(tmp_path)
    (found,) = [one for one in engine.diagnose(run).diagnosis.findings if one.rule == "recompilation"]
    assert found.why.startswith(
        "By the log of TORCH_TRACE, outside of the recorded steps, forward at train.py:6 was compiled again 2 times "
        "(tensor 'x' size mismatch at index 0. expected 6, actual 7), "
    )
    assert "mark_dynamic" in found.fix and "TORCH_TRACE=" not in found.fix


def test_reasons_within_the_recorded_steps_go_before_others() -> None:
    drawn = traces.job(traces.ranks(JOB, JOB), **OPTIONS)
    start = int(drawn.digests[0].steps.host_start_ns.min())
    of_step = CompileReason("recompile", 0, "forward", "train.py:6", "scale == 1.0", "", start + 1, 5)
    before = replace(of_step, start_ns=start - 10**9, reason="scale == 7.0")
    diagnosis = engine.examine(replace(drawn, compile_reasons=(before, of_step, of_step)))
    (found,) = [one for one in diagnosis.findings if one.rule == "recompilation"]
    assert found.why.startswith(
        "By the log of TORCH_TRACE, forward at train.py:6 was compiled again 2 times (scale == 1.0). "
    )
    assert "7.0" not in found.why
