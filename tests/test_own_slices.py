"""What `slice` and `merge` write comes back in as a job: its ranks' own traces, in both formats."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch_events import READERS
from traces import MS, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover import own_files
from tb_ddp_doctor.discover.head import peek
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.slices import chrome, cut, files
from tb_ddp_doctor.slices.cut import SliceWindow
from tb_ddp_doctor.storage.paths import ProcessPath
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.args import ARGUMENTS
from tb_ddp_doctor.trace.model import Category, RankTrace, TraceError
from tb_ddp_doctor.trace.own_slice import RankOfSlice, SliceClock, of_file

#: The second rank is late; its clock is 500 ms ahead.
JOB = """
    rank0 step   |1                   |2                   |3
          host   [load][fwd][bwd]     [load][fwd][bwd]     [load][fwd][bwd]
          autograd                    [grad@2]
          python [step............]   [step............]   [step............]
          gpu          [fwd....][bwd]       [fwd....][bwd]       [fwd....][bwd]
          nccl                   [ar@8..]             [ar@8..]             [ar@8..]
          memory      [10of40a]           [20of40b]            [10of40a]
    rank1 step   |1                   |2                   |3
          host   [load][fwd][bwd]     [load][fwd][bwd]     [load][fwd][bwd]
          gpu          [fwd.......][bwd]    [fwd.......][bwd]    [fwd.......][bwd]
          nccl                     [ar@8]               [ar@8]               [ar@8]
"""
FORMATS = ("json", "pftrace")
DEMO = Path(__file__).parents[1] / "demo_logs" / "straggler_cpu"


def diagnosed(folder: Path) -> engine.Result:
    (run,) = discover(folder)
    return engine.diagnose(run, reading=engine.Reading(Cache(None)))


def saved(result: engine.Result, path: Path, window: SliceWindow | None = None, most: int | None = None) -> Path:
    """The folder of a slice, or of the whole job."""
    path.parent.mkdir(parents=True)
    files.save(cut.cut(result, Cache(None), window or cut.whole(result.job), most), path)
    return path.parent


def rows(trace: RankTrace) -> dict[str, list[Any]]:
    """The rows of all tables in words, by time: what a trace says, whatever the order of its rows and its texts."""
    table, texts = trace.events, ("name", "shape", "types", "values")
    comm = dict(zip(trace.comms.event.tolist(), _words(trace, trace.comms, _COMM_TEXTS, ("event",)), strict=True))
    # Of operators, the occupancy is a text, too.
    at = [name for name in table.__struct_fields__ if name != "thread"].index("occupancy")
    events = [
        (
            *event,
            comm.get(row),
            trace.threads[table.thread[row]] if table.stream[row] < 0 else None,
        )
        for row, event in enumerate(_words(trace, table, texts, ("thread",)))
    ]
    events = [
        (*event[:at], trace.strings[event[at]], *event[at + 1 :])
        if event[1] == Category.OP and event[at] >= 0
        else event
        for event in events
    ]
    return {
        "events": sorted(events, key=repr),
        "memory": sorted(_words(trace, trace.memory, (), ("thread",))),
        "frames": sorted(_words(trace, trace.frames, ("name",), ("thread",))),
    }


_COMM_TEXTS = ("collective", "group", "group_ranks", "dtype")


def _words(trace: RankTrace, table: Any, texts: Sequence[str], without: Sequence[str]) -> list[tuple[Any, ...]]:
    columns = []
    for name in table.__struct_fields__:
        values = getattr(table, name).tolist()
        if name in texts:
            values = ["" if value < 0 else trace.strings[value] for value in values]
        if name not in without:
            columns.append(values)
    return list(zip(*columns, strict=True))


def same(found: Diagnosis, original: Diagnosis) -> bool:
    """Whether two diagnoses say the same but for what the runs are called and for the files beside the traces."""

    def said(one: Diagnosis) -> Any:
        plain = json.loads(msgspec.json.encode(one))
        return {key: plain[key] for key in plain if key not in ("name", "network", "warnings", "memory_snapshots")}

    return bool(said(found) == said(original))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> engine.Result:
    return diagnosed(write(tmp_path_factory.mktemp("logs") / "job", JOB, clock_ms={1: 500.0}, device_gb=40))


@pytest.mark.parametrize("read_by", READERS)
@pytest.mark.parametrize("form", FORMATS)
def test_each_rank_of_a_merged_job_is_what_its_trace_was(
    job: engine.Result, tmp_path: Path, form: str, read_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDP_DOCTOR_READER", read_by)
    (run,) = discover(saved(job, tmp_path / f"merged/all.{form}"))
    assert [(file.rank, file.node, file.world_size) for file in run.files] == [(0, "host0", 2), (1, "host1", 2)]
    for file, original in zip(run.files, job.files, strict=True):
        found, own = reader.read(file.path), reader.read(original)
        # The second rank's times are those of its own clock, 500 ms ahead, so no reader aligns them twice.
        assert rows(found) == rows(own)
        assert {**msgspec.structs.asdict(found.header), "base_ns": 0} == {
            **msgspec.structs.asdict(own.header),
            "base_ns": 0,
        }
        assert found.dropped == own.dropped and found.warnings == own.warnings == ()


@pytest.mark.parametrize("form", FORMATS)
def test_a_merged_job_is_diagnosed_as_the_job(job: engine.Result, tmp_path: Path, form: str) -> None:
    found = diagnosed(saved(job, tmp_path / f"merged/all.{form}"))
    assert same(found.diagnosis, job.diagnosis)
    assert found.job.clock.offset_ns.tolist() == job.job.clock.offset_ns.tolist() != [0.0, 0.0]
    assert "straggler" in [one.rule for one in found.diagnosis.findings]


@pytest.mark.parametrize("form", FORMATS)
def test_a_recorded_job_is_diagnosed_the_same_once_it_is_merged(tmp_path: Path, form: str) -> None:
    original = diagnosed(DEMO)
    found = diagnosed(saved(original, tmp_path / f"merged/all.{form}")).diagnosis
    assert same(found, original.diagnosis)
    assert [one.message for one in found.warnings] == ["4 ranks were merged into this file: each is read by itself."]


@pytest.mark.parametrize("form", FORMATS)
def test_one_rank_is_diagnosed_as_one_of_two(job: engine.Result, tmp_path: Path, form: str) -> None:
    window = replace(cut.whole(job.job), ranks=(1,))
    found = diagnosed(saved(job, tmp_path / f"merged/one.{form}", window)).diagnosis
    assert found.ranks == (1,) and found.world_size == 2
    said = [one.message for one in found.warnings]
    assert any(text.startswith("1 of 2 ranks has no usable trace here (0)") for text in said), said


def step_edges(result: engine.Result, first: int, last: int) -> SliceWindow:
    """A window around some steps of both ranks, on the common clock."""
    edges = []
    for rank, digest in zip(result.job.ranks.tolist(), result.job.digests, strict=True):
        chosen = np.isin(digest.steps.number, [first, last])
        instants = np.concatenate(
            (digest.steps.host_start_ns[chosen], digest.steps.end_ns[chosen], digest.steps.host_end_ns[chosen])
        )
        edges.append(cut.on_common_clock(result.job, rank, instants))
    joined = np.concatenate(edges)
    return SliceWindow((0, 1), int(joined.min()) - MS, int(joined.max()) + MS)


@pytest.mark.parametrize("form", FORMATS)
def test_a_slice_of_steps_is_a_job_of_these_steps(job: engine.Result, tmp_path: Path, form: str) -> None:
    window = step_edges(job, 1, 2)
    found = diagnosed(saved(job, tmp_path / f"slice/some.{form}", window, 10_000))
    # The window reaches into the third step, which is not there as a whole.
    assert found.job.steps.tolist() == [1, 2]
    assert "straggler" in [one.rule for one in found.diagnosis.findings]
    assert found.diagnosis.step_ms == pytest.approx(job.diagnosis.step_ms, rel=0.05)


def sentence(folder: Path) -> str:
    with pytest.raises(engine.RunError) as refused:
        diagnosed(folder)
    return str(refused.value)


@pytest.mark.parametrize("form", FORMATS)
def test_a_slice_without_a_whole_step_is_refused(job: engine.Result, tmp_path: Path, form: str) -> None:
    whole = step_edges(job, 2, 2)
    window = replace(whole, start_ns=whole.start_ns + 5 * MS, end_ns=whole.end_ns - 5 * MS)
    said = sentence(saved(job, tmp_path / f"slice/part.{form}", window, 10_000))
    assert "a slice that ddp-doctor wrote, in which no step is whole. Diagnose the traces that it was cut from." in said


@pytest.mark.parametrize("form", FORMATS)
def test_a_slice_with_gaps_is_refused(job: engine.Result, tmp_path: Path, form: str) -> None:
    said = sentence(saved(job, tmp_path / f"slice/gaps.{form}", cut.whole(job.job), 20))
    assert "shortest events of its window are left out" in said


def old(data: bytes) -> bytes:
    """What older versions wrote: nothing is said of ranks."""
    told = json.loads(data)
    del told[own_files.KEY], told["ddp_doctor_ranks"]
    return json.dumps(told).encode()


def test_a_slice_of_an_older_version_is_refused(job: engine.Result, tmp_path: Path) -> None:
    folder = saved(job, tmp_path / "merged/all.json")
    path = folder / "all.json"
    path.write_bytes(old(path.read_bytes()))
    assert "a slice that ddp-doctor wrote for viewers, without process groups and devices" in sentence(folder)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"offset_ns":', b'"offset_ns":1e300,"was":'),
        (b'"first_tid":1', b'"first_tid":-1'),
        (b'"threads":[[', b'"threads":[[1,'),
        (b'"ddp_doctor_ranks"', b'"another_member"'),
    ],
)
def test_damaged_words_on_a_rank_are_said(job: engine.Result, tmp_path: Path, before: bytes, after: bytes) -> None:
    folder = saved(job, tmp_path / "merged/all.json")
    path = folder / "all.json"
    assert before in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(before, after))
    assert "What it says of rank 1 is damaged: diagnose the traces that it was cut from." in sentence(folder)


def test_what_is_cut_off_a_file_is_said(job: engine.Result, tmp_path: Path) -> None:
    folder = saved(job, tmp_path / "merged/all.pftrace")
    path = folder / "all.pftrace"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    (run,) = discover(folder)
    assert len(run.files) == 2
    assert any("cut off at byte" in warning.message for warning in reader.read(run.files[0].path).warnings)


@pytest.mark.parametrize("form", FORMATS)
def test_events_that_a_viewer_would_drop_keep_their_times(tmp_path: Path, form: str) -> None:
    """Kernels that overrun the next one of their stream, as ROCm's do, end there in what viewers see."""
    (tmp_path / "own").mkdir()
    for rank, data in traces.draw(JOB).items():
        told = json.loads(data)
        kernels = [event for event in told["traceEvents"] if event.get("cat") == "kernel"]
        for kernel in kernels[::2]:
            kernel["dur"] = kernel["dur"] + 3_000.0
        (tmp_path / "own" / f"host{rank}_{rank}.17.pt.trace.json").write_text(json.dumps(told))
    result = diagnosed(tmp_path / "own")
    folder = saved(result, tmp_path / f"merged/all.{form}")
    for file, original in zip(discover(folder)[0].files, result.files, strict=True):
        assert rows(reader.read(file.path)) == rows(reader.read(original))
    if form == "json":
        shown = json.loads((folder / "all.json").read_bytes())["traceEvents"]
        assert _overlap(event for event in shown if event["pid"] == 1) == 0
        assert _overlap(json.loads(result.files[0].read_bytes())["traceEvents"]) > 0


def _overlap(events: Iterable[dict[str, Any]]) -> int:
    """How many kernels of stream 7 begin in another one and end behind it."""
    kernels = [event for event in events if event.get("args", {}).get("stream") == 7]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in kernels)
    assert len(spans) == 6
    return sum(one[0] < other[0] < one[1] < other[1] for one in spans for other in spans)


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=20),
    st.floats(-1e9, 1e9),
    st.floats(-1e-4, 1e-4),
    st.integers(0, 10**12),
)
def test_a_clock_is_undone(times: list[int], offset: float, drift: float, origin: int) -> None:
    epoch = 1_700_000_000 * 10**9
    clock = SliceClock(offset, drift, epoch + origin)
    own = epoch + np.array(times, np.int64)
    common = own - np.rint(offset + drift * (own - clock.origin_ns)).astype(np.int64)
    # Two instants may become one where the clock runs fast.
    assert np.abs(clock.own(common) - own).max() <= 1


def rich_trace() -> bytes:
    """A trace in which each argument that the reader keeps is set."""
    about = {
        "Collective name": "send", "Process Group Name": "3", "Process Group Ranks": "[0, 1]", "Group size": 2,
        "In msg nelems": 11, "Out msg nelems": 12, "dtype": "Float", "Seq": 77, "Dst Rank": 1,
        "count": 11, "algo": "RING", "proto": "LL", "n_channels": 2,
    }  # fmt: skip
    device = {
        "device": 0, "stream": 16, "correlation": 5, "bytes": 4096, "grid": [2, 1, 1],
        "est. achieved occupancy %": 31, "annotation": [{"name": "layers.3.mlp"}], "autograd_phase": "backward",
        "graph id": 2, "graph node id": 8589934597,
    }  # fmt: skip
    op = {
        "Input Dims": [[2, 3], []], "Input type": ["float", ""], "Concrete Inputs": ["", "4"], "Sequence number": 9,
        "kernel_file": "/tmp/torchinductor/ab/cab.py",
    }  # fmt: skip
    memory = {
        "Device Type": 1, "Device Id": 0, "Bytes": 512, "Total Allocated": 1024, "Total Reserved": 2048, "Addr": 140001,
    }  # fmt: skip
    place = {"pid": 100, "tid": 1}
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 100.0, "dur": 900.0, **place}
    received = {**about, "Collective name": "recv", "Seq": 78}
    received["Src Rank"] = received.pop("Dst Rank")
    events = [
        step,
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 110.0, "dur": 50.0, **place,
         "args": op | about},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 120.0, "dur": 9.0, **place,
         "args": {"correlation": 5}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "ts": 200.0, "dur": 90.0, "pid": 0, "tid": 16,
         "args": device | about},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "ts": 400.0, "dur": 90.0, "pid": 0, "tid": 16,
         "args": device | received | {"correlation": 6}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 130.0, **place, "s": "t", "args": memory},
    ]  # fmt: skip
    return json.dumps(
        {
            "schemaVersion": 1,
            "host_name": "host0",
            "record_shapes": 1,
            "with_stack": 1,
            "ddp_doctor": {"tokens_per_step": 2048.5},
            "deviceProperties": [
                {
                    "id": 0,
                    "name": "H100",
                    "totalGlobalMem": 1 << 36,
                    "numSms": 132,
                    "computeMajor": 9,
                    "computeMinor": 0,
                }
            ],
            "distributedInfo": {
                "backend": "nccl",
                "rank": 0,
                "world_size": 2,
                "pg_config": [{"pg_name": "3", "pg_desc": "mesh_tp", "ranks": [0, 1]}],
            },
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": events,
        }
    ).encode()


@pytest.fixture
def rich(tmp_path: Path) -> engine.Result:
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich/host0_1.17.pt.trace.json").write_bytes(rich_trace())
    return diagnosed(tmp_path / "rich")


def arguments(told: dict[str, Any]) -> Iterator[str]:
    for event in told["traceEvents"]:
        if event["ph"] in "Xi" and event["pid"]:
            yield from event["args"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_argument_that_the_reader_keeps_is_written(rich: engine.Result, tmp_path: Path, form: str) -> None:
    folder = saved(rich, tmp_path / f"merged/all.{form}")
    (file,) = discover(folder)[0].files
    found, own = reader.read(file.path), reader.read(rich.files[0])
    assert rows(found) == rows(own)
    assert replace(found.header, base_ns=0) == replace(own.header, base_ns=0)
    if form == "json":
        written = set(arguments(json.loads((folder / "all.json").read_bytes())))
        # Recorders spell the annotation of a kernel in three ways, and what NCCL's plugin says of a collective in two.
        spelled = {"name", "str", "func", "datatype", "seq", "process_group", "process_group_ranks"}
        # What the CUPTI monitor says of a copy stands in its name then.
        spelled |= {"copy kind", "src kind", "dst kind"}
        assert {name.decode() for name in ARGUMENTS} - written == spelled


def test_each_field_of_a_header_is_written(rich: engine.Result, tmp_path: Path) -> None:
    own = reader.read(rich.files[0]).header
    plain = msgspec.structs.asdict(type(own)())
    alike = [name for name, value in msgspec.structs.asdict(own).items() if value == plain[name]]
    # What Nsight Systems' reader adds is no member of Kineto's.
    assert alike == ["step_range", "recorder"]


def test_process_groups_are_written_once(job: engine.Result) -> None:
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    header = {"distributedInfo": {"rank": 0, "pg_config": [group, {"pg_name": "1", "ranks": [0]}]}}
    part = cut.cut(job, Cache(None), cut.whole(job.job), None)
    parts = [replace(one, declared=replace(one.declared, header=header)) for one in part.ranks]
    file = io.BytesIO()
    chrome.write(replace(part, ranks=parts), file)
    assert file.getvalue().count(b'"default_pg"') == 1
    said = of_file(json.loads(file.getvalue())["ddp_doctor_ranks"])
    assert [one.header for one in said.values()] == [header, header]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"ddp_doctor_slice":',
        b'{"ddp_doctor_slice":{}',
        b'{"ddp_doctor_slice":{"ranks":[]}}',
        b'{"ddp_doctor_slice":{"ranks":[1,0]}}',
        b'{"ddp_doctor_slice":{"ranks":[0,0]}}',
        b'{"ddp_doctor_slice":{"ranks":[-1]}}',
        b'{"ddp_doctor_slice":{"ranks":[0,1],"nodes":[["a",1]]}}',
        b'{"ddp_doctor_slice":{"ranks":[0],"nodes":[["a",-1],["b",2]]}}',
        b'{"ddp_doctor_slice":{"ranks":[0],"world_size":0}}',
        b'{"ddp_doctor_slice":' + b"[" * 100_000,
        b" " * 300 + b'{"ddp_doctor_slice":{"ranks":[0]}}',
    ],
)
def test_a_beginning_that_says_nothing_possible_is_none(text: bytes) -> None:
    assert own_files.declared(text) is None


def test_a_beginning_says_ranks_and_nodes() -> None:
    said = own_files.of_ranks((0, 3, 4), ("a", "b", "b"), 8)
    found = own_files.declared(b"{" + said.spelled() + b', "traceEvents": [')
    assert found == said
    assert (found.labels, found.node_of_rank) == (("rank 0", "rank 3", "rank 4"), ("a", "b", "b"))


def test_a_packed_slice_is_read_as_its_ranks(job: engine.Result, tmp_path: Path) -> None:
    for form in FORMATS:
        folder = saved(job, tmp_path / form / f"all.{form}")
        (path,) = folder.iterdir()
        packed = path.with_suffix(path.suffix + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        assert peek(packed).parts == ("rank 0", "rank 1")
        assert same(diagnosed(folder).diagnosis, job.diagnosis)


@pytest.mark.parametrize("packed", [False, True])
def test_a_small_file_that_says_thousands_of_ranks_is_none_of_ours(tmp_path: Path, packed: bool) -> None:
    own = own_files.of_ranks(tuple(range(9_000)), ("",) * 9_000, None)
    text = b"{" + own.spelled() + b', "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}]}'
    path = tmp_path / ("all.json.gz" if packed else "all.json")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert own_files.declared(text) == own
    assert peek(path).parts == ()


def test_words_on_a_rank_that_are_none_are_left_out() -> None:
    good = {"rank": 0, "pid": 1, "first_tid": 1, "threads": [["7", "7", 0]]}
    assert of_file([good]) == {"rank 0": RankOfSlice(0, 1, 1, (("7", "7", 0),))}
    bad = [
        None,
        3,
        [],
        {},
        good | {"rank": -1},
        good | {"events": {"row": [1 << 70]}},
        good | {"clock": {"drift": 0.5}},
    ]
    assert of_file(bad) == {}
    odd = good | {"header": {"distributedInfo": {"pg_config": [0, -1, "a", 9]}}}
    assert of_file([odd])["rank 0"].header == {"distributedInfo": {"pg_config": []}}


def test_an_exact_time_that_is_none_changes_nothing(job: engine.Result, tmp_path: Path) -> None:
    path = saved(job, tmp_path / "merged/all.json") / "all.json"
    told = json.loads(path.read_bytes())
    length = told["ddp_doctor_ranks"][0]["events"]["length"]
    impossible = (
        {"length": length, "row": [0, 10**9], "start_ns": [8 * 10**18, 1], "duration_ns": [1, 1]},
        {"length": length + 1, "row": [0], "start_ns": [1], "duration_ns": [1]},
        {"length": length, "row": [0, 1], "start_ns": [1], "duration_ns": [1]},
    )
    found = []
    for exact in ({}, *impossible, {"length": length, "row": [0], "start_ns": [1], "duration_ns": [1]}):
        told["ddp_doctor_ranks"][0]["events"] = exact
        path.write_text(json.dumps(told))
        found.append(rows(reader.read(ProcessPath(path, 0, "rank 0"))))
    assert found[1:4] == found[:1] * 3
    assert found[4] != found[0]


def test_a_rank_that_the_file_lacks_is_refused(job: engine.Result, tmp_path: Path) -> None:
    folder = saved(job, tmp_path / "merged/all.json")
    with pytest.raises(TraceError, match="What it says of rank 5 is damaged"):
        reader.read(ProcessPath(folder / "all.json", 5, "rank 5"))
