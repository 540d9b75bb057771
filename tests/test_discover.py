"""From a log directory to runs: which files, which run, which rank, and what is said about doubts."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.discover.head import Head, peek
from tb_ddp_doctor.discover.runs import DiscoverError, Run, discover, only_run, parse_logdir_spec
from tb_ddp_doctor.flight.find import find
from tb_ddp_doctor.storage import time_limit
from tb_ddp_doctor.storage.paths import FilePath

#: When the first profiler cycle was written, in ns since the epoch.
NOON_NS = 1_795_198_700_000_000_000
SECOND_NS = 10**9

DEMO_LOGS = Path(__file__).parents[1] / "demo_logs"

NO_RANK = (
    "The rank of {} is taken from the {}: the trace has no distributedInfo, as torch writes where torch.distributed is "
    "initialised."
)


def trace(path: Path, rank: int | None = None, world_size: int = 2, **header: object) -> Path:
    """Write a small trace, with `distributedInfo` if a rank is given."""
    document: dict[str, object] = {"schemaVersion": 1, "deviceProperties": []}
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    document |= header | {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1}]}
    return write(path, json.dumps(document).encode())


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def torch_name(worker: str, seconds: float = 0) -> str:
    """A name as torch gives it, some seconds after noon."""
    return f"{worker}.{NOON_NS + int(seconds * SECOND_NS)}.pt.trace.json.gz"


def ranks(run: Run) -> list[int]:
    return [file.rank for file in run.files]


def shape(runs: list[Run]) -> dict[str, list[int]]:
    return {run.name: ranks(run) for run in runs}


def messages(run: Run) -> str:
    return "\n".join(warning.message for warning in run.warnings)


def only(runs: list[Run]) -> Run:
    (run,) = runs
    return run


# --- Which files are traces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "node0_426.1795198710773874838.pt.trace.json.gz",
        "node0_426.1795198710773874838.pt.trace.json",
        "worker0.pt.trace.json",
        "[hosta]-[11]-rank0.pt.trace.json.gz",
        "rank0.pt.trace.json.gz",
        "rank0.5.pt.trace.json",
        "rank0_trace.json",
        "rank0_trace.json.gz",
        "rank-0.json.gz",
        "trace_rank0.json",
        "megatron_kineto_0.json.gz",
        "sampled_rank-0.json.gz",
        "profile_0.json",
        "trace.json",
    ],
)
def test_name_of_a_trace_is_accepted(tmp_path: Path, name: str) -> None:
    trace(tmp_path / name, rank=0)
    assert [file.path.name for file in only(discover(tmp_path)).files] == [name]


@pytest.mark.parametrize(
    "name",
    [
        ".node0_426.1795198710773874838.pt.trace.json.gz.AbC123",
        "node0_426.1795198710773874838.pt.trace.json.gz.AbC123",
        "node0_426.1795198710773874838.pt.trace.json.tmp",
        ".~tmp~/node0_426.1795198710773874838.pt.trace.json.gz",
        "events.out.tfevents.1.host",
    ],
)
def test_file_that_is_not_finished_or_of_another_kind_is_passed_over(tmp_path: Path, name: str) -> None:
    trace(tmp_path / name, rank=0)
    assert discover(tmp_path) == []


@pytest.mark.parametrize("name", ["truth.json", "config.json", "rank0.json", "metrics_rank0.json.gz"])
def test_json_that_is_no_trace_makes_no_run(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, b'{"rank": 0, "world_size": 4, "learning_rate": 0.1}')
    assert discover(tmp_path) == []


def test_chrome_trace_of_another_tool_makes_no_run(tmp_path: Path) -> None:
    write(tmp_path / "result.json", b'{"traceEvents": [], "otherData": {"version": "My tool"}}')
    assert discover(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08", b"\x1f\x8bnonsense", b"\x00" * 100, b"not JSON at all"])
def test_file_that_cannot_be_read_is_listed_with_its_rank_by_order(tmp_path: Path, content: bytes) -> None:
    trace(tmp_path / torch_name("a_1"), rank=0)
    (tmp_path / torch_name("a_2")).write_bytes(content)
    run = only(discover(tmp_path))
    assert [(file.rank, file.rank_source) for file in run.files] == [(0, "distributedInfo"), (1, "order")]


def test_link_to_nowhere_is_listed(tmp_path: Path) -> None:
    trace(tmp_path / torch_name("a_1"), rank=0)
    (tmp_path / torch_name("a_2")).symlink_to(tmp_path / "gone")
    assert ranks(only(discover(tmp_path))) == [0, 1]


def test_pipe_named_like_a_trace_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0_trace.json")
    assert discover(tmp_path) == []


def test_single_file_is_a_run(tmp_path: Path) -> None:
    path = trace(tmp_path / "rank3_trace.json", rank=3, world_size=4)
    run = only(discover(path))
    assert (run.name, ranks(run), run.directory) == ("rank3_trace.json", [3], tmp_path)


# --- What a file tells ----------------------------------------------------------------------------------------------


def test_file_is_described(tmp_path: Path) -> None:
    path = trace(tmp_path / torch_name("gpu-box_426"), rank=1, world_size=4)
    (file,) = only(discover(tmp_path)).files
    assert (file.path, file.worker, file.node, file.span) == (path, "gpu-box_426", "gpu-box", str(NOON_NS))
    assert (file.rank, file.rank_source, file.world_size) == (1, "distributedInfo", 4)
    assert file.size == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("gpu-box_426.pt.trace.json", "gpu-box"),
        ("[gpu-box]-[426]-rank0.pt.trace.json", "gpu-box"),
        ("rank0.pt.trace.json", "from-inside"),
        ("megatron_kineto_0.json", "from-inside"),
    ],
)
def test_node_is_the_host_in_the_name_or_inside_the_file(tmp_path: Path, name: str, node: str) -> None:
    trace(tmp_path / name, rank=0, host_name="from-inside")
    assert only(discover(tmp_path)).files[0].node == node


def test_distributed_info_behind_many_properties_is_found(tmp_path: Path) -> None:
    write(
        tmp_path / torch_name("a_1"),
        b'{"schemaVersion": 1, "padding": "%s", "distributedInfo": {"rank": "5", "world_size": "8"}, "traceEvents": []}'
        % (b"x" * 40_000),
    )
    assert ranks(only(discover(tmp_path))) == [5]


def test_distributed_info_after_the_events_of_a_plain_file_is_found(tmp_path: Path) -> None:
    write(
        tmp_path / "a_1.pt.trace.json",
        b'{"schemaVersion": 1, "traceEvents": [%s], "distributedInfo": {"rank": 5, "world_size": 8}}' % (b" " * 99_999),
    )
    run = only(discover(tmp_path))
    assert (ranks(run), run.files[0].rank_source, run.world_size) == ([5], "distributedInfo", 8)


def test_rank_in_the_arguments_of_an_event_is_not_the_rank_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a_1.pt.trace.json", b'{"schemaVersion": 1, "traceEvents": [{"args": {"rank": 5}}]}')
    assert only(discover(tmp_path)).files[0].rank_source == "order"


# --- Where the rank comes from --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("[host]-[11]-rank3.pt.trace.json", 3),
        ("rank3.5.pt.trace.json", 3),
        ("rank3_trace.json", 3),
        ("rank-3.json", 3),
        ("trace_rank3.json", 3),
        ("megatron_kineto_3.json", 3),
        ("resnet_rank3of8.json", 3),
        ("tp_rank_1_global_rank_3.json", 3),
        ("local_rank1_rank3.pt.trace.json", 3),
    ],
)
def test_rank_from_the_file_name_is_said(tmp_path: Path, name: str, rank: int) -> None:
    trace(tmp_path / name)
    run = only(discover(tmp_path))
    assert [(file.rank, file.rank_source) for file in run.files] == [(rank, "file name")]
    assert messages(run) == NO_RANK.format("1 file", "file name")


def test_rank_within_the_node_is_not_the_rank(tmp_path: Path) -> None:
    trace(tmp_path / "local_rank_3.pt.trace.json")
    assert only(discover(tmp_path)).files[0].rank_source == "order"


def test_rank_from_the_file_name_is_said_once_for_all_files(tmp_path: Path) -> None:
    for rank in range(8):
        trace(tmp_path / f"rank{rank}_trace.json")
    assert messages(only(discover(tmp_path))) == NO_RANK.format("8 files", "file name")


def test_distributed_info_is_believed_before_the_file_name(tmp_path: Path) -> None:
    trace(tmp_path / "rank7.pt.trace.json", rank=1)
    run = only(discover(tmp_path))
    assert (ranks(run), run.files[0].rank_source, run.warnings) == ([1], "distributedInfo", ())


def test_rank_by_order_counts_numbers_in_names_as_numbers(tmp_path: Path) -> None:
    for worker in ("node_10", "node_9", "node_11"):
        trace(tmp_path / torch_name(worker))
    run = only(discover(tmp_path))
    assert [file.worker for file in run.files] == ["node_9", "node_10", "node_11"]
    assert messages(run) == (
        "The rank of 3 files is taken from the order of the file names: neither the trace nor its name tells it."
    )


def test_cut_off_span_takes_the_rank_of_the_same_worker(tmp_path: Path) -> None:
    for seconds in (0, 60):
        for rank in (0, 1):
            trace(tmp_path / torch_name(f"a_{9 - rank}", seconds), rank=rank)
    (tmp_path / torch_name("a_8", 60)).write_bytes(b"")
    runs = discover(tmp_path)
    assert [[file.worker for file in run.files] for run in runs] == [["a_9", "a_8"]] * 2
    assert not runs[1].warnings


# --- Folders and runs -----------------------------------------------------------------------------------------------


def test_run_is_named_by_its_path_below_the_log_directory(tmp_path: Path) -> None:
    trace(tmp_path / "exp" / "lr0.1" / torch_name("a_1"), rank=0, world_size=1)
    trace(tmp_path / "exp" / "lr0.2" / torch_name("a_1"), rank=0, world_size=1)
    assert [run.name for run in discover(tmp_path)] == ["exp/lr0.1", "exp/lr0.2"]


def test_run_in_the_log_directory_itself_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace(tmp_path / "logs" / torch_name("a_1"), rank=0)
    monkeypatch.chdir(tmp_path / "logs")
    assert only(discover(".")).name == "logs"


def test_runs_are_sorted_with_numbers_as_numbers(tmp_path: Path) -> None:
    for iteration in (10, 9, 100):
        trace(tmp_path / f"iteration_{iteration}" / "rank0_trace.json", rank=0, world_size=1)
    assert [run.name for run in discover(tmp_path)] == ["iteration_9", "iteration_10", "iteration_100"]


def test_iterations_of_torchtitan_stay_apart(tmp_path: Path) -> None:
    for iteration in (10, 20):
        for rank in (0, 1):
            trace(tmp_path / f"iteration_{iteration}" / f"rank{rank}_trace.json", rank=rank)
    assert shape(discover(tmp_path)) == {"iteration_10": [0, 1], "iteration_20": [0, 1]}


def test_folders_of_one_rank_each_are_one_run(tmp_path: Path) -> None:
    for rank in range(12):
        trace(tmp_path / "job" / f"rank_{rank}" / torch_name("a_1", seconds=rank), rank=rank, world_size=12)
    run = only(discover(tmp_path))
    assert (run.name, ranks(run), run.directory) == ("job", list(range(12)), tmp_path / "job")
    assert run.warnings == ()


def test_rank_from_the_folder_name_is_said(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path / "job" / f"rank_{rank}" / "trace.pt.trace.json")
    run = only(discover(tmp_path))
    assert [(file.rank, file.rank_source) for file in run.files] == [(0, "folder name"), (1, "folder name")]
    assert messages(run) == NO_RANK.format("2 files", "folder name")


def test_folder_named_rank_8_with_several_workers_is_an_experiment(tmp_path: Path) -> None:
    trace(tmp_path / "rank8" / torch_name("a_1"))
    trace(tmp_path / "rank8" / torch_name("a_2"))
    assert shape(discover(tmp_path)) == {"rank8": [0, 1]}


def test_rank_folder_with_an_unreadable_file_joins_the_others(tmp_path: Path) -> None:
    trace(tmp_path / "rank_0" / torch_name("a_1"), rank=0)
    write(tmp_path / "rank_1" / torch_name("a_2"), b"")
    assert ranks(only(discover(tmp_path))) == [0, 1]


def test_folders_of_nodes_with_different_ranks_of_one_job_are_one_run(tmp_path: Path) -> None:
    for rank in range(4):
        trace(tmp_path / f"gpu-{'ab'[rank // 2]}7" / torch_name(f"w_{rank}", rank / 10), rank=rank, world_size=4)
    run = only(discover(tmp_path))
    assert (run.name, ranks(run), run.world_size) == (tmp_path.name, [0, 1, 2, 3], 4)


def test_folders_of_nodes_join_above_the_folders_of_ranks_and_iterations(tmp_path: Path) -> None:
    for iteration in (10, 20):
        for rank in range(4):
            folder = tmp_path / "job" / f"node{rank // 2}" / f"iteration_{iteration}" / f"rank_{rank}"
            trace(folder / "trace.json", rank=rank, world_size=4)
    assert shape(discover(tmp_path)) == {"job/iteration_10": [0, 1, 2, 3], "job/iteration_20": [0, 1, 2, 3]}


def test_node_of_a_file_without_host_is_its_folder(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path / f"node{rank}" / f"rank{rank}_trace.json", rank=rank)
    assert [file.node for file in only(discover(tmp_path)).files] == ["node0", "node1"]


def test_folders_of_nodes_without_world_size_join_if_their_names_are_alike(tmp_path: Path) -> None:
    trace(tmp_path / "node0" / "rank0_trace.json")
    trace(tmp_path / "node1" / "rank1_trace.json")
    trace(tmp_path / "evaluation" / "rank2_trace.json")
    assert shape(discover(tmp_path)) == {tmp_path.name: [0, 1], "evaluation": [2]}


def test_complete_jobs_in_sibling_folders_stay_apart(tmp_path: Path) -> None:
    for job in ("straggler_cpu", "healthy"):
        for rank in range(4):
            trace(tmp_path / job / torch_name(f"a_{rank}"), rank=rank, world_size=4)
    assert shape(discover(tmp_path)) == {"healthy": [0, 1, 2, 3], "straggler_cpu": [0, 1, 2, 3]}


def test_incomplete_jobs_with_the_same_ranks_stay_apart(tmp_path: Path) -> None:
    for job in ("one", "two"):
        trace(tmp_path / job / torch_name("a_1"), rank=0, world_size=8)
    assert shape(discover(tmp_path)) == {"one": [0], "two": [0]}


def test_folders_of_different_world_size_stay_apart(tmp_path: Path) -> None:
    trace(tmp_path / "one" / torch_name("a_1"), rank=0, world_size=2)
    trace(tmp_path / "two" / torch_name("a_1"), rank=1, world_size=4)
    assert shape(discover(tmp_path)) == {"one": [0], "two": [1]}


def test_folders_of_different_ranks_but_of_another_hour_stay_apart(tmp_path: Path) -> None:
    trace(tmp_path / "one" / torch_name("a_1"), rank=0)
    trace(tmp_path / "two" / torch_name("a_1", seconds=3600), rank=1)
    assert shape(discover(tmp_path)) == {"one": [0], "two": [1]}


def test_two_jobs_by_node_in_one_folder_are_named_for_their_folders(tmp_path: Path) -> None:
    for job, seconds in (("a", 0), ("b", 3600)):
        for rank in (0, 1):
            trace(tmp_path / f"{job}_node{rank}" / torch_name("w_1", seconds), rank=rank)
    assert shape(discover(tmp_path)) == {tmp_path.name: [0, 1], "b_node0..b_node1": [0, 1]}


def test_demo_logs_are_five_runs_of_four_ranks() -> None:
    runs = discover(DEMO_LOGS)
    assert [run.name for run in runs] == ["four_workers", "healthy", "no_overlap", "straggler_cpu", "zero_workers"]
    assert all(ranks(run) == [0, 1, 2, 3] for run in runs)
    assert all(run.warnings == () and run.world_size == 4 for run in runs)


def test_linked_folder_is_followed(tmp_path: Path) -> None:
    trace(tmp_path / "elsewhere" / torch_name("a_1"), rank=0, world_size=1)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job").symlink_to(tmp_path / "elsewhere")
    assert shape(discover(tmp_path / "logs")) == {"job": [0]}


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    trace(tmp_path / "job" / torch_name("a_1"), rank=0, world_size=1)
    (tmp_path / "job" / "up").symlink_to(tmp_path)
    assert shape(discover(tmp_path)) == {"job": [0]}


def test_folder_and_a_link_to_it_are_one_run_by_its_own_name(tmp_path: Path) -> None:
    trace(tmp_path / "job3" / torch_name("a_1"), rank=0, world_size=1)
    (tmp_path / "a_latest").symlink_to(tmp_path / "job3")
    assert shape(discover(tmp_path)) == {"job3": [0]}


# --- Profiler cycles ------------------------------------------------------------------------------------------------


def test_spans_pair_by_time_when_a_rank_lost_one(tmp_path: Path) -> None:
    for rank, cycles in ((0, (0, 60, 120)), (1, (0.4, 120.2))):
        for seconds in cycles:
            trace(tmp_path / "job" / torch_name(f"a_{rank}", seconds), rank=rank)
    runs = discover(tmp_path)
    assert shape(runs) == {"job/span_1": [0, 1], "job/span_2": [0], "job/span_3": [0, 1]}
    assert {run.world_size for run in runs} == {2}


def test_single_span_keeps_the_plain_name(tmp_path: Path) -> None:
    trace(tmp_path / "job" / torch_name("a_0"), rank=0)
    trace(tmp_path / "job" / torch_name("a_1", 5), rank=1)
    assert shape(discover(tmp_path)) == {"job": [0, 1]}


@pytest.mark.parametrize("ns_per_digit", [1, 10**3, 10**6, 10**9])
def test_span_is_a_time_in_any_unit(tmp_path: Path, ns_per_digit: int) -> None:
    for rank in (0, 1):
        for cycle in (0, 60):
            span = (NOON_NS + (cycle + rank) * SECOND_NS) // ns_per_digit
            trace(tmp_path / f"a_{rank}.{span}.pt.trace.json", rank=rank)
    assert [ranks(run) for run in discover(tmp_path)] == [[0, 1], [0, 1]]


def test_more_than_nine_spans_are_in_order(tmp_path: Path) -> None:
    for cycle in range(11):
        trace(tmp_path / "job" / torch_name("a_0", 60 * cycle), rank=0)
    assert [run.name for run in discover(tmp_path)] == [f"job/span_{number}" for number in range(1, 12)]


def test_batches_of_composer_pair_by_number(tmp_path: Path) -> None:
    for rank, batches in ((0, (5, 10)), (1, (10,))):
        for batch in batches:
            trace(tmp_path / "job" / f"rank{rank}.{batch}.pt.trace.json", rank=rank)
    assert shape(discover(tmp_path)) == {"job/span_1": [0], "job/span_2": [0, 1]}


def test_job_that_ran_again_into_the_same_folder_is_a_span_of_its_own(tmp_path: Path) -> None:
    for pid, seconds in ((100, 0), (200, 90)):
        for rank in (0, 1):
            trace(tmp_path / "job" / torch_name(f"a_{pid + rank}", seconds), rank=rank)
    runs = discover(tmp_path)
    assert shape(runs) == {"job/span_1": [0, 1], "job/span_2": [0, 1]}
    assert not any(run.warnings for run in runs)


def test_workers_without_rank_of_different_hours_are_no_ranks_of_one_job(tmp_path: Path) -> None:
    trace(tmp_path / "job" / torch_name("zero_workers"))
    trace(tmp_path / "job" / torch_name("four_workers", 3600))
    assert shape(discover(tmp_path)) == {"job/span_1": [0], "job/span_2": [0]}


def test_files_without_rank_or_time_in_their_names_are_apart_by_when_they_were_recorded(tmp_path: Path) -> None:
    """Traces of single GPUs that somebody collected; those of one job begin at once."""

    def recorded(name: str, seconds: int, base_ns: int = NOON_NS) -> None:
        begin_us = (NOON_NS - base_ns) // 1000 + seconds * 1_000_000
        path = trace(tmp_path / name, **({"baseTimeNanoseconds": base_ns} if base_ns else {}))
        path.write_text(path.read_text().replace('"ts": 1,', f'"ts": {begin_us}.123,'))

    recorded("alone/baseline.json", 1)
    recorded("alone/larger_batch.json", 7200, base_ns=0)
    recorded("together/first.json", 1)
    recorded("together/second.json", 3)
    assert shape(discover(tmp_path)) == {"alone/span_1": [0], "alone/span_2": [0], "together": [0, 1]}
    trace(tmp_path / "alone" / torch_name("a_0"), rank=0, world_size=1)
    found = shape(discover(tmp_path / "alone"))
    assert found == {"alone": [0], "alone/no_rank/span_1": [0], "alone/no_rank/span_2": [0]}


def test_worker_without_rank_is_the_same_rank_in_every_span(tmp_path: Path) -> None:
    for worker, cycles in (("a", (0,)), ("b", (0, 60))):
        for seconds in cycles:
            trace(tmp_path / "job" / torch_name(worker, seconds))
    assert shape(discover(tmp_path)) == {"job/span_1": [0, 1], "job/span_2": [1]}


def test_ranks_written_far_apart_are_said(tmp_path: Path) -> None:
    trace(tmp_path / torch_name("a_0"), rank=0)
    trace(tmp_path / torch_name("a_1", 3600), rank=1)
    assert "up to 60 minutes apart" in messages(only(discover(tmp_path)))


# --- Claims that disagree -------------------------------------------------------------------------------------------


def test_newer_of_two_files_of_one_rank_is_kept_and_the_other_is_named(tmp_path: Path) -> None:
    older = trace(tmp_path / torch_name("a_1"), rank=0)
    newer = trace(tmp_path / torch_name("a_2", 1), rank=0)
    run = only(discover(tmp_path))
    assert [file.path for file in run.files] == [newer]
    (warning,) = run.warnings
    assert warning.file == str(older)
    assert warning.message == f"Left out: rank 0 is also claimed by {newer.name}, which is newer."


def test_file_that_is_named_as_those_of_other_ranks_is_kept_before_a_newer_one(tmp_path: Path) -> None:
    """Somebody put the traces of all ranks one behind the other: the file begins as that of rank 0."""
    for rank in range(3):
        os.utime(trace(tmp_path / f"rank{rank}.json", rank=rank, world_size=3), ns=(NOON_NS, NOON_NS))
    other = trace(tmp_path / "all.json", rank=0, world_size=3)
    run = only(discover(tmp_path))
    assert [file.path.name for file in run.files] == ["rank0.json", "rank1.json", "rank2.json"]
    assert [(warning.file, warning.message) for warning in run.warnings] == [
        (str(other), "Left out: rank 0 is also claimed by rank0.json, which is named as more of the files are.")
    ]


@pytest.mark.parametrize("rank", [None, 0])
def test_profiles_of_sglang_in_one_folder_are_apart_by_the_time_in_their_names(
    tmp_path: Path, rank: int | None
) -> None:
    for seconds in ("1742973425.1234", "1742973461.25"):
        for tp in range(2):
            trace(tmp_path / "sgl" / f"{seconds}-TP-{tp}.trace.json.gz", rank=None if rank is None else tp)
    assert shape(discover(tmp_path)) == {"sgl/span_1": [0, 1], "sgl/span_2": [0, 1]}
    assert [file.worker for file in discover(tmp_path)[1].files] == ["TP-0", "TP-1"]


def test_traces_by_stage_are_runs_of_their_own(tmp_path: Path) -> None:
    for rank in range(2):
        for stage in ("EXTEND", "DECODE"):
            trace(tmp_path / "sgl" / f"1742973425.12-TP-{rank}-{stage}.trace.json.gz", rank=rank)
    assert shape(discover(tmp_path)) == {"sgl/named_DECODE": [0, 1], "sgl/named_EXTEND": [0, 1]}
    assert only_run(str(tmp_path / "sgl" / "named_DECODE")).name == "sgl/named_DECODE"


def test_readable_file_is_kept_before_a_newer_one_that_is_not(tmp_path: Path) -> None:
    whole = trace(tmp_path / "rank0_trace.json")
    broken = write(tmp_path / "trace_rank0.json", b"")
    os.utime(whole, ns=(NOON_NS, NOON_NS))
    os.utime(broken, ns=(NOON_NS + 1, NOON_NS + 1))
    run = only(discover(tmp_path))
    assert [file.path for file in run.files] == [whole]
    assert "which can be read" in messages(run)


def test_plain_file_is_kept_before_its_compressed_copy(tmp_path: Path) -> None:
    packed = trace(tmp_path / torch_name("a_1"), rank=0)
    plain = trace(packed.with_suffix(""), rank=0)
    run = only(discover(tmp_path))
    assert [file.path for file in run.files] == [plain]
    assert str(packed) == run.warnings[0].file


def test_files_of_one_rank_and_different_world_size_are_different_jobs(tmp_path: Path) -> None:
    for world_size in (1, 2, 300):
        trace(tmp_path / "mixed" / f"size_{world_size}.json", rank=0, world_size=world_size)
    trace(tmp_path / "mixed" / "alone.pt.trace.json")
    assert {run.name: run.world_size for run in discover(tmp_path)} == {
        "mixed/no_rank": None,
        "mixed/world_size_1": 1,
        "mixed/world_size_2": 2,
        "mixed/world_size_300": 300,
    }


def test_trace_without_rank_beside_a_job_is_not_one_of_its_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path / "job" / torch_name(f"a_{rank}"), rank=rank)
    trace(tmp_path / "job" / "notebook.json")
    assert shape(discover(tmp_path)) == {"job": [0, 1], "job/no_rank": [0]}


def test_unreadable_file_beside_a_complete_job_is_left_out_and_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path / torch_name(f"a_{rank}"), rank=rank)
    extra = write(tmp_path / torch_name("a_2"), b"")
    run = only(discover(tmp_path))
    assert ranks(run) == [0, 1]
    assert [(warning.file, warning.message) for warning in run.warnings] == [
        (str(extra), "Left out: it names no rank, and all 2 ranks are taken.")
    ]


def test_ranks_that_disagree_about_the_world_size_are_said(tmp_path: Path) -> None:
    trace(tmp_path / torch_name("a_0"), rank=0, world_size=2)
    trace(tmp_path / torch_name("a_1"), rank=1, world_size=4)
    run = only(discover(tmp_path))
    assert (ranks(run), run.world_size) == ([0, 1], 4)
    assert messages(run) == "The files disagree about the world size: 2 in 1 file, 4 in 1 file. It is taken as 4."


def test_world_size_is_the_most_common_claim(tmp_path: Path) -> None:
    for rank, world_size in enumerate((4, 4, 8)):
        trace(tmp_path / torch_name(f"a_{rank}"), rank=rank, world_size=world_size)
    assert only(discover(tmp_path)).world_size == 4


# --- Directories ----------------------------------------------------------------------------------------------------


def test_directory_that_does_not_exist_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DiscoverError, match="does not exist"):
        discover(tmp_path / "absent")


def test_remote_directory_that_cannot_be_reached_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(DiscoverError, match="copy the traces to a local folder"):
        discover("s3://bucket/logs")


def test_file_that_is_no_trace_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DiscoverError, match="not a trace"):
        discover(write(tmp_path / "notes.txt", b"hello"))


def test_empty_directory_has_no_runs(tmp_path: Path) -> None:
    assert discover(tmp_path) == []


@pytest.fixture
def locked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that cannot be listed, also by the superuser that runs the tests in a container."""
    folder = tmp_path / "locked"
    folder.mkdir()
    scandir = os.scandir

    def scandir_of_others(path: Path) -> object:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scandir_of_others)
    return folder


def test_folder_that_cannot_be_read_is_said_with_the_runs_beside_it(tmp_path: Path, locked_folder: Path) -> None:
    trace(tmp_path / "job" / torch_name("a_1"), rank=0)
    (warning,) = only(discover(tmp_path)).warnings
    assert warning.file == str(locked_folder)
    assert warning.message == "This folder cannot be read (Permission denied)."


@pytest.mark.parametrize(
    "name", ["a_1.pt.trace.json.zst", "rank3.json.xz", "node1.tar", "logs.tar.gz", "all.tgz", "b.zip"]
)
def test_what_is_packed_beside_the_traces_is_said(tmp_path: Path, name: str) -> None:
    trace(tmp_path / "job" / torch_name("a_1"), rank=0)
    packed = write(tmp_path / "job" / name.replace(".gz", ""), b"").rename(tmp_path / "job" / name)
    trace(tmp_path / "other" / torch_name("a_1"), rank=0)
    job, other = discover(tmp_path)
    assert [(warning.file, "unpack it" in warning.message) for warning in job.warnings] == [(str(packed), True)]
    assert not other.warnings


def test_nothing_but_what_is_packed_is_said_in_a_sentence(tmp_path: Path) -> None:
    write(tmp_path / "a_1.pt.trace.json.zst", b"")
    with pytest.raises(DiscoverError, match=r"json\.zst: This format is not supported"):
        discover(tmp_path)


def test_nothing_but_a_folder_that_cannot_be_read_is_said_in_a_sentence(tmp_path: Path, locked_folder: Path) -> None:
    with pytest.raises(DiscoverError, match="Permission denied"):
        discover(tmp_path)


# --- --logdir_spec --------------------------------------------------------------------------------------------------


def test_logdir_spec_is_parsed_as_tensorboard_does() -> None:
    assert parse_logdir_spec("base:/logs/a,new:/logs/b:c,/logs/d:e,relative,") == {
        "base": "/logs/a",
        "new": "/logs/b:c",
        "/logs/d:e": "/logs/d:e",
        "relative": "relative",
    }


def test_logdir_spec_keeps_both_of_two_equal_names() -> None:
    assert list(parse_logdir_spec("job:/a,job:/b").values()) == ["/a", "/b"]


def test_runs_of_a_logdir_spec_begin_with_its_names(tmp_path: Path) -> None:
    trace(tmp_path / "a" / torch_name("w_1"), rank=0, world_size=1)
    trace(tmp_path / "b" / "deep" / torch_name("w_1"), rank=0, world_size=1)
    runs = discover({"base": str(tmp_path / "a"), "new": str(tmp_path / "b")})
    assert [run.name for run in runs] == ["base", "new/deep"]


def test_absent_directory_of_a_logdir_spec_does_not_hide_the_others(tmp_path: Path) -> None:
    trace(tmp_path / "a" / torch_name("w_1"), rank=0, world_size=1)
    run = only(discover({"base": str(tmp_path / "a"), "new": str(tmp_path / "absent")}))
    assert (run.name, messages(run)) == ("base", f"{tmp_path / 'absent'} does not exist.")


def test_logdir_spec_of_absent_directories_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DiscoverError, match="does not exist"):
        discover({"base": str(tmp_path / "absent")})


# --- Any tree -------------------------------------------------------------------------------------------------------

FOLDERS = st.sampled_from(["", "job", "node0", "node1", "rank_0", "rank_1", "node0/tb", "node1/tb", "job/rank_2"])
NAMES = st.sampled_from([
    torch_name("a_1"), torch_name("a_1", 60), torch_name("a_2", 0.5), torch_name("b_1", 3600), "rank0.1.pt.trace.json",
    "rank0.2.pt.trace.json", "rank0_trace.json", "rank-1.json.gz", "megatron_kineto_2.json.gz", "trace.json",
])  # fmt: skip
CLAIMS = st.one_of(st.none(), st.tuples(st.integers(0, 4), st.sampled_from([2, 4])))


@given(st.dictionaries(st.tuples(FOLDERS, NAMES), st.tuples(CLAIMS, st.booleans()), min_size=1, max_size=12))
def test_every_file_of_any_tree_is_in_one_run_or_named(tree: dict[tuple[str, str], Any]) -> None:
    with TemporaryDirectory() as folder:
        paths = set()
        for (parent, name), (claim, is_cut_off) in tree.items():
            path = trace(Path(folder, parent, name), *(claim or ()))
            if is_cut_off:
                path.write_bytes(path.read_bytes()[:20])
            if not is_cut_off or name != "trace.json":
                paths.add(path)
        runs = discover(folder)
    placed = [file.path for run in runs for file in run.files]
    left_out = [Path(warning.file) for run in runs for warning in run.warnings if "Left out" in warning.message]
    assert sorted(placed + left_out) == sorted(paths)
    assert all(run.files and ranks(run) == sorted(set(ranks(run))) for run in runs)
    assert len({run.name for run in runs}) == len(runs)


@pytest.mark.parametrize("name", ["profile.json", "profile.json.gz"])
def test_a_trace_whose_keys_follow_its_events_is_found(tmp_path: Path, name: str) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1}]
    text = json.dumps({"metadata": {"errors": 0}, "traceEvents": events, "schemaVersion": 1})
    write(tmp_path / name, text.encode())
    assert ranks(only(discover(tmp_path))) == [0]


def test_another_tools_trace_is_not_found(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "renderer", "name": "paint", "ts": 1, "dur": 1}]
    write(tmp_path / "profile.json", json.dumps({"metadata": {}, "traceEvents": events}).encode())
    assert discover(tmp_path) == []


def test_a_file_that_never_answers_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a link to /proc/kmsg or into a dead mount does."""
    monkeypatch.setattr(time_limit, "PATIENCE_S", 2.0)
    for rank in range(3):
        trace(tmp_path / f"rank{rank}.pt.trace.json", rank=rank, world_size=3)

    def asked(path: FilePath) -> Head:
        if path.name.startswith("rank1"):
            threading.Event().wait(60)
        return peek(path)

    run = only(discover(tmp_path, peek=asked))
    assert ranks(run) == [0, 2]
    (warning,) = run.warnings
    assert (Path(warning.file).name, warning.message) == (
        "rank1.pt.trace.json",
        "Left out: It did not answer within 2 s.",
    )


def test_a_file_that_never_answers_is_told_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "PATIENCE_S", 2.0)
    path = trace(tmp_path / "rank0.pt.trace.json", rank=0)
    with pytest.raises(DiscoverError, match=r"It did not answer within 2 s\.$"):
        discover(path, peek=lambda _: threading.Event().wait(60) and Head())  # type: ignore[arg-type,return-value]


def test_a_pipe_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DiscoverError, match=r"neither a folder nor a file, but a device or a pipe\.$"):
        discover(tmp_path / "pipe")


def test_captures_of_different_ranks_are_not_one_run(tmp_path: Path) -> None:
    """`ddp-doctor capture --ranks 0`, and later `--ranks 1`."""
    trace(tmp_path / "step_100" / "rank0.pt.trace.json", rank=0, world_size=2)
    trace(tmp_path / "step_200" / "rank1.pt.trace.json", rank=1, world_size=2)
    assert shape(discover(tmp_path)) == {"step_100": [0], "step_200": [1]}


def test_a_link_to_the_kernels_folders_is_left_out(tmp_path: Path) -> None:
    """/proc has thousands of folders of processes and threads: it was walked for minutes."""
    trace(tmp_path / "job" / "rank0.pt.trace.json", rank=0)
    (tmp_path / "job" / "link").symlink_to("/proc")
    run = only(discover(tmp_path))
    assert ranks(run) == [0]
    assert any("/link): name one" in warning.message for warning in run.warnings)
    assert find(tmp_path) == []
