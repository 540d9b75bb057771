"""Reading Flight Recorder dumps: their names, forms, damages, and pickles that mean harm."""

from __future__ import annotations

import ast
import json
import os
import pickle
import random
import re
from pathlib import Path
from typing import Any

import pytest
from dumps import drawn, write

from tb_ddp_doctor.flight import ras
from tb_ddp_doctor.flight.find import find
from tb_ddp_doctor.flight.load import DumpError, load
from tb_ddp_doctor.storage.unpickle import PickleError, loads
from tb_ddp_doctor.stuck.run import StuckError, examine, examine_all

REAL = Path(__file__).parent / "flight_recorder"
JOBS = ("gpu_error_1st", "lock_gil_2nd")
STUCK = """
    groups: dp=0,1,2
    rank0: all_reduce@dp+ all_reduce@dp
    rank1: all_reduce@dp+
    rank2: all_reduce@dp+ all_reduce@dp
    """


class _Harm:
    """Would leave a file behind if a pickle of it were loaded as pickle.load does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("job", JOBS)
def test_real_jobs_name_exactly_the_ranks_that_were_made_to_fail(job: str) -> None:
    (run,) = [run for run in find(REAL) if run.name == job]
    told = (REAL / job / "fault_injection.log").read_text()
    truth = ast.literal_eval(re.search(r"Fault ranks: (\[.*\])", told)[1])  # type: ignore[index]
    found = examine(run)
    assert found.verdict == "stuck"
    assert sorted(rank for finding in found.findings for rank in finding.ranks) == truth
    assert {finding.cause for finding in found.findings} == {
        {"GPU_ERROR": "not-completed", "LOCK_GIL": "missing"}[re.search(r"fault_type: (\w+)", told)[1]]  # type: ignore[index]
    }
    assert all(finding.confidence == "high" for finding in found.findings)
    # All others wait for one of them.
    assert {wait.rank for wait in found.waits} | set(truth) == set(range(16))
    assert not found.warnings


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("lost", range(16))
def test_real_jobs_without_a_dump_accuse_no_rank_that_is_well(job: str, lost: int, tmp_path: Path) -> None:
    truth = {"gpu_error_1st": {12, 14}, "lock_gil_2nd": {10, 15}}[job]
    for rank in set(range(16)) - {lost}:
        (tmp_path / f"_dump_{rank}").write_bytes((REAL / job / f"_dump_{rank}").read_bytes())
    (found,) = examine_all(tmp_path)
    sure = {rank for each in found.findings if each.confidence == "high" for rank in each.ranks}
    assert sure <= truth and sure
    assert {rank for each in found.findings for rank in each.ranks} <= truth | {lost}
    assert f"left no dump that can be read: rank {lost}." in " ".join(one.message for one in found.warnings)


def _hostile(tmp_path: Path) -> dict[str, bytes]:
    harm = _Harm(tmp_path / "harm")
    whole = {"version": "2.9", "entries": []}
    return {
        "reduce": pickle.dumps({**whole, "x": harm}, protocol=2),
        "reduce of the newest protocol": pickle.dumps({**whole, "x": harm}, protocol=5),
        "protocol 0": pickle.dumps({**whole, "x": harm}, protocol=0),
        "a name alone": pickle.dumps({**whole, "x": os.system}, protocol=2),
        "a name within an entry": pickle.dumps({"version": "2.9", "entries": [{"state": os.getcwd}]}, protocol=4),
        "an object without code": pickle.dumps({**whole, "x": Path("a")}, protocol=2),
        "a set, which a reduce makes": pickle.dumps({**whole, "x": {1}}, protocol=2),
        "persistent id": b"\x80\x02}(X\x07\x00\x00\x00versionX\x01\x00\x00\x00aQu.",
        "extension": b"\x80\x02}X\x07\x00\x00\x00version\x82\x01s.",
        "instance": b"\x80\x02(ios\nsystem\n.",
        "build": b"\x80\x02}X\x07\x00\x00\x00version}b.",
        "a memo of gigabytes": b"\x80\x02}r\xff\xff\xff\x7f.",
        "a number of a million digits": b"\x80\x02\x8b\x00\x00\x10\x00" + b"\x01" * 0x100000 + b".",
        "text longer than the file": b"\x80\x02X\xff\xff\xff\x7fversion.",
        "no end": pickle.dumps(whole, protocol=2)[:-1],
        "an empty stack": b"\x80\x02ss.",
        "a list in itself": b"\x80\x02]q\x00h\x00a.",
        "a list as a key": b"\x80\x02}(]K\x01u.",
        "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "doubling": b"\x80\x02]q\x00" + b"](h\x00h\x00eq\x00" * 60 + b".",
    }


@pytest.mark.parametrize("kind", _hostile(Path()))
def test_hostile_pickles_run_nothing_and_cost_only_their_file(kind: str, tmp_path: Path) -> None:
    data = _hostile(tmp_path)[kind]
    folder = write(tmp_path / "dumps", STUCK)
    # Its first bytes are those of a dump, so that it is read.
    (folder / "nccl_trace_rank_3").write_bytes(data)
    with pytest.raises(DumpError, match="Left out"):
        load(folder / "nccl_trace_rank_3", 3)
    assert not (tmp_path / "harm").exists()
    (run,) = examine_all(folder)
    assert run.verdict == "stuck"
    assert run.findings[0].ranks == (1,)
    assert not (tmp_path / "harm").exists()


def test_what_is_refused_is_said_with_the_name_of_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path, STUCK)
    (folder / "nccl_trace_rank_1").write_bytes(
        pickle.dumps({"version": "2.9", "entries": [], "x": _Harm(tmp_path / "h")})
    )
    (run,) = examine_all(folder)
    (warning,) = [one for one in run.warnings if one.file.endswith("nccl_trace_rank_1")]
    assert "more than plain data" in warning.message
    assert run.missing_ranks == (1,)


def test_random_damage_raises_nothing_but_a_sentence() -> None:
    data = (REAL / "gpu_error_1st" / "_dump_14").read_bytes()
    chance = random.Random(19)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            loads(bytes(damaged[: chance.randint(1, len(damaged))]))
        except PickleError:
            continue


def test_values_of_the_wrong_type_count_as_absent(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "version": 7,
        "pg_config": {"0": {"name": "0", "desc": ["x"], "ranks": "[0, 1, -4, 99999999]"}, "1": "x", 2: {}},
        "pg_status": {"0": {"last_enqueued_collective": "12"}, "x": 3},
        "entries": [
            {"profiling_name": None, "input_sizes": [["a", 2**66]], "state": 4, "record_id": "x", "process_group": 3},
            "no entry",
            {"profiling_name": "nccl:send 9999999->3", "process_group": ["0", "dp"], "is_p2p": 1, "frames": [{}, 3]},
        ],
    }
    (tmp_path / "dump_0").write_bytes(pickle.dumps(content, protocol=2))
    dump = load(tmp_path / "dump_0", 0)
    assert dump.groups["0"].ranks == (0, 1)
    assert len(dump.entries) == 2
    (run,) = examine_all(tmp_path)
    assert run.ranks == (0,)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("nccl_trace_rank_{}", [0, 1, 2]),
        ("comm_traces/rank_{}", [0, 1, 2]),
        ("_dump_{}", [0, 1, 2]),
        ("my job's dump{}", [0, 1, 2]),
        ("comm_lib_trace_rank_{}.json", [0, 1, 2]),
        ("nccl_trace_rank_{}.pickle", [0, 1, 2]),
        ("rank_{}/nccl_trace", [0, 1, 2]),
        ("node{}/nccl_trace_rank_{}", [0, 1, 2]),
        ("nccl_trace_rank_{}.log", [0, 1, 2]),
    ],
)
def test_names(name: str, ranks: list[int], tmp_path: Path) -> None:
    for rank, content in drawn(STUCK).items():
        path = tmp_path / "job" / name.replace("{}", str(rank))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(json.dumps(content).encode() if path.suffix == ".json" else pickle.dumps(content, protocol=2))
    (run,) = find(tmp_path)
    assert [file.rank for file in run.files] == ranks
    assert run.name.startswith("job")
    assert examine(run).findings[0].ranks == (1,)


@pytest.mark.parametrize("name", ["gpu-a{}_nccl_trace_rank_{}", "nccl_trace_rank_{}_gpu-a{}", "gpu-a{}/rank_{}"])
def test_hosts_in_names(name: str, tmp_path: Path) -> None:
    for rank, content in drawn(STUCK).items():
        path = tmp_path / name.replace("_{}", f"_{rank}").replace("a{}", f"a{rank + 40}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(content, protocol=2))
    (run,) = find(tmp_path)
    assert [(file.rank, file.host) for file in run.files] == [(0, "gpu-a40"), (1, "gpu-a41"), (2, "gpu-a42")]
    assert "on gpu-a41" in examine(run).findings[0].fix


def test_a_rank_follows_from_its_groups(tmp_path: Path) -> None:
    for rank, content in drawn("groups: dp=0,1 own0=0 own1=1\nrank0: all_reduce@dp\nrank1:").items():
        (tmp_path / f"dump_17586105{rank}").write_bytes(pickle.dumps(content, protocol=2))
    (run,) = examine_all(tmp_path)
    assert run.ranks == (0, 1)


def test_two_attempts_in_one_folder_are_two_jobs(tmp_path: Path) -> None:
    write(tmp_path, STUCK, "attempt_a_rank_")
    write(tmp_path, "groups: dp=0,1\nrank0: all_reduce@dp+\nrank1: all_reduce@dp+", "attempt_b_rank_")
    assert sorted(run.verdict for run in examine_all(tmp_path)) == ["healthy", "stuck"]


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    for name in ("events.out.tfevents.1.host.0", "model_3", "rank0_trace.json", "notes.txt", "checkpoint_12.pt"):
        (tmp_path / name).write_bytes(b"\x80\x02}q\x00X\x05\x00\x00\x00modelq\x01K\x01s.")
    assert find(tmp_path) == []
    assert find(tmp_path / "absent") == []


def test_a_trace_whose_head_describes_process_groups_is_no_dump(tmp_path: Path) -> None:
    groups = {"backend": "nccl", "rank": 0, "world_size": 1, "pg_config": [{"pg_name": "0"}], "nccl_version": "2.27.3"}
    (tmp_path / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "distributedInfo": groups, "traceEvents": []}))
    assert find(tmp_path) == []


def test_none_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(b"\x80\x02}(X\x07\x00\x00\x00version")
    (run,) = find(tmp_path)
    with pytest.raises(StuckError, match=r"None of its 1 Flight Recorder dumps can be read.*cut off"):
        examine(run)


def test_answers_of_ras_are_said_beside_the_dumps(tmp_path: Path) -> None:
    folder = write(tmp_path, STUCK)
    member = '{"rank": %d, "host": "10.0.0.%d", "pid": 7, "cuda_dev": 0, "nvml_dev": 0%s "status": {%s}}'
    # NCCL 2.28 writes no comma before the status of a missing rank.
    answer = (
        '{"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [{"size": 3, "ranks": ['
        + member % (0, 1, ",", '"async_error": 0')
        + '], "missing_ranks": ['
        + member % (1, 2, "", '"unresponsive": true, "considered_dead": true')
        + "]}]}"
    )
    (folder / "ras.json").write_text(answer)
    assert ras.read(folder / "ras.json", 3)[1] == ras.RasRank(1, "10.0.0.2", 7, "dead")
    (run,) = examine_all(folder)
    (warning,) = [one for one in run.warnings if one.file.endswith("ras.json")]
    assert warning.message == "NCCL's RAS says: rank 1 (10.0.0.2, pid 7) is considered dead."


@pytest.mark.parametrize("rank", ['"1"', "1.5", "[]", "true", "-1", "3", "null"])
def test_a_rank_of_ras_that_is_none_is_passed_over(tmp_path: Path, rank: str) -> None:
    members = ",".join([f'{{"rank": {rank}}}'] * 20_000)
    path = tmp_path / "ras.json"
    path.write_text(f'{{"communicators": [{{"size": 3, "ranks": [{members}]}}]}}')
    assert ras.read(path, 3) == []


#: What torch 2.13 printed of three drawn dumps, shortened: `torchfrtrace -j -v`.
_ENTRY = (
    "{0}(timestamp_created=175861050500{1}000000, input_sizes=[[1024]], output_sizes=[[1024]], input_dtypes=['Float'], "
    "output_dtypes=['Float'], collective_seq_id | p2p_seq_id={1}, pg_name={2}, pg_size={3}, stack_id=0, state={4})"
)
_DP, _TP = "0-4850097147344926394, pg_description=dp", "19000494312501845833, pg_description=tp, inner"


def _table(columns: dict[int, list[str]]) -> str:
    """Columns as `tabulate` writes them."""
    height = max(map(len, columns.values()))
    padded = {rank: [f"Rank {rank}", "-", *cells, *[""] * (height - len(cells))] for rank, cells in columns.items()}
    width = {rank: max(map(len, cells)) for rank, cells in padded.items()}
    lines = [
        "  ".join(cell.ljust(width[rank], "-" if cell == "-" else " ") for rank, cell in zip(padded, row, strict=True))
        for row in zip(*padded.values(), strict=True)
    ]
    return "Inferred common prefix _dump_\n" + "\n".join(line.rstrip() for line in lines) + "\n"


def _written(folder: Path, columns: dict[int, list[str]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "fr_trace.txt").write_text(_table(columns))
    return folder


def test_the_table_of_torchfrtrace_is_read(tmp_path: Path) -> None:
    done = _ENTRY.format("all_reduce", 1, _DP, 3, "completed")
    waits = _ENTRY.format("all_reduce", 2, _DP, 3, "scheduled")
    sent = _ENTRY.format("send", 1, _TP, 2, "completed").replace(", input", ", s=0 d=2, input", 1)
    got = _ENTRY.format("recv", 1, _TP, 2, "completed").replace(", input", ", s=0 d=2, input", 1)
    (run,) = examine_all(_written(tmp_path / "job", {0: [done, sent, waits], 1: [done], 2: [done, got, waits]}))
    (finding,) = run.findings
    assert (run.verdict, finding.cause, finding.ranks) == ("stuck", "missing", (1,))
    assert (finding.call.kind, finding.call.sequence, finding.call.input_sizes) == ("all_reduce", 2, ((1024,),))
    assert (finding.call.group, finding.call.description) == ("0", "dp")
    assert run.warnings == ()


def test_a_table_without_groups_is_read_where_one_group_explains_it(tmp_path: Path) -> None:
    done, waits = (f"all_reduce(input_sizes=[[1024]], state={state})" for state in ("completed", "scheduled"))
    other = "broadcast(input_sizes=[[1024]], state=completed)"
    (run,) = examine_all(_written(tmp_path, {0: [done, waits], 1: [done], 2: [done, waits]}))
    assert run.findings[0].ranks == (1,)
    _written(tmp_path, {0: [done, other, waits], 1: [done, done]})
    with pytest.raises(StuckError, match="print it with torchfrtrace -j -v"):
        examine(find(tmp_path)[0])


def test_a_table_that_lacks_ranks_is_not_concluded_from(tmp_path: Path) -> None:
    later = _ENTRY.format("all_reduce", 7, _DP, 3, "completed")
    waits = _ENTRY.format("all_reduce", 8, _DP, 3, "scheduled")
    # Entries of rank 2 were older than those that all ranks still had.
    (run,) = examine_all(_written(tmp_path, {0: [later, waits], 1: [later, waits], 2: []}))
    assert run.verdict == "unknown"
    _written(tmp_path, {0: [later, waits], 1: [later, waits], 2: [], 3: []})
    with pytest.raises(StuckError, match="2 of the 3 ranks of dp"):
        examine(find(tmp_path)[0])


def test_a_damaged_table_costs_only_its_file(tmp_path: Path) -> None:
    cell = _ENTRY.format("all_reduce", 1, _DP, 2, "scheduled")
    text = _table({0: [cell], 1: [cell]})
    chance = random.Random(3)
    for _ in range(100):
        at = chance.randrange(len(text))
        (tmp_path / "entries.log").write_text(text[:at] + chance.choice("\n([,=9 -\x00") + text[at + 1 :])
        examine_all(tmp_path)


def test_dumps_are_preferred_to_a_table_of_them(tmp_path: Path) -> None:
    write(tmp_path / "dumps", STUCK)
    _written(tmp_path, {0: [_ENTRY.format("all_reduce", 1, _DP, 3, "completed")]})
    (run,) = find(tmp_path)
    assert [file.rank for file in run.files] == [0, 1, 2]


def test_dumps_in_a_remote_directory(tmp_path: Path) -> None:
    for rank, content in drawn(STUCK).items():
        _wrote(tmp_path / f"dumps_of_a_job/comm_traces/rank_{rank}", pickle.dumps(content, protocol=2))
    _wrote(tmp_path / "dumps_of_a_job/.hidden/rank_9", pickle.dumps(content, protocol=2))
    _wrote(tmp_path / "dumps_of_a_job/comm_traces/ras.json", b'{"communicators": 3}')
    # A service like any other: other processes see it, as they do not see fsspec's memory.
    (run,) = examine_all(f"local://{tmp_path}/dumps_of_a_job")
    assert (run.name, run.ranks, run.findings[0].ranks) == ("comm_traces", (0, 1, 2), (1,))
    assert find("memory://no_such_place") == []


def _wrote(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _shared(**content: Any) -> bytes:
    """A dump in which equal parts are one, as a pickle's memo has them."""
    return pickle.dumps({"version": "2.4", "entries": [], "pg_config": {}, **content}, protocol=2)


def _entry(number: int, **more: Any) -> dict[str, Any]:
    return {"record_id": number, "process_group": ("0", "dp"), "profiling_name": "nccl:all_reduce", **more}


_SIZES = [[1] * 1000] * 1000
_TYPES = ["Float"] * 1000
_RANKS = [*range(100_000)]
_RANKS_AS_TEXT = str(_RANKS)
_LAUGHS: list[Any] = []
for _ in range(60):
    _LAUGHS = [_LAUGHS, _LAUGHS]


@pytest.mark.parametrize(
    "content",
    [
        {"entries": [_entry(i, input_sizes=[*_SIZES[:500], [i]]) for i in range(1000)]},
        {"entries": [_entry(i, input_sizes=_SIZES, input_dtypes=[str(i)]) for i in range(2000)]},
        {"entries": [_entry(0, output_dtypes=_TYPES, input_dtypes=[str(i)]) for i in range(9000)]},
        {"pg_config": {str(i): {"name": str(i), "ranks": _RANKS} for i in range(20_000)}},
        {"pg_config": {str(i): {"name": str(i), "ranks": _RANKS_AS_TEXT} for i in range(20_000)}},
    ],
    ids=["sizes", "one-size", "types", "ranks", "ranks-as-text"],
)
def test_a_dump_whose_lists_are_shared_costs_itself(tmp_path: Path, content: dict[str, Any]) -> None:
    """Under 2 MB, and gigabytes once each list is written out: see `storage.budget`."""
    path = tmp_path / "rank_0"
    path.write_bytes(_shared(**content))
    assert path.stat().st_size < 2 << 20
    with pytest.raises(DumpError, match=r"Left out: Written out, its shared lists are over 2,000,000 values"):
        load(path)


def test_numbers_of_groups_are_numbers_or_texts(tmp_path: Path) -> None:
    """Lists within lists that are one another are 2 to the power of 60 as text."""
    path = tmp_path / "rank_0"
    path.write_bytes(
        _shared(entries=[_entry(0, pg_id=_LAUGHS)], pg_status={None: {}, 7: {"last_enqueued_collective": 3}})
    )
    assert load(path, 0).status == {}
