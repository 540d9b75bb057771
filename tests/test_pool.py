"""One task per file, in processes that may die."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tb_ddp_doctor.storage.message import MessageError
from tb_ddp_doctor.storage.paths import ProcessPath
from tb_ddp_doctor.workers import pool, process
from tb_ddp_doctor.workers.limits import Limits, limits_for, shared_cpu_s

#: Large enough that processes are worth it.
LARGE = 200 << 20


class OwnError(Exception):
    """With a sentence for users."""


def work(path: Path) -> str:  # noqa: C901 - a list
    """What its name says."""
    match path.stem.rstrip("0123456789"):
        case "dies":
            os._exit(1)
        case "torn":  # dies in the middle of its answer, which is longer than a pipe holds
            Connection._send = _torn  # type: ignore[attr-defined]
            return "x" * (1 << 20)
        case "odd":
            return threading.Lock()  # type: ignore[return-value]  # what no pipe takes
        case "fails":
            raise ValueError("on purpose")
        case "own":
            raise OwnError("a sentence")
        case "gone":
            path.open()
        case "foreign":
            raise json.JSONDecodeError("on purpose", "", 0)
        case "hangs":
            time.sleep(60)
        case "burns":
            while True:
                pass
        case "grows":
            return str(len(bytearray(3 << 30)))
        case "lies":
            return 7  # type: ignore[return-value]
        case "slow":
            time.sleep(0.3)
    return path.name


def _torn(self: Connection, buffer: bytes) -> None:
    os.write(self.fileno(), buffer[:1000])
    os._exit(1)


def results(names: Sequence[str], size: int = LARGE) -> dict[str, object]:
    outcomes = pool.run(work, [(Path(name), size) for name in names], gives=str, raises=(OwnError,))
    return {path.name: future.exception() or future.result() for path, future in outcomes}


def said_by(script: str, folder: Path, given: dict[str, str]) -> str:
    """What a Python prints that runs `script` in `folder`, with no settings of OpenBLAS but those given."""
    ours = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    path = os.pathsep.join([str(folder), ours.get("PYTHONPATH", "")])
    (folder / "script.py").write_text(script)
    return subprocess.run(
        [sys.executable, folder / "script.py"],
        stdout=subprocess.PIPE, text=True, timeout=120, check=True, env=ours | given | {"PYTHONPATH": path},
    ).stdout  # fmt: skip


@pytest.mark.parametrize("size", [1, LARGE])
def test_every_file_gives_its_result_once(size: int) -> None:
    names = [f"a{i}" for i in range(5)]
    assert results(names, size) == dict(zip(names, names, strict=True))


@pytest.mark.parametrize("size", [1, LARGE])
def test_an_exception_is_its_files_own(size: int) -> None:
    found = results(["a1", "fails1", "a2"], size)
    assert isinstance(found.pop("fails1"), ValueError)
    assert found == {"a1": "a1", "a2": "a2"}


def test_a_process_that_dies_costs_its_own_file() -> None:
    found = results(["a1", "dies1", "slow1", "a2", "dies2", "a3"])
    assert isinstance(found.pop("dies1"), pool.CrashError) and isinstance(found.pop("dies2"), pool.CrashError)
    assert found == {name: name for name in ("a1", "slow1", "a2", "a3")}


def test_a_process_that_dies_in_the_middle_of_its_answer_holds_nobody_up() -> None:
    found = results(["a1", "torn1", "slow1", "a2", "a3"])
    assert isinstance(found.pop("torn1"), pool.CrashError)
    assert found == {name: name for name in ("a1", "slow1", "a2", "a3")}


def test_what_cannot_be_sent_is_an_exception_with_its_traceback() -> None:
    found = results(["a1", "odd1", "fails1"])
    odd, fails = found["odd1"], found["fails1"]
    assert found["a1"] == "a1" and isinstance(odd, Exception) and "lock cannot be sent" in str(odd)
    assert isinstance(fails, ValueError) and 'raise ValueError("on purpose")' in str(fails.__cause__)


def test_exceptions_with_sentences_come_back_as_they_are() -> None:
    found = results(["own1", "foreign1"])
    own, foreign = found["own1"], found["foreign1"]
    assert isinstance(own, OwnError) and str(own) == "a sentence"
    assert type(foreign) is RuntimeError and str(foreign).startswith("JSONDecodeError: on purpose")


def test_what_the_system_says_of_a_file_comes_back_with_its_number() -> None:
    error = results(["gone"])["gone"]
    assert isinstance(error, FileNotFoundError) and (error.errno, error.strerror) == (2, "No such file or directory")


def test_what_is_of_another_type_than_promised_is_not_taken() -> None:
    lies = results(["lies1", "a1"])["lies1"]
    assert isinstance(lies, MessageError) and "Expected `str`, got `int`" in str(lies)


@pytest.mark.parametrize(
    ("name", "said"),
    [("hangs1", "more than 2 s,"), ("burns1", "more than 1 s of CPU time,"), ("grows1", "more than 64 MiB of memory,")],
)
def test_a_file_that_takes_more_than_it_may_costs_itself(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small it is: no file is read in the caller's process."""
    limits = {"hangs1": Limits(2, 60, 1 << 32), "burns1": Limits(60, 1, 1 << 32), "grows1": Limits(60, 60, 64 << 20)}
    monkeypatch.setattr(
        pool, "limits_for", lambda size, _unpacked: limits[name] if size == 2 else Limits(60, 60, 1 << 32)
    )
    outcomes = dict(pool.run(work, [(Path("a1"), 1), (Path(name), 2), (Path("a2"), 1)], gives=str))
    error = outcomes[Path(name)].exception()
    assert isinstance(error, pool.LimitError) and said in str(error) and "no file of its size needs" in str(error)
    assert [outcomes[Path(other)].result() for other in ("a1", "a2")] == ["a1", "a2"]


def work_among_others(path: Path) -> str:
    """Takes 0.6 s of CPU time of a core that three other processes want too."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        time.sleep(0.3)
        began = time.process_time()
        while time.process_time() - began < 0.6:
            pass
    finally:
        for other in others:
            other.kill()
            other.wait()
    return path.name


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long a process waits for a core")
def test_a_busy_machine_makes_no_file_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "limits_for", lambda *_: Limits(1.5, 60, 1 << 32))
    began = time.monotonic()
    [(_, found)] = pool.run(work_among_others, [(Path("busy"), 1)], gives=str)
    assert time.monotonic() - began > 1.5
    assert found.result() == "busy"


def work_of_part(path: ProcessPath) -> str:
    """Half a second of CPU time, or for ever."""
    began = time.process_time()
    while time.process_time() - began < 0.5:
        pass
    if path.file.stem == "hangs":
        time.sleep(60)
    return path.label


def merged(name: str, ranks: int = 6) -> list[pool.File]:
    return [(ProcessPath(Path(name), rank, f"rank {rank}"), 1) for rank in range(ranks)]


def test_ranks_of_one_file_share_what_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "shared_cpu_s", lambda *_: 1.2)
    files = [*merged("burns.json"), *merged("other.json", 1)]
    found = {path: future.exception() or future.result() for path, future in pool.run(work_of_part, files, gives=str)}
    parts = [found[path] for path, _ in files[:-1]]
    assert 2 <= sum(isinstance(part, str) for part in parts) <= 4
    assert all(isinstance(part, str | pool.LimitError) for part in parts)
    assert any("ranks that were merged into its file" in str(part) for part in parts)
    assert found[files[-1][0]] == "rank 0"


def test_a_file_that_stalls_is_given_up_with_all_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "limits_for", lambda *_: Limits(4, 60, 1 << 32))
    began = time.monotonic()
    outcomes = list(pool.run(work_of_part, merged("hangs.json"), gives=str))
    assert all(isinstance(future.exception(), pool.LimitError) for _, future in outcomes)
    assert len(outcomes) == 6 and time.monotonic() - began < 20


def test_a_large_file_may_take_as_much_for_each_of_its_ranks() -> None:
    assert shared_cpu_s(2 << 20, 32 << 20, 250) == limits_for(2 << 20, 32 << 20).cpu_s
    assert shared_cpu_s(400 << 20, 400 << 20, 8) > 8 * 100


@pytest.mark.parametrize(("said", "factor"), [("0.5", 0.5), ("4", 4), ("", 1), ("long", 1), ("0", 1), ("nan", 1)])
def test_patience_is_the_users(monkeypatch: pytest.MonkeyPatch, said: str, factor: float) -> None:
    monkeypatch.delenv("DDP_DOCTOR_PATIENCE", raising=False)
    usual, parts = limits_for(400 << 20, 400 << 20), shared_cpu_s(400 << 20, 400 << 20, 8)
    monkeypatch.setenv("DDP_DOCTOR_PATIENCE", said)
    limits = limits_for(400 << 20, 400 << 20)
    assert (limits.seconds, limits.cpu_s) == (usual.seconds * factor, usual.cpu_s * factor)
    assert shared_cpu_s(400 << 20, 400 << 20, 8) == parts * factor
    assert (limits.bytes, limits.answer_bytes) == (usual.bytes, usual.answer_bytes)


def test_what_a_small_file_may_take() -> None:
    """As the docs say: half a gigabyte with the process itself, and half a minute."""
    limits = limits_for(2 << 20, 16 * (2 << 20))
    assert limits.seconds <= 30 and limits.cpu_s < 30 and limits.bytes + (120 << 20) <= 640 << 20


def test_a_large_file_may_take_what_a_slow_mount_and_reader_need() -> None:
    limits = limits_for(400 << 20, 400 << 20)
    assert limits.seconds > 3600 and limits.cpu_s > 120 and limits.bytes > 1 << 30


def test_a_call_has_its_result_or_its_exception() -> None:
    assert pool.call(work, Path("a1"), 0, gives=str) == "a1"
    with pytest.raises(ValueError, match="on purpose"):
        pool.call(work, Path("fails1"), 0, gives=str)


@pytest.mark.parametrize("names", [["a", "b"], ["dies"], ["own", "slow"]])
def test_what_there_is_to_do_meanwhile_is_done_once_before_any_answer(names: Sequence[str]) -> None:
    done: list[str] = []
    files = [(Path(name), LARGE) for name in names]
    for path, _ in pool.run(work, files, gives=str, raises=(OwnError,), meanwhile=lambda: done.append("meanwhile")):
        done.append(path.name)
    assert done[0] == "meanwhile" and sorted(done[1:]) == names


@pytest.mark.skipif(sys.platform != "linux" or sys.version_info < (3, 11, 1), reason="processes are spawned")
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_named_is_imported_once_for_all_processes(tmp_path: Path, threads: int) -> None:
    """By the script itself, or where a thread makes a fork of it unsafe, by a server too."""
    (tmp_path / "needed.py").write_text("print('imported', flush=True)\n")
    (tmp_path / "tests_work.py").write_text("import needed\n\ndef work(path):\n    return path.name\n")
    script = f"""
from pathlib import Path
import threading
from tb_ddp_doctor.workers import pool
import tests_work
for _ in range({threads - 1}):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
files = [(Path(str(i)), {LARGE}) for i in range(8)]
pool._cores = lambda: 4
outcomes = [future.result() for _, future in pool.run(tests_work.work, files, gives=str, imports=['needed'])]
print(*sorted(outcomes))
"""
    assert said_by(script, tmp_path, {}) == "imported\n" * threads + "0 1 2 3 4 5 6 7\n"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are spawned")
def test_no_forked_process_keeps_another_from_ending(tmp_path: Path) -> None:
    """Each inherits the parent's ends of all pipes, and they end when their pipes do."""
    script = f"""
import os
from pathlib import Path
from tb_ddp_doctor.workers import pool
pool._cores = lambda: 4
print(*[future.result() for _, future in pool.run(os.path.basename, [(Path(x), {LARGE}) for x in "aaaa"], gives=str)])
"""
    assert said_by(script, tmp_path, {"OPENBLAS_NUM_THREADS": "1"}) == "a a a a\n"


def test_processes_are_spawned_where_none_can_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(_process: BaseProcess) -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(process, "_has_one_thread", lambda: False)
    monkeypatch.setattr(ForkServerProcess, "_Popen", staticmethod(unable))
    assert results(["a1", "a2"]) == {"a1": "a1", "a2": "a2"}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists threads")
def test_numpy_is_imported_with_one_thread_unless_the_user_wants_more(tmp_path: Path) -> None:
    script = """
import os, subprocess, sys
import tb_ddp_doctor.workers.process_setup, numpy
print(len(os.listdir("/proc/self/task")), flush=True)
subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('OPENBLAS_NUM_THREADS'))"], check=True)
"""
    assert said_by(script, tmp_path, {}) == "1\nNone\n", "what is started afterwards inherits no setting"
    two = min(2, pool._cores())
    assert said_by(script, tmp_path, {"OPENBLAS_NUM_THREADS": "2"}) == f"{two}\n2\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_memory_that_is_freed_stays_unless_the_user_wants_it_handed_back(tmp_path: Path) -> None:
    script = """
import os, resource
import tb_ddp_doctor.workers.process_setup, numpy
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
numpy.ones(1 << 21)
before = faults()
for _ in range(8):
    numpy.ones(1 << 21)
print(faults() - before, numpy._core.multiarray._get_madvise_hugepage())
"""

    def asked(**environ: str) -> tuple[int, str]:
        pages, asks_for_huge_pages = said_by(script, tmp_path, environ).split()
        return int(pages), asks_for_huge_pages

    # Of 8 times 4,096 pages all are new to the process, or none; a machine that moves pages makes some of them new.
    new, asks = asked()
    assert new < 8 * 4096 / 2 and asks == "False", new
    new, asks = asked(MALLOC_MMAP_THRESHOLD_="65536", NUMPY_MADVISE_HUGEPAGE="0")
    assert new >= 8 * 4096 and asks == "False", new
    new, asks = asked(NUMPY_MADVISE_HUGEPAGE="1")
    assert new < 8 * 4096 / 2 and asks == "True", new


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists threads")
@pytest.mark.parametrize("has_server", [True, False])
def test_numpy_has_one_thread_where_traces_are_read(tmp_path: Path, has_server: bool) -> None:
    (tmp_path / "reading.py").write_text("""
import os, numpy
def threads(path):
    process = {"reader": os.getpid(), "server": os.getppid()}[path.name]
    return len(os.listdir(f"/proc/{process}/task")), os.environ.get("OPENBLAS_NUM_THREADS")
""")
    script = f"""
from pathlib import Path
import reading
from tb_ddp_doctor.storage.message import MessageError
from tb_ddp_doctor.workers import pool, process
from tb_ddp_doctor.workers.limits import Limits, limits_for
process._has_one_thread = lambda: False
process._HAS_SERVER &= {has_server}
files = [(Path("server" if process._HAS_SERVER else "reader"), {LARGE})] * 2
done = pool.run(reading.threads, files, gives=tuple[int, str | None], imports=["reading"])
print(*[one.result() for _, one in done], sep="\\n")
"""
    assert said_by(script, tmp_path, {}) == "(1, None)\n" * 2


def test_cancelling_ends_the_work_soon() -> None:
    cancelled = threading.Event()
    outcomes = pool.run(work, [(Path(f"slow{i}"), LARGE) for i in range(40)], gives=str, cancelled=cancelled)
    next(outcomes)
    cancelled.set()
    with pytest.raises(pool.CancelledError):
        list(outcomes)


def test_an_executor_of_the_users_does_the_work() -> None:
    with ThreadPoolExecutor(2) as executor:
        outcomes = dict(pool.run(work, [(Path("a1"), 1), (Path("fails1"), 1)], gives=str, executor=executor))
    assert outcomes[Path("a1")].result() == "a1"
    assert isinstance(outcomes[Path("fails1")].exception(), ValueError)


def test_no_files_are_no_work() -> None:
    assert not list(pool.run(work, [], gives=str))


def test_there_is_a_worker_per_core_where_memory_allows() -> None:
    files = [(Path(f"{i}.json"), 400 << 20) for i in range(1000)]
    assert pool.workers_for(files, cores=16, free_bytes=1 << 40) == 16


def test_a_thousand_files_of_2_gb_do_not_take_the_machine_down() -> None:
    files = [(Path(f"{i}.json"), 2 << 30) for i in range(1000)]
    workers = pool.workers_for(files, cores=64, free_bytes=16 << 30)
    assert 1 < workers < 16


def test_gzip_is_planned_for_by_what_it_expands_to() -> None:
    plain = [(Path(f"{i}.json"), 1 << 30) for i in range(8)]
    packed = [(Path(f"{i}.json.gz"), (1 << 30) // 16) for i in range(8)]
    free = 2 << 30
    assert pool.workers_for(plain, cores=8, free_bytes=free) == pool.workers_for(packed, cores=8, free_bytes=free)


def test_one_file_is_read_however_little_memory_is_free() -> None:
    assert pool.workers_for([(Path("a.json"), 1 << 40)], cores=4, free_bytes=0) == 1
