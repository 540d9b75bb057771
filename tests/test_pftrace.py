"""Traces in Perfetto's format: the same as their JSON, however the packets are written and damaged."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pftrace_files
import pytest
import traces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, Trace, TracePacket, TrackEvent
from test_native import blocks, rows
from torch_events import READERS

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import digest_version
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.discover.runs import DiscoverError, discover
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage import column_file
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.args import ARGUMENTS
from tb_ddp_doctor.trace.losses import Losses
from tb_ddp_doctor.trace.model import Category, RankTrace, TraceError
from tb_ddp_doctor.trace.names import CATEGORIES
from tb_ddp_doctor.trace.pftrace.packets import PythonPackets
from tb_ddp_doctor.trace.pftrace.read import PacketsAsColumns, PacketsAsJson

FILES = sorted((Path(__file__).parent / "pftrace").glob("*.pftrace"))
DRAWN = """
    rank0 step     |1                                          |2
          host     [load.][fwd][walk][bwd][item....][update]    [load.][fwd][bwd]     [sync.....]
          autograd             [grad@2]
          gpu             [pinned][fwd....][bwd.....]                  [fwd....][bwd*20.]
          gpu2                 [graph*4.]
          nccl                     [ar@8....][ag/tp]                              [s1r1.......]
          memory   [2of4a]     [3of4b]  [2of4b]                       [3of4c]
          python   [step........................]                [gc...]
    rank1 step     |1                                          |2
          host     [load.][fwd][walk][bwd][item....][update]    [load.][fwd][bwd]     [sync.....]
          gpu             [pinned][fwd....][bwd.....]                  [fwd....][bwd*20.]
          nccl                     [ar@8....][ag/tp]                              [s0r0.......]
"""


def read(path: Path, data: bytes, by: str = READERS[0]) -> RankTrace:
    """The trace that a file with these bytes is."""
    path.write_bytes(data)
    with mock.patch.dict(os.environ, DDP_DOCTOR_READER=by):
        return reader.read(path)


def columns(of: RankDigest) -> bytes:
    """All of a digest, but for the file's name."""
    file = io.BytesIO()
    column_file.dump(replace(of, file="", warnings=()), digest_version(), file)
    return file.getvalue()


def decode(text: list[bytes], by: str) -> RankTrace:
    with mock.patch.dict(os.environ, DDP_DOCTOR_READER=by):
        return reader.decode(text, "rank")


@pytest.mark.parametrize("by", READERS)
@pytest.mark.parametrize("how", [{}, {"interned": True}, {"threads": True}, {"newest_first": True}], ids=str)
def test_a_drawn_trace_is_the_same_in_both_formats(tmp_path: Path, how: dict[str, bool], by: str) -> None:
    for rank, data in traces.draw(DRAWN).items():
        order = {key: value for key, value in how.items() if key == "newest_first"}
        # In the same blocks: msgspec's reader numbers strings block by block.
        head, events, rest = pftrace_files.in_order(data, **order).partition(b'"traceEvents":[')
        of_json = decode([head + events, rest.removesuffix(b"]}"), b"]}"], by)
        found = read(tmp_path / f"rank{rank}.pftrace", pftrace_files.of_json(data, **how), by)
        assert rows(found) == rows(of_json)
        assert not found.warnings
        # Torch's file says nothing of ranks and devices.
        same = digest(replace(found, header=of_json.header)), digest(of_json)
        assert columns(same[0]) == columns(same[1])


def test_a_job_is_diagnosed_from_either_format(tmp_path: Path) -> None:
    rank = """
        rank# step |1
              host [fwd]
              gpu  [fwd...]
              nccl         [ar]
    """
    text = traces.ranks(rank, rank)
    found = [
        engine.diagnose(run).diagnosis
        for folder in (
            pftrace_files.write(tmp_path / "packets", text, packed=True),
            traces.write(tmp_path / "json", text),
        )
        for run in discover(folder)
    ]
    assert [len(one.ranks) for one in found] == [2, 2]
    assert found[0].step_ms == found[1].step_ms


@pytest.mark.parametrize("packed", [False, True])
def test_json_that_is_called_a_pftrace_is_read(tmp_path: Path, packed: bool) -> None:
    """Torch's `export_chrome_trace("x.pftrace")` writes JSON up to 2.13."""
    for rank, data in traces.draw(DRAWN).items():
        text = b" " + data
        (tmp_path / f"rank{rank}.pftrace{'.gz' * packed}").write_bytes(gzip.compress(text) if packed else text)
    (run,) = discover(tmp_path)
    found = engine.diagnose(run).diagnosis
    assert found.ranks == (0, 1)
    assert found.step_ms > 0


@pytest.mark.parametrize("by", READERS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sums_of_real_files_are_those_of_their_packets(path: Path, by: str) -> None:
    """Numbers and times of each category, counted with Perfetto's own messages."""
    counts, times = Counter[Category](), Counter[Category]()
    launches = set[tuple[str, int]]()
    open_: defaultdict[int, list[tuple[Category | None, int]]] = defaultdict(list)
    for packet in Trace.FromString(path.read_bytes()).packet:
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            category = CATEGORIES.get(event.categories[0])
            open_[event.track_uuid].append((category, packet.timestamp))
            told = {one.name: one.int_value for one in event.debug_annotations}
            if category is not None and "correlation" in told:
                launches.add((event.name, told["correlation"]))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            category, start = open_[event.track_uuid].pop()
            if category is not None:
                counts[category] += 1
                times[category] += packet.timestamp - start
    with mock.patch.dict(os.environ, DDP_DOCTOR_READER=by):
        found = reader.read(path)
    assert not found.warnings
    category = found.events.category
    assert {Category(code): int((category == code).sum()) for code in np.unique(category)} == counts
    assert {Category(code): int(found.events.duration_ns[category == code].sum()) for code in counts} == times
    named = zip(found.events.name.tolist(), found.events.correlation.tolist(), strict=True)
    assert {(found.strings[name], number) for name, number in named if number >= 0} == launches


def test_real_files_have_the_threads_of_their_descriptors() -> None:
    found = reader.read(FILES[0])
    host = {found.threads[row] for row in found.events.thread[found.events.category == Category.OP].tolist()}
    device = {found.threads[row] for row in found.events.thread[found.events.category == Category.KERNEL].tolist()}
    assert (host, device) == ({("323917", "323917"), ("323917", "324121")}, {("0", "7")})


# -- what a file may be like


def packet(time: int, kind: int, **said: object) -> TracePacket:
    made = TracePacket(timestamp=time, trusted_packet_sequence_id=1)
    made.track_event.type = kind
    for name, value in said.items():
        setattr(made.track_event, name, value)
    return made


def file(*packets: TracePacket) -> bytes:
    return Trace(packet=packets).SerializeToString()


def begin(time: int, name: str = "gemm", **said: object) -> TracePacket:
    made = packet(time, TrackEvent.TYPE_SLICE_BEGIN, name=name, **{"track_uuid": 7} | said)
    made.track_event.categories.append("kernel")
    return made


def end(time: int, track: int = 7) -> TracePacket:
    return packet(time, TrackEvent.TYPE_SLICE_END, track_uuid=track)


@pytest.fixture(params=READERS)
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def told(trace: RankTrace) -> list[tuple[str, int, int]]:
    """Name, start and duration of each event."""
    events = trace.events
    names = [trace.strings[name] for name in events.name.tolist()]
    return sorted(zip(names, events.start_ns.tolist(), events.duration_ns.tolist(), strict=True))


def test_ends_belong_to_what_began_last(tmp_path: Path, by: str) -> None:
    data = file(end(90), end(50, 8), begin(10, "a"), begin(20, "b"), end(30), begin(40, "c", track_uuid=8), end(5))
    found = read(tmp_path / "x.pftrace", data, by)
    assert told(found) == [("a", 10, 80), ("b", 20, 10), ("c", 40, 10)]


def test_slices_without_an_end_are_left_out(tmp_path: Path, by: str) -> None:
    found = read(tmp_path / "x.pftrace", file(begin(10, "a"), begin(20, "b"), end(30)), by)
    assert told(found) == [("b", 20, 10)]
    assert [(one.message, one.kind) for one in found.warnings] == [
        ("1 event left out whose end the file does not hold", "lost-events")
    ]


def test_what_a_packet_leaves_out_its_sequence_has_said(tmp_path: Path, by: str) -> None:
    first = TracePacket(trusted_packet_sequence_id=1, sequence_flags=1)
    first.trace_packet_defaults.track_event_defaults.track_uuid = 7
    first.interned_data.event_names.add(iid=3, name="gemm")
    first.interned_data.event_categories.add(iid=4, name="kernel")
    first.interned_data.debug_annotation_names.add(iid=5, name="dtype")
    other = TracePacket(trusted_packet_sequence_id=2)
    other.interned_data.event_names.add(iid=3, name="another sequence's")
    event = packet(10, TrackEvent.TYPE_SLICE_BEGIN, name_iid=3)
    event.track_event.category_iids.append(4)
    event.track_event.flow_ids.append(77)
    forgotten = TracePacket(trusted_packet_sequence_id=1, sequence_flags=1)
    again = packet(40, TrackEvent.TYPE_SLICE_BEGIN, name_iid=3, track_uuid=7)
    data = file(first, other, event, packet(30, TrackEvent.TYPE_SLICE_END), forgotten, again, end(50))
    found = read(tmp_path / "x.pftrace", data, by)
    assert told(found) == [("gemm", 10, 20)]
    assert found.events.correlation.tolist() == [77]
    assert [one.kind for one in found.warnings] == ["lost-events"]


def test_arguments_have_all_types_of_annotations(tmp_path: Path, by: str) -> None:
    event = begin(10)
    add = event.track_event.debug_annotations.add
    add(name="device", uint_value=3)
    add(name="stream", int_value=-(1 << 40))
    add(name="correlation", string_value="12")
    add(name="est. achieved occupancy %", double_value=34.0)
    add(name="grid").array_values.extend([DebugAnnotation(int_value=4), DebugAnnotation(legacy_json_value="[1]")])
    add(name="Collective name", string_value='all"\\\n\x01é')
    add(name="Seq", legacy_json_value=" 41 ")
    add(name="Group size", legacy_json_value="4} ,")
    add(name="of no interest", string_value="x" * 9)
    found = read(tmp_path / "x.pftrace", file(event, end(20)), by)
    events, comms = found.events, found.comms
    numbers = (events.device, events.stream, events.correlation, events.occupancy, comms.sequence, comms.group_size)
    assert [column.tolist() for column in numbers] == [[3], [-(1 << 40)], [12], [34], [41], [-1]]
    assert json.loads(found.strings[events.shape[0]]) == [4, [1]]
    assert found.strings[comms.collective[0]] == 'all"\\\n\x01é'


def test_nesting_ends(tmp_path: Path, by: str) -> None:
    deep = DebugAnnotation(name="grid", int_value=1)
    for _ in range(40):
        deep = DebugAnnotation(name="grid", array_values=[deep])
    event = begin(10)
    event.track_event.debug_annotations.append(deep)
    found = read(tmp_path / "x.pftrace", file(event, end(20)), by)
    assert found.strings[found.events.shape[0]] == "[" * 16 + "null" + "]" * 16


@pytest.mark.parametrize(
    ("change", "said", "kind"),
    [
        (lambda data: data[:-3], "cut off at byte 28", "lost-end"),
        (lambda data: data + b"\x0a\xff\x01abc", "cut off at byte 40", "lost-end"),
        (lambda data: data + b"\x0b\x01abc", "what follows byte 40 is no packet, and was not read", "lost-end"),
        (lambda data: data + b"\x12\x03abc\x18\x05\x21aaaaaaaa\x2daaaa", "", ""),
        (lambda data: data + b"\x0a\x03\x0b\x0b\x0b", "1 packet skipped from byte 40 on", "lost-events"),
        (lambda data: b"\x0a\x80\x80\x80\x10" + b"\0" * (1 << 25) + data, "larger than 16 MiB", "lost-events"),
    ],
    ids=["cut", "cut later", "astray", "other fields", "damaged", "large"],
)
def test_damage_is_told(tmp_path: Path, by: str, change: object, said: str, kind: str) -> None:
    data = file(begin(10), end(20))
    assert len(data) == 40
    found = read(tmp_path / "x.pftrace", change(data), by)  # type: ignore[operator]
    assert found.warnings[-1].kind == kind if kind else not found.warnings
    assert any(said in one.message for one in found.warnings) == bool(said)


def test_a_file_that_holds_nothing_is_refused(tmp_path: Path, by: str) -> None:
    for data, said in ((b"", "holds no events"), (b"\x0b", "no trace in Perfetto's format"), (file(), "no events")):
        with pytest.raises(TraceError, match=said):
            read(tmp_path / "x.pftrace", data, by)
    with pytest.raises(TraceError, match="damaged"):
        read(tmp_path / "x.pftrace.gz", gzip.compress(file())[:9] + b"\xff\xff\xff", by)


def test_other_traces_in_perfettos_format_are_named(tmp_path: Path) -> None:
    (tmp_path / "rank0.pftrace").write_bytes(file(packet(1, TrackEvent.TYPE_SLICE_BEGIN, name="app"), end(2)))
    with pytest.raises(DiscoverError, match=r"without events of torch\.profiler"):
        discover(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_rocprofv3s_traces_in_perfettos_format_are_named(tmp_path: Path, packed: bool) -> None:
    """As its SDK writes them: the categories that it knows, tracks of threads and queues, and interned names."""
    described = TracePacket(trusted_packet_sequence_id=1)
    for name, description in (("hip_api", "HIP API function"), ("kernel_dispatch", "GPU kernel dispatch")):
        described.interned_data.event_categories.add(iid=len(name), name=name)
        described.interned_data.event_names.add(iid=len(name), name=description)
    queue = TracePacket(trusted_packet_sequence_id=1)
    queue.track_descriptor.uuid, queue.track_descriptor.name = 7, "COMPUTE AGENT [2] QUEUE [1]"
    dispatch = packet(10, TrackEvent.TYPE_SLICE_BEGIN, track_uuid=7, name_iid=15)
    dispatch.track_event.category_iids.append(15)
    data = file(described, queue, dispatch, end(20))
    (tmp_path / ("1_results.pftrace" + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DiscoverError, match=r"rocprofv3 for Perfetto.* what torch\.profiler writes on AMD GPUs"):
        discover(tmp_path)


# -- both readers


#: Where in its text or its packets a reader was: their bytes differ.
PLACE = re.compile(r"(from byte|at byte) [\d,]+")


def by_text(data: bytes) -> tuple[Any, list[str], list[str]] | str:
    """Rows of packets by way of JSON, and what the text and the packets lost; or why there are none."""
    packets = PacketsAsJson()
    try:
        packets.survey(blocks(data))
    except TraceError as error:
        return str(error)
    found = decode(list(packets.json(blocks(data))), "native")
    return rows(replace(found, warnings=())), losses(found.warnings), losses(packets.warnings("rank"))


def by_columns(data: bytes, *sizes: int) -> tuple[Any, list[str], list[str]] | str:
    """The same without text in between."""
    packets, lost = PacketsAsColumns(), Losses()
    try:
        packets.survey(blocks(data, *sizes))
    except TraceError as error:
        return str(error)
    found = reader.of_columns({}, packets.columns(blocks(data, *sizes), lost), lost, "rank")
    return rows(replace(found, warnings=())), losses(found.warnings), losses(packets.warnings("rank"))


def losses(warnings: Iterable[FileWarning]) -> list[str]:
    """Sentences without positions."""
    return sorted(PLACE.sub(r"\1 N", one.message) for one in warnings)


def damaged() -> Iterator[bytes]:
    """A real file with chance changes."""
    whole = FILES[1].read_bytes()[:20_000]
    draw = random.Random(7)
    for _ in range(60):
        data = bytearray(whole[draw.randrange(2) * 4096 :] if draw.random() < 0.1 else whole)
        for _ in range(draw.randrange(1, 12)):
            at = draw.randrange(len(data))
            match draw.randrange(4):
                case 0:
                    data[at] = draw.randrange(256)
                case 1:
                    del data[at : at + draw.randrange(30)]
                case 2:
                    data[at:at] = draw.randbytes(draw.randrange(8))
                case _:
                    data[at : at + 8] = struct.pack("<Q", draw.choice((0, 1 << 63, (1 << 64) - 1, 1 << 31)))
        yield bytes(data)


@pytest.mark.skipif(len(READERS) == 1, reason="there was no C compiler")
def test_both_readers_read_the_same() -> None:
    for data in [FILES[1].read_bytes(), *damaged()]:
        expected = by_text(data)
        assert by_columns(data) == expected
        assert by_columns(data, 1, 7, 300) == expected


@pytest.mark.skipif(len(READERS) == 1, reason="there was no C compiler")
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data.replace(b"\x40\x0a\x50\x01", b"\x42\x02\x50\x01"), id="a time that is a text"),
        pytest.param(lambda data: data.replace(b'["int"]', b'["i\xfft"]'), id="JSON that is no UTF-8"),
        pytest.param(lambda data: data + b"\x00", id="a field without a number at the end"),
    ],
)
def test_both_readers_agree_on_damage(damage: Callable[[bytes], bytes]) -> None:
    event = begin(10, "aten::mm")
    event.track_event.categories[0] = "cpu_op"
    event.track_event.debug_annotations.add(name="Input type", legacy_json_value='["int"]')
    whole = file(event, end(20))
    data = damage(whole)
    assert data != whole
    assert by_columns(data) == by_text(data)


#: Values as annotations may have them, and texts that claim to be JSON.
VALUES = st.one_of(
    st.builds(lambda value: {"int_value": value}, st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 300)),
    st.builds(lambda value: {"uint_value": value}, st.integers(0, (1 << 64) - 1)),
    st.builds(lambda value: {"pointer_value": value}, st.integers(0, (1 << 64) - 1)),
    st.builds(lambda value: {"double_value": value}, st.floats() | st.sampled_from([0.0, -0.0, 34.0, 1e15, 1e17])),
    st.builds(lambda value: {"bool_value": value}, st.booleans()),
    st.builds(lambda value: {"string_value": value}, st.text(max_size=6) | st.sampled_from(["12", "0", "", '"'])),
    st.builds(
        lambda value: {"legacy_json_value": value},
        st.sampled_from(
            ["[1,2]", " [[4, 8], []] ", "[1] x", "{", "[", "[1", "7", " 7 ", "null", '"a"', '["1","2"]', ""]
        ),
    ),
    st.just({}),
)
CATEGORY_NAMES = st.sampled_from([*CATEGORIES, "python_function", "cpu_instant_event", "other", "", 'a"b', "x" * 40])
EVENT_NAMES = st.sampled_from(["gemm", "record_param_comms", "[memory]", "a\\b", "é", ""])


@pytest.mark.skipif(len(READERS) == 1, reason="there was no C compiler")
@settings(max_examples=300)
@given(
    events=st.lists(
        st.tuples(
            EVENT_NAMES,
            st.none() | CATEGORY_NAMES,
            st.integers(0, (1 << 62)),
            st.integers(0, 1 << 62),
            st.lists(st.tuples(st.sampled_from([name.decode() for name in ARGUMENTS] + ["other"]), VALUES), max_size=6),
            st.none() | st.integers(0, (1 << 64) - 1),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    )
)
@example([("gemm", "kernel", 0, 0, [("grid", {"string_value": '\r\n\t\b\f\x01\x7f"\\'})], None, False)])
def test_both_readers_agree_on_any_arguments(events: list[Any]) -> None:
    made = []
    for name, category, start, length, arguments, flow, is_instant in events:
        event = packet(start, TrackEvent.TYPE_INSTANT if is_instant else TrackEvent.TYPE_SLICE_BEGIN, name=name)
        event.track_event.track_uuid = 7
        if category is not None:
            event.track_event.categories.append(category)
        if flow is not None:
            event.track_event.flow_ids.append(flow)
        for key, value in arguments:
            event.track_event.debug_annotations.add(name=key, **value)
        made += [event] if is_instant else [event, end(start + length)]
    data = file(begin(1), end(2), *made)
    assert by_columns(data) == by_text(data)


@pytest.mark.skipif(len(READERS) == 1, reason="there was no C compiler")
@settings(max_examples=30)
@given(
    changes=st.lists(st.tuples(st.integers(0, 19_999), st.integers(0, 30), st.binary(max_size=9)), max_size=8),
    sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=3),
)
def test_both_readers_agree_on_any_packets(changes: list[tuple[int, int, bytes]], sizes: list[int]) -> None:
    """A real file in which so many bytes at a place are replaced by others."""
    data = bytearray(FILES[1].read_bytes()[:20_000])
    for at, removed, added in changes:
        data[at : at + removed] = added
    assert by_columns(bytes(data), *sizes) == by_text(bytes(data))


def test_any_bytes_are_read_or_refused(tmp_path: Path, by: str) -> None:
    for number, data in enumerate(damaged()):
        if by == "native" or number % 6 == 0:
            try:
                found = read(tmp_path / "x.pftrace", data, by)
            except TraceError as error:
                assert str(error).endswith(".")
                continue
            assert (found.events.duration_ns >= 0).all() and (found.events.start_ns >= 0).all()


def test_strings_and_sequences_are_bounded() -> None:
    many = [TracePacket(trusted_packet_sequence_id=number) for number in range(8)]
    for number, one in enumerate(many):
        one.interned_data.event_names.add(iid=number, name="x")
    packets = PythonPackets(1 << 20, 5, (b"device",))
    packets.survey(file(*many))
    assert sum(count for count, _ in packets.lost().values()) == 3
