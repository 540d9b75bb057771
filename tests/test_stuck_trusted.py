"""Dumps that are empty, old or lack entries accuse nobody: they are left out, and said."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dumps import drawn, faults, write

from tb_ddp_doctor.stuck import run as stuck_run
from tb_ddp_doctor.stuck.model import StuckRun
from tb_ddp_doctor.stuck.run import examine_all
from tb_ddp_doctor.workers import pool

STUCK = """
    groups: dp=0,1,2,3,4
    rank0: all_reduce@dp*200+ all_reduce@dp
    rank1: all_reduce@dp*200+ all_reduce@dp
    rank2: all_reduce@dp*200+
    rank3: all_reduce@dp*200+ all_reduce@dp
    rank4: all_reduce@dp*200+ all_reduce@dp
"""
RUNS = "\n".join(line.replace("+ all_reduce@dp", "+") if "rank" in line else line for line in STUCK.splitlines())
Content = dict[str, Any]


def with_damaged(folder: Path, text: str, rank: int, damage: Callable[[Content], None]) -> StuckRun:
    write(folder, text)
    content = drawn(text)[rank]
    damage(content)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    (run,) = examine_all(folder)
    return run


def empty(content: Content) -> None:
    content["entries"] = []


def nothing_recorded(content: Content) -> None:
    content["entries"] = []
    content["pg_status"] = {key: dict.fromkeys(one, -1) for key, one in content["pg_status"].items()}


def end_lost(content: Content) -> None:
    del content["entries"][-7:]


def gap(content: Content) -> None:
    del content["entries"][90:120]


def old(content: Content) -> None:
    """Written 40 collectives earlier."""
    del content["entries"][160:]
    for entry in content["entries"][-2:]:
        entry |= {"state": "scheduled", "retired": False}
    content["pg_status"]["0"] |= {"last_enqueued_collective": 160, "last_completed_collective": 158}


def pending_lost(content: Content) -> None:
    content["entries"] = [entry for entry in content["entries"] if entry["state"] == "completed"]


def all_scheduled(content: Content) -> None:
    for entry in content["entries"]:
        entry["state"] = "scheduled"


def all_completed(content: Content) -> None:
    for entry in content["entries"]:
        entry["state"] = "completed"


def no_groups(content: Content) -> None:
    content["pg_config"] = {}


DAMAGES = [empty, nothing_recorded, end_lost, gap, old, pending_lost, all_scheduled, no_groups]


@pytest.mark.parametrize("damage", [*DAMAGES, all_completed])
def test_a_damaged_dump_accuses_nobody(tmp_path: Path, damage: Callable[[Content], None]) -> None:
    run = with_damaged(tmp_path, STUCK, 1, damage)
    assert faults(run) == [("missing", (2,))]
    assert run.missing_ranks == (1,)
    (warning,) = [one for one in run.warnings if one.message.startswith("Left out: ")]
    assert warning.file.endswith("nccl_trace_rank_1")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_dump_of_a_job_that_runs_makes_no_fault(tmp_path: Path, damage: Callable[[Content], None]) -> None:
    run = with_damaged(tmp_path, RUNS, 1, damage)
    assert not run.findings and run.verdict == "healthy"


def pending_alone(content: Content, completed: int, enqueued: int) -> None:
    """As torch 2.5 and later keep them: what completed is in the counters alone."""
    content["entries"] = [entry for entry in content["entries"] if entry["state"] != "completed"]
    content["pg_status"]["0"] |= {"last_enqueued_collective": enqueued, "last_completed_collective": completed}


@pytest.mark.parametrize(("counted", "is_believed"), [(-1, False), (150, False), (170, True)])
def test_a_counter_far_behind_those_of_others_is_not_believed(tmp_path: Path, counted: int, is_believed: bool) -> None:
    """Others complete what a rank never came to only as far as NCCL's buffers reach, as of broadcasts: 8 a rank."""
    for rank, content in drawn(STUCK).items():
        newest = 201 if rank != 2 else 200
        pending_alone(content, 200, newest)
        if rank == 1:
            pending_alone(content, counted, counted)
            content["entries"] = []
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    (run,) = examine_all(tmp_path)
    assert (1 in run.missing_ranks) != is_believed
    said = [one.message for one in run.warnings if one.message.startswith("Left out: it counts ")]
    assert len(said) == (not is_believed)
    assert faults(run) == [("missing", (1, 2) if is_believed else (2,))]


def test_two_dumps_with_the_same_entries_are_said(tmp_path: Path) -> None:
    other = drawn(STUCK)[0]
    for entry in other["entries"]:
        entry["time_created_ns"] += 17
    write(tmp_path, STUCK)
    for rank in (0, 4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(other, protocol=2))
    (run,) = examine_all(tmp_path)
    assert faults(run) == [("missing", (2,))]
    assert [one.message for one in run.warnings] == ["The dumps of ranks 0 and 4 have the same entries: one is a copy."]


def test_whole_dumps_stay(tmp_path: Path) -> None:
    for name, text in (("stuck", STUCK), ("runs", RUNS)):
        write(tmp_path / name, text)
    for run in examine_all(tmp_path):
        assert run.missing_ranks == () and run.warnings == ()


def test_where_most_dumps_differ_the_recorder_writes_otherwise(tmp_path: Path) -> None:
    for rank, content in drawn(STUCK).items():
        content["pg_status"]["0"]["last_enqueued_collective"] += 3
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    (run,) = examine_all(tmp_path)
    assert run.missing_ranks == ()


def test_counters_as_far_apart_as_numbers_go_cost_their_dump(tmp_path: Path) -> None:
    def far(content: Content) -> None:
        content["pg_status"]["0"] |= {"last_enqueued_collective": 2**62, "last_completed_collective": -(2**62)}

    run = with_damaged(tmp_path, STUCK, 1, far)
    assert [finding.ranks for finding in run.findings] == [(2,)]
    assert any("rank_1" in warning.file and "not those that it counts" in warning.message for warning in run.warnings)


def large_group(content: Content) -> None:
    content["pg_config"]["0"]["ranks"] = str([*range(60_000)])
    last = content["entries"][-1]
    content["entries"] = [last | {"collective_seq_id": 201 + i, "record_id": 201 + i} for i in range(1000)]
    content["pg_status"]["0"]["last_enqueued_collective"] = 1200


def test_a_dump_that_claims_far_more_ranks_and_calls_than_the_others_costs_itself(tmp_path: Path) -> None:
    found = with_damaged(tmp_path, STUCK, 3, large_group)
    assert [finding.ranks for finding in found.findings] == [(2,)] and 3 in found.missing_ranks
    (said,) = [one.message for one in found.warnings if one.file.endswith("rank_3")]
    assert "60,060,000 parts of ranks in pending collectives" in said


def test_dumps_that_cannot_be_joined_in_time_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, STUCK)
    (dumps,) = stuck_run.find(tmp_path)

    def too_much(*_: object, **__: object) -> StuckRun:
        raise pool.LimitError("Reading it takes more than 30 s, which no file of its size needs.")

    monkeypatch.setattr(pool, "call", too_much)
    with pytest.raises(stuck_run.StuckError, match=r"Its dumps cannot be joined\. Reading it takes more than 30 s"):
        stuck_run.examine(dumps)
