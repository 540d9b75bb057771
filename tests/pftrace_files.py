"""Kineto's events as torch writes them in Perfetto's format: packets of begins and ends, sorted by time."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import traces
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

_SEQUENCE = 1001
#: Tracks, above those of processes.
_FIRST_TRACK = 1 << 40


def write(folder: Path, text: str, *, packed: bool = False, **options: Any) -> Path:
    """Write the drawn ranks in Perfetto's format, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, data in traces.draw(text, **options).items():
        packets = of_json(data)
        name = f"rank{rank}.pftrace"
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(packets) if packed else packets)
    return folder


def side_by_side(trace: Mapping[str, Any], names: Mapping[int, str]) -> bytes:
    """Traces that were put side by side, each one process of its own name, as packets; descriptors come first."""
    packets = list(_packets(trace, interned=False, threads=False, newest_first=False))
    for packet in packets:
        process = packet.track_descriptor.process
        if process.process_name:
            process.process_name = names[process.pid]
    packets.sort(key=_is_no_descriptor)
    return b"".join(_written(packets))


def put_together(files: Iterable[bytes], names: Sequence[str], *, is_folded: bool) -> bytes:
    """Files of packets one behind the other: processes are named for their file, or are one process of that name."""
    uuids: dict[tuple[int, int], int] = {}
    merged = Trace()
    for number, file in enumerate(files):
        packets = sorted(Trace.FromString(file).packet, key=_is_no_descriptor)
        processes = [one.track_descriptor for one in packets if one.track_descriptor.process.process_name]
        first = min(processes, key=lambda one: one.process.pid == 0).uuid
        for packet in packets:
            track = packet.track_descriptor
            if is_folded and track.process.process_name:
                if track.uuid != first:
                    continue
                track.process.process_name = names[number]
            elif track.process.process_name:
                track.process.process_name = f"{names[number]} · python"
            if is_folded and track.parent_uuid:
                track.parent_uuid = first
            for of, field in ((track, "uuid"), (track, "parent_uuid"), (packet.track_event, "track_uuid")):
                if uuid := getattr(of, field):
                    setattr(of, field, uuids.setdefault((number, uuid), len(uuids) + 1))
            packet.trusted_packet_sequence_id = _SEQUENCE + number
            merged.packet.append(packet)
    return merged.SerializeToString()


def _is_no_descriptor(packet: TracePacket) -> bool:
    return not packet.HasField("track_descriptor")


def of_json(data: bytes, *, interned: bool = False, threads: bool = False, newest_first: bool = False) -> bytes:
    """A trace's JSON as packets.

    With names `interned`, with descriptors of `threads` in place of names such as "thread 7", or in any order.
    """
    trace = json.loads(data)
    return b"".join(_written(_packets(trace, interned=interned, threads=threads, newest_first=newest_first)))


def in_order(data: bytes, *, newest_first: bool = False) -> bytes:
    """The JSON with its events in the order in which they begin in `of_json`: that is the order of a trace's rows."""
    trace = json.loads(data)
    marked = _marks(_lanes(trace), newest_first=newest_first)
    events = [event for _, _, event, kind in marked if kind != TrackEvent.TYPE_SLICE_END]
    return json.dumps(trace | {"traceEvents": events}, separators=(",", ":")).encode()


def _written(packets: Iterable[TracePacket]) -> Iterator[bytes]:
    for packet in packets:
        body = packet.SerializeToString()
        yield b"\x0a" + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


#: A begin, end or instant: time, event and kind.
Mark: TypeAlias = tuple[int, dict[str, Any], int]
#: Process, thread and marks of a track.
Lane: TypeAlias = tuple[Any, Any, list[Mark]]


def _lanes(trace: Mapping[str, Any]) -> list[Lane]:
    threads: defaultdict[tuple[Any, Any], list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        start = trace.get("baseTimeNanoseconds", 0) + round(event["ts"] * 1000)
        threads[event["pid"], event["tid"]].append((start, round(event.get("dur", 0) * 1000), event))
    return [(pid, tid, marks) for (pid, tid), events in threads.items() for marks in _tracks(events)]


def _marks(lanes: list[Lane], *, newest_first: bool) -> list[tuple[int, int, dict[str, Any], int]]:
    """Time, track, event and kind of each packet, in order."""
    marked = [
        (time, number, event, kind)
        for number, (_, _, marks) in enumerate(lanes, _FIRST_TRACK)
        for time, event, kind in marks
    ]
    return sorted(marked, key=lambda mark: -mark[0] if newest_first else mark[0])


def _packets(trace: Mapping[str, Any], *, interned: bool, threads: bool, newest_first: bool) -> Iterator[TracePacket]:
    lanes = _lanes(trace)
    descriptors = [*_processes(trace)]
    for number, (pid, tid, marks) in enumerate(lanes, _FIRST_TRACK):
        track = TrackDescriptor(uuid=number, parent_uuid=_process(pid))
        if threads:
            track.thread.pid, track.thread.tid = int(pid), int(tid)
        else:
            is_stream = marks[0][1]["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
            track.name = f"stream {tid}" if is_stream else f"thread {tid} (python)"
        descriptors.append(track)
    marked = _marks(lanes, newest_first=newest_first)
    known: dict[tuple[str, str], int] = {}
    for time, track_uuid, event, kind in marked:
        packet = TracePacket(timestamp=time, trusted_packet_sequence_id=_SEQUENCE)
        packet.track_event.type, packet.track_event.track_uuid = kind, track_uuid
        if kind != TrackEvent.TYPE_SLICE_END:
            _describe(packet, event, known if interned else None)
        yield packet
    # Descriptors may stand anywhere.
    for descriptor in descriptors:
        packet = TracePacket(timestamp=0)
        packet.track_descriptor.CopyFrom(descriptor)
        yield packet


def _process(pid: Any) -> int:
    return int(pid) + 1


def _processes(trace: Mapping[str, Any]) -> Iterator[TrackDescriptor]:
    for pid in dict.fromkeys(event["pid"] for event in trace["traceEvents"]):
        descriptor = TrackDescriptor(uuid=_process(pid))
        descriptor.process.pid, descriptor.process.process_name = int(pid), "python"
        yield descriptor


def _tracks(events: list[tuple[int, int, dict[str, Any]]]) -> list[list[Mark]]:
    """The begins and ends of a thread's events; those that overlap are on tracks of their own."""
    tracks: list[list[Mark]] = []
    left = sorted(events, key=lambda event: (event[0], -event[1]))
    while left:
        over: list[tuple[int, int, dict[str, Any]]] = []
        open_: list[tuple[int, dict[str, Any]]] = []
        marks: list[Mark] = []
        for start, length, event in left:
            while open_ and open_[-1][0] <= start:
                marks.append((*open_.pop(), TrackEvent.TYPE_SLICE_END))
            if event["ph"] == "i":
                marks.append((start, event, TrackEvent.TYPE_INSTANT))
            elif open_ and open_[-1][0] < start + length:
                over.append((start, length, event))
            else:
                marks.append((start, event, TrackEvent.TYPE_SLICE_BEGIN))
                open_.append((start + length, event))
        while open_:
            marks.append((*open_.pop(), TrackEvent.TYPE_SLICE_END))
        tracks.append(marks)
        left = over
    return tracks


def _describe(packet: TracePacket, event: Mapping[str, Any], known: dict[tuple[str, str], int] | None) -> None:
    """Name, category and arguments; interned where `known` has the numbers of those that were."""
    told = packet.track_event
    if known is None:
        told.name = event["name"]
        told.categories.append(event["cat"])
    else:
        told.name_iid = _number(packet, "event_names", event["name"], known)
        told.category_iids.append(_number(packet, "event_categories", event["cat"], known))
    for key, value in event.get("args", {}).items():
        annotation = told.debug_annotations.add()
        if known is None:
            annotation.name = key
        else:
            annotation.name_iid = _number(packet, "debug_annotation_names", key, known)
        _set(annotation, value)
    if "correlation" in event.get("args", {}):
        told.correlation_id = event["args"]["correlation"]
        told.flow_ids.append(event["args"]["correlation"])


def _number(packet: TracePacket, table: str, text: str, known: dict[tuple[str, str], int]) -> int:
    if (table, text) not in known:
        known[table, text] = len(known) + 1
        getattr(packet.interned_data, table).add(iid=known[table, text], name=text)
    return known[table, text]


def _set(annotation: DebugAnnotation, value: Any) -> None:
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, str):
        annotation.string_value = value
    else:
        annotation.legacy_json_value = json.dumps(value, separators=(",", ":"))
