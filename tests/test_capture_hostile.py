"""Captures go on whatever lies in the log directory and the scratch directory, and whoever calls `step`."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from test_capture import FakeRecorder, Loop, agent, loop

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.capture import agent as agent_module
from tb_ddp_doctor.capture import child, hang, requests, scalars, scratch
from tb_ddp_doctor.capture.agent import Captured
from tb_ddp_doctor.capture.directory import SCALARS_FOLDER, CaptureFolder, CaptureVerdict, read_json, write_json
from tb_ddp_doctor.capture.process import Start
from tb_ddp_doctor.capture.requests import CapturePlan, Mailbox, Request
from tb_ddp_doctor.capture.starts import JoinedStart, Listed
from tb_ddp_doctor.capture.task import Task
from tb_ddp_doctor.capture.windows import CaptureWindow
from tb_ddp_doctor.discover.calibration_name import CALIBRATION_NAME
from tb_ddp_doctor.evidence.model import RankEvidence

__all__ = ["loop"]


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    box = Mailbox(tmp_path)
    box.open()
    return box


def plan(**more: object) -> CapturePlan:
    about = {"start": "now", "folder": ".", "by_rank": 0, "first": 40, "steps": 2, "ranks": None}
    return CapturePlan(**{**about, "stacks": False, "memory": False, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("forged", [{"steps": 10**9}, {"steps": 0}, {"steps": -5}, {"first": -1}])
def test_a_forged_plan_is_passed_over(mailbox: Mailbox, tmp_path: Path, forged: dict[str, int]) -> None:
    write_json(tmp_path / ".capture" / "plans" / "1-1-00000000", plan(**forged))
    write_json(tmp_path / ".capture" / "plans" / "2-1-00000000", plan())
    assert list(mailbox.new_plans("now")) == [CaptureWindow(40, 2, request="2-1-00000000")]


def answered(one: agent_module.Agent, mailbox: Mailbox) -> None:
    pace = agent_module._Pace()
    pace._step_s.append(0.1)
    one._look_for_requests(mailbox, 1.0, pace)


def test_plans_of_steps_that_never_come_hold_up_no_request(mailbox: Mailbox, tmp_path: Path) -> None:
    offered: list[CaptureWindow] = []
    withdrawn: list[str] = []
    one = agent(tmp_path, offered=offered)
    one.withdraw = withdrawn.append
    start = one._join(0).listed.start.id
    for number in range(100):
        forged = plan(start=start, first=10**9 + 10 * number)
        write_json(tmp_path / ".capture" / "plans" / f"{number}-1-00000000", forged)
    name = mailbox.ask(Request(time.time(), "a test"))
    for _ in range(10):
        answered(one, mailbox)
    (window,) = [window for window in offered if window.request == name]
    assert window.first < 200
    assert len(offered) == 101 and len(one._planned) <= 32
    assert {window.request for window in offered} - {*withdrawn} == {window.request for window in one._planned}


def test_a_request_waits_where_as_many_captures_come_before_it(mailbox: Mailbox, tmp_path: Path) -> None:
    offered: list[CaptureWindow] = []
    one = agent(tmp_path, offered=offered)
    one._join(0)
    for _ in range(requests.MOST_WAITING + 2):
        mailbox.ask(Request(time.time(), "a test"))
    answered(one, mailbox)
    assert len(offered) == requests.MOST_WAITING


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipes_and_links_hold_up_nobody(mailbox: Mailbox, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    write_json(precious, plan())
    for folder in ("requests", "plans"):
        os.mkfifo(tmp_path / ".capture" / folder / "1-1-00000000")
        (tmp_path / ".capture" / folder / "2-1-00000000").symlink_to(precious)
    folder = CaptureFolder.of(tmp_path, 10)
    folder.path.mkdir()
    os.mkfifo(folder.record(0))
    os.mkfifo(folder.verdict)
    done = threading.Event()

    def look() -> None:
        assert not mailbox.unanswered()
        assert not list(mailbox.new_plans("now"))
        assert not folder.records()
        assert read_json(folder.verdict, CaptureVerdict) is None
        done.set()

    threading.Thread(target=look, daemon=True).start()
    assert done.wait(20)


def test_junk_is_read_once_and_hides_no_request(
    mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    for number in range(2000):
        name = f"{now_ns - 2000 + number}-1-00000000" if number % 2 else f"junk{number}"
        (tmp_path / ".capture" / "requests" / name).write_bytes(b"\xff")
    read: list[Path] = []
    monkeypatch.setattr(requests, "read_json", lambda path, *rest: read.append(path) or read_json(path, *rest))
    name = mailbox.ask(Request(time.time(), "a test"))
    assert list(mailbox.unanswered()) == [name]
    for _ in range(40):
        before = len(read)
        assert list(mailbox.unanswered()) == [name]
        assert len(read) - before <= 32
    # All junk was looked at once; the request itself each time.
    assert len([path for path in read if path.name != name]) == 1000


def test_a_step_opens_and_lists_nothing_whatever_is_asked(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the agent's thread looks at requests, as much at a time as the tests around this one say."""
    one = loop.doctor()
    one.step(0)
    asked = loop.folder / "job" / ".capture" / "requests"
    asked.mkdir(parents=True, exist_ok=True)
    for number in range(200):
        (asked / f"junk{number}").write_bytes(b"\xff")
    used: list[str] = []

    def noted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        return lambda *args, **more: used.append(name) or call(*args, **more)

    with monkeypatch.context() as patch:
        for module, name in ((os, "listdir"), (os, "scandir"), (os, "stat"), (os, "open"), (io, "open")):
            patch.setattr(module, name, noted(name, getattr(module, name)))
        for step in range(1, 8):
            one.step(step)
        assert used == []
        asked.joinpath("junk0").read_bytes()
    assert used


def test_a_folder_that_does_not_change_is_not_listed(
    mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = mailbox.ask(Request(time.time(), "a test"))
    for _ in range(3):
        assert list(mailbox.unanswered()) == [name]
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda *_: pytest.fail("listed again"))
    assert list(mailbox.unanswered()) == [name]
    monkeypatch.setattr(os, "listdir", listdir)
    other = mailbox.ask(Request(time.time(), "a test"))
    assert list(mailbox.unanswered()) == [name, other]


def test_who_asks_cannot_write_into_the_jobs_terminal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    mailbox = Mailbox(tmp_path)
    mailbox.open()
    one = agent(tmp_path)
    one._join(0)
    name = mailbox.ask(Request(time.time(), "me\x1b[2J\nddp-doctor: all is well"))
    one._answer(mailbox, name, mailbox.unanswered()[name], 10)
    (line,) = [record.getMessage() for record in caplog.records if "will be captured" in record.getMessage()]
    assert line.isprintable()


def test_junk_from_the_future_hides_no_request(mailbox: Mailbox, tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / ".capture" / "requests" / f"{10**19 - number}-1-00000000").write_bytes(b"\xff")
    name = mailbox.ask(Request(time.time(), "a test"))
    assert list(mailbox.unanswered()) == [name]


@pytest.mark.parametrize("forged", ["\x1b[2J\nddp-doctor: all is well", "a" * 1_000_000, ""])
def test_who_asks_for_a_dump_cannot_write_into_the_jobs_terminal(tmp_path: Path, forged: str) -> None:
    write_json(tmp_path / ".capture" / "dump.json", hang.DumpRequest(forged, time.time()))
    watch = hang.HangWatch(tmp_path, None, lambda: 0)
    assert not watch._is_asked()
    hang.ask(tmp_path)
    assert watch._is_asked()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_forged_answers_hold_up_nobody_who_asks_for_a_dump(tmp_path: Path) -> None:
    request = hang.ask(tmp_path)
    hang.dump(tmp_path, f"asked {request.id}")
    folder = tmp_path / hang.HANG_FOLDER
    os.mkfifo(folder / "rank_1.stacks.txt")
    for name, head in (
        ("2", "rank 2 of 999999999999"),
        ("3", "rank 7 of 4"),
        ("4", "rank -1 of 1"),
        ("5", "rank 1 of"),
    ):
        (folder / f"rank_{name}.stacks.txt").write_text(f"# ddp-doctor: {head} {request.id}\n")
    (folder / "rank_6.stacks.txt").write_text(f"# ddp-doctor: {request.id} " + "x" * (1 << 20))
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(hang.answers(tmp_path, request)), daemon=True)
    thread.start()
    thread.join(20)
    assert found == [({0}, 1)]


def test_ranks_that_there_are_not_are_not_asked(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    mailbox.open()
    offered: list[CaptureWindow] = []
    one = agent(tmp_path, offered=offered)
    one._join(0)
    one._answer(mailbox, mailbox.ask(Request(0, "", ranks=(-3, 1, 99))), Request(0, "", ranks=(-3, 1, 99)), 10)
    one._take_plans(mailbox)
    assert [window.ranks for window in offered] == [(1,)]


# ------------------------------------------------------------------------------------------------ scratch


def test_traces_that_are_made_faster_than_they_are_digested_are_not_recorded(
    loop: Loop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = loop.doctor()
    one.step(0)
    assert one._agent is not None
    for number in range(4):
        one._agent._finished.append(Captured(CaptureWindow(number, 1), loop.folder / "trace", 0, 0, RankEvidence()))
    for n in range(1, 25):
        one.step(n)
    assert not loop.recorders
    assert caplog.text.count("traces of earlier captures still wait to be digested") == 1
    one._agent._finished.clear()
    for n in range(25, 35):
        one.step(n)
    assert len(loop.recorders) == 1


def test_the_end_of_training_starts_one_child_for_all_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[list[str]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **more: started.append(command) or popen(command, **more))
    one = agent(tmp_path)
    for step in (10, 20, 30):
        trace = tmp_path / "scratch" / f"step_{step}" / "trace.json"
        trace.parent.mkdir(parents=True)
        trace.write_bytes(b"{}")
        one.take(Captured(CaptureWindow(step, 3), trace, 1, 0, RankEvidence()))
    one.close(wait_s=60)
    assert len(started) == 1
    assert len([word for word in started[0] if word.endswith("task")]) == 3
    assert not list((tmp_path / "scratch").glob("step_*"))


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    code = f"""
import os, signal
from tb_ddp_doctor.capture import scratch
path = scratch.new({str(tmp_path)!r})
alive = scratch.use(path)
(path / "step_10").mkdir()
(path / "step_10" / "trace.json").write_text("long")
print(path, flush=True)
input()
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as job:
        assert job.stdout is not None and job.stdin is not None
        left = Path(job.stdout.readline().strip())
        scratch.sweep(tmp_path)
        assert (left / "step_10" / "trace.json").exists()
        child = scratch.use(left)
        job.stdin.write("\n")
        job.stdin.flush()
        job.wait()
    scratch.sweep(tmp_path)
    assert left.exists(), "its child still reads the trace"
    child.close()
    (tmp_path / "ddp_doctor-of-somebody").mkdir()
    (tmp_path / "ddp_doctor-link").symlink_to(tmp_path)
    scratch.sweep(tmp_path)
    assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ddp_doctor-link", "ddp_doctor-of-somebody"]


def test_threads_that_use_a_scratch_directory_at_once_all_hold_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        held = [*pool.map(scratch.use, [tmp_path / f"{i // 8}" for i in range(400)])]
    for file in held:
        file.close()
    assert {entry.name for folder in tmp_path.iterdir() for entry in folder.iterdir()} == {"alive"}


# ------------------------------------------------------------------------------------------------ threads


def on_another_thread(act: object) -> None:
    thread = threading.Thread(target=act)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_step_on_another_thread_leaves_the_recorder_alone(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    one = loop.doctor()
    for n in range(11):
        one.step(n)
    (recorder,) = loop.recorders
    assert isinstance(recorder, FakeRecorder) and recorder.is_recording
    calls = list(recorder.calls)
    for n in (11, 12, 500):
        on_another_thread(lambda n=n: one.step(n))
    assert recorder.calls == calls
    assert caplog.text.count("step() is called on two threads") == 1
    for n in (11, 12, 13):
        one.step(n)
    assert recorder.calls == ["prepare", "start 10", "step 11", "step 12", "stop", "save"]


def test_close_on_another_thread_leaves_the_profiler_alone(loop: Loop) -> None:
    one = loop.doctor()
    for n in range(11):
        one.step(n)
    on_another_thread(one.close)
    assert "stop" not in loop.recorders[0].calls


# ------------------------------------------------------------------------------------------------ links


def test_no_planted_link_is_written_through(mailbox: Mailbox, tmp_path: Path) -> None:
    """Whatever the doctor makes in the log directory, by whatever name."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = CaptureFolder.of(tmp_path, 10)
    folder.path.mkdir()
    name = mailbox.ask(Request(time.time(), "a test"))
    missing = tmp_path / "missing"
    control = tmp_path / ".capture"
    (control / "starts").mkdir()
    for path, target in (
        (folder.path / "verdict.pending", precious),
        (control / "cancelled" / name, missing),
        (control / "starts" / "1.ended", missing),
        (tmp_path / hang.HANG_FOLDER, elsewhere),
        (tmp_path / SCALARS_FOLDER, elsewhere),
        (tmp_path / "start_2", elsewhere),
    ):
        path.symlink_to(target)
    with scalars.pending(folder):
        pass
    mailbox.cancel(())
    JoinedStart(tmp_path, 1, Listed(Start("a", 1, "", True), "a")).end()
    for act in (
        lambda: hang.dump(tmp_path, "asked"),
        lambda: scalars.publish(tmp_path),
        lambda: child.run(task(tmp_path, tmp_path / "start_2")),
    ):
        with pytest.raises(OSError, match="is a link"):
            act()
    assert precious.read_text() == "precious"
    assert not missing.exists()
    assert not list(elsewhere.iterdir())


def task(whole_logdir: Path, logdir: Path) -> Task:
    return Task(
        trace=str(whole_logdir / "trace.json"), logdir=str(logdir), keep="digests", max_gb=None, patience_s=0.0, rank=0,
        world_size=1, node="", pid=1, step=10, steps=3, ranks=None, captured_ns=0, evidence=RankEvidence(),
        whole_logdir=str(whole_logdir), job="", start="a",
    )  # fmt: skip


def test_a_file_of_others_that_has_the_name_of_our_events_is_not_cut(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / SCALARS_FOLDER).mkdir()
    os.link(precious, tmp_path / SCALARS_FOLDER / scalars._NAME)
    with pytest.raises(OSError, match="is a link"):
        scalars.publish(tmp_path)
    assert precious.read_text() == "precious"


# ------------------------------------------------------------------------------------------------ the check


def test_the_check_writes_through_no_planted_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from rich.console import Console

    from tb_ddp_doctor.check.__main__ import _print_results

    precious = tmp_path / "precious"
    precious.write_text("precious")
    output = tmp_path / "job"
    output.mkdir()
    for name in (CALIBRATION_NAME, Path(CALIBRATION_NAME).with_suffix(".new").name):
        (output / name).symlink_to(precious)
    options = SimpleNamespace(output=output, html=None, json=True, fail_on=None)
    found = Calibration(source="check", world_size=2, curves=())
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=io.BytesIO(), flush=lambda: None))
    _print_results(found, options, Console(stderr=True))  # type: ignore[arg-type]
    assert precious.read_text() == "precious"
    assert not (output / CALIBRATION_NAME).is_symlink()
    assert msgspec.json.decode((output / CALIBRATION_NAME).read_bytes(), type=Calibration) == found
