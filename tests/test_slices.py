"""Slices: the right events of a window, on one clock, in each format."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from traces import MS, ranks, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache, event_modules
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import EventModules, RankDigest
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.evidence.model import GpuLook, RankEvidence
from tb_ddp_doctor.slices import chrome, columns, cut, files, native, pick
from tb_ddp_doctor.slices.cut import SliceWindow
from tb_ddp_doctor.slices.model import LaneRole, RankSlice, Slice, SliceError
from tb_ddp_doctor.storage.wire import encoded
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.model import (
    Category,
    CommArgs,
    Events,
    Frames,
    Header,
    MemoryEvents,
    RankTrace,
    TraceError,
)
from tb_ddp_doctor.trace.times import MAX_NS

#: The second rank is late; its clock is 500 ms ahead.
JOB = """
    rank0 step   |1                   |2                   |3
          host   [fwd][bwd]           [fwd][bwd]           [fwd][bwd]
          python [step............]   [step............]   [step............]
          gpu    [fwd....][bwd]       [fwd....][bwd]       [fwd....][bwd]
          nccl                 [ar..]               [ar..]               [ar..]
          memory      [10of40]             [20of40]             [30of40]
    rank1 step   |1                   |2                   |3
          host   [fwd][bwd]           [fwd][bwd]           [fwd][bwd]
          gpu    [fwd.......][bwd]    [fwd.......][bwd]    [fwd.......][bwd]
          nccl                   [ar]                 [ar]                 [ar]
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, cache: Cache) -> engine.Result:
    folder = write(tmp_path_factory.mktemp("logs") / "job", JOB, clock_ms={1: 500.0})
    (run,) = discover(folder)
    return engine.diagnose(run, reading=engine.Reading(cache))


def at(result: engine.Result, begin_ms: float, end_ms: float, *ranks: int) -> SliceWindow:
    """A window in ms of the drawing, whose first step begins at 0."""
    zero = result.job.digests[0].steps.host_start_ns[0] - 0
    return SliceWindow(ranks or (0, 1), int(zero + begin_ms * MS), int(zero + end_ms * MS))


def events(part: RankSlice) -> list[tuple[str, str, int, int]]:
    """Lane, name, start and length in ms."""
    columns = (part.lane, part.name, part.start_ns, part.end_ns)
    return [
        (part.lanes[lane].title, part.strings[name], start // MS, (end - start) // MS)
        for lane, name, start, end in zip(*(column.tolist() for column in columns), strict=True)
    ]


def test_a_window_holds_what_touches_it_and_the_launches_of_that(result: engine.Result, cache: Cache) -> None:
    first, second = cut.cut(result, cache, at(result, 14, 17)).ranks
    zero = at(result, 0, 1).start_ns // MS
    found = [(lane, name, start - zero, length) for lane, name, start, length in events(first)]
    assert ("main thread 1", "ProfilerStep#1", 0, 21) in found
    assert ("main thread 1", "train.py(4): step", 0, 18) in found
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert ("GPU 0 stream 16: communication", reduce, 14, 6) in found
    # The kernels of forward and backward have ended; of the calls, only that of the AllReduce launched what is here.
    assert [name for _, name, _, _ in found].count("cudaLaunchKernelExC") == 1
    assert not any("fwd" in name for _, name, _, _ in found)
    # The other clock is corrected: its AllReduce ends with the first one's.
    ends = [part.end_ns[part.collective >= 0].tolist() for part in (first, second)]
    assert len(ends[0]) == 1 and ends[0] == pytest.approx(ends[1], abs=1000)
    assert first.collective[first.collective >= 0].tolist() == second.collective[second.collective >= 0].tolist()


def test_lanes_are_named_for_what_they_are(result: engine.Result, cache: Cache) -> None:
    first, _ = cut.cut(result, cache, at(result, 0, 70)).ranks
    assert [(lane.role, lane.title) for lane in first.lanes] == [
        (LaneRole.MAIN, "main thread 1"),
        (LaneRole.STREAM, "GPU 0 stream 7: compute"),
        (LaneRole.STREAM, "GPU 0 stream 16: communication"),
    ]
    assert first.memory.allocated.tolist() == [10**10, 2 * 10**10, 3 * 10**10]


def test_the_shortest_events_are_left_out_and_the_slice_says_so(result: engine.Result, cache: Cache) -> None:
    window = at(result, 0, 70, 0)
    (all_,), (some,) = (cut.cut(result, cache, window, most).ranks for most in (1000, 8))
    assert all_.left_out == 0
    assert some.left_out == len(all_) - len(some) > 0
    assert {"ProfilerStep#1", "train.py(4): step"} <= {name for _, name, _, _ in events(some)}
    # What is left of the device still has its launches.
    launched = some.correlation[(some.category >= 3) & (some.category <= 5)]
    assert len(launched) and all(np.sum(some.correlation == one) == 2 for one in launched)
    part = cut.cut(result, cache, window, 8)
    names = [event["name"] for event in written(chrome, part)["traceEvents"]]
    assert "slice of job (shortest events left out)" in names
    assert f"{some.left_out} of rank 0" in written(columns, part)["left_out"]


def test_no_trace_is_read_again(result: engine.Result, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a trace was read")

    monkeypatch.setattr("tb_ddp_doctor.cache.read", refuse)
    assert len(tuple(cut.cut(result, cache, at(result, 0, 70)).ranks)) == 2


def test_a_trace_whose_columns_are_gone_is_read_again(result: engine.Result) -> None:
    parts = tuple(cut.cut(result, Cache(None), at(result, 0, 70)).ranks)
    assert all(len(part) for part in parts)


def test_evidence_is_a_window_of_the_common_clock(result: engine.Result, cache: Cache) -> None:
    finding = next(f for f in result.diagnosis.findings if any(e.rank == 1 for e in f.evidence))
    evidence = next(e for e in finding.evidence if e.rank == 1)
    window = cut.window(result.job, finding, evidence)
    assert window.ranks == (0, 1)
    assert evidence.start_ns - window.start_ns == pytest.approx(500 * MS, abs=MS)
    labels = cut.cut(result, cache, window).labels
    assert (1, window.start_ns, window.end_ns, evidence.what) in [
        (label.rank, label.start_ns, label.end_ns, label.what) for label in labels
    ]


@pytest.mark.parametrize(
    ("window", "sentence"),
    [
        (SliceWindow((7,), 0, 1), "no rank 7"),
        (SliceWindow((), 0, 1), "Which ranks"),
        (SliceWindow((0,), 5, 5), "ends before"),
        (SliceWindow((0,) * 17, 0, 1), "at most 16"),
    ],
)
def test_a_window_that_makes_no_sense(result: engine.Result, cache: Cache, window: SliceWindow, sentence: str) -> None:
    with pytest.raises(SliceError, match=sentence):
        cut.cut(result, cache, window)


def test_a_trace_that_is_gone(result: engine.Result, tmp_path: Path) -> None:
    files = (tmp_path / "gone.pt.trace.json", *result.files[1:])
    moved = engine.Result(result.diagnosis, result.savings, result.job, files, False)
    with pytest.raises(SliceError, match="rank 0 cannot be read again, so its events cannot be shown"):
        cut.cut(moved, Cache(None), at(result, 0, 1))


def test_a_rank_from_a_digest_has_no_trace(result: engine.Result, cache: Cache) -> None:
    files = (Path(f"rank0{DIGEST_SUFFIX}"), *result.files[1:])
    digested = engine.Result(result.diagnosis, result.savings, result.job, files, False)
    assert [part.rank for part in cut.cut(digested, cache, at(result, 0, 1)).ranks] == [1]
    of_rank_0 = replace(at(result, 0, 1), ranks=(0,))
    for chosen, most in ((of_rank_0, cut.MOST_EVENTS), (cut.whole(result.job), None)):
        with pytest.raises(SliceError, match="read from a digest"):
            cut.cut(digested, cache, chosen, most)


def written(form: ModuleType, part: Slice) -> Any:
    file = io.BytesIO()
    form.write(part, file)
    return msgspec.json.decode(file.getvalue())


def perfetto(part: Slice) -> Trace:
    file = io.BytesIO()
    native.write(part, file)
    return Trace.FromString(file.getvalue())


def test_the_native_trace_has_processes_threads_slices_flows_and_counters(result: engine.Result, cache: Cache) -> None:
    part = cut.cut(result, cache, at(result, 0, 70))
    trace = perfetto(part)
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    processes = [track.process for track in tracks.values() if track.HasField("process")]
    assert [process.process_name for process in processes] == ["rank 0 (host0)", "rank 1 (host1)"]
    assert [process.legacy_sort_index for process in processes] == sorted({process.pid for process in processes})
    threads = [track.thread for track in tracks.values() if track.HasField("thread")]
    assert len({thread.tid for thread in threads}) == len(threads) == sum(len(rank.lanes) for rank in part.ranks)
    assert {"main thread 1", "GPU 0 stream 7: compute"} <= {thread.thread_name for thread in threads}
    begun = [
        (packet, packet.track_event)
        for packet in trace.packet
        if packet.track_event.type == TrackEvent.TYPE_SLICE_BEGIN
    ]
    ended = [packet.track_event for packet in trace.packet if packet.track_event.type == TrackEvent.TYPE_SLICE_END]
    assert len(begun) == len(ended) == sum(len(rank) for rank in part.ranks) + 1 + len(part.labels)
    # Each flow joins a launch with its kernel, or the two ranks' parts of an AllReduce.
    flows = sorted(flow for _, event in begun for flow in event.flow_ids)
    assert flows and all(len(list(group)) == 2 for _, group in itertools.groupby(flows))
    counters = [
        packet.track_event.counter_value
        for packet in trace.packet
        if packet.track_event.type == TrackEvent.TYPE_COUNTER
    ]
    assert counters == [10**10, 2 * 10**10, 3 * 10**10, 4 * 10**10, 4 * 10**10, 4 * 10**10]
    doctor = next(track for track in tracks.values() if track.name == "ddp-doctor")
    rows = {track.uuid for track in tracks.values() if track.parent_uuid == doctor.uuid}
    said = [event.name for _, event in begun if event.track_uuid in rows]
    assert said[0] == "slice of job"
    assert any("rank 1" in name for name in said)


def names_by_sequence(trace: Trace) -> dict[tuple[int, int], str]:
    return {
        (packet.trusted_packet_sequence_id, entry.iid): entry.name
        for packet in trace.packet
        for entry in packet.interned_data.event_names
    }


def test_the_native_trace_nests_and_keeps_its_times(result: engine.Result, cache: Cache) -> None:
    part = cut.cut(result, cache, at(result, 0, 70))
    trace = perfetto(part)
    names = names_by_sequence(trace)
    open_: dict[int, list[tuple[str, int]]] = {}
    found = []
    for packet in trace.packet:
        event = packet.track_event
        stack = open_.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_SLICE_BEGIN and event.name_iid:
            stack.append((names[packet.trusted_packet_sequence_id, event.name_iid], packet.timestamp))
        elif event.type == TrackEvent.TYPE_SLICE_END and stack:
            name, start = stack.pop()
            found.append((name, start, packet.timestamp))
    drawn = [
        (rank.strings[name], start, end)
        for rank in part.ranks
        for name, start, end in zip(rank.name.tolist(), rank.start_ns.tolist(), rank.end_ns.tolist(), strict=True)
    ]
    assert sorted(found) == sorted(drawn)


def test_chrome_json_can_be_read_by_our_own_reader(result: engine.Result, cache: Cache) -> None:
    file = io.BytesIO()
    part = cut.cut(result, cache, at(result, 0, 70))
    chrome.write(part, file)
    told = written(chrome, part)["traceEvents"]
    assert {"rank 0 (host0)", "rank 1 (host1)", "ddp-doctor"} == {
        e["args"]["name"] for e in told if e["name"] == "process_name"
    }
    flows: dict[int, list[str]] = {}
    assert all(isinstance(event["id"], int) and 0 < event["id"] < 2**53 for event in told if "id" in event)
    for event in sorted((e for e in told if e["ph"] in "sf"), key=lambda event: event["ts"]):
        flows.setdefault(event["id"], []).append(event["ph"])
    assert flows and set(map(tuple, flows.values())) == {("s", "f")}
    read = reader.decode([file.getvalue()], "slice")
    kernels = [event for rank in part.ranks for event in events(rank) if "kernel" in event[1].lower()]
    assert sum("kernel" in read.strings[name].lower() for name in read.events.name) >= len(kernels) > 0


def test_what_a_capture_saw_of_a_gpu_is_in_all_formats(result: engine.Result, cache: Cache) -> None:
    window = at(result, 14, 70, 0)
    start = window.start_ns
    seen = ((-9, 1000.0, None), (-5, 1980.0, 400.0), (20, None, 1e300), (30, 1410.0, 699.5), (99, 1.0, 1.0))
    looks = tuple(GpuLook(start + ms * MS, mhz, watts) for ms, mhz, watts in seen)
    job = replace(result.job, rank_evidence={0: RankEvidence(gpu_looks=looks)})
    part = cut.cut(replace(result, job=job), cache, window)
    told = written(columns, part)["ranks"][0]["gpu"]
    # The last one before the window is valid in it.
    assert told["time_us"] == pytest.approx([-5000, 20_000, 30_000], abs=10)
    assert (told["sm_mhz"], told["power_w"]) == ([1980.0, None, 1410.0], [400.0, None, 699.5])
    packets = [packet.track_event for packet in perfetto(part).packet]
    assert [one.double_counter_value for one in packets if one.double_counter_value] == [1980.0, 1410.0, 400.0, 699.5]
    counters = [one for one in written(chrome, part)["traceEvents"] if one["ph"] == "C" and one["name"] != "memory"]
    assert [one["args"] for one in counters] == [{"MHz": 1980.0}, {"MHz": 1410.0}, {"W": 400.0}, {"W": 699.5}]


def test_a_memory_curve_of_too_many_points_keeps_its_peak(result: engine.Result, cache: Cache) -> None:
    trace = cache.columns(result.files[0], checked=False)
    count = 3 * pick.MEMORY_POINTS
    allocated = np.full(count, 10)
    allocated[4321] = 99
    columns_of = {name: np.repeat(getattr(trace.memory, name)[:1], count) for name in MemoryEvents.__struct_fields__}
    memory = MemoryEvents(**columns_of | {"time_ns": np.arange(count), "allocated": allocated})
    shown = pick.memory(replace(trace, memory=memory), 0, count)
    assert len(shown) == pick.MEMORY_POINTS
    assert shown.allocated.max() == 99
    assert (np.diff(shown.time_ns) > 0).all()


def test_columns_are_relative_to_the_window(result: engine.Result, cache: Cache) -> None:
    window = at(result, 14, 17)
    told = written(columns, cut.cut(result, cache, window))
    assert (int(told["start_ns"]), int(told["end_ns"])) == (window.start_ns, window.end_ns)
    (lane,) = (lane for lane in told["ranks"][0]["lanes"] if lane["title"].endswith("communication"))
    assert lane["role"] == "stream"
    assert lane["start_us"] == pytest.approx([0.0]) and lane["length_us"] == pytest.approx([6000.0])
    collective = told["collectives"][str(lane["collective"][0])]
    assert collective["kind"] == "all_reduce" and collective["last_rank"] == 1
    assert collective["last_us"] == pytest.approx(2000, abs=10)
    assert collective["transfer_us"] == pytest.approx(4000, abs=10)
    assert (collective["size"], collective["bus_factor"]) == (2, 1.0)
    assert told["owners"][lane["owner"][0]] == "communication"
    assert "AllReduce" in told["ranks"][0]["names"][lane["name"][0]]
    assert {len(column) for column in lane.values() if isinstance(column, list)} == {1}


def test_a_page_gets_the_users_own_functions_and_is_told_what_the_profiler_does(tmp_path: Path) -> None:
    drawn = """
        rank# step   |1
              host   [fwd][bwd]         [sync....]
              python [step............]
              python  [call]
              gpu    [fwd....][bwd]
              nccl                 [ar]
    """
    folder = write(tmp_path / "job", ranks(drawn, drawn), last_step_ms=18)
    (run,) = discover(folder)
    kept = Cache(tmp_path / "kept")
    result = engine.diagnose(run, reading=engine.Reading(kept))
    window = at(result, -5, 100)
    names = {
        own: {name for _, name, _, _ in events(cut.cut(result, kept, window, own_code=own).ranks[0])}
        for own in (False, True)
    }
    assert names[False] - names[True] == {"torch/nn/modules/module.py(1775): _call_impl"}
    told = written(columns, cut.cut(result, kept, window))
    owners = {
        told["ranks"][0]["names"][name]: told["owners"][owner]
        for lane in told["ranks"][0]["lanes"]
        for name, owner in zip(lane["name"], lane["owner"], strict=True)
    }
    assert owners["cudaStreamSynchronize"] == "profiler"


SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 30)), max_size=40)


@given(SPANS)
def test_nested_events_lie_within_those_around_them(spans: list[tuple[int, int, int]]) -> None:
    lane, start, length = (
        np.array(column, np.int64) for column in (zip(*spans, strict=True) if spans else ((), (), ()))
    )
    order, ends, depth = pick.nest(lane.astype(np.int32), start, start + length)
    assert sorted(order.tolist()) == list(range(len(spans)))
    around: list[tuple[int, int]] = []
    before = -1
    for i, row in enumerate(order.tolist()):
        if lane[row] != before:
            around, before = [], lane[row]
        del around[depth[i] :]
        assert len(around) == depth[i]
        assert start[row] <= ends[i] <= start[row] + length[row]
        assert all(begin <= start[row] and ends[i] <= end for begin, end in around)
        around.append((start[row], ends[i]))


#: What a reader may make of a file: times from 0 on (with their base, twice `MAX_NS` at most), other numbers anything,
#: text that no encoding can hold.
START = st.one_of(st.integers(0, 200), st.integers(0, 2 * MAX_NS))
LENGTH = st.one_of(st.integers(0, 200), st.integers(0, MAX_NS))
NUMBER = st.one_of(st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1))
SMALL = st.one_of(st.integers(-2, 3), st.integers(-(2**31), 2**31 - 1))
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.sampled_from(["", "ncclDevKernel_AllReduce", "ProfilerStep#1", "autograd::engine", "cudaMalloc", "\ud800<img>"]),
)


@st.composite
def hostile_traces(draw: st.DrawFn) -> RankTrace:
    """Columns of anything that a file can hold."""
    strings = tuple(draw(st.lists(TEXT, min_size=1, max_size=6)))
    threads = tuple(draw(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3)))
    word, thread = st.integers(0, len(strings) - 1), st.integers(0, len(threads) - 1)
    missing_word = st.integers(-1, len(strings) - 1)

    def table(kind: type[Any], *columns: tuple[st.SearchStrategy[int], type[np.generic]]) -> Any:
        rows = draw(st.lists(st.tuples(*(values for values, _ in columns)), max_size=12))
        made = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
        return kind(*(np.array(column, dtype) for column, (_, dtype) in zip(made, columns, strict=True)))

    events = table(
        Events, (word, np.int32), (st.integers(0, len(Category) - 1), np.int8), (START, np.int64), (LENGTH, np.int64),
        (thread, np.int32), (SMALL, np.int32), (NUMBER, np.int64), (NUMBER, np.int64), (NUMBER, np.int64),
        (missing_word, np.int32), (SMALL, np.int32), (NUMBER, np.int64), (missing_word, np.int32),
        (missing_word, np.int32), (SMALL, np.int32),
    )  # fmt: skip
    memory = table(
        MemoryEvents, (START, np.int64), (SMALL, np.int32), (SMALL, np.int32), *((NUMBER, np.int64),) * 4,
        (thread, np.int32),
    )  # fmt: skip
    frames = table(Frames, (word, np.int32), (START, np.int64), (LENGTH, np.int64), (thread, np.int32))
    comms = CommArgs(*(np.empty(0, np.int64) for _ in CommArgs.__struct_fields__))
    return RankTrace("hostile.json", Header(), strings, threads, events, comms, memory, frames, {}, ())


class Kept:
    """A cache that has one trace for any file."""

    def __init__(self, trace: RankTrace) -> None:
        self._trace = trace

    def kept_columns(self, path: object, *, checked: bool) -> RankTrace:
        return self._trace

    def event_modules(self, path: object, trace: RankTrace, digest: RankDigest) -> EventModules:
        return event_modules(trace, digest)


def test_no_columns_break_a_writer(result: engine.Result) -> None:
    # The modules of events are worked out again, from columns that may be anything.
    digests = tuple(replace(one, modules=replace(one.modules, named_by="stacks")) for one in result.job.digests)
    job = replace(result.job, name="\ud800", nodes=("\udfff", "<b>\x00"), digests=digests)
    spoiled = replace(result, job=job)

    @given(trace=hostile_traces(), start=START, length=LENGTH, most=st.sampled_from([None, 1, 5, 10_000]))
    def holds(trace: RankTrace, start: int, length: int, most: int | None) -> None:
        window = SliceWindow((0, 1), start, start + max(length, 1))
        for form in (native, chrome, columns):
            file = io.BytesIO()
            form.write(cut.cut(spoiled, Kept(trace), window, most), file)  # type: ignore[arg-type]
            check(form, file.getvalue())

    def check(form: ModuleType, content: bytes) -> None:
        if form is native:
            open_ = Counter[int]()
            for packet in Trace.FromString(content).packet:
                event = packet.track_event
                open_[event.track_uuid] += event.type == TrackEvent.TYPE_SLICE_BEGIN
                open_[event.track_uuid] -= event.type == TrackEvent.TYPE_SLICE_END
            assert not any(open_.values())
        else:
            told = msgspec.json.decode(content)
            if form is chrome:
                assert all(event["ts"] >= 0 for event in told["traceEvents"] if "ts" in event)

    holds()


def test_long_names_are_cut(result: engine.Result, cache: Cache) -> None:
    part = cut.cut(result, cache, at(result, 0, 70))
    hostile = tuple("\ud800<img src=x>" + "x" * 100_000 for _ in next(iter(part.ranks)).strings)
    spoiled = replace(part, ranks=tuple(replace(rank, strings=hostile, node="\udfff") for rank in part.ranks))
    assert len(perfetto(spoiled).SerializeToString()) < 1_000_000
    for form in (chrome, columns):
        assert written(form, spoiled)


THREE = """
    rank# step |1
          host [ar]
          gpu  [fwd..]
          nccl %s
"""


def test_an_arrow_goes_from_arrival_to_arrival_in_the_order_of_time(tmp_path: Path) -> None:
    drawn = ranks(*(THREE % ar for ar in ("  [ar......]", "     [ar...]", "[ar........]")))
    (run,) = discover(write(tmp_path / "job", drawn))
    kept = Cache(None)
    found = engine.diagnose(run, reading=engine.Reading(kept))
    part = cut.cut(found, kept, cut.whole(found.job))
    told = written(chrome, part)["traceEvents"]
    pids = {event["pid"]: event["args"]["name"] for event in told if event["name"] == "process_name"}
    arrows: dict[int, list[tuple[str, str]]] = {}
    for event in sorted((event for event in told if event["name"] == "arrivals"), key=lambda event: event["ts"]):
        arrows.setdefault(event["id"], []).append((event["ph"], pids[event["pid"]].split(" (")[0]))
    assert len(arrows) == 3
    assert set(map(tuple, arrows.values())) == {(("s", "rank 2"), ("t", "rank 0"), ("f", "rank 1"))}
    # Another rank than the one that comes last of all may come last of those shown.
    few = written(chrome, cut.cut(found, kept, replace(cut.whole(found.job), ranks=(0, 2))))["traceEvents"]
    turns = Counter(event["ph"] for event in few if event["name"] == "arrivals")
    assert turns == {"s": 3, "f": 3}


def test_unchecked_columns_are_those_that_are_kept(result: engine.Result, cache: Cache) -> None:
    checked, unchecked = (cache.columns(result.files[0], checked=checked) for checked in (True, False))
    assert np.array_equal(checked.events.start_ns, unchecked.events.start_ns)
    with pytest.raises(TraceError):
        cache.columns(Path("/nowhere"), checked=False)


def test_an_older_protobuf_costs_native_slices_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Importing perfetto's generated code then fails; nothing else imports it."""
    monkeypatch.setitem(sys.modules, "perfetto", None)
    for module in [name for name in sys.modules if name.startswith(("perfetto.", "tb_ddp_doctor.slices.native"))]:
        monkeypatch.delitem(sys.modules, module)
    assert files.writer("chrome").CONTENT_TYPE == "application/json"
    with pytest.raises(SliceError, match=r"^Native slices need another protobuf than is installed here .* mends it\.$"):
        files.writer("native")


def test_the_command_starts_without_perfetto() -> None:
    code = "import sys; sys.modules['perfetto'] = None; from tb_ddp_doctor import cli; sys.exit(cli.main(['--help']))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_are_written_as_protobuf_writes_them(number: int) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    assert native._TIMESTAMP + encoded(number) == TracePacket(timestamp=number).SerializeToString()


@pytest.mark.parametrize("name", ["x.json", "x.pftrace"])
def test_a_slice_is_not_diagnosed_as_a_job(result: engine.Result, cache: Cache, tmp_path: Path, name: str) -> None:
    files.save(cut.cut(result, cache, at(result, 0, 70)), tmp_path / name)
    with pytest.raises(TraceError, match="a slice that ddp-doctor wrote for viewers"):
        digest(reader.read(tmp_path / name))
