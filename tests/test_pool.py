"""One task per file, in processes that may die."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tb_ddp_doctor.workers import pool

#: Large enough that processes are worth it.
LARGE = 200 << 20


def work(path: Path) -> str:
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
        case "slow":
            time.sleep(0.3)
    return path.name


def _torn(self: Connection, buffer: bytes) -> None:
    os.write(self.fileno(), buffer[:1000])
    os._exit(1)


def results(names: Sequence[str], size: int = LARGE) -> dict[str, object]:
    outcomes = pool.run(work, [(Path(name), size) for name in names])
    return {path.name: future.exception() or future.result() for path, future in outcomes}


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
    assert found["a1"] == "a1" and isinstance(odd, Exception) and "pickle" in str(odd)
    assert isinstance(fails, ValueError) and 'raise ValueError("on purpose")' in str(fails.__cause__)


def test_cancelling_ends_the_work_soon() -> None:
    cancelled = threading.Event()
    outcomes = pool.run(work, [(Path(f"slow{i}"), LARGE) for i in range(40)], cancelled=cancelled)
    next(outcomes)
    cancelled.set()
    with pytest.raises(pool.CancelledError):
        list(outcomes)


def test_an_executor_of_the_users_does_the_work() -> None:
    with ThreadPoolExecutor(2) as executor:
        outcomes = dict(pool.run(work, [(Path("a1"), 1), (Path("fails1"), 1)], executor=executor))
    assert outcomes[Path("a1")].result() == "a1"
    assert isinstance(outcomes[Path("fails1")].exception(), ValueError)


def test_no_files_are_no_work() -> None:
    assert not list(pool.run(work, []))


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
