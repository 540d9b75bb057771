"""A process that does one task after the other, and keeps what it made."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tb_ddp_doctor.workers import pool
from tb_ddp_doctor.workers.limits import Limits
from tb_ddp_doctor.workers.standing import StandingProcess

LIMITS = Limits(seconds=60.0, cpu_s=20.0, bytes=256 << 20)
_kept: list[str] = []


def work(task: str, progress: Callable[[int, int, str], None], held: Callable[[], None]) -> str:  # noqa: C901 - a list
    """What its name says."""
    if task == "reads":
        progress(1, 2, "a file")
        ((_, found),) = pool.run(size_of, [(Path(__file__), 1000)], gives=int)
        return str(found.result())
    if task == "sleeps before":
        time.sleep(1.5)
    if task == "burns before":
        until = time.process_time() + 1.5
        while time.process_time() < until:
            pass
    held()
    match task:
        case "burns":
            while True:
                pass
        case "sleeps":
            time.sleep(60)
        case "grows":
            _kept.append("x" * (1 << 30))
        case "dies":
            os._exit(1)
        case "fails":
            raise ValueError("on purpose")
        case "lies":
            return 7  # type: ignore[return-value]
        case "pid":
            return str(os.getpid())
    _kept.append(task)
    return " ".join(_kept)


def size_of(path: Path) -> int:
    return path.stat().st_size


@pytest.fixture(scope="module")
def process() -> Iterator[Callable[..., Any]]:
    """Asks a process that is there, or a new one."""
    there: list[StandingProcess] = []

    def call(task: str, limits: Limits = LIMITS) -> str:
        if not there or there[-1].ended:
            there.append(StandingProcess(work))
        return there[-1].call(task, limits, lambda *said: told.append(said), gives=str)

    told: list[Any] = []
    call.told = told  # type: ignore[attr-defined]
    yield call
    for each in there:
        each.end()


def test_what_was_made_is_there_for_the_next_task(process: Callable[..., str]) -> None:
    assert process("first").endswith("first")
    assert process("second").endswith("first second")
    assert process("pid") == process("pid")


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of CPU time")
def test_a_task_that_takes_more_than_it_may_ends_the_process_and_no_more(process: Callable[..., str]) -> None:
    before = process("pid")
    with pytest.raises(pool.LimitError, match=r"takes more than 1 s of CPU time, which no run of its size needs\."):
        process("burns", Limits(seconds=60.0, cpu_s=1.0, bytes=256 << 20))
    assert process("pid") != before


@pytest.mark.skipif(sys.platform != "linux", reason="has no limits of memory")
def test_a_task_that_takes_more_memory_than_it_may_ends_the_process(process: Callable[..., str]) -> None:
    before = process("pid")
    with pytest.raises(pool.LimitError, match="takes more than 256 MiB of memory"):
        process("grows")
    assert process("pid") != before


def test_a_task_that_takes_longer_than_it_may_ends_the_process(process: Callable[..., str]) -> None:
    before = process("pid")
    with pytest.raises(pool.LimitError, match="takes more than 1 s, which"):
        process("sleeps", Limits(seconds=1.0, cpu_s=20.0, bytes=256 << 20))
    assert process("pid") != before


def test_what_comes_before_a_task_is_held_to_limits_is_not_counted(process: Callable[..., str]) -> None:
    assert process("sleeps before", Limits(seconds=1.0, cpu_s=20.0, bytes=256 << 20))
    assert process("burns before", Limits(seconds=60.0, cpu_s=1.0, bytes=256 << 20))


def test_a_process_that_dies_is_a_sentence(process: Callable[..., str]) -> None:
    with pytest.raises(pool.CrashError, match="died, perhaps for want of memory"):
        process("dies")
    assert process("after").endswith("after")


def test_an_exception_is_the_tasks_and_the_process_stays(process: Callable[..., str]) -> None:
    before = process("pid")
    with pytest.raises(ValueError, match="on purpose"):
        process("fails")
    assert process("pid") == before


def test_what_is_of_another_type_than_promised_is_not_taken(process: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="Expected `str`"):
        process("lies")


def test_a_task_reads_files_in_processes_of_their_own_and_says_how_far_it_is(process: Callable[..., str]) -> None:
    process.told.clear()  # type: ignore[attr-defined]
    assert process("reads") == str(Path(__file__).stat().st_size)
    assert process.told == [(1, 2, "a file")]  # type: ignore[attr-defined]


def test_python_ends_while_a_task_is_done(tmp_path: Path) -> None:
    """It would wait for its processes."""
    (tmp_path / "sleeping.py").write_text("import time\ndef work(*_):\n    time.sleep(600)\n")
    script = """
        import threading, time
        from sleeping import work
        from tb_ddp_doctor.workers.limits import Limits
        from tb_ddp_doctor.workers.standing import StandingProcess
        process = StandingProcess(work)
        asked = ("", Limits(600.0, 600.0, 1 << 30), print)
        threading.Thread(target=process.call, args=asked, kwargs={"gives": str}, daemon=True).start()
        time.sleep(1)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(command, check=True, timeout=120, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})


@pytest.mark.skipif(sys.platform != "linux" or sys.version_info < (3, 11, 1), reason="no server")
def test_a_process_whose_parent_was_stopped_meanwhile_says_nothing() -> None:
    script = """
        import multiprocessing.forkserver as server, os, time
        from tb_ddp_doctor.workers import pool
        from tb_ddp_doctor.workers.process import CleanProcess
        CleanProcess.share([])
        told, tells = server.connect_to_new_process([])
        os.close(tells)
        assert os.read(told, 8)
        os.read(told, 8)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(command, check=True, timeout=300, stderr=subprocess.PIPE, text=True).stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
def test_a_thread_that_was_joined_is_no_reason_to_start_a_server() -> None:
    script = """
        import multiprocessing.forkserver as server, os, threading
        from pathlib import Path
        from tb_ddp_doctor.workers import pool, process_setup
        for _ in range(40):
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()
            ((_, found),) = pool.run(os.path.getsize, [(Path("/proc/self/stat"), 0)], gives=int)
            found.result()
        assert server._forkserver._forkserver_pid is None
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=300)
