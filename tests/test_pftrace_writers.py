"""Files of other writers of Perfetto's format: compressed, in clocks of their own, with render stages for GPU work."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pftrace_files
import pytest
import traces
from msgspec.structs import replace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent
from test_pftrace import DRAWN, READERS, columns, decode, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.trace.model import RankTrace, TraceError
from tb_ddp_doctor.trace.pftrace.plain import COMPRESSED, plain

EPOCH = 1_700_000_000_000_000_000
#: Seconds since the machine began, as Perfetto's SDK has times.
BOOT = 86_400_000_000_000


@pytest.fixture(params=READERS)
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def drawn(**how: Any) -> tuple[bytes, list[TracePacket]]:
    """A rank's JSON, in the order of its packets, and these."""
    data = traces.draw(DRAWN, metadata="kernel", sequence=True, **how)[0]
    trace = Trace()
    trace.ParseFromString(pftrace_files.of_json(data, interned=True))
    return pftrace_files.in_order(data), list(trace.packet)


def compressed(packets: list[TracePacket], at_once: int = 50) -> list[TracePacket]:
    """As Perfetto's SDK does with COMPRESSION_TYPE_DEFLATE: many packets in one."""
    groups = [packets[at : at + at_once] for at in range(0, len(packets), at_once)]
    return [TracePacket(compressed_packets=zlib.compress(Trace(packet=each).SerializeToString())) for each in groups]


def incremental(packets: list[TracePacket], unit_ns: int = 1) -> list[TracePacket]:
    """As Perfetto's SDK does: a clock that counts from packet to packet, shown beside the trace's clock."""
    first = TracePacket(trusted_packet_sequence_id=packets[0].trusted_packet_sequence_id, sequence_flags=1)
    begin = min(packet.timestamp for packet in packets if packet.HasField("track_event"))
    first.timestamp = begin
    first.timestamp_clock_id = 6
    add = first.clock_snapshot.clocks.add
    add(clock_id=6, timestamp=begin)
    add(clock_id=64, timestamp=begin // unit_ns, is_incremental=True, unit_multiplier_ns=unit_ns)
    first.trace_packet_defaults.timestamp_clock_id = 64
    last, made = begin, [first]
    for packet in packets:
        one = TracePacket()
        one.CopyFrom(packet)
        if packet.HasField("track_event") and packet.timestamp >= last:
            one.timestamp = (packet.timestamp - last) // unit_ns
            last = packet.timestamp
        else:
            # What lies before the last packet names the trace's clock.
            one.timestamp_clock_id = 6
        made.append(one)
    return made


def in_clock(number: int, behind: int, first: TracePacket, packets: list[TracePacket]) -> list[TracePacket]:
    """In a clock that `first` shows, and that runs so much behind the trace's."""
    made = [first]
    for packet in packets:
        one = TracePacket()
        one.CopyFrom(packet)
        if packet.HasField("track_event"):
            one.timestamp, one.timestamp_clock_id = packet.timestamp - behind, number
        made.append(one)
    return made


def absolute(packets: list[TracePacket]) -> list[TracePacket]:
    """In a clock of the sequence that begins with the trace."""
    first = TracePacket(trusted_packet_sequence_id=packets[0].trusted_packet_sequence_id, sequence_flags=1)
    add = first.clock_snapshot.clocks.add
    add(clock_id=6, timestamp=EPOCH)
    add(clock_id=70, timestamp=0)
    return in_clock(70, EPOCH, first, packets)


def other_clock(packets: list[TracePacket]) -> list[TracePacket]:
    """In the machine's monotonic clock, which runs BOOT behind."""
    first = TracePacket()
    add = first.clock_snapshot.clocks.add
    add(clock_id=6, timestamp=EPOCH + BOOT)
    add(clock_id=3, timestamp=EPOCH)
    return in_clock(3, BOOT, first, packets)


def as_file(packets: list[TracePacket]) -> bytes:
    return Trace(packet=packets).SerializeToString()


@pytest.mark.parametrize(
    "spell",
    [
        compressed,
        lambda packets: compressed(packets, 1),
        incremental,
        lambda packets: compressed(incremental(packets)),
        absolute,
        other_clock,
        # The SDK's own packets are not compressed.
        lambda packets: packets[:3] + compressed(packets[3:]),
    ],
)
def test_a_trace_is_the_same_however_its_packets_are_written(
    tmp_path: Path, spell: Callable[[list[TracePacket]], list[TracePacket]], by: str
) -> None:
    data, packets = drawn()
    found = read(tmp_path / "rank0.pftrace", as_file(spell(packets)), by)
    assert not found.warnings
    # In the same blocks: msgspec's reader numbers strings block by block.
    head, events, rest = data.partition(b'"traceEvents":[')
    of_json = decode([head + events, rest.removesuffix(b"]}"), b"]}"], by)
    assert columns(digest(replace(found, header=of_json.header))) == columns(digest(of_json))
    (run,) = discover(tmp_path)
    assert [file.path.name for file in run.files] == ["rank0.pftrace"]


def test_times_in_microseconds_are_in_them(tmp_path: Path, by: str) -> None:
    _, packets = drawn()
    found = read(tmp_path / "x.pftrace", as_file(incremental(packets, 1000)), by)
    whole = read(tmp_path / "y.pftrace", as_file(packets), by)
    assert abs(found.events.start_ns - whole.events.start_ns).max() < 1000 * len(packets)
    assert abs(found.events.duration_ns - whole.events.duration_ns).max() < 1000 * len(packets)


#: What a render stage is called, by Kineto's category.
STAGES = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}


def staged(data: bytes, *, shuffled: bool = False) -> bytes:
    """GPU work as render stages, as torch/csrc/profiler/cuspy/cuspy_pftrace.cpp writes it, the rest as packets."""
    trace = json.loads(data)
    on_gpu = [event for event in trace["traceEvents"] if event["cat"] in STAGES]
    host = trace | {"traceEvents": [event for event in trace["traceEvents"] if event["cat"] not in STAGES]}
    packets = Trace()
    packets.ParseFromString(pftrace_files.of_json(json.dumps(host).encode()))
    tables = TracePacket(trusted_packet_sequence_id=9, sequence_flags=1)
    names = {name: iid for iid, name in enumerate(dict.fromkeys(event["name"] for event in on_gpu), 1)}
    for name, iid in names.items():
        tables.interned_data.event_names.add(iid=iid, name=name)
    for iid, name in enumerate(STAGES.values(), 1):
        tables.interned_data.gpu_specifications.add(iid=iid, name=name)
    if shuffled:
        random.Random(1).shuffle(on_gpu)
    stages = list(of_stages(on_gpu, names, trace.get("baseTimeNanoseconds", 0)))
    return as_file([tables, *packets.packet, *stages])


def of_stages(on_gpu: list[dict[str, Any]], names: dict[str, int], base_ns: int) -> Iterator[TracePacket]:
    for event in on_gpu:
        packet = TracePacket(trusted_packet_sequence_id=9, sequence_flags=2)
        packet.timestamp = base_ns + round(event["ts"] * 1000)
        stage = packet.gpu_render_stage_event
        stage.duration, stage.gpu_id = round(event["dur"] * 1000), event["args"]["device"]
        stage.hw_queue_iid, stage.stage_iid = 50, 1 + [*STAGES].index(event["cat"])
        stage.name_iid = names[event["name"]]
        for key, value in event["args"].items():
            if key == "grid":
                stage.launch.grid_size.x, stage.launch.grid_size.y, stage.launch.grid_size.z = value
            elif key != "device":
                stage.extra_data.add(name=key, value=value if isinstance(value, str) else json.dumps(value))
        yield packet


def sorted_rows(trace: RankTrace) -> list[tuple[Any, ...]]:
    events = trace.events
    texts = [*trace.strings, ""]
    columns = [getattr(events, name).tolist() for name in ("start_ns", "duration_ns", "category", "device", "stream")]
    columns += [events.correlation.tolist(), events.bytes.tolist()]
    columns += [[texts[i] for i in getattr(events, name).tolist()] for name in ("name", "shape")]
    columns += [[trace.threads[i] for i in events.thread.tolist()]]
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize("shuffled", [False, True])
def test_render_stages_are_kernels_and_copies(tmp_path: Path, shuffled: bool, by: str) -> None:
    data = traces.draw(DRAWN, metadata="kernel", sequence=True)[0]
    found = read(tmp_path / "rank0.pftrace", staged(data, shuffled=shuffled), by)
    expected = decode([data], by)
    assert not found.warnings
    assert sorted_rows(found) == sorted_rows(expected)
    assert len(found.comms) == len(expected.comms)
    a, b = digest(found), digest(expected)
    assert (a.collectives.bytes.tolist(), a.collectives.sequence.tolist()) == (
        b.collectives.bytes.tolist(),
        b.collectives.sequence.tolist(),
    )
    assert a.work.owner_ns.tolist() == b.work.owner_ns.tolist()


def test_tables_behind_many_tracks_are_seen(tmp_path: Path, by: str) -> None:
    """The CUPTI monitor shows its clocks first, then its tracks, then what render stages are called."""
    shown = TracePacket(timestamp=EPOCH, trusted_packet_sequence_id=9)
    for clock in (6, 1):
        shown.clock_snapshot.clocks.add(clock_id=clock, timestamp=EPOCH)
    tracks = [TracePacket() for _ in range(300)]
    for number, packet in enumerate(tracks, 1 << 50):
        packet.track_descriptor.uuid = number
    data = traces.draw(DRAWN)[0]
    found = read(tmp_path / "rank0.pftrace", as_file([shown, *tracks]) + staged(data), by)
    assert sorted_rows(found) == sorted_rows(decode([data], by))


def test_a_file_that_begins_with_a_long_table_of_names_is_a_trace(tmp_path: Path) -> None:
    """More than the beginning that is looked at when traces are sought, with the categories behind it."""
    tables = TracePacket(trusted_packet_sequence_id=9, sequence_flags=1)
    for iid in range(1, 900):
        tables.interned_data.event_names.add(iid=iid, name=f"aten::operator_{iid}_" + "x" * 200)
    (tmp_path / "rank0.pftrace").write_bytes(as_file([tables]) + staged(traces.draw(DRAWN)[0]))
    (run,) = discover(tmp_path)
    assert [file.path.name for file in run.files] == ["rank0.pftrace"]


@pytest.mark.parametrize("name", ["rank0.pftrace", "rank0.pftrace.gz"])
def test_a_file_that_begins_with_the_ends_of_all_slices_is_a_trace(tmp_path: Path, name: str) -> None:
    """Ends have no names: more of them than are looked at when traces are sought."""
    ends = [packet for packet in drawn()[1] if packet.track_event.type == TrackEvent.TYPE_SLICE_END]
    begins = [packet for packet in drawn()[1] if packet.track_event.type != TrackEvent.TYPE_SLICE_END]
    assert ends and begins
    written = as_file(ends * (1 + (1 << 18) // len(as_file(ends))) + begins)
    (tmp_path / name).write_bytes(gzip.compress(written) if name.endswith(".gz") else written)
    (run,) = discover(tmp_path)
    assert [file.path.name for file in run.files] == [name]


def test_a_file_that_begins_with_many_compressed_descriptors_is_a_trace(tmp_path: Path) -> None:
    _, packets = drawn()
    described = [packet for packet in packets if packet.HasField("track_descriptor")]
    rest = [packet for packet in packets if not packet.HasField("track_descriptor")]
    (tmp_path / "rank0.pftrace").write_bytes(as_file(compressed([*described * 5, *rest], 1)))
    (run,) = discover(tmp_path)
    assert len(run.files) == 1


def test_damage_in_what_is_compressed_is_told(tmp_path: Path, by: str) -> None:
    _, packets = drawn()
    whole = compressed(packets)
    broken = bytearray(whole[1].compressed_packets)
    broken[len(broken) // 2 :] = b"\xff" * 9
    whole[1].compressed_packets = bytes(broken)
    whole[2].compressed_packets = zlib.compress(as_file(compressed(packets[:2])))
    found = read(tmp_path / "x.pftrace", as_file(whole), by)
    assert len(found.events)
    assert any("packets skipped" in one.message and one.kind == "lost-events" for one in found.warnings)


def test_a_cut_is_told(tmp_path: Path, by: str) -> None:
    _, packets = drawn()
    data = as_file(compressed(packets))
    found = read(tmp_path / "x.pftrace", data[: len(data) - 20], by)
    assert any(one.kind == "lost-end" for one in found.warnings)


def test_times_in_an_unknown_clock_are_lost(tmp_path: Path, by: str) -> None:
    _, packets = drawn()
    with pytest.raises(TraceError) as problem:
        read(tmp_path / "x.pftrace", as_file(absolute(packets)[1:]), by)
    assert str(problem.value).endswith(".")


def test_any_bytes_are_read_or_refused(tmp_path: Path, by: str) -> None:
    draw = random.Random(3)
    _, packets = drawn()
    first, *others = incremental(packets)
    whole = as_file([first, *others[:20], *compressed(others[20:80]), *others[80:]])
    for _ in range(40 if by == "native" else 8):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 9)):
            at = draw.randrange(len(data))
            data[at : at + draw.randrange(9)] = draw.randbytes(draw.randrange(9))
        try:
            found = read(tmp_path / "x.pftrace", bytes(data), by)
        except TraceError as error:
            assert str(error).endswith(".")
            continue
        assert (found.events.duration_ns >= 0).all()


def test_a_block_that_ends_anywhere_changes_nothing() -> None:
    _, packets = drawn()
    file = as_file(compressed(incremental(packets), 7))
    whole = b"".join(bytes(block) for block in plain([file]))
    for size in (1 << 12, 4097):
        pieces = [file[at : at + size] for at in range(0, len(file), size)]
        assert b"".join(bytes(block) for block in plain(pieces)) == whole
    assert TracePacket.DESCRIPTOR.fields_by_name["compressed_packets"].number == COMPRESSED


def test_plain_files_pass_as_they_are() -> None:
    _, packets = drawn()
    file = as_file(packets)
    pieces = [file[:5000], file[5000:]]
    passed = list(plain(pieces))
    assert [id(one) for one in passed] == [id(one) for one in pieces]
