"""Engines of reinforcement learning count their own ranks; with the ranks that train beside them they are one run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from traces import ranks, write

from tb_ddp_doctor import cli, engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import Run, discover
from tb_ddp_doctor.findings import Diagnosis

#: Ranks that train share the gradients, and send the weights to those that generate.
TRAINS = """
    rank# host                                            [fwd]            [update]    [sync.....]
          autograd                                             [bwd...........]
          gpu                                              [fwd][bwd..........]
          comm                                                                [ar/data]
          nccl                                                                         [bc/sync..]
"""
GENERATES = """
    rank# host   [g1][sync...][g2][sync...][g3][sync...][sync.....................................]
          gpu     [g1.......]  [g2.......]  [g3.......]
          nccl                                           [bc/sync.................................]
"""
#: Engines of two ranks with tensor parallelism.
OF_TWO = GENERATES + "          comm              [ar/tp]\n"
SERVER = dict.fromkeys(("aten::g1", "aten::g2", "aten::g3"), "vllm::unified_attention")
#: What each drawn rank says: its rank, of how many.
OF_ONE = {0: (0, 2), 1: (1, 2), 2: (0, 1), 3: (0, 1)}


def written(folder: Path, drawn: str, claims: Mapping[int, tuple[int, int] | None]) -> Path:
    """The drawn ranks, each with what it claims to be; None claims nothing."""
    write(folder, drawn, names=SERVER)
    for path in folder.glob("host*"):
        trace = json.loads(path.read_text())
        claim = claims[int(path.name[4])]
        if claim is None:
            del trace["distributedInfo"]
        else:
            trace["distributedInfo"].update(rank=claim[0], world_size=claim[1])
        path.write_text(json.dumps(trace))
    return folder


def diagnosed(folder: Path) -> Diagnosis:
    (run,) = discover(folder)
    return engine.diagnose(run, reading=engine.Reading(cache=Cache(folder / "cache"))).diagnosis


def numbered(run: Run) -> list[tuple[int, int | None, str]]:
    return [(file.rank, file.own_rank, file.worker) for file in run.files]


JOB = ranks(TRAINS, TRAINS, GENERATES, GENERATES, steps=5)
WORKERS = ["host0_100", "host1_101", "host2_102", "host3_103"]


def test_engines_beside_a_trainer_are_ranks_behind_its_own(tmp_path: Path) -> None:
    folder = written(tmp_path / "job", JOB, OF_ONE)
    (run,) = discover(folder)
    assert (run.name, run.world_size) == ("job", 4)
    assert numbered(run) == [(rank, OF_ONE[rank][0], WORKERS[rank]) for rank in range(4)]
    (said,) = (one.message for one in run.warnings)
    assert "rank 2 is host2_102.1700000000000000000.pt.trace.json (rank 0 of 1), rank 3 is host3_103." in said


def test_the_run_is_diagnosed_as_if_all_ranks_were_of_one_world(tmp_path: Path) -> None:
    write(tmp_path / "plain" / "job", JOB, names=SERVER)
    plain, found = diagnosed(tmp_path / "plain" / "job"), diagnosed(written(tmp_path / "job", JOB, OF_ONE))
    assert (found.kind, found.ranks, found.world_size, found.missing_ranks) == ("RL", (0, 1, 2, 3), 4, ())
    assert (found.findings, found.steps, found.account) == (plain.findings, plain.steps, plain.account)
    # Once more, from what is kept.
    assert diagnosed(tmp_path / "job") == found


def test_a_missing_rank_of_the_trainer_is_missing(tmp_path: Path) -> None:
    folder = written(tmp_path, JOB, OF_ONE)
    (folder / "host1_101.1700000000000000000.pt.trace.json").unlink()
    assert diagnosed(folder).missing_ranks == (1,)


def test_engines_of_several_ranks_keep_these_together(tmp_path: Path) -> None:
    claims = {0: (0, 2), 1: (1, 2), 2: (0, 2), 3: (1, 2), 4: (0, 2), 5: (1, 2)}
    names = [("tp", [2, 3]), ("tp", [4, 5])]
    drawn = ranks(TRAINS, TRAINS, *[OF_TWO.replace("/tp", f"/tp{engine}") for engine in (0, 0, 1, 1)], steps=5)
    folder = written(tmp_path, drawn, claims)
    for path in folder.glob("host*"):
        # Both engines call their group alike, of ranks 0 and 1.
        text = path.read_text().replace('"tp0"', '"tp"').replace('"tp1"', '"tp"')
        path.write_text(text.replace('"[2, 3]"', '"[0, 1]"').replace('"[4, 5]"', '"[0, 1]"'))
    (run,) = discover(folder)
    assert [(file.rank, file.own_rank) for file in run.files] == list(enumerate((0, 1, 0, 1, 0, 1)))
    result = engine.diagnose(run, reading=engine.Reading(cache=Cache(tmp_path / "cache")))
    matched = result.job.matched
    groups = {
        (group, tuple(sorted(matched.rank[matched.segments.select([number])[1]].tolist())))
        for number, group in enumerate(matched.group)
        if group == "tp"
    }
    assert groups == {(name, tuple(its)) for name, its in names}


def test_digests_of_them_are_one_run_too(tmp_path: Path) -> None:
    folder = written(tmp_path / "job", JOB, OF_ONE)
    assert cli.main(["digest", str(folder), "-o", str(tmp_path / "digests")]) == 0
    (run,) = discover(tmp_path / "digests")
    assert [file.own_rank for file in run.files] == [0, 1, 0, 0]


def test_a_trainer_without_torch_distributed_is_a_world_of_one(tmp_path: Path) -> None:
    folder = written(tmp_path, ranks(TRAINS, GENERATES, GENERATES, steps=5), {0: None, 1: (0, 1), 2: (0, 1)})
    (run,) = discover(folder)
    assert numbered(run) == [(0, 0, "host0_100"), (1, 0, "host1_101"), (2, 0, "host2_102")]


def test_files_that_were_written_some_time_apart_are_of_one_cycle(tmp_path: Path) -> None:
    """Each engine writes when it is told to stop: their records overlap, so that they are no repetitions of a job."""
    folder = written(tmp_path, JOB, OF_ONE)
    for rank, path in enumerate(sorted(folder.glob("host*"))):
        path.rename(folder / path.name.replace("1700000000000000000", f"17000000{rank + 1}0000000000"))
    (run,) = discover(folder)
    assert [file.rank for file in run.files] == [0, 1, 2, 3]


def test_compressed_files_are_looked_into(tmp_path: Path) -> None:
    folder = written(tmp_path, JOB, OF_ONE)
    for path in list(folder.glob("host*")):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (run,) = discover(folder)
    assert [file.own_rank for file in run.files] == [0, 1, 0, 0]


def sizes(folder: Path) -> dict[str, int]:
    """How many files each run has, by name."""
    return {run.name: len(run.files) for run in discover(folder)}


@pytest.mark.parametrize("of_both", [GENERATES, TRAINS])
def test_worlds_that_do_the_same_work_are_different_jobs(tmp_path: Path, of_both: str) -> None:
    folder = written(tmp_path / "job", ranks(of_both, of_both, of_both, steps=5), {0: (0, 2), 1: (1, 2), 2: (0, 1)})
    assert sizes(folder) == {"job/world_size_1": 1, "job/world_size_2": 2}


def test_an_engine_in_another_folder_is_another_run(tmp_path: Path) -> None:
    folder = written(tmp_path / "trainer", JOB, OF_ONE)
    for name in WORKERS[2:]:
        (tmp_path / name).mkdir()
        (folder / f"{name}.1700000000000000000.pt.trace.json").rename(tmp_path / name / "trace.json")
    assert len(discover(tmp_path)) == 3


def test_jobs_one_after_the_other_are_different_runs(tmp_path: Path) -> None:
    folder = written(tmp_path / "job", JOB, OF_ONE)
    for rank, path in enumerate(sorted(folder.glob("host*"))):
        # The ranks that train are recorded an hour after the engines were.
        trace = json.loads(path.read_text())
        begins_s = 1_700_000_000 + 3600 * (rank < 2)
        trace["baseTimeNanoseconds"] = trace.get("baseTimeNanoseconds", 0) + 3600 * (rank < 2) * 10**9
        path.unlink()
        (folder / f"{WORKERS[rank]}.{begins_s + 60}000000000.pt.trace.json").write_text(json.dumps(trace))
    assert [len(run.files) for run in discover(folder)] != [4]
    assert all(file.own_rank is None for run in discover(folder) for file in run.files)


@pytest.mark.parametrize("named_for", ["end", "begin"])
def test_servers_that_name_their_files_alike_are_no_cycles_of_one(tmp_path: Path, named_for: str) -> None:
    """SGLang's files say a time and a rank, no process; the trainer's records go on while both servers begin theirs."""
    folder = written(tmp_path / "job", JOB, OF_ONE)
    begin_s = 1_700_000_001
    for number, path in enumerate(sorted(folder.glob("host*"))):
        at = begin_s + number / 10 + (3 if named_for == "end" or number < 2 else -1)
        trainer, server = f"host{number}_{number}.{at * 1e9:.0f}.pt.trace.json", f"{at:.6f}-TP-0.trace.json"
        path.rename(folder / (server if number > 1 else trainer))
    (run,) = discover(folder)
    assert [file.own_rank for file in run.files] == [0, 1, 0, 0]
