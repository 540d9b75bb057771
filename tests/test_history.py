"""Step times of a whole job: what is recorded, and read again whatever happened to the files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tb_ddp_doctor.capture import Doctor
from tb_ddp_doctor.history import blocks, write
from tb_ddp_doctor.history.read import RankHistory, history_files, read_history
from tb_ddp_doctor.history.write import StepRecorder

START_NS = 1_790_000_000 * 10**9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The monotonic clock of the recorder, ns: a list of one number to add to."""
    now = [5_000_000_000]
    monkeypatch.setattr(write.time, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(write.time, "time_ns", lambda: START_NS + now[0])
    return now


def recorder(logdir: Path, *, max_bytes: float | None = None, rank: int = 1) -> StepRecorder:
    return StepRecorder(logdir, rank, 4, "node0", max_bytes=max_bytes)


def only(logdir: Path) -> RankHistory:
    (file,) = history_files(logdir)
    read = read_history(file)
    assert read is not None
    return read


def lengths(read: RankHistory) -> dict[int, int]:
    """Length of each step that was timed, µs."""
    return {
        stretch.first_step + at: int(length) for stretch in read.stretches for at, length in enumerate(stretch.steps_us)
    }


def test_steps_phases_and_waits_are_read_as_they_were(tmp_path: Path, clock: list[int]) -> None:
    job = recorder(tmp_path)
    for step in range(6):
        clock[0] += 6_000_000
        job.waits()
        clock[0] += 4_000_500
        job.end(step, is_timed=step != 3)
        if step == 3:
            with job.phase("checkpoint"):
                clock[0] += 50_000_000
        if step == 1:
            job.flush()
    job.close()
    read = only(tmp_path)
    assert (read.rank, read.world_size, read.node, read.lost_bytes) == (1, 4, "node0", 0)
    # The first step's begin is unknown; half a microsecond a step adds up to whole ones.
    assert lengths(read) == {1: 10_000, 2: 10_000, 4: 60_000, 5: 10_001}
    assert [stretch.busy_us.tolist() for stretch in read.stretches if stretch.busy_us is not None] == [
        [6_000, 6_000],
        [56_000, 6_000],
    ]
    (phase,) = read.phases
    assert phase.name == "checkpoint"
    assert phase.end_ns - phase.begin_ns == 50_000_000
    # Step 4 begins with the checkpoint.
    assert read.stretches[-1].begin_ns == phase.begin_ns


def test_a_step_takes_eight_bytes(tmp_path: Path, clock: list[int]) -> None:
    job = recorder(tmp_path)
    for step in range(10_001):
        clock[0] += 1_000_000
        job.waits()
        job.end(step)
    job.close()
    (file,) = history_files(tmp_path)
    assert file.stat().st_size == blocks.FILE_HEAD_BYTES + blocks.BLOCK_HEAD_BYTES + 8 * 10_000


def test_a_file_says_the_stage_of_its_rank_and_older_files_have_none(tmp_path: Path) -> None:
    older = blocks.FIRST_FILE_HEAD.pack(blocks.FIRST_FILE_MAGIC, 1, 4, START_NS, b"node7")
    older += blocks.CHECKSUM.pack(zlib.crc32(older))
    heads = [blocks.file_head(1, 4, START_NS, "node7", stage) for stage in (3, blocks.NO_STAGE, 2**40, -(2**40))]
    for head, stage in zip([*heads, older], (3, *[blocks.NO_STAGE] * 4), strict=True):
        (tmp_path / "a.steps").write_bytes(head + blocks.steps_block(0, START_NS, np.full(2, 1000), None))
        read = read_history(tmp_path / "a.steps")
        assert read is not None and (read.rank, read.node, read.stage) == (1, "node7", stage)
        assert len(lengths(read)) == 2


def test_the_stage_is_the_one_that_is_given_or_megatrons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(name: str, given: int | None) -> int:
        job = Doctor(tmp_path / name, history=True, stage=given)
        for _ in range(3):
            job.step()
        job.close()
        return only(tmp_path / name).stage

    assert stage("none", None) == blocks.NO_STAGE
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    megatron = ModuleType("megatron.core.parallel_state")
    megatron.model_parallel_is_initialized = lambda: True  # type: ignore[attr-defined]
    megatron.get_pipeline_model_parallel_rank = lambda: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, megatron.__name__, megatron)
    assert stage("megatron", None) == 3
    assert stage("given", 2) == 2
    monkeypatch.setattr(megatron, "model_parallel_is_initialized", None)
    assert stage("broken", None) == blocks.NO_STAGE
    with pytest.raises(ValueError, match="stage is a whole number"):
        Doctor(tmp_path, stage="last")  # type: ignore[arg-type]


def test_steps_that_are_trained_again_are_stretches_of_their_own(tmp_path: Path, clock: list[int]) -> None:
    job = recorder(tmp_path)
    for step in (0, 1, 2, 1, 2, 3, 9, 10):
        clock[0] += 1_000_000
        job.end(step)
    job.close()
    found = [(stretch.first_step, len(stretch.steps_us)) for stretch in only(tmp_path).stretches]
    assert found == [(1, 2), (1, 3), (9, 2)]


def test_the_oldest_steps_are_deleted_beyond_the_limit(tmp_path: Path, clock: list[int]) -> None:
    other = recorder(tmp_path, rank=2)
    other.end(0)
    other.end(1)
    other.close()
    job = recorder(tmp_path, max_bytes=80_000)
    for step in range(100_000):
        clock[0] += 1_000_000
        job.end(step)
        if step % 500 == 0:
            job.flush()
    job.close()
    files = [file for file in history_files(tmp_path) if file.name.startswith("rank00001")]
    assert sum(file.stat().st_size for file in files) <= 80_000
    kept = sorted(step for file in files if (read := read_history(file)) for step in lengths(read))
    assert kept == list(range(kept[0], 100_000))
    assert len(kept) > 10_000
    assert any(file.name.startswith("rank00002") for file in history_files(tmp_path))


def test_a_disk_that_fails_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "history").write_text("no folder")
    job = recorder(tmp_path)
    for step in range(3):
        job.end(step)
    job._try_to_flush()
    job.end(3)
    job.close()
    assert caplog.text.count("cannot be written") == 1


def whole(tmp_path: Path) -> tuple[bytes, list[int]]:
    """A file of four blocks of 20 steps, and where its blocks begin."""
    data = blocks.file_head(0, 2, START_NS, "n")
    begins = []
    for number in range(4):
        begins.append(len(data))
        column = np.full(20, 1000 + number)
        data += blocks.steps_block(20 * number, START_NS, column, column // 2 if number % 2 else None)
    return data, begins


def test_a_torn_or_damaged_block_costs_itself(tmp_path: Path) -> None:
    data, begins = whole(tmp_path)
    file = tmp_path / "a.steps"
    file.write_bytes(data[:-5])
    torn = read_history(file)
    assert torn is not None
    assert sorted(lengths(torn)) == list(range(60))
    assert torn.lost_bytes == len(data) - 5 - begins[3]
    for at in range(begins[1], begins[2]):
        file.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
        damaged = read_history(file)
        assert damaged is not None
        assert sorted(lengths(damaged)) == [*range(20), *range(40, 80)]
        assert damaged.lost_bytes == begins[2] - begins[1]


@settings(max_examples=200, deadline=None)
@given(
    cut=st.integers(0, 700),
    changes=st.lists(st.tuples(st.integers(0, 700), st.binary(max_size=6)), max_size=4),
)
def test_any_bytes_are_read_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, cut: int, changes: list[tuple[int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    data = bytearray(whole(folder)[0])
    for at, new in changes:
        data[at : at + len(new)] = new
    file = folder / "a.steps"
    file.write_bytes(data[: len(data) - cut])
    read = read_history(file)
    assert read is None or 0 <= read.lost_bytes <= len(data)


@pytest.mark.parametrize("data", [b"", b"DDPSTEP1", bytes(128), bytes(1000)])
def test_other_files_are_no_history(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.steps").write_bytes(data)
    assert read_history(tmp_path / "a.steps") is None


KILLED = """
import os, signal, sys
from pathlib import Path
from tb_ddp_doctor.history.write import StepRecorder
job = StepRecorder(Path(sys.argv[1]), 0, 1, "n", max_bytes=None)
for step in range(1000):
    job.end(step)
    if step == 700:
        job.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_flushed_survives_kill_9_and_a_restart_goes_on(tmp_path: Path) -> None:
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
        assert killed.returncode == -signal.SIGKILL
    reads = [read_history(file) for file in history_files(tmp_path)]
    assert [sorted(lengths(read)) for read in reads if read] == [list(range(1, 701))] * 2


def test_a_doctor_keeps_the_time_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    doctor = Doctor(tmp_path, history=True)
    with doctor.phase("before the first step"):
        pass
    for step in range(50):
        doctor.waits()
        if step == 30:
            with doctor.phase("checkpoint"):
                time.sleep(0.02)
        doctor.step(step)
        doctor.step(step)
    doctor.close()
    read = only(tmp_path)
    # The doctor begins in step 0, and learns how long each step takes from its end on.
    assert sorted(lengths(read)) == list(range(1, 50))
    assert lengths(read)[30] >= 20_000
    assert [phase.name for phase in read.phases] == ["checkpoint"]


def test_without_history_no_folder_is_made(tmp_path: Path) -> None:
    doctor = Doctor(tmp_path)
    for step in range(5):
        doctor.step(step)
    doctor.close()
    assert not (tmp_path / blocks.FOLDER).exists()


def test_recording_takes_less_than_two_microseconds_a_step(tmp_path: Path) -> None:
    job = recorder(tmp_path)
    best = float("inf")
    for _ in range(5):
        began = time.thread_time_ns()
        for step in range(20_000):
            job.waits()
            job.end(step)
        best = min(best, (time.thread_time_ns() - began) / 20_000)
    assert best < 2000
    assert os.listdir(tmp_path) == []
