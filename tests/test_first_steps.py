"""What somebody meets who has never used the command: wrong paths, files of other kinds, half a file."""

from __future__ import annotations

import gzip
import json
import pickle
import zlib
from pathlib import Path

import pytest
import traces

from tb_ddp_doctor.cli import main

TRAINING = """
    rank0 step |1                                   |2
          host [fwd][bwd][update]                   [fwd][bwd][update]
          gpu      [fwd....][bwd....]                   [fwd....][bwd....]
"""


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status, and all that the command says, without line ends."""
    try:
        status = main(arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    told = capsys.readouterr()
    return status, " ".join((told.out + told.err).split())


def test_a_path_in_place_of_a_command_gets_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my logs"
    folder.mkdir()
    status, text = said(capsys, str(folder))
    assert status == 2
    assert text.endswith(f"For what is in a directory or a file: ddp-doctor diagnose '{folder}'")


def test_a_second_path_is_told_how_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(capsys, "diagnose", str(tmp_path), str(tmp_path))
    assert status == 2 and "One path is taken: " in text and "ddp-doctor compare" in text


def test_an_empty_directory_is_told_all_that_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(capsys, "diagnose", str(tmp_path))
    assert status == 2
    for name in ("*.pt.trace.json", "*.pftrace", "*.sqlite", "*.pickle", "nccl_trace_rank_0"):
        assert name in text


def test_a_pickle_that_is_no_snapshot_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pickle").write_bytes(pickle.dumps({"a": 1}))
    status, text = said(capsys, "diagnose", str(tmp_path / "x.pickle"))
    assert status == 2 and "nor a snapshot of torch.cuda.memory or a Flight Recorder dump" in text


@pytest.mark.parametrize("of_file", [False, True])
def test_a_log_of_the_inspector_leads_to_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of_file: bool
) -> None:
    path = tmp_path / "host0-pid12.log"
    line = {"header": {"id": "0x9", "rank": 0, "n_ranks": 2}, "metadata": {}, "coll_perf": {"coll": "AllReduce"}}
    path.write_text(json.dumps(line) + "\n")
    status, text = said(capsys, "diagnose", str(path if of_file else tmp_path))
    assert status == 2 and "This is a log of NCCL's Inspector" in text and "ddp-doctor history" in text


def cut_before_the_gpu(tmp_path: Path) -> Path:
    """A training rank's file that ends after its first forward pass, before any event of the GPU."""
    trace = json.loads(traces.draw(TRAINING)[0])
    order = {"user_annotation": 0, "cpu_op": 1}
    events = sorted(trace["traceEvents"], key=lambda one: (one["cat"] == "kernel", order.get(one["cat"], 2), one["ts"]))
    names = {"aten::copy_", "aten::mm", "aten::relu", "aten::add", "aten::sum", "aten::linear", "aten::mul"}
    step = next(one for one in events if one["name"].startswith("ProfilerStep"))
    forward = [
        step | {"cat": "cpu_op", "name": name, "ts": step["ts"] + 10 * number, "dur": 5, "args": {}}
        for number, name in enumerate(sorted(names))
    ]
    launch = [
        step
        | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": one["ts"] + 1, "dur": 2, "args": {"correlation": 9}}
        for one in forward
    ]
    text = json.dumps(trace | {"traceEvents": [step, *forward, *launch]})
    path = tmp_path / "host0_1.17.pt.trace.json.gz"
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    path.write_bytes(packed.compress(text[: text.rindex("}]}")].encode()) + packed.flush(zlib.Z_SYNC_FLUSH))
    return path


def test_a_cut_file_without_gpu_events_is_no_inference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cut_before_the_gpu(tmp_path)
    assert path.stat().st_size
    with pytest.raises(EOFError):
        gzip.decompress(path.read_bytes())
    _, text = said(capsys, "diagnose", str(tmp_path))
    assert "inference" not in text
    assert "The GPU events are missing, since the file is cut off" in text


def test_the_help_of_each_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = said(capsys, "--help")
    for command, does in (("whatif", "Predict the step time"), ("slice", "Write the part of"), ("demo", "Open ")):
        assert f"{command} {does[0].lower()}{does[1:]}" in text
        _, own = said(capsys, command, "--help")
        assert does in own.partition("options:")[0]


def test_who_ran_out_of_memory_is_told_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a job ran out of memory ddp-doctor diagnose LOGDIR" in said(capsys)[1]
