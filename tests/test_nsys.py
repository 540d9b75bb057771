"""Exports of Nsight Systems: read to the same columns as Kineto's traces, and nothing else read of them."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from msgspec.structs import replace
from nsys_files import SECRET, Export, calling, computed, cut_off, endless, payload, process_number, write
from traces import ranks
from traces import read as drawn
from traces import write as write_traces

import tb_ddp_doctor
from tb_ddp_doctor import cli
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.discover.runs import DiscoverError, discover
from tb_ddp_doctor.nsys import database
from tb_ddp_doctor.nsys.database import DamagedError, NsysError, opened
from tb_ddp_doctor.nsys.processes import start_ns
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, RankTrace
from tb_ddp_doctor.trace.names import Phase
from tb_ddp_doctor.trace.nsys import read as nsys
from tb_ddp_doctor.trace.reader import read

JOB = """
    rank# step  |1                                |2
          host  [load][fwd...][bwd......][sync]   [load][fwd...][bwd......][sync]
          gpu          [fwd....][pinned][bwd......]      [fwd....][pinned][bwd......]
          nccl                      [ar]                           [ar]
"""
REAL = Path(__file__).parent / "nsight_systems" / "mfu_2gpu_before.sqlite.xz"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nsys") / "mfu_2gpu_before.sqlite"
    path.write_bytes(lzma.decompress(REAL.read_bytes()))
    return path


def _traces(path: Path) -> dict[int, RankTrace]:
    (run,) = discover(path)
    return {file.rank: read(file.path) for file in run.files}


def _events(trace: RankTrace) -> list[tuple[Any, ...]]:
    """All that is known of each event, as text and numbers, in one order."""
    events, words = trace.events, [*trace.strings, ""]
    return sorted(
        (
            int(events.start_ns[i]),
            int(events.category[i]),
            words[events.name[i]],
            int(events.duration_ns[i]),
            trace.threads[events.thread[i]],
            *(int(getattr(events, column)[i]) for column in ("device", "stream", "correlation", "bytes", "occupancy")),
            words[events.shape[i]].replace(" ", ""),
        )
        for i in range(len(events))
    )


def _of_devices(trace: RankTrace, rank: int) -> RankTrace:
    """A drawn trace, all of which run on device 0, as of a rank with a device of its own."""
    events = trace.events
    threads = tuple((str(rank), tid) if pid == "0" else (pid, tid) for pid, tid in trace.threads)
    return replace(
        trace, threads=threads, events=replace(events, device=np.where(events.device < 0, -1, rank).astype(np.int32))
    )


def _columns(table: Any) -> Iterator[np.ndarray]:
    """Those of the tables in it too."""
    for name in type(table).__struct_fields__:
        column = getattr(table, name)
        yield from [column] if isinstance(column, np.ndarray) else _columns(column)


def test_a_drawn_job_gives_the_digests_that_its_kineto_traces_give(tmp_path: Path) -> None:
    expected = {rank: _of_devices(trace, rank) for rank, trace in drawn(ranks(JOB, JOB), metadata="nowhere").items()}
    found = _traces(write(tmp_path / "job.sqlite", expected))
    for rank, trace in found.items():
        assert _events(trace) == _events(expected[rank])
        one, other = digest(trace), digest(replace(expected[rank], header=trace.header))
        assert np.array_equal(one.work.owner_ns, other.work.owner_ns)
        assert np.array_equal(one.steps.end_ns, other.steps.end_ns)
        assert np.array_equal(one.collectives.arrival_ns, other.collectives.arrival_ns)
        assert (one.pid, one.loader, one.contents) == (other.pid, other.loader, other.contents)
        for table in ("steps", "lost_kernels", "track"):
            for mine, theirs in zip(_columns(getattr(one, table)), _columns(getattr(other, table)), strict=True):
                assert np.array_equal(mine, theirs)


def test_a_real_file_holds_what_sql_says(real: Path) -> None:
    traces = _traces(real)
    file = sqlite3.connect(f"file:{real}?mode=ro", uri=True)
    processes = [number for (number,) in file.execute("SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL")]
    assert [trace.threads and {pid for pid, tid in trace.threads} & {"144", "145"} for trace in traces.values()] == [
        {"144"},
        {"145"},
    ]

    def asked(query: str, number: int) -> tuple[int, ...]:
        return tuple(value or 0 for value in file.execute(query, {"number": number}).fetchone())

    for trace, number in zip(traces.values(), sorted(processes), strict=True):
        events = trace.events

        def summed(chosen: Any, events: Any = events) -> tuple[int, int]:
            return int(chosen.sum()), int(events.duration_ns[chosen].sum())

        named = np.array(trace.strings)[events.name]
        kernel = events.category == Category.KERNEL
        total = "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_"
        assert summed(kernel) == asked(f"{total}KERNEL WHERE globalPid = :number", number)
        assert summed(kernel & np.char.startswith(named, "nccl")) == asked(
            f"{total}KERNEL k JOIN StringIds s ON s.id = k.shortName WHERE globalPid = :number AND value LIKE 'nccl%'",
            number,
        )
        for kinds, name in (((0, 2), "Pageable -> Device"), ((2, 2), "Device -> Device")):
            of_kind = f"globalPid = :number AND srcKind = {kinds[0]} AND dstKind = {kinds[1]}"
            chosen = (events.category == Category.MEMCPY) & (np.char.find(named, name) >= 0)
            assert summed(chosen) == asked(f"{total}MEMCPY WHERE {of_kind}", number)
            moved = asked(f"SELECT sum(bytes), 0 FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE {of_kind}", number)
            assert int(events.bytes[chosen].sum()) == moved[0]
        launches = (events.category == Category.RUNTIME) & (named == "cudaLaunchKernel")
        assert summed(launches) == asked(
            f"{total}RUNTIME r JOIN StringIds s ON s.id = r.nameId WHERE globalTid & ~0xFFFFFF = :number "
            "AND value = 'cudaLaunchKernel_v7000'",
            number,
        )
        epoch = file.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
        on_device = np.isin(events.category, (Category.KERNEL, Category.MEMCPY, Category.MEMSET))
        idle = asked(_IDLE, number)[0]
        assert _idle(events.start_ns[on_device] - epoch, events.duration_ns[on_device]) == idle


#: What no event of a device covers between its first start and last end.
_IDLE = """
    WITH work AS (
        SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = :number
        UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE globalPid = :number
        UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMSET WHERE globalPid = :number
    ), ahead AS (
        SELECT start, max(end) OVER (ORDER BY start, end ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until
        FROM work
    ) SELECT sum(start - until) FROM ahead WHERE start > until
"""


def _idle(start: Any, length: Any) -> int:
    order = np.lexsort((start + length, start))
    start, until = start[order], np.maximum.accumulate((start + length)[order])
    gaps = start[1:] - until[:-1]
    return int(gaps[gaps > 0].sum())


def test_a_real_file_is_diagnosed_and_its_account_sums(real: Path) -> None:
    (found,) = tb_ddp_doctor.diagnose(real, cache=False)
    assert found.ranks == (0, 1)
    assert sum(line.total_ns for line in found.account.lines) == found.account.total_ns
    said = " ".join(warning.message for warning in found.warnings)
    assert "The rank of 2 processes is assumed from the order of GPUs" in said
    assert "which comes 17 times; --step-range NAME chooses another." in said


def test_the_environment_is_never_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "logs" / "job.sqlite", drawn(ranks(JOB, JOB), metadata="nowhere"))
    with opened(path) as database:
        for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "ProcessStreams"):
            with pytest.raises(NsysError, match="prohibited"):
                list(database.rows(f"SELECT * FROM {table}"))
        with pytest.raises(NsysError, match="not authorized"):
            list(database.rows("CREATE INDEX quick ON NVTX_EVENTS(start)"))
    before = path.read_bytes()
    kept, report = tmp_path / "cache", tmp_path / "report.html"
    options = ["--cache", str(kept), "--html", str(report)]
    assert cli.main(["diagnose", str(path.parent), "-v", *options]) == 0
    assert cli.main(["diagnose", str(path.parent), "--json", *options]) == 0
    shown = "".join(capfd.readouterr())
    assert "straggler" in shown and SECRET not in shown and SECRET not in report.read_text()
    entries = [entry for entry in kept.rglob("*") if entry.is_file()]
    assert entries and not any(SECRET.encode() in entry.read_bytes() for entry in entries)
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == ["job.sqlite"]


def test_a_range_that_repeats_is_a_step(tmp_path: Path) -> None:
    traces = drawn(ranks(JOB, JOB), metadata="nowhere")
    for trace in _traces(write(tmp_path / "job.sqlite", traces, steps="train_step {}")).values():
        assert digest(trace).steps.number.tolist() == [1, 2, 3, 4, 5, 6]
        (said,) = trace.warnings
        assert said.message.startswith("Steps are the NVTX range 'train_step #', which comes 6 times")


def test_a_range_that_is_named_is_a_step(tmp_path: Path) -> None:
    (run,) = discover(write(tmp_path / "job.sqlite", drawn(ranks(JOB, JOB), metadata="nowhere")))
    path = run.files[0].path
    named = read(replace(path, asked="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"))
    # The last one launches nothing: what comes after its range is of no step.
    assert digest(named).steps.number.tolist() == [0, 1, 2, 3, 4]
    without = read(replace(path, asked="nowhere"))
    assert "No NVTX range is called 'nowhere'" in without.warnings[0].message


def test_larger_ranks_are_read_for_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "job.sqlite", drawn(ranks(JOB, JOB, steps=40), metadata="nowhere"))
    whole = _traces(path)[0]
    monkeypatch.setattr(nsys, "MOST_ROWS", len(whole.events) // 4)
    part = _traces(path)[0]
    assert 0.15 < len(part.events) / len(whole.events) < 0.35
    assert set(_events(part)) <= set(_events(whole))
    assert len(digest(part).steps) >= 15
    assert any("of this process's rows: more than" in warning.message for warning in part.warnings)


def test_a_thread_that_launches_trains_where_no_operator_says_so(tmp_path: Path) -> None:
    bare = JOB.replace("[load]", "      ")
    job = drawn(ranks(bare, bare), metadata="nowhere")
    named = {rank: replace(trace, strings=_without_steps(trace)) for rank, trace in job.items()}
    trace = _traces(write(tmp_path / "job.sqlite", named, operators=False))[0]
    assert len(digest(trace).steps) == 1
    host = HostCalls.of(trace)
    assert host.trains[host.named(names.launches_work)].all() and host.trains.any()


MARKED = """
    rank# step   |1                                     |2
          host   [own_forward..][own_backward..][update] [own_forward..][own_backward..][update]
          within  [own_layer..]  [bwd]           [optim]  [own_layer..]  [bwd]           [optim]
          gpu      [fwd.......]  [bwd.........]  [optim]    [fwd.......]  [bwd.........]  [optim]
"""


@pytest.mark.parametrize("operators", [True, False])
def test_ranges_name_steps_phases_and_modules_as_record_function_does(tmp_path: Path, operators: bool) -> None:
    """As the capture helper writes them, with and without emit_nvtx."""
    named = {"## forward ##": "forward", "## backward ##": "backward", "## layer ##": "nn.Module: layer"}
    job = drawn(ranks(MARKED, MARKED), metadata="nowhere")
    job = {
        rank: replace(one, strings=tuple(named.get(text, text) for text in one.strings)) for rank, one in job.items()
    }
    expected = {rank: digest(_of_devices(trace, rank)) for rank, trace in job.items()}
    traces = _traces(write(tmp_path / "job.sqlite", job, steps="step {}", operators=operators))
    for rank, trace in traces.items():
        found, other = digest(trace), expected[rank]
        assert np.array_equal(found.work.phases.device_ns, other.work.phases.device_ns)
        assert (found.work.phases.device_ns[:, [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]] > 0).all()
        assert _modules(found) == _modules(other) != set()


def _modules(found: RankDigest) -> set[str]:
    return {text for text in found.strings if names.is_module(text)}


def test_autograds_thread_trains_without_operators(tmp_path: Path) -> None:
    """Steps are ranges of the main thread, and backward launches from one of its own."""
    on_its_own = """
    rank# step     |1                              |2
          host     [fwd...]        [sync..........][fwd...]        [sync..........]
          autograd          [bwd..]                         [bwd..]
          gpu       [fwd....]      [bwd......]      [fwd....]      [bwd......]
    """
    trace = _traces(write(tmp_path / "job.sqlite", drawn(ranks(on_its_own, on_its_own)), operators=False))[0]
    host = HostCalls.of(trace)
    launches = host.named(names.launches_work)
    assert len(np.unique(host.thread[launches])) == 2
    assert host.trains[launches].all() and len(digest(trace).steps) == 6


@pytest.mark.parametrize("lost", ["", "NVTX_EVENTS"])
@pytest.mark.parametrize("count", [1, 2])
def test_without_operators_the_replay_gives_what_it_gives_with_them(tmp_path: Path, lost: str, count: int) -> None:
    job = drawn(ranks(*[JOB] * count))
    plain = write(tmp_path / "plain/job.sqlite", job, operators=False)
    _drop(plain, lost)
    (found,) = tb_ddp_doctor.diagnose(plain, cache=False)
    assert found.account.method == "replay"
    if not lost:
        (whole,) = tb_ddp_doctor.diagnose(write(tmp_path / "whole/job.sqlite", job), cache=False)
        assert found.verdict == whole.verdict == "dataloader-stall"
        assert found.findings[0].cost_ms == pytest.approx(whole.findings[0].cost_ms, rel=0.01)


def test_runs_whose_steps_are_other_ranges_are_said_to_be_hard_to_compare(tmp_path: Path) -> None:
    job = drawn(ranks(JOB, JOB))
    one, other = (write(tmp_path / name / f"{name}.sqlite", job, steps=f"{name} {{}}") for name in ("phase", "block"))
    found = tb_ddp_doctor.compare(one, other)
    assert any("Steps are the NVTX range 'block #' after, 'phase #' before" in said for said in found.unlike)
    assert not any("NVTX" in said for said in tb_ddp_doctor.compare(one, one).unlike)


def test_without_calls_of_the_api_the_recording_is_one_step(tmp_path: Path) -> None:
    path = write(tmp_path / "job.sqlite", drawn(ranks(JOB, JOB)), operators=False)
    _drop(path, "CUPTI_ACTIVITY_KIND_RUNTIME")
    (found,) = tb_ddp_doctor.diagnose(path, cache=False)
    assert len(found.steps) == 1 and found.account.method == "busy_time"
    assert any("It holds no CUDA API calls" in warning.message for warning in found.warnings)


def _drop(path: Path, table: str) -> None:
    """Take a table out of an export, if one is named."""
    with closing(sqlite3.connect(path)) as file:
        if table:
            file.execute(f"DROP TABLE {table}")
            file.commit()


def _without_steps(trace: RankTrace) -> tuple[str, ...]:
    """Names of a trace whose steps are ranges that never come twice."""
    kinds = iter(("warmup", "evaluation", "checkpoint", "export", "report", "rest"))
    return tuple(next(kinds) if text.startswith("ProfilerStep") else text for text in trace.strings)


_SCHEMAS = [
    (1, 7, 0, 18, "NCCL communicator ID", None),
    (1, 7, 1, 22, "Message size [bytes]", 8),
    (1, 8, 0, 18, "NCCL communicator ID", None),
    (1, 8, 1, 18, "No. of ranks", 8),
    (1, 8, 2, 18, "Rank", 16),
]


def _with_payloads(path: Path, as_json: bool) -> Path:
    """Ranks 1 and 0 of two, on devices 0 and 1, which gather 64 bytes each, and reduce two messages in a group."""
    export = Export(path)
    export.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", _SCHEMAS)
    for device, rank in ((0, 1), (1, 0)):
        process = process_number(100 + device)

        def told(start: int, end: int, name: str, schema: int, *values: int, process: int = process) -> tuple[Any, ...]:
            labels = [label for _, number, _, _, label, _ in _SCHEMAS if number == schema]
            text = str(dict(zip(labels, values, strict=False))).replace("'", '"') if values and as_json else None
            binary = payload(schema, *values) if values and not as_json else None
            return (start, end, 59, None, process | 1, export.text(name), 1, text, binary)

        export.add(
            "NVTX_EVENTS",
            [
                told(0, 10, "ncclCommInitRank", 8, 77, 2, rank),
                told(100, 200, "ncclAllGather", 7, 77, 64),
                told(300, 310, "ncclGroupStart", 0),
                told(310, 320, "ncclAllReduce", 7, 77, 1000),
                told(320, 330, "ncclAllReduce", 7, 77, 24),
                told(330, 400, "ncclGroupEnd", 0),
            ],
        )
        launch, kernels = export.text("cuLaunchKernelEx"), ("AllGather_RING_LL", "AllReduce_Sum_f32")
        for number, (kernel, instant) in enumerate(zip(kernels, (150, 350), strict=True), 1):
            name = export.text(f"ncclDevKernel_{kernel}(ncclDevComm*)")
            export.add("CUPTI_ACTIVITY_KIND_RUNTIME", [(instant, instant + 5, process | 1, number, launch)])
            row = (instant + 20, instant + 60, device, 9, number, process, name, name, 4, 1, 1)
            export.add("CUPTI_ACTIVITY_KIND_KERNEL", [row])
    export.close()
    return path


@pytest.mark.parametrize("as_json", [False, True])
def test_payloads_of_nccl_tell_rank_group_and_size(tmp_path: Path, as_json: bool) -> None:
    (run,) = discover(_with_payloads(tmp_path / "job.sqlite", as_json))
    assert [(file.rank, file.rank_source, file.world_size) for file in run.files] == [
        (0, "distributedInfo", 2),
        (1, "distributedInfo", 2),
    ]
    assert not run.warnings
    trace = read(run.files[0].path)
    assert (trace.header.rank, trace.header.world_size) == (0, 2)
    found = digest(trace).collectives
    words = digest(trace).strings
    assert [words[kind] for kind in found.kind] == ["all_gather", "all_reduce"]
    assert found.bytes.tolist() == [128, 1024]
    assert found.group_size.tolist() == [2, 2]
    assert {words[group] for group in found.group} == {"0x4d"}


def test_payloads_of_nccl_tell_who_sends_to_whom(tmp_path: Path) -> None:
    """Peers are ranks in the communicator: in one of ranks 1 and 2, and in one that nobody initialised, unknown."""
    export = Export(tmp_path / "job.sqlite")
    for rank in range(3):
        process = process_number(100 + rank)
        name, launch = export.text("ncclDevKernel_SendRecv(ncclDevComm*)"), export.text("cuLaunchKernelEx")
        made = [(77, 3, rank)] + [(88, 2, rank - 1)] * (rank > 0)
        initialised = [{"NCCL communicator ID": one, "No. of ranks": size, "Rank": own} for one, size, own in made]
        sent = [{"NCCL communicator ID": one, "Message size [bytes]": 8, "Peer": 1} for one in (77, 88, 99)]
        for number, (call, told) in enumerate(
            [*(("ncclCommInitRank", one) for one in initialised), *(("ncclSend", one) for one in sent)]
        ):
            start = 100 * number
            row = (start, start + 50, 59, call, process | 1, None, 1, json.dumps(told), None)
            export.add("NVTX_EVENTS", [row])
        export.add("CUPTI_ACTIVITY_KIND_RUNTIME", [(510, 520, process | 1, 1, launch)])
        export.add("CUPTI_ACTIVITY_KIND_KERNEL", [(530, 590, rank, 9, 1, process, name, name, 4, 1, 1)])
    export.close()
    traces = _traces(tmp_path / "job.sqlite")
    # Rank 0 has no part in communicator 88, but the file says who has.
    assert [digest(trace).messages.peer.tolist() for trace in traces.values()] == [[-1, 1, 2]] * 3


def test_several_files_are_one_run_on_one_clock(tmp_path: Path) -> None:
    traces = drawn(ranks(JOB, JOB, JOB, JOB), metadata="nowhere")
    for node in (0, 1):
        write(tmp_path / f"node{node}.sqlite", {rank: traces[2 * node + rank] for rank in (0, 1)})
    (run,) = discover(tmp_path)
    assert [(file.rank, file.node) for file in run.files] == [(0, "node0"), (1, "node0"), (2, "node1"), (3, "node1")]


def test_sessions_that_lie_apart_are_several_runs(tmp_path: Path) -> None:
    for name, epoch in (("before", 10**18), ("after", 10**18 + 3600 * 10**9)):
        export = Export(tmp_path / f"{name}.sqlite", epoch)
        row = (0, 9, 0, 7, 1, process_number(5), export.text("kernel"), export.text("kernel"), 1, 1, 1)
        export.add("CUPTI_ACTIVITY_KIND_KERNEL", [row])
        export.close()
    assert len(discover(tmp_path)) == 2


@pytest.mark.parametrize(("began_s", "runs"), [((0, 2), 1), ((0, 60), 2), ((0, 2, 60, 61), 2)])
def test_recordings_that_overlap_are_one_run(tmp_path: Path, began_s: tuple[int, ...], runs: int) -> None:
    """Recordings of 10 s each: those of one job overlap, those of two jobs do not, minutes apart as they may be."""
    for number, began in enumerate(began_s):
        export = Export(tmp_path / f"node{number}.sqlite", 10**18 + began * 10**9)
        name = export.text("kernel")
        export.add("CUPTI_ACTIVITY_KIND_KERNEL", [(0, 10 * 10**9, 0, 7, 1, process_number(5), name, name, 1, 1, 1)])
        export.close()
    found = discover(tmp_path)
    assert len(found) == runs
    assert sum(len(run.files) for run in found) == len(began_s)


def test_digests_of_its_ranks_are_diagnosed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "logs" / "job.sqlite", drawn(ranks(JOB, JOB), metadata="nowhere"))
    assert cli.main(["digest", str(path.parent), "--no-cache", "-o", str(tmp_path / "digests")]) == 0
    (one,) = tb_ddp_doctor.diagnose(path, cache=False)
    (other,) = tb_ddp_doctor.diagnose(tmp_path / "digests", cache=False)
    assert (one.step_ms, one.verdict, one.ranks) == (other.step_ms, other.verdict, other.ranks)


def _foreign() -> Iterator[tuple[str, bytes, str]]:
    yield "report.nsys-rep", b"", "nsys export --type sqlite --include-json true report.nsys-rep"
    yield "report.json", b'{"Type":48,"NvtxEvent":{"GlobalTid":"3"}}', "JSON export of Nsight Systems"
    yield "host.xplane.pb", b"", "xprof"
    jax = b'{"traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:TPU:0"}}]}'
    yield "vm.trace.json.gz", gzip.compress(jax, mtime=0), "JAX, TensorFlow or PyTorch/XLA"
    yield "trace.pftrace", b"\x1f\x8b", "without events of torch.profiler"
    yield "1_results.json", b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "JSON of rocprof"
    yield "7_kernel_trace.csv", b'"Kind","Agent_Id"', "of rocprof"
    yield "7_results.otf2", b"", "of rocprof"
    yield "perfetto-trace-0.proto", b"\n", "Omnitrace"
    yield "trace.rpd", b"SQLite format 3\0" + b"CREATE TABLE rocpd_op", "rpd2tracing.py trace.rpd"
    yield "CUPTI_ACTIVITY_KIND_KERNEL.parquet", b"PAR1", "nsys export --type sqlite"
    yield "report.jsonl", b'{"Type":79,"CudaEvent":{}}', "JSON export of Nsight Systems"
    yield "report.h5", b"\x89HDF\r\n\x1a\n" + b"\0CUPTI_ACTIVITY_KIND_KERNEL\0", "to HDF5: export the report again"
    yield "proton.hatchet", b"[]", "proton-viewer -m time/ms proton.hatchet"
    yield "onetrace.0.json", b"[]", "unitrace or onetrace"
    of_intel = b'{"traceEvents":[{"ph":"X","name":"zeInit","cat":"cpu_op"},{"ph":"X","name":"gemm","cat":"gpu_op"}]}'
    yield "python.123.json", of_intel, "ProfilerActivity.XPU"
    yield "r000hs.vtune", b"<?xml", "VTune"
    yield "profile.hltv", b"PK", "Intel Gaudi"
    yield "trace.0.et", b"\x08\1", "Chakra"
    observed = b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"name": "[pytorch|profiler|execution_trace|process]"}]}'
    yield "et.json", observed, "ExecutionTraceObserver"
    yield "result.json", b'{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f"}]}', "VizTracer"
    timeline = b'{"traceEvents": [{"ph": "M", "args": {"name": "/job:localhost/replica:0/task:0/device:GPU:0"}}]}'
    yield "timeline.json", timeline, "TensorFlow"
    yield "results.db", b"SQLite format 3\0" + b"CREATE TABLE rocpd_kernel", "rocpd convert -i results.db"
    yield "trace_view.json", b'[{"ph": "X", "name": "aten::empty", "pid": 1, "cat": "cpu_op"}]', "Ascend NPUs"
    yield (
        "msprof_2.json.gz",
        gzip.compress(b'[{"args": {"name": "CANN"}}]', mtime=0),
        "Ascend NPUs",
    )
    yield "ascend_pytorch_profiler_0.db", b"SQLite format 3\0", "Ascend NPUs"
    yield "mlflow.db", b"SQLite format 3\0", "no export of Nsight Systems"


@pytest.mark.parametrize(("name", "content", "said"), list(_foreign()))
def test_other_recorders_are_answered(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DiscoverError) as error:
        discover(tmp_path)
    assert said in str(error.value)
    write(tmp_path / "job.sqlite", drawn(JOB.replace("#", "0"), metadata="nowhere"))
    (run,) = discover(tmp_path)
    assert not any(name in warning.file for warning in run.warnings)


def test_other_recorders_are_answered_in_remote_directories(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    for name, content, said in _foreign():
        folder = f"/{tmp_path.name}/{name}"
        files.pipe(f"{folder}/{name}", content)
        with pytest.raises(DiscoverError, match=re.escape("copy it" if name == "mlflow.db" else said)):
            discover(f"memory:/{folder}")


def test_damage_raises_nothing_but_a_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "job.sqlite", drawn(JOB.replace("#", "0"), metadata="nowhere"))
    data, chance = path.read_bytes(), np.random.default_rng(24)
    for _ in range(60):
        damaged = bytearray(data)
        for at in chance.integers(0, len(data), 40):
            damaged[at] = chance.integers(0, 256)
        path.write_bytes(damaged[: chance.integers(1, len(damaged))])
        cli.main(["diagnose", str(path), "--no-cache", "--json"])


def test_values_of_the_wrong_type_are_missing(tmp_path: Path) -> None:
    export = Export(tmp_path / "job.sqlite")
    process = process_number(5)
    odd = [(0, 9, 0, 7, "x", process, b"\xff", None, "a", 1, None), ("a", "b", None, 7, 1, process, 1, 1, 1, 1, 1)]
    fine = (0, 9, 0, 7, 1, process, export.text("kernel"), 1, 1, 1, 1)
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", [fine, *odd])
    export.add(
        "NVTX_EVENTS", [(0, 2**62, 59, b"\xff", process, "x", None, 3, "y"), (5, None, 59, None, process, *[None] * 4)]
    )
    export.close()
    with opened(tmp_path / "job.sqlite") as database:
        assert start_ns(database)
    assert len(_traces(tmp_path / "job.sqlite")[0].events) >= 1


@pytest.mark.parametrize(
    ("start", "end"), [("a", 9), (9, "b"), (b"a", 9), (1, 1e300), (-(2**62), 9), (1, 2**63 - 1), (9, 2)]
)
def test_a_kernel_with_impossible_times_is_left_out(tmp_path: Path, start: object, end: object) -> None:
    export = Export(tmp_path / "job.sqlite")
    process, name = process_number(5), export.text("kernel")
    rows = [(at, until, 0, 7, 1, process, name, 1, 1, 1, 1) for at, until in ((10, 19), (start, end))]
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", rows)
    export.close()
    assert _traces(tmp_path / "job.sqlite")[0].events.duration_ns.tolist() == [9]


def _misnamed(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"streamId INTEGER", b"stream\xec\x20 INTEGER"))


HARMS = {
    _misnamed: "Names of its tables or columns are no UTF-8",
    endless: "Reading it takes longer than its size explains: its pages lead to one another.",
    computed: "Its table StringIds computes columns, as no export of Nsight Systems does.",
    cut_off: "It is cut off: ",
}


@pytest.mark.parametrize("harm", HARMS)
def test_an_export_that_does_harm_costs_itself(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """In the search of a directory, that is: the traces beside it are a run."""
    path = write(tmp_path / "job.sqlite", drawn(JOB.replace("#", "0"), metadata="nowhere"))
    harm(path)
    assert path.stat().st_size < 2 << 20
    write_traces(tmp_path, ranks(JOB, JOB))
    (run,) = discover(tmp_path)
    assert len(run.files) == 2
    (said,) = [warning.message for warning in run.warnings if warning.file == str(path)]
    # Where others keep the cores, the process that reads it is ended before it has had its CPU time.
    late = "Left out: Reading it takes more than 30 s, which no file of its size needs."
    assert said.startswith(f"Left out: {HARMS[harm]}") or (harm is endless and said == late)


def test_pages_without_end_are_left_within_the_time_for_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "job.sqlite", drawn(JOB.replace("#", "0"), metadata="nowhere"))
    endless(path)
    monkeypatch.setattr(database, "_SURE_S", 0.1)
    began = time.process_time()
    with opened(path) as export, pytest.raises(DamagedError, match="its pages lead to one another"):
        list(export.rows("SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL"))
    assert time.process_time() - began < 3.0


def test_only_functions_that_are_used_may_be_called(tmp_path: Path) -> None:
    path = write(tmp_path / "job.sqlite", drawn(JOB.replace("#", "0"), metadata="nowhere"))
    with opened(path) as database:
        assert list(database.rows("SELECT max(id) FROM StringIds"))
        for call in ("load_extension('x')", "printf('%1000000d', id)", "randomblob(9)"):
            with pytest.raises(NsysError, match="not authorized"):
                list(database.rows(f"SELECT {call} FROM StringIds"))


def test_a_view_in_the_place_of_a_table_is_never_read(tmp_path: Path) -> None:
    calling(write(tmp_path / "job.sqlite", drawn(JOB.replace("#", "0"), metadata="nowhere")))
    with opened(tmp_path / "job.sqlite") as database:
        assert not database.has("StringIds") and database.texts([1]) == {}
        with pytest.raises(NsysError, match="not authorized to use function: printf"):
            list(database.rows("SELECT value FROM StringIds"))
    with pytest.raises(DiscoverError, match=r"job\.sqlite: This is an SQLite file, but no export of Nsight Systems"):
        discover(tmp_path)


def test_the_schema_of_a_file_is_not_trusted(tmp_path: Path) -> None:
    """What a program gives SQLite beyond its own functions, a view of the file may not call, whatever its name."""
    path = tmp_path / "job.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE VIEW StringIds AS SELECT max(1) AS id")
        connection.create_function("max", 1, lambda value: value)
        assert connection.execute("SELECT id FROM StringIds").fetchall() == [(1,)]
        database._limit(connection, path.stat().st_size)
        with pytest.raises(sqlite3.OperationalError, match=r"unsafe use of max\(\)"):
            connection.execute("SELECT id FROM StringIds")


def test_numbers_that_sqlite_does_not_hold_are_a_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "job.sqlite", drawn(JOB.replace("#", "0"), metadata="nowhere"))
    with opened(path) as database, pytest.raises(NsysError, match="too large"):
        list(database.rows("SELECT id FROM StringIds WHERE id = ?", (1 << 64,)))
