"""A job that hangs now: what its ranks write, by themselves or when asked, and what is read of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hang_job
import pytest
from dumps import faults, write

from tb_ddp_doctor.capture import hang
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.flight.find import find
from tb_ddp_doctor.flight.stacks import parse
from tb_ddp_doctor.stuck.run import examine_all

#: torch may lie in another environment than the tests': `DDP_DOCTOR_TORCH_PYTHON=/path/to/python`.
PYTHON = os.environ.get("DDP_DOCTOR_TORCH_PYTHON", sys.executable)
#: After how many seconds each job writes where it is, by itself (0: when asked), and what its Flight Recorder keeps.
JOBS = {"with the Flight Recorder": (3.0, 100), "without": (3.0, 0), "asked": (0, 0)}
ALL_REDUCE = """\
Process 100: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 100 (idle): "MainThread"
    all_reduce (/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:2997)
    wrapper (/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:83)
    step (train.py:12)
Thread 101 (active): "pin"
    run (/usr/lib/python3.11/threading.py:5)
"""
VALIDATES = """\
Fatal Python error: Aborted

Thread 0x00007f01 [python] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f00 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "train.py", line 30 in validate
  File "train.py", line 13 in step
"""
BARRIER = ALL_REDUCE.replace("all_reduce (", "barrier (").replace("train.py:12", "train.py:40")
COMPUTES = ALL_REDUCE.replace("torch/distributed/distributed_c10d.py", "torch/nn/functional.py")


def stacks(folder: Path, *texts: str) -> Path:
    """A file for each rank; "" for none."""
    folder.mkdir(exist_ok=True)
    for rank, text in enumerate(texts):
        if text:
            (folder / f"rank_{rank}.stacks.txt").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "innermost", "frames"),
    [(ALL_REDUCE, "all_reduce", 3), (VALIDATES, "get", 3)],
    ids=["py-spy", "faulthandler"],
)
def test_the_main_thread_is_read(text: str, innermost: str, frames: int) -> None:
    found = parse(f"noise\n{text}\nmore noise", "f", 3)
    assert found is not None and found.rank == 3
    assert (found.frames[0].function, len(found.frames)) == (innermost, frames)
    assert parse(text, "f", None) is None
    assert parse("no stack", "f", 1) is None


def test_a_rank_that_is_in_no_collective_is_what_the_others_wait_for(tmp_path: Path) -> None:
    (run,) = examine_all(stacks(tmp_path / "hang", ALL_REDUCE, VALIDATES, ALL_REDUCE))
    assert (run.verdict, faults(run)) == ("stuck", [("missing", (1,))])
    (finding,) = run.findings
    assert finding.title == "Rank 1 is in no collective, while ranks 0 and 2 wait in all_reduce."
    assert "rank 1 is in get (/usr/lib/python3.11/queue.py:171), called by validate (train.py:30)" in finding.why
    assert run.recorder == "stacks"
    assert finding.call.site is not None and finding.call.site.function == "step"
    assert [state.came for state in finding.states] == ["enqueued", "absent", "enqueued"]


def test_a_rank_that_waits_elsewhere_came_to_something_else(tmp_path: Path) -> None:
    (run,) = examine_all(stacks(tmp_path / "hang", ALL_REDUCE, BARRIER, ALL_REDUCE))
    assert faults(run) == [("wrong-order", (1,))]
    assert run.findings[0].title == "Rank 1 waits at another place, while ranks 0 and 2 wait in all_reduce."


def test_a_rank_without_a_stack_has_ended(tmp_path: Path) -> None:
    texts = [f"# ddp-doctor: rank {rank} of 3 on node{rank}, asked\n{ALL_REDUCE}" for rank in range(2)]
    (run,) = examine_all(stacks(tmp_path / "hang", *texts))
    assert (faults(run), run.missing_ranks, run.hosts) == ([("no-dump", (2,))], (2,), ("node0", "node1"))


@pytest.mark.parametrize("text", [ALL_REDUCE, COMPUTES], ids=["all wait", "none waits"])
def test_what_stacks_do_not_tell_is_unknown(tmp_path: Path, text: str) -> None:
    (run,) = examine_all(stacks(tmp_path / "hang", text, text))
    assert (run.verdict, run.findings) == ("unknown", ())


def test_stacks_beside_dumps_say_where_the_missing_rank_is(tmp_path: Path) -> None:
    drawing = """
        groups: dp=0,1,2
        rank0: all_reduce@dp*3+ all_reduce@dp
        rank1: all_reduce@dp*3+
        rank2: all_reduce@dp*3+ all_reduce@dp
        """
    stacks(write(tmp_path / "hang", drawing), ALL_REDUCE, VALIDATES)
    (run,) = examine_all(tmp_path / "hang")
    assert faults(run) == [("missing", (1,))]
    assert "In Python, rank 1 is in get (/usr/lib/python3.11/queue.py:171), called by validate" in run.findings[0].why


@pytest.mark.parametrize("head", ["rank 9999998 of 9999999", "rank 131072 of 4", "rank 4 of 4"])
def test_a_head_that_no_job_has_is_passed_over(head: str) -> None:
    """Each rank that is missing would be listed."""
    found = parse(f"# ddp-doctor: {head} on node0, asked\n{ALL_REDUCE}", "f", 1)
    assert found is not None
    assert (found.rank, found.world_size, found.host) == (1, 0, "")
    assert parse(ALL_REDUCE, "f", 9_999_999) is None


def test_what_py_spy_wrote_beside_traces_is_no_job_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "rank_0.txt").write_text(ALL_REDUCE)
    assert find(tmp_path) == []


def test_stacks_without_a_rank_cost_themselves(tmp_path: Path) -> None:
    stacks(tmp_path, ALL_REDUCE, VALIDATES)
    (tmp_path / "node.stacks.txt").write_text(ALL_REDUCE)
    (run,) = examine_all(tmp_path)
    assert any("names no rank" in warning.message for warning in run.warnings)


def test_the_watch_dumps_once_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang, "_POLL_S", 0.01)
    written: list[str] = []
    monkeypatch.setattr(hang, "dump", lambda _, why: written.append(why) or tmp_path / "f")
    step = 0
    watch = hang.HangWatch(tmp_path, 0.1, lambda: step)

    def dumps(expected: int) -> None:
        until = time.monotonic() + 60
        while len(written) < expected and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)
        assert len(written) == expected

    watch.start()
    dumps(1)
    assert "no step has ended for" in written[0]
    step = 1
    dumps(2)
    assert written[1].endswith("after step 1")
    watch.close()


def test_a_request_of_an_earlier_job_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang.time, "time", lambda: 1e9)
    hang.ask(tmp_path)
    monkeypatch.undo()
    watch = hang.HangWatch(tmp_path, None, lambda: 0)
    assert not watch._is_asked()
    request = hang.ask(tmp_path)
    assert watch._is_asked() and not watch._is_asked()
    hang.dump(tmp_path, f"asked {request.id}")
    assert hang.answers(tmp_path, request) == ({0}, 1)


def test_a_dump_of_a_process_names_its_threads(tmp_path: Path) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="beside")
    thread.start()
    path = hang.dump(tmp_path, "why not")
    ended.set()
    thread.join()
    text = path.read_text()
    assert '"MainThread"' in text and '"beside"' in text
    found = parse(text, str(path), None)
    assert found is not None and found.rank == 0
    assert any(frame.function == "test_a_dump_of_a_process_names_its_threads" for frame in found.frames)


def test_without_a_doctor_it_is_said_how_to_do_it_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "No job with a Doctor has used" in told.err
    assert f"py-spy dump --native --pid PID > {tmp_path}/hang/rank_RANK.stacks.txt" in told.out


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the log directories of jobs that hang; skipped without torch."""
    if sys.executable == PYTHON and find_spec("torch") is None:
        pytest.skip("no torch")
    folder = tmp_path_factory.mktemp("hanging")
    jobs = [word for name, job in JOBS.items() for word in (str(folder / name), *map(str, job))]
    process = subprocess.Popen([PYTHON, hang_job.__file__, *jobs], start_new_session=True)
    try:
        yield folder
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def awaited(logdir: Path, files: str, most_s: float) -> None:
    """Wait until each rank has such a file."""
    until = time.monotonic() + most_s
    while len(list((logdir / "hang").glob(files))) < hang_job.WORLD and time.monotonic() < until:
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["with the Flight Recorder", "without"])
def test_a_real_job_that_hangs_writes_where_it_is(hanging: Path, name: str) -> None:
    logdir = hanging / name
    awaited(logdir, "*.stacks.txt", 90)
    if JOBS[name][1]:
        awaited(logdir, "*_trace_rank_*", 20)
    (run,) = examine_all(logdir)
    # Copies of dumps are younger than their waits; this one waits for seconds.
    assert run.verdict in ("stuck", "late")
    if run.verdict == "stuck":
        assert faults(run) == [("missing", (1,))]
        assert "validate" in run.findings[0].why


def test_a_real_job_that_is_asked_answers(hanging: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logdir = hanging / "asked"
    until = time.monotonic() + 90
    while len(list(hanging.glob("asked.hangs*"))) < hang_job.WORLD and time.monotonic() < until:
        time.sleep(0.1)
    # They call what they hang in.
    time.sleep(1)
    assert main(["dump", str(logdir), "--wait", "60"]) == 0
    assert "3 of 3 ranks wrote where they are" in capsys.readouterr().out
    (run,) = examine_all(logdir)
    assert faults(run) == [("missing", (1,))]
