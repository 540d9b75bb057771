"""Captures while a job trains, without the job: steps, requests, what is kept and said. torch's profiler is faked."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from types import ModuleType, SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from traces import draw, job, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.capture import Doctor, child, directory, retention, verdict
from tb_ddp_doctor.capture.agent import Agent, Captured
from tb_ddp_doctor.capture.agreement import agreed_ranks
from tb_ddp_doctor.capture.core_wait import core_times
from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, Claim, capture_folders, read_json, write_json
from tb_ddp_doctor.capture.gpu import Gpu
from tb_ddp_doctor.capture.nvtx_ranges import NvtxRanges
from tb_ddp_doctor.capture.process import Start
from tb_ddp_doctor.capture.requests import LOCAL_MARGIN_S, NETWORK_MARGIN_S, Mailbox, Request, margin_s
from tb_ddp_doctor.capture.starts import join
from tb_ddp_doctor.capture.task import Keep, Task
from tb_ddp_doctor.capture.windows import CaptureSchedule, CaptureWindow, parse_ranks, placed, steps_ahead
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.evidence.model import CaptureRecord, GpuState, RankEvidence
from tb_ddp_doctor.findings import Finding
from tb_ddp_doctor.job.model import Job

# ------------------------------------------------------------------------------------------------ which steps


def test_a_schedule_begins_at_multiples_and_never_at_step_0() -> None:
    schedule = CaptureSchedule(100, 3)
    assert [schedule.first_from(step) for step in (0, 100, 101)] == [
        CaptureWindow(100, 3),
        CaptureWindow(100, 3),
        CaptureWindow(200, 3),
    ]
    assert CaptureSchedule(None, 3).first_from(0) is None


@pytest.mark.parametrize(("every", "steps"), [(4, 3), (100, 0), (-1, 3)])
def test_a_schedule_that_makes_no_sense_is_refused(every: int, steps: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        CaptureSchedule(every, steps)


@given(
    wanted=st.builds(CaptureWindow, st.integers(1, 500), st.integers(1, 20)),
    schedule=st.builds(CaptureSchedule, st.one_of(st.none(), st.integers(30, 200)), st.integers(1, 5)),
    planned=st.lists(st.builds(CaptureWindow, st.integers(1, 500), st.integers(1, 20)), max_size=5),
)
def test_a_window_is_placed_clear_of_all_others(
    wanted: CaptureWindow, schedule: CaptureSchedule, planned: list[CaptureWindow]
) -> None:
    first = placed(wanted, schedule, planned)
    found = CaptureWindow(first, wanted.steps)
    assert first >= wanted.first
    taken = [*planned, *(window for step in range(1, 800) if (window := schedule.first_from(step)))]
    assert all(found.last + 1 < other.first or other.last + 1 < found.first for other in taken)


@given(
    first=st.integers(1, 500),
    asked=st.integers(1, 1000),
    steps=st.integers(1, 60),
    more=st.integers(2, 300),
    planned=st.lists(st.builds(CaptureWindow, st.integers(1, 3000), st.integers(1, 1000)), max_size=5),
)
def test_a_window_longer_than_the_schedule_leaves_room_for_takes_the_place_of_scheduled_ones(
    first: int, asked: int, steps: int, more: int, planned: list[CaptureWindow]
) -> None:
    """Once, no step was found for it, and its thread sought one for ever."""
    schedule = CaptureSchedule(steps + more, steps)
    found = CaptureWindow(placed(CaptureWindow(first, asked), schedule, planned), asked)
    assert found.first >= first
    assert all(found.is_clear_of(other) for other in planned)
    starts = range(steps + more, found.last + 2 * (steps + more), steps + more)
    scheduled = [CaptureWindow(at, steps) for at in starts]
    if asked <= more - 2:
        assert all(found.is_clear_of(other) for other in scheduled)
    # It begins in none, and the next one has a step to prepare in.
    assert all(other.last + 2 <= found.first for other in scheduled if other.first < found.first)
    assert found.last + 1 not in starts


def test_the_margin_is_in_steps() -> None:
    assert steps_ahead(75, 0.5) == 152
    assert steps_ahead(3, 60) == 3


def test_ranks_as_they_are_typed() -> None:
    assert parse_ranks("0, 5-7,6") == (0, 5, 6, 7)
    for text in ("", "1-", "a", "3-1", "0-999999999"):
        with pytest.raises(ValueError, match="--ranks takes numbers of ranks"):
            parse_ranks(text)


# ------------------------------------------------------------------------------------------------ the loop


class BusyError(Exception):
    """As the recorder's own, which comes with torch."""


class FakeRecorder:
    """What the doctor asks of torch's profiler."""

    made: list[FakeRecorder]
    fails_at = ""
    fails_with: type[Exception] = RuntimeError

    def __init__(self, window: CaptureWindow, *_: object) -> None:
        self.window, self.is_recording, self.calls = window, False, list[str]()
        self.gave_way, self.core_wait_ms, self.core_run_ms = False, None, None
        self.made.append(self)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.fails_at == name:
            raise self.fails_with("torch says no")

    def prepare(self) -> None:
        self._call("prepare")

    def start(self, step: int) -> None:
        self.is_recording = True
        self._call(f"start {step}")

    def next_step(self, step: int) -> None:
        self._call(f"step {step}")

    def stop(self) -> None:
        self.is_recording = False
        self._call("stop")

    def save(self, path: Path) -> None:
        self._call("save")


class Loop:
    """A Doctor with a fake profiler, and an agent that does nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.recorders = FakeRecorder.made = []
        self.taken: list[Captured] = []
        faked = ModuleType("recorder")
        vars(faked).update(WindowRecorder=FakeRecorder, BusyError=BusyError)
        monkeypatch.setitem(sys.modules, "tb_ddp_doctor.capture.recorder", faked)
        monkeypatch.setattr(Agent, "start", lambda _: None)
        monkeypatch.setattr(Agent, "take", lambda _, captured: self.taken.append(captured))
        self.folder = tmp_path

        self.doctors: list[Doctor] = []

    def doctor(self, every: int | None = 10) -> Doctor:
        self.doctors.append(Doctor(self.folder / "job", every, scratch=self.folder))
        return self.doctors[-1]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Loop]:
    one = Loop(monkeypatch, tmp_path)
    yield one
    for each in one.doctors:
        each.close()


def test_steps_are_captured_with_one_to_prepare(loop: Loop) -> None:
    one = loop.doctor()
    for _ in range(15):
        one.step()
    (recorder,) = loop.recorders
    assert recorder.calls == ["prepare", "start 10", "step 11", "step 12", "stop", "save"]
    assert [captured.window for captured in loop.taken] == [CaptureWindow(10, 3)]


def test_the_profiler_is_prepared_when_the_step_before_begins(loop: Loop) -> None:
    one = loop.doctor()
    for n in range(8):
        one.step(n)
    assert not loop.recorders
    one.step(8)
    assert loop.recorders[0].calls == ["prepare"]
    one.step(9)
    assert loop.recorders[0].calls == ["prepare", "start 10"]


def test_a_rank_that_resumes_counts_as_the_others_do(loop: Loop) -> None:
    one = loop.doctor()
    for n in range(996, 1004):
        one.step(n)
    assert loop.recorders[0].calls == ["prepare", "start 1000", "step 1001", "step 1002", "stop", "save"]


def test_a_rank_that_begins_right_before_a_window_is_in_time(loop: Loop) -> None:
    one = loop.doctor()
    one.step(9)
    assert loop.recorders[0].calls == ["prepare", "start 10"]


def test_a_rank_that_begins_within_a_window_takes_the_next(loop: Loop) -> None:
    one = loop.doctor()
    for n in range(11, 20):
        one.step(n)
    assert [recorder.window for recorder in loop.recorders] == [CaptureWindow(20, 3)]


def test_a_step_that_is_said_twice_counts_once(loop: Loop) -> None:
    """Gradients are accumulated over several calls of one global step."""
    one = loop.doctor()
    for n in range(15):
        one.step(n)
        one.step(n)
    assert loop.recorders[0].calls == ["prepare", "start 10", "step 11", "step 12", "stop", "save"]


def test_a_window_that_the_training_leaves_is_given_up(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    one = loop.doctor()
    for n in (*range(11), 500):
        one.step(n)
    assert loop.recorders[0].calls == ["prepare", "start 10", "step 11", "stop"]
    assert "gives up the capture of steps 10 to 12: step 501 came instead" in caplog.text
    assert not loop.taken


def test_a_training_that_goes_back_captures_again(loop: Loop) -> None:
    one = loop.doctor()
    for n in (*range(15), *range(5, 15)):
        one.step(n)
    assert [recorder.window.first for recorder in loop.recorders] == [10, 10]
    assert len(loop.taken) == 2


@pytest.mark.parametrize("fails", ["prepare", "start 10", "step 11", "stop", "save"])
def test_an_error_is_said_once_and_ends_all_captures(
    loop: Loop, fails: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRecorder, "fails_at", fails)
    one = loop.doctor()
    for n in range(50):
        one.step(n)
    assert caplog.text.count("torch says no") == 1
    assert "captures nothing more" in caplog.text
    assert len(loop.recorders) == 1


@pytest.mark.parametrize(("fails", "error"), [("prepare", BusyError), ("start 10", BusyError), ("save", OSError)])
def test_another_profiler_or_a_full_disk_costs_that_capture_alone(
    loop: Loop, fails: str, error: type[Exception], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRecorder, "fails_at", fails)
    monkeypatch.setattr(FakeRecorder, "fails_with", error)
    one = loop.doctor()
    for n in range(25):
        one.step(n)
    assert "rank 0 is missing from the capture of steps 10 to 12" in caplog.text
    assert [captured.window.first for captured in loop.taken] == ([20] if fails == "start 10" else [])
    assert {recorder.window.first for recorder in loop.recorders} == {10, 20}


def test_a_rank_that_learns_of_a_capture_too_late_says_so(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    one = loop.doctor(every=None)
    for n in range(6):
        one.step(n)
    one._offer(CaptureWindow(5, 2, request="r"))
    one.step(6)
    assert "rank 0 is missing from the capture of steps 5 to 6: it learned of it too late" in caplog.text
    assert not loop.recorders


def test_requests_and_the_schedule_take_turns(loop: Loop) -> None:
    one = loop.doctor()
    one.step(0)
    one._offer(CaptureWindow(4, 2, request="r"))
    for n in range(1, 20):
        one.step(n)
    assert [recorder.window.first for recorder in loop.recorders] == [4, 10, 20]


def test_a_request_for_more_steps_than_lie_between_scheduled_ones_is_captured(loop: Loop) -> None:
    one = loop.doctor()
    one.step(0)
    asked = CaptureWindow(4, 25, request="r")
    one._offer(replace(asked, first=placed(asked, CaptureSchedule(10, 3), [])))
    for n in range(1, 60):
        one.step(n)
    assert [(recorder.window.first, recorder.window.steps) for recorder in loop.recorders] == [
        (4, 25), (30, 3), (40, 3), (50, 3), (60, 3),
    ]  # fmt: skip


def test_other_ranks_alone_may_be_asked_for(loop: Loop) -> None:
    one = loop.doctor(every=None)
    one.step(0)
    one._offer(CaptureWindow(4, 2, ranks=(1, 3), request="r"))
    for n in range(1, 20):
        one.step(n)
    assert not loop.recorders


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"keep is one of digests, traces, accused, not 'trace'. Did you mean 'traces'?"
    ):
        Doctor(tmp_path, keep="trace")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("every", value) for value in ("100", 100.0, True, 1)),
        *(("steps", value) for value in ("3", 0, None, 99_999)),
        *(("max_gb", value) for value in ("50", -1, float("nan"))),
        *(("poll_s", value) for value in (0, "1", None, float("inf"))),
        *(("patience_s", value) for value in (-1, "300")),
        *(("on_hang_s", value) for value in (0, -1, "600", float("nan"), float("inf"))),
        *(("margin_s", value) for value in (-1, "3")),
        *((name, "yes") for name in ("stacks", "memory", "nvtx", "keep")),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} (is|must be) .*not "):
        Doctor(tmp_path, **{name: value})  # type: ignore[arg-type]


def test_numbers_of_any_type_are_taken(tmp_path: Path) -> None:
    Doctor(tmp_path, every=np.int64(100), steps=np.int32(3), max_gb=np.float32(1), poll_s=1)  # type: ignore[arg-type]


def test_nvtx_that_fails_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """`step` calls it outside of what catches errors."""
    for missing in ("range_push", "range_pop"):
        calls = {"range_push": lambda _: None, "range_pop": lambda: None}
        del calls[missing]
        ranges = NvtxRanges(SimpleNamespace(**calls))
        for step in range(3):
            ranges.begin(step)
        ranges.end()
    assert caplog.text.count("no more NVTX ranges") == 2


@pytest.mark.parametrize("configured", ["", "logging.basicConfig(stream=sys.stderr)"])
def test_a_job_with_and_without_a_log_is_told_once(configured: str, tmp_path: Path) -> None:
    code = f"""
import logging, sys
from tb_ddp_doctor.capture import Doctor
doctor = Doctor({str(tmp_path)!r})
{configured}
logging.getLogger("tb_ddp_doctor.capture.agent").info("told")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("told") == 1


def test_torch_is_not_imported_by_the_command_or_the_child() -> None:
    code = "import sys; from tb_ddp_doctor.capture import child, command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------ requests


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    box = Mailbox(tmp_path)
    box.open()
    return box


def test_a_request_has_one_plan(mailbox: Mailbox, tmp_path: Path) -> None:
    name = mailbox.ask(Request(time.time(), "a test", 2))
    assert list(mailbox.unanswered()) == [name]
    joined = join(tmp_path, Start("now", 2, "", True), 0)
    assert mailbox.answer(name, CaptureWindow(40, 2, request=name), 0, joined)
    assert not mailbox.answer(name, CaptureWindow(50, 2, request=name), 1, joined)
    assert not mailbox.unanswered()
    assert list(mailbox.new_plans("another start")) == []
    mailbox = Mailbox(tmp_path)
    assert list(mailbox.new_plans("now")) == [CaptureWindow(40, 2, request=name)]
    assert list(mailbox.new_plans("now")) == []


def test_what_nobody_answered_for_long_is_passed_over(mailbox: Mailbox) -> None:
    mailbox.ask(Request(time.time() - 7200, "yesterday"))
    assert not mailbox.unanswered()


def test_what_is_no_request_is_passed_over(mailbox: Mailbox, tmp_path: Path) -> None:
    names = ["a", ".new-c", *(f"1-{number}-00000000" for number in range(3))]
    for name, data in zip(names, [b"{}", b"{}", b"\xff", b'{"asked_s": "soon"}', b"[" * 9999], strict=True):
        (tmp_path / ".capture" / "requests" / name).write_bytes(data)
        (tmp_path / ".capture" / "plans" / f"9{name}").write_bytes(data)
    assert not mailbox.unanswered()
    assert list(mailbox.new_plans("")) == []


def test_the_margin_outlasts_the_caches_of_network_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    mounts = [SimpleNamespace(mountpoint=at, fstype=kind) for at, kind in _MOUNTS.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert margin_s(Path("/data/job")) == NETWORK_MARGIN_S
    assert margin_s(Path("/data/scratch/job")) == LOCAL_MARGIN_S
    assert margin_s(Path("/weights/job")) == NETWORK_MARGIN_S


_MOUNTS = {"/": "ext4", "/data": "nfs4", "/data/scratch": "xfs", "/weights": "fuse.gcsfuse"}


def agent(folder: Path, rank: int = 0, step: int = 100, offered: list[CaptureWindow] | None = None) -> Agent:
    return Agent(
        logdir=folder,
        scratch=folder / "scratch",
        schedule=CaptureSchedule(None, 3),
        rank=rank,
        world_size=2,
        node="node0",
        keep="digests",
        max_gb=None,
        patience_s=1.0,
        poll_s=0.01,
        margin_s=1.0,
        progress=lambda: step,
        signals=lambda: 0,
        offer=(offered if offered is not None else []).append,
        withdraw=lambda _: None,
        switch_off=pytest.fail,
    )


def test_two_requests_at_once_are_answered_one_behind_the_other(mailbox: Mailbox, tmp_path: Path) -> None:
    for steps in (2, 4):
        mailbox.ask(Request(time.time(), "a test", steps))
    offered: list[CaptureWindow] = []
    one = agent(tmp_path, offered=offered)
    one._join(0)
    for name, request in mailbox.unanswered().items():
        one._answer(mailbox, name, request, 10)
        one._take_plans(mailbox)
    assert [window.steps for window in offered] == [2, 4]
    assert offered[0].first == 110
    assert offered[1].first == offered[0].last + 2


def test_another_rank_answers_where_rank_0_does_not(
    mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent(tmp_path, rank=1)
    assert not one._may_answer("request")
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert one._may_answer("request")


def test_the_command_says_where_nobody_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"No job listens at {tmp_path}." in said
    assert "Give the folder that the job gave its Doctor, or wait until the first step has ended." in said
    assert main(["capture", str(tmp_path), "--ranks", "x"]) == 2
    assert "such as 0,5-7" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_dynologs_command_takes_all_ranks_of_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", str(tmp_path / "my job"), "--dynolog", "--steps", "5", "--stacks"]) == 0
    told = capsys.readouterr().out
    command = told[told.index("dyno gputrace") : told.index("\n\n# What")].replace("\\\n", "")
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "77"}
    asked = ["bash", "-c", f"hostname() {{ echo node3; }}; dyno() {{ printf '%s\\n' \"$@\"; }}; {command}"]
    words = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
    options = dict(zip(words[1:11:2], words[2:12:2], strict=True))
    assert words[0] == "gputrace"
    assert options == {
        "--job-id": "77",
        "--log-file": f"{tmp_path}/my job/libkineto_trace_node3.json",
        "--iterations": "5",
        "--profile-start-iteration-roundup": "1000",
        "--process-limit": "1024",
    }
    assert words[11:] == ["--record-shapes", "--with-stacks"]
    assert "PROFILE_START_ITERATION_ROUNDUP=1000" in told
    assert main(["capture", str(tmp_path), "--dynolog", "--ranks", "0"]) == 2


def test_a_signal_counts_where_nobody_else_listens(loop: Loop) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    try:
        one = loop.doctor()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert one._signals == 1
        theirs = signal.signal(signal.SIGUSR2, print)
        loop.doctor()
        assert signal.getsignal(signal.SIGUSR2) is print
        assert theirs is not print
    finally:
        signal.signal(signal.SIGUSR2, before)


# ------------------------------------------------------------------------------------------------ what is kept

_QUICK = """
    rank# step |10
          gpu  [fwd]  [bwd...........]
          nccl                 [ar....]
"""
_SLOW = """
    rank# step |10
          gpu  [fwd]      [bwd.......]
          nccl                 [ar....]
"""


def digested(folder: Path, keep: Keep, patience_s: float = 0.0) -> CaptureFolder:
    """Traces of four ranks, of which rank 2 is late, with the tasks of their children."""
    drawn = draw(ranks(_QUICK, _QUICK, _SLOW, _QUICK))
    captured = CaptureFolder.of(folder / "job", 10)
    for rank in range(4):
        trace = folder / f"scratch{rank}" / "trace.json"
        trace.parent.mkdir()
        trace.write_bytes(drawn[rank])
        task = Task(
            trace=str(trace),
            logdir=str(folder / "job"),
            keep=keep,
            max_gb=None,
            patience_s=patience_s,
            rank=rank,
            world_size=4,
            node=f"node{rank // 2}",
            pid=100 + rank,
            step=10,
            steps=3,
            ranks=None,
            captured_ns=time.time_ns(),
            evidence=RankEvidence(),
            whole_logdir=str(folder / "job"),
            job="a job",
            start="this start",
        )
        write_json(trace.parent / "task", task)
    return captured


@pytest.fixture(autouse=True)
def _as_urgent_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child does here, the tests' own process does."""
    monkeypatch.setattr(child, "_stand_back", lambda: None)


def report(folder: CaptureFolder, start: str = "this start") -> None:
    """Rank 0 reports, or did so in another start."""
    write_json(folder.record(0), CaptureRecord(0, 4, "", 100, 10, 3, time.time_ns(), {}, job="a job", start=start))


def run_children(folder: Path, *ranks_: int) -> list[int]:
    """As many children one after the other, each as if rank 0 had reported already if it is among them."""
    if 0 in ranks_:
        report(CaptureFolder.of(folder / "job", 10))
    return [child.main([str(folder / f"scratch{rank}" / "task")]) for rank in ranks_]


def test_digests_stay_and_traces_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = digested(tmp_path, "digests")
    assert run_children(tmp_path, 3, 2, 1, 0) == [0, 0, 0, 0]
    names = {path.name for path in folder.path.iterdir()}
    assert names == {
        *(f"rank{rank}.pt.trace.json.gz.digest" for rank in range(4)),
        *(f"rank{rank}.capture" for rank in range(4)),
        "verdict.json",
        "verdict.claim",
    }
    assert not list(tmp_path.glob("scratch*/trace.json"))
    verdict = read_json(folder.verdict, CaptureVerdict)
    assert verdict is not None
    assert capsys.readouterr().out == f"{verdict.line}\n"
    assert verdict.missing_ranks == ()


def test_accused_keeps_the_traces_of_the_named_and_of_a_typical_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = digested(tmp_path, "accused")
    report(folder)
    write_json(folder.verdict, CaptureVerdict(10, "", "", (2, 3), (), {}))
    assert run_children(tmp_path, 3, 2, 1) == [0, 0, 0]
    assert sorted(path.name for path in folder.path.glob("*.gz")) == [
        "rank2.pt.trace.json.gz",
        "rank3.pt.trace.json.gz",
    ]
    assert folder.records()[2].files.keys() == {"rank2.pt.trace.json.gz", "rank2.pt.trace.json.gz.digest"}


def test_ranks_that_do_not_report_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digested(tmp_path, "digests")
    assert run_children(tmp_path, 2, 0) == [0, 0]
    assert capsys.readouterr().out.endswith(" Without ranks 1 and 3, which did not report.\n")


def test_the_lowest_rank_that_reported_diagnoses_where_the_first_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank waits for rank 0, and looks then whether a lower one is there."""
    folder = digested(tmp_path, "digests", patience_s=0.5)
    report(folder, "another start")
    takes_over, all_reported = child._takes_over, Barrier(3)

    def once_all_reported(task: Task, folder: CaptureFolder) -> bool:
        all_reported.wait(60)
        return takes_over(task, folder)

    monkeypatch.setattr(child, "_takes_over", once_all_reported)
    children = [Thread(target=run_children, args=(tmp_path, rank)) for rank in (2, 1, 3)]
    for one in children:
        one.start()
    for one in children:
        one.join()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(" Without rank 0, which did not report.")
    assert read_json(folder.claim, Claim) == Claim(1)


def test_a_first_rank_that_is_late_does_not_diagnose_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = digested(tmp_path, "digests", patience_s=60.0)
    write_json(folder.claim, Claim(1))
    assert run_children(tmp_path, 0) == [0]
    assert capsys.readouterr().out == ""


def test_a_trace_that_is_none_and_a_directory_that_is_none_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digested(tmp_path, "digests")
    (tmp_path / "scratch3" / "trace.json").write_bytes(b"nothing")
    assert run_children(tmp_path, 3) == [1]
    assert capsys.readouterr().err.startswith("step 10: rank 3 is missing: ")
    (tmp_path / "job").write_text("a file")
    assert run_children(tmp_path, 2) == [1]
    assert re.match(r"step 10: rank 2 is missing: (Not a directory|File exists) \(/\S+/job", capsys.readouterr().err)


def full(*_: object) -> None:
    """As a write to a file that is open, whose error names no file."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("write_digest", "step 10: rank 0 is missing: No space left on device (JOB)."),
        ("_record", "step 10: rank 0: its digest is there, and the capture's other files cannot be written: No space "),
    ],
)
def test_a_full_disk_is_called_one_and_what_was_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fails: str, said: str
) -> None:
    folder = digested(tmp_path, "digests")
    monkeypatch.setattr(child, fails, full)
    assert run_children(tmp_path, 0) == [1]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said.replace("JOB", str(tmp_path / "job")))
    assert folder.digest(0).exists() == (fails == "_record")


def test_a_disk_that_fills_while_the_verdict_is_written_does_not_hide_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digested(tmp_path, "digests")
    write = directory.write_json
    monkeypatch.setattr(
        directory, "write_json", lambda path, value: (full if "verdict" in path.name else write)(path, value)
    )
    run_children(tmp_path, 0)
    told = capsys.readouterr()
    assert told.out.startswith("step 10: ")
    assert "No space left on device" in told.err


def test_what_goes_wrong_at_each_capture_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent(tmp_path)
    for step in (10, 20, 130):
        one._say_once(f"step {step}: rank 0 is missing: No space left on device (/logs).")
    one._say_once("step 20: rank 0 is missing: Permission denied (/logs).")
    assert [record.message.count("No space") for record in caplog.records] == [1, 0]
    caplog.clear()
    monkeypatch.setattr(FakeRecorder, "fails_at", "save")
    monkeypatch.setattr(FakeRecorder, "fails_with", OSError)
    doctor = loop.doctor()
    for n in range(45):
        doctor.step(n)
    assert len(loop.recorders) == 4
    assert caplog.text.count("is missing from the capture of") == 1


def test_tensorboard_shows_the_verdict_over_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = digested(tmp_path, "digests")
    run_children(tmp_path, 3, 2, 1, 0)
    verdict = read_json(folder.verdict, CaptureVerdict)
    assert verdict is not None
    events = EventAccumulator(str(tmp_path / "job" / "ddp_doctor")).Reload()
    told = {tag: events.Tensors(tag) for tag in events.Tags()["tensors"]}
    assert {tag.removeprefix("ddp_doctor/") for tag in told} == {*verdict.scalars, "verdict"}
    (step_ms,) = told["ddp_doctor/step_ms"]
    assert step_ms.step == 10
    assert step_ms.tensor_proto.float_val[0] == pytest.approx(verdict.scalars["step_ms"])
    (text,) = told["ddp_doctor/verdict"]
    assert verdict.headline in text.tensor_proto.string_val[0].decode()


def kept(folder: CaptureFolder, rank: int, trace: int, digest: int, job: str = "a job") -> None:
    """A rank's files of so many bytes, and its record."""
    folder.path.mkdir(parents=True, exist_ok=True)
    sizes = {folder.trace(rank): trace, folder.digest(rank): digest}
    for path, size in sizes.items():
        path.write_bytes(bytes(size))
    files = {path.name: size for path, size in sizes.items()}
    write_json(folder.record(rank), CaptureRecord(rank, 2, "", 1, folder.step, 3, 1, files, job=job))


def test_the_oldest_traces_are_deleted_first_then_the_oldest_digests(tmp_path: Path) -> None:
    folders = [CaptureFolder.of(tmp_path, step) for step in (90, 100, 110)]
    for folder in folders:
        kept(folder, 0, trace=1000, digest=100)
        write_json(folder.claim, Claim(0))
    retention.trim(tmp_path, "a job", 2300, but=folders[2])
    assert [folder.trace(0).exists() for folder in folders] == [False, True, True]
    retention.trim(tmp_path, "a job", 1250, but=folders[2])
    assert [folder.path.exists() for folder in folders] == [False, True, True]
    assert not folders[1].trace(0).exists() and folders[1].digest(0).exists()
    retention.trim(tmp_path, "a job", 0, but=folders[2])
    assert capture_folders(tmp_path) == [folders[2]]
    assert folders[2].trace(0).exists()


def test_nothing_is_deleted_that_the_doctor_did_not_write(tmp_path: Path) -> None:
    folder, newest = (CaptureFolder.of(tmp_path, step) for step in (10, 20))
    kept(folder, 0, trace=1000, digest=100)
    folder.trace(0).write_bytes(bytes(1001))  # somebody has put another one there
    folder.trace(1).write_bytes(bytes(1000))  # no record lists it
    outside = tmp_path / "precious"
    outside.write_bytes(bytes(7))
    record = folder.records()[0]
    files = {**record.files, "../precious": 7, "verdict.json": 0}
    write_json(folder.record(0), msgspec.structs.replace(record, files=files))
    kept(newest, 0, trace=1, digest=1)
    retention.trim(tmp_path, "a job", 0, but=newest)
    assert folder.trace(0).exists() and folder.trace(1).exists() and outside.exists()
    assert not folder.digest(0).exists()


def test_a_child_that_dies_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = agent(tmp_path)
    trace = tmp_path / "scratch" / "step_10" / "trace.json"
    trace.parent.mkdir(parents=True)
    trace.write_bytes(b"{}")
    one.take(Captured(CaptureWindow(10, 3), trace, time.time_ns(), 0, RankEvidence()))
    one.close(wait_s=60)
    assert "step 10: rank 0 is missing" in caplog.text
    assert not trace.parent.exists()


def test_what_a_child_says_after_the_training_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = agent(tmp_path)
    one.start()
    trace = tmp_path / "scratch" / "step_10" / "trace.json"
    trace.parent.mkdir(parents=True)
    trace.write_bytes(b"{}")
    one.take(Captured(CaptureWindow(10, 3), trace, time.time_ns(), 0, RankEvidence()))
    one.close(wait_s=0)
    until = time.monotonic() + 60
    while (tmp_path / "scratch").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not (tmp_path / "scratch").exists()
    assert "step 10: rank 0 is missing" in caplog.text


def test_the_job_is_told_each_verdict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[CaptureVerdict] = []

    def hook(verdict: CaptureVerdict) -> None:
        told.append(verdict)
        raise RuntimeError("the chat is down")

    one = replace(agent(tmp_path), on_verdict=hook, patience_s=0.0)
    drawn = draw(ranks(_QUICK, _SLOW))[0]
    for step in (10, 20):
        trace = tmp_path / "scratch" / f"step_{step}" / "trace.json"
        trace.parent.mkdir(parents=True)
        trace.write_bytes(drawn)
        one.take(Captured(CaptureWindow(step, 3), trace, time.time_ns(), 0, RankEvidence()))
    one.close(wait_s=60)
    assert [verdict.step for verdict in told] == [10, 20]
    assert told[0].line.startswith("step 10: ") and told[0].missing_ranks == (1,)
    assert caplog.text.count("on_verdict fails at step") == 1
    assert "RuntimeError: the chat is down" in caplog.text


def test_what_is_no_function_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on_verdict is a function that takes a verdict, not 'print'"):
        Doctor(tmp_path, on_verdict="print")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ GPUs


class Reader:
    """A vendor's library, as far as it is asked; what it does not have, this GPU does not tell."""

    def __init__(self, **answers: object) -> None:
        vars(self).update(answers)


def on_gpu(monkeypatch: pytest.MonkeyPatch, **libraries: Reader) -> Gpu | None:
    """The GPU of a torch whose device is at 0000:41:00.0, beside these libraries."""
    about = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x41, pci_device_id=0)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 3,
        get_device_properties=lambda device: about if device == 3 else None,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    for name in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, name, libraries.get(name))
    return Gpu.of_this_thread()


def test_nvml_is_asked_for_the_gpu_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter((1980, 1410, 1600))
    bits = iter((1, 4, 0x40 | 4))
    nvml = Reader(
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda address: address.decode(),
        nvmlDeviceGetClockInfo=lambda gpu, kind: next(clocks) if (gpu, kind) == ("0000:41:00.0", 1) else None,
        nvmlDeviceGetMaxClockInfo=lambda gpu, kind: 1980,
        nvmlDeviceGetPowerUsage=lambda gpu: 699_500,
        nvmlDeviceGetTemperature=lambda gpu, kind: 83,
        nvmlDeviceGetEnforcedPowerLimit=lambda gpu: 1 // 0,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: next(bits),
    )
    gpu = on_gpu(monkeypatch, pynvml=nvml)
    assert gpu is not None
    assert gpu.state() is None
    begun = time.time_ns()
    for _ in range(3):
        gpu.look()
    reasons = ("power cap", "thermal slowdown (hardware)")
    assert gpu.state() == GpuState("NVML", 1410.0, 1980.0, 699.5, None, 83.0, reasons)
    looks = gpu.looks()
    assert [(look.sm_mhz, look.power_w) for look in looks] == [(1980, 699.5), (1410, 699.5), (1600, 699.5)]
    assert begun <= looks[0].at_ns <= looks[2].at_ns <= time.time_ns()


def test_a_record_keeps_some_looks_of_a_long_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = on_gpu(monkeypatch, pynvml=Reader(nvmlInit=int, nvmlDeviceGetHandleByPciBusId=len))
    assert gpu is not None
    state = GpuState("NVML", 1410.0, 1980.0, 699.5)
    monkeypatch.setattr(gpu, "now", lambda: state)
    for _ in range(1000):
        gpu.look()
    looks = gpu.looks()
    assert 200 < len(looks) <= 256
    # Much of what is read of a record at most, 64 KiB.
    assert len(msgspec.json.encode(looks)) < 1 << 14


def test_amdsmi_is_asked_where_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = Reader(
        AmdSmiClkType=SimpleNamespace(GFX=0),
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handle_from_bdf=lambda address: address,
        amdsmi_get_clock_info=lambda gpu, kind: {"clk": 1320, "max_clk": 2100, "min_clk": "N/A"},
        amdsmi_get_power_info=lambda gpu: {"current_socket_power": "N/A", "power_limit": 750_000_000},
        amdsmi_get_gpu_metrics_info=lambda gpu: {"throttle_status": 0},
        amdsmi_get_temp_metric=lambda gpu, kind, metric: 88,
    )
    gpu = on_gpu(monkeypatch, amdsmi=smi)
    assert gpu is not None
    gpu.look()
    assert gpu.state() == GpuState("amdsmi", 1320.0, 2100.0, None, 750.0, 88.0)


def test_without_a_library_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_gpu(monkeypatch) is None


# ------------------------------------------------------------------------------------------------ the verdict

_LATE = """
    rank# step |10
          host [fwd]          [bwd]
          gpu  [fwd.]         [bwd.]
          nccl                      [ar.]
"""
_PROMPT = """
    rank# step |10
          host [fwd][bwd]
          gpu  [fwd.][bwd.]
          nccl             [ar..........]
"""


def test_the_line_names_rank_node_cost_and_cause() -> None:
    drawn = job(ranks(_PROMPT, _PROMPT, _LATE, _PROMPT), nodes={0: "node0", 1: "node0", 2: "node1", 3: "node1"})
    diagnosis = engine.examine(drawn)
    told = verdict.line(diagnosis)
    assert re.match(r"Rank 2 \(node1\) costs \S+ ms of \S+ ms a step \(\d+ %\): host, its GPU idles ", told)
    assert told.endswith(".")
    traced = verdict.to_trace(diagnosis, drawn)
    assert 2 in traced and len(traced) == 2


def test_the_line_of_a_fault_of_all_ranks_names_the_rule() -> None:
    drawn = job(ranks(_PROMPT, _PROMPT))
    diagnosis = engine.examine(drawn)
    assert verdict.line(diagnosis).startswith(
        "Communication that compute cannot hide costs 7.0 ms of 26.0 ms a step (27 %). Commun"
    )
    assert len(verdict.to_trace(diagnosis, drawn)) == 1
    scalars = verdict.measured(diagnosis)
    assert scalars["step_ms"] == diagnosis.step_ms
    parts = sum(value for name, value in scalars.items() if name not in ("step_ms", "unexplained_ms"))
    assert parts <= diagnosis.step_ms + 1e-9


def _late(steps: int = 3) -> tuple[Job, Finding]:
    """A job whose rank 2 is late by its host, and what is found."""
    drawn = job(ranks(_PROMPT, _PROMPT, _LATE, _PROMPT, steps=steps))
    (found,) = [finding for finding in engine.examine(drawn).findings if finding.ranks == (2,)]
    return drawn, found


def test_the_line_says_how_sure_it_is_and_in_how_many_captures() -> None:
    _, finding = _late()
    sure = msgspec.structs.replace(finding, confidence="high")
    unsure = msgspec.structs.replace(finding, confidence="low")

    def told(*named: tuple[str, tuple[int, ...]]) -> list[CaptureVerdict]:
        return [
            CaptureVerdict(step, "", "", (), (), {}, rule=rule, ranks=ranks) for step, (rule, ranks) in enumerate(named)
        ]

    def said(named: Finding | None, before: list[CaptureVerdict]) -> str:
        every = [*([named.ranks] if named else []), *(each.ranks for each in before)]
        return verdict.confidence(named, before, agreed_ranks(every, 4))[1]

    same, other, none = (finding.rule, finding.ranks), (finding.rule, (1,)), ("", ())
    assert said(sure, []) == " Confidence high."
    assert "low confidence is no proof" in said(unsure, [])
    assert said(unsure, told(same, none, same)) == " Confidence low, the same in 3 of 4 captures."
    assert "the same in 1 of 3 captures. One capture with low" in said(unsure, told(other, other))
    often = said(sure, told(other, other, other, none))
    assert often.startswith(" Confidence high, the same in 1 of 5 captures. In 3 of 5 captures the verdict was ")
    assert often.endswith(f"{finding.rule} on rank 1.")
    assert said(None, told(other, none)) == ""
    assert said(None, told(same, same, same)).endswith(f"the verdict was {finding.rule} on rank 2.")
    assert (
        said(unsure, told(same, none, same, same, same))
        == " Confidence medium: 5 of 6 captures say the same, more than noise explains."
    )
    assert said(None, told(*[same] * 5)).endswith(f"{finding.rule} on rank 2, more than noise explains.")
    # A fault of the job is no rank that chance could have named.
    whole = msgspec.structs.replace(unsure, ranks=(0, 1, 2, 3))
    assert said(whole, told(*[(finding.rule, whole.ranks)] * 9)) == " Confidence low, the same in 10 of 10 captures."


@pytest.mark.parametrize(("share", "taken"), [(None, 0), (0.1, 0), (0.4, 1), (0.7, 2)])
@pytest.mark.parametrize("waiting", [2, 0])
def test_a_rank_that_waited_for_cores_is_named_with_less_confidence(
    share: float | None, taken: int, waiting: int
) -> None:
    """Where its fault is of the CPU, by the wait's share of the cost; the wait of other ranks explains nothing."""
    drawn, finding = _late()
    evidence = {waiting: RankEvidence(core_wait_ms=None if share is None else share * finding.alone_ms)}
    found = engine.examine(msgspec.structs.replace(drawn, rank_evidence=evidence)).findings[0]
    levels = ["high", "medium", "low", "low"]
    expected = levels[levels.index(finding.confidence) + (taken if waiting == 2 else 0)]
    assert (found.ranks, found.confidence) == ((2,), expected)
    assert ("waited" in found.why) == (taken > 0 and waiting == 2)


@pytest.mark.parametrize(
    ("waits", "taken"),
    [((0.8, 0.8, 0.8, 0.8), 0), ((0.8, 0.8, 1.2, 0.8), 1), ((0.8, 0.8, 1.6, 0.8), 2), ((0.0, 1.4, 0.8, 1.4), 2)],
    ids=["all-alike", "longer", "much-longer", "by-chance"],
)
def test_a_rank_that_waited_for_cores_as_its_peers_did_is_named_with_confidence(
    waits: tuple[float, ...], taken: int
) -> None:
    """On busy cores all threads wait: what a rank waited longer than a lucky peer may be its whole fault."""
    drawn, finding = _late(steps=48)
    evidence = {rank: RankEvidence(core_wait_ms=wait * finding.alone_ms) for rank, wait in enumerate(waits)}
    found = engine.examine(msgspec.structs.replace(drawn, rank_evidence=evidence)).findings[0]
    levels = ["high", "medium", "low", "low"]
    assert (found.ranks, found.confidence) == ((2,), levels[levels.index(finding.confidence) + taken])
    assert ("longer than those of other ranks" in found.why) == (taken > 0)


@pytest.mark.parametrize(
    ("steps", "ran_ms", "confidence"), [(3, 20, "low"), (12, 20, "medium"), (48, 20, "high"), (48, 4, "medium")]
)
def test_steps_that_waiting_for_cores_alone_may_tell_apart_accuse_nobody(
    steps: int, ran_ms: float, confidence: str
) -> None:
    """Threads of all ranks wait in turns of milliseconds: by chance ranks differ, most in few steps and long turns."""
    drawn, finding = _late(steps=steps)
    evidence = {rank: RankEvidence(core_wait_ms=20.0, core_run_ms=ran_ms) for rank in range(4)}
    found = engine.examine(msgspec.structs.replace(drawn, rank_evidence=evidence)).findings[0]
    assert (finding.confidence, found.ranks, found.confidence) == ("high", (2,), confidence)
    assert ("which alone makes ranks differ by about" in found.why) == (confidence != "high")


@pytest.mark.parametrize(("ran_ms", "confidence"), [(20.0, "low"), (40.0, "high")])
def test_a_rank_that_waits_for_cores_because_it_runs_for_longer_is_named_with_confidence(
    ran_ms: float, confidence: str
) -> None:
    """Each thread waits as long as it runs: a rank with twice the work waits twice as long, by no bad luck."""
    drawn, _ = _late(steps=192)
    evidence = {rank: RankEvidence(core_wait_ms=20.0, core_run_ms=20.0) for rank in range(4)}
    evidence[2] = RankEvidence(core_wait_ms=40.0, core_run_ms=ran_ms)
    found = engine.examine(msgspec.structs.replace(drawn, rank_evidence=evidence)).findings[0]
    assert (found.ranks, found.confidence) == ((2,), confidence)


def test_threads_that_wait_for_a_core_are_counted() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("Linux alone counts")
    before = core_times()
    threads = [Thread(target=lambda: sum(range(3_000_000))) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    after = core_times()
    assert before is not None and after is not None
    # Threads that have ended no longer count.
    assert min(before.ran_ns, after.ran_ns) > 0
    assert after.waited_ns >= 0
