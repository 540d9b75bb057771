"""Captures of several starts in one log directory: kept apart by who started, never by a clock; what is deleted."""

from __future__ import annotations

import os
import time
from itertools import permutations
from pathlib import Path

import pytest
from msgspec.structs import replace
from traces import draw, ranks

from tb_ddp_doctor.capture import child, process, retention
from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, capture_folders, read_json, write_json
from tb_ddp_doctor.capture.process import Start
from tb_ddp_doctor.capture.starts import folder_of, join, starts
from tb_ddp_doctor.capture.task import Task
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.evidence.model import CaptureRecord, RankEvidence

FIRST, SECOND = Start("one", 4, "", True), Start("two", 2, "", True)
#: What ranks without a store know: nothing that the next start has not, too.
VAGUE = Start(" ", 2, "", False)


@pytest.fixture(autouse=True)
def _as_urgent_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_stand_back", lambda: None)


def number(logdir: Path, start: Start, rank: int = 0) -> int:
    return join(logdir, start, rank).number


def test_each_start_has_a_folder_of_its_own(tmp_path: Path) -> None:
    found = [join(tmp_path, start, rank) for start in (FIRST, SECOND) for rank in range(start.world_size)]
    assert [one.number for one in found] == [1, 1, 1, 1, 2, 2]
    assert [one.folder for one in found] == [tmp_path] * 4 + [tmp_path / "start_2"] * 2
    # The first one's last ranks may be later than the second one's first.
    assert number(tmp_path, FIRST) == 1
    assert [one.listed.start for one in starts(tmp_path)] == [FIRST, SECOND]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_ranks_that_know_no_start_find_the_same_one_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    first, again, fewer = (replace(VAGUE, world_size=size) for size in (3, 3, 2))
    assert [number(tmp_path, first, rank) for rank in order] == [1, 1, 1]
    assert [number(tmp_path, again, rank) for rank in order] == [2, 2, 2]
    assert [number(tmp_path, fewer, rank) for rank in order if rank < 2] == [3, 3]


def test_captures_of_a_release_that_listed_no_starts_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "step_10").mkdir(parents=True)
    assert [number(tmp_path, FIRST, rank) for rank in range(2)] == [2, 2]


def test_a_start_is_named_by_its_launcher_where_no_store_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*process._JOB, *process._START):
        monkeypatch.delenv(name, raising=False)
    assert process.start(4) == Start(" ", 4, "", False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("MASTER_ADDR", "node0")
    told = process.start(4)
    assert told.job == "SLURM_JOB_ID=77"
    assert not told.is_unique
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    again = process.start(4)
    assert again.job == told.job
    assert again.id != told.id
    alone = process.start(1)
    assert alone.is_unique
    assert alone.id != process.start(1).id


# ------------------------------------------------------------------------------------------------ ghosts

QUICK = """
    rank# step |10
          gpu  [fwd]  [bwd...........]
          nccl                 [ar....]
"""
SLOW = """
    rank# step |10
          gpu  [fwd]      [bwd.......]
          nccl                 [ar....]
"""


def capture(folder: Path, start: Start, *drawings: str, clock_s: float = 0.0, max_gb: float | None = None) -> None:
    """All ranks of a start capture step 10; rank 0's clock is so much ahead."""
    drawn = draw(ranks(*drawings))
    for rank in reversed(range(len(drawings))):
        joined = join(folder / "job", start, rank)
        trace = folder / f"scratch{rank}" / "trace.json"
        trace.parent.mkdir(exist_ok=True)
        trace.write_bytes(drawn[rank])
        task = Task(
            trace=str(trace),
            logdir=str(joined.folder),
            keep="digests",
            max_gb=max_gb,
            patience_s=0.0,
            rank=rank,
            world_size=len(drawings),
            node=f"node{rank}",
            pid=100 + rank,
            step=10,
            steps=3,
            ranks=None,
            captured_ns=time.time_ns() + round(clock_s * 1e9) * (rank == 0),
            evidence=RankEvidence(),
            whole_logdir=str(folder / "job"),
            job=joined.listed.job,
            start=start.id,
        )
        write_json(trace.parent / "task", task)
        if rank:  # else they would await it
            write_json(CaptureFolder.of(joined.folder, 10).record(0), _reported(start))
        assert child.main([str(trace.parent / "task")]) == 0


def _reported(start: Start) -> CaptureRecord:
    return CaptureRecord(0, start.world_size, "", 1, 10, 3, 0, {}, start=start.id)


def test_a_start_with_fewer_ranks_has_no_ranks_of_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(tmp_path, FIRST, QUICK, QUICK, QUICK, SLOW)
    capture(tmp_path, SECOND, QUICK, QUICK)
    runs = {run.name: run for run in discover(tmp_path / "job")}
    assert {name: [file.rank for file in run.files] for name, run in runs.items()} == {
        "step_10": [0, 1, 2, 3],
        "start_2/step_10": [0, 1],
    }
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    verdict = read_json(CaptureFolder.of(folder_of(tmp_path / "job", 2), 10).verdict, CaptureVerdict)
    assert verdict is not None
    assert verdict.line == said[1]
    assert verdict.missing_ranks == ()


def test_starts_with_other_ranks_are_never_one_run(tmp_path: Path) -> None:
    drawn = draw(ranks(QUICK, QUICK))
    for rank in (0, 1):
        folder = tmp_path / f"start_{2 + rank}" / "step_10"
        folder.mkdir(parents=True)
        (folder / f"rank{rank}.pt.trace.json").write_bytes(drawn[rank])
    assert len(discover(tmp_path)) == 2


def test_a_clock_that_is_ahead_deletes_nothing(tmp_path: Path) -> None:
    capture(tmp_path, FIRST, QUICK, QUICK, QUICK, SLOW, clock_s=20 * 60)
    folder = CaptureFolder.of(tmp_path / "job", 10)
    assert set(folder.records()) == {0, 1, 2, 3}
    assert all(folder.digest(rank).exists() for rank in range(4))
    verdict = read_json(folder.verdict, CaptureVerdict)
    assert verdict is not None
    assert verdict.missing_ranks == ()


# ------------------------------------------------------------------------------------------------ what is deleted


def kept(folder: CaptureFolder, job: str, size: int = 1000) -> None:
    """Rank 0's digest of so many bytes, and its record."""
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.digest(0).write_bytes(bytes(size))
    files = {folder.digest(0).name: size}
    write_json(folder.record(0), CaptureRecord(0, 1, "", 1, folder.step, 3, 1, files, job=job))


def test_captures_of_another_job_neither_count_nor_go(tmp_path: Path) -> None:
    for step, job in ((10, "theirs"), (20, "mine"), (30, "theirs"), (40, "")):
        kept(CaptureFolder.of(tmp_path, step), job)
    newest = CaptureFolder.of(tmp_path / "start_2", 10)
    kept(newest, "mine")
    retention.trim(tmp_path, "mine", 1000, but=newest)
    assert [folder.step for folder in capture_folders(tmp_path)] == [10, 30, 40]
    retention.trim(tmp_path, "mine", 0, but=newest)
    assert newest.digest(0).exists()
    assert len(capture_folders(tmp_path)) == 3


def test_of_a_job_that_was_started_again_the_first_start_goes_first(tmp_path: Path) -> None:
    """Though its steps are higher, where the job went back to an older checkpoint."""
    old, resumed, newest = (
        CaptureFolder.of(folder_of(tmp_path, number), step) for number, step in ((1, 900), (2, 500), (10, 100))
    )
    for folder in (old, resumed, newest):
        kept(folder, "mine")
    retention.trim(tmp_path, "mine", 2000, but=newest)
    assert [folder.digest(0).exists() for folder in (old, resumed, newest)] == [False, True, True]


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    theirs = CaptureFolder.of(tmp_path / "theirs", 10)
    kept(theirs, "mine")
    logdir = tmp_path / "job"
    newest = CaptureFolder.of(logdir, 20)
    kept(newest, "mine")
    (logdir / "step_10").symlink_to(theirs.path)
    (logdir / "start_2").symlink_to(tmp_path / "theirs")
    (logdir / "step_15").mkdir()
    os.link(theirs.record(0), logdir / "step_15" / "rank0.capture")
    (logdir / "step_15" / theirs.digest(0).name).symlink_to(theirs.digest(0))
    retention.trim(logdir, "mine", 0, but=newest)
    assert theirs.digest(0).exists()
    assert (logdir / "step_15" / theirs.digest(0).name).is_symlink()


def test_nothing_is_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "step_10").symlink_to(tmp_path / "elsewhere")
    start = replace(FIRST, world_size=1)
    with pytest.raises(AssertionError):
        capture(tmp_path, start, QUICK)
    assert "is a link" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())
