"""A slice as a native Perfetto trace (protobuf).

Timestamps are the common clock's, ns. Each rank is a process, each host thread and each stream a thread of it: their
numbers are made up, since traces give anything for pid and tid. A packet sequence per rank holds its own vocabulary.
Flows join launches with what they launched, and the arrivals of a matched collective in the order of time.
"""

from __future__ import annotations

from typing import IO

import numpy as np
from msgspec import Raw
from msgspec.structs import replace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from tb_ddp_doctor.slices import event_text
from tb_ddp_doctor.slices.labels import PlacedLabel, placed
from tb_ddp_doctor.slices.model import CATEGORY_NAMES, RankSlice, Slice
from tb_ddp_doctor.storage.message import json_of
from tb_ddp_doctor.storage.wire import BYTES, encoded
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.own_slice import FIELD, shared_groups

CONTENT_TYPE = "application/octet-stream"
_DOCTOR = 1
#: Numbers of tracks, processes and threads of a rank start here.
_TRACKS_OF_A_RANK = 1 << 16
_COLLECTIVES = 1 << 62
#: The field `TracePacket.track_descriptor`.
_DESCRIPTOR = 60
#: Tags of `Trace.packet` (field 1, bytes) and of `TracePacket.timestamp` (field 8, a number).
_PACKET, _TIMESTAMP = b"\x0a", b"\x40"
_FRESH = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
_KNOWN = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE


def write(part: Slice, file: IO[bytes]) -> None:
    """Write the slice to a binary file."""
    packets = _Packets(file)
    left_out = {}
    doctor = TrackDescriptor(
        uuid=_DOCTOR, name="ddp-doctor", child_ordering=TrackDescriptor.EXPLICIT, sibling_order_rank=-1
    )
    packets.describe(doctor, _DOCTOR, said=b"{" + part.own.spelled() + b"}")
    groups: dict[bytes, int] = {}
    for order, rank in enumerate(part.ranks, 1):
        _Rank(packets, part, rank, order).write(groups)
        left_out[rank.rank] = rank.left_out
    _write_doctor(packets, placed(part, event_text.left_out(left_out)))


class _Packets:
    """A trace that is written packet by packet: `repeated TracePacket packet = 1`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, packet: TracePacket) -> None:
        """Append a packet."""
        self.write_bytes(packet.SerializeToString())

    def describe(self, track: TrackDescriptor, sequence: int, *, flags: int = 0, said: bytes = b"") -> None:
        """Append the descriptor of a track, with what is said in a field of our own, which viewers pass over."""
        packet = TracePacket(trusted_packet_sequence_id=sequence)
        if flags:
            packet.sequence_flags = flags
        own = encoded(FIELD << 3 | BYTES) + encoded(len(said)) + said if said else b""
        descriptor = track.SerializeToString() + own
        rest = packet.SerializeToString()
        self.write_bytes(encoded(_DESCRIPTOR << 3 | BYTES) + encoded(len(descriptor)) + descriptor + rest)

    def write_bytes(self, packet: bytes) -> None:
        """Append a packet as it is on the wire."""
        self._file.write(_PACKET + encoded(len(packet)) + packet)


class _Rank:
    """Writes one rank's part."""

    def __init__(self, packets: _Packets, part: Slice, rank: RankSlice, order: int) -> None:
        self._packets = packets
        self._part = part
        self._rank = rank
        self._pid = order
        self._track = (order + 1) * _TRACKS_OF_A_RANK
        self._sequence = order + 1
        self._names: dict[int, int] = {}
        self._keys: dict[str, int] = {}
        self._texts: dict[str | bytes, int] = {}
        self._categories: dict[int, int] = {}
        #: What ends a slice of a track, without its time.
        self._ends: dict[int, bytes] = {}

    def write(self, groups: dict[bytes, int]) -> None:
        """Write all of it; `groups` are the process groups that were written, which grow."""
        self._describe(groups)
        self._write_events()
        self._write_allocations()
        self._write_counters()

    def _packet(self, **fields: object) -> TracePacket:
        return TracePacket(trusted_packet_sequence_id=self._sequence, **fields)

    def _describe(self, groups: dict[bytes, int]) -> None:
        track = TrackDescriptor(uuid=self._track, sibling_order_rank=self._pid)
        track.process.pid = self._pid
        track.process.process_name = event_text.process(self._rank.rank, self._rank.node)
        track.process.legacy_sort_index = self._pid
        # Perfetto of 2026 on sorts processes by this; before, by their number of slices.
        track.process_ordering = TrackDescriptor.PROCESS_ORDERING_EXPLICIT
        track.thread_ordering = TrackDescriptor.THREAD_ORDERING_EXPLICIT
        track.child_ordering = TrackDescriptor.EXPLICIT
        declared = replace(
            shared_groups(self._rank.declared, groups), pid=self._pid, first_tid=self._track + 1, is_quoted=True
        )
        self._packets.describe(track, self._sequence, flags=_FRESH, said=json_of(declared))
        for i, lane in enumerate(self._rank.lanes, 1):
            track = self._below(i)
            track.thread.pid = self._pid
            track.thread.tid = self._track + i
            track.thread.thread_name = event_text.label(lane.title)
            track.thread.legacy_sort_index = i
            self._packets.write(self._packet(track_descriptor=track))

    def _below(self, number: int) -> TrackDescriptor:
        return TrackDescriptor(uuid=self._track + number, parent_uuid=self._track, sibling_order_rank=number)

    def _write_events(self) -> None:
        rank = self._rank
        args = event_text.args_of(rank, self._part.collectives)
        columns = (
            *(rank.lane, rank.depth, rank.start_ns, rank.end_ns, rank.name),
            *(rank.category, rank.correlation, rank.collective),
        )
        # Events whose end is still to be written, from the outermost on: (track, end).
        open_: list[tuple[int, int]] = []
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for i, (lane, depth, start, end, name, category, correlation, collective) in enumerate(rows):
            track = self._track + 1 + lane
            while open_ and (len(open_) > depth or open_[-1][0] != track):
                self._end(*open_.pop())
            # Field by field: of thousands of events that takes less time than arguments.
            packet = TracePacket()
            packet.trusted_packet_sequence_id = self._sequence
            packet.timestamp = start
            packet.sequence_flags = _KNOWN
            event = packet.track_event
            event.type = TrackEvent.TYPE_SLICE_BEGIN
            event.track_uuid = track
            event.category_iids.append(self._category(packet, category))
            event.name_iid = self._named(packet, name)
            if correlation >= 0:
                event.flow_ids.append(self._pid << 32 | correlation & 0xFFFFFFFF)
            if collective >= 0:
                event.flow_ids.append(_COLLECTIVES | collective)
            self._annotate(packet, args(i))
            self._packets.write(packet)
            open_.append((track, end))
        while open_:
            self._end(*open_.pop())

    def _end(self, track: int, at_ns: int) -> None:
        rest = self._ends.get(track)
        if rest is None:
            # Half of all packets are ends, which differ in their time alone.
            end = TrackEvent(type=TrackEvent.TYPE_SLICE_END, track_uuid=track)
            rest = self._ends[track] = self._packet(track_event=end).SerializeToString()
        self._packets.write_bytes(_TIMESTAMP + encoded(at_ns) + rest)

    def _annotate(self, packet: TracePacket, args: event_text.Args) -> None:
        for key, value in args.items():
            annotation = packet.track_event.debug_annotations.add()
            annotation.name_iid = self._keyed(packet, key)
            if isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.string_value_iid = self._text(packet, bytes(value) if isinstance(value, Raw) else value)

    def _write_allocations(self) -> None:
        """What the allocators did, as instants."""
        name = 0
        for lane, time, args in event_text.allocations(self._rank):
            packet = self._packet(timestamp=time, sequence_flags=_KNOWN)
            event = packet.track_event
            event.type = TrackEvent.TYPE_INSTANT
            event.track_uuid = self._track + 1 + lane
            event.categories.append(names.INSTANT)
            if not name:
                name = len(self._names) + 1
                packet.interned_data.event_names.add(iid=name, name=names.MEMORY)
            event.name_iid = name
            self._annotate(packet, args)
            self._packets.write(packet)

    def _category(self, packet: TracePacket, category: int) -> int:
        known = self._categories.get(category)
        if known is None:
            known = self._categories[category] = len(self._categories) + 1
            packet.interned_data.event_categories.add(iid=known, name=CATEGORY_NAMES[category])
        return known

    def _text(self, packet: TracePacket, text: str | bytes) -> int:
        """The number of an argument's text, of which traces have few but often."""
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = len(self._texts) + 1
            spelled = text.encode() if isinstance(text, str) else text
            packet.interned_data.debug_annotation_string_values.add(iid=known, str=spelled)
        return known

    def _named(self, packet: TracePacket, name: int) -> int:
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = len(self._names) + 1
            packet.interned_data.event_names.add(iid=known, name=event_text.whole(self._rank.strings[name]))
        return known

    def _keyed(self, packet: TracePacket, key: str) -> int:
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = len(self._keys) + 1
            packet.interned_data.debug_annotation_names.add(iid=known, name=key)
        return known

    def _write_counters(self) -> None:
        memory, gpu = self._rank.memory, self._rank.gpu
        counters = (
            ("memory in use", "", memory.time_ns, memory.allocated),
            ("memory reserved", "", memory.time_ns, memory.reserved),
            ("SM clock", "MHz", gpu.time_ns, gpu.sm_mhz),
            ("power", "W", gpu.time_ns, gpu.power_w),
        )
        for i, (name, unit, times, values) in enumerate(counters, len(self._rank.lanes) + 1):
            known = np.isfinite(values)
            if not known.any():
                continue
            track = self._below(i)
            track.name = name
            if unit:
                track.counter.unit_name = unit
            else:
                track.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
            self._packets.write(self._packet(track_descriptor=track))
            for time, value in zip(times[known].tolist(), values[known].tolist(), strict=True):
                event = TrackEvent(type=TrackEvent.TYPE_COUNTER, track_uuid=track.uuid)
                if unit:
                    event.double_counter_value = value
                else:
                    event.counter_value = value
                self._packets.write(self._packet(timestamp=time, track_event=event))


def _write_doctor(packets: _Packets, rows: list[list[PlacedLabel]]) -> None:
    """A track below "ddp-doctor" for each row of labels."""

    def write(at_ns: int, event: TrackEvent) -> None:
        packets.write(TracePacket(trusted_packet_sequence_id=_DOCTOR, timestamp=at_ns, track_event=event))

    for i, labels in enumerate(rows, 1):
        track = TrackDescriptor(uuid=_DOCTOR + i, parent_uuid=_DOCTOR, sibling_order_rank=i)
        track.name = "this slice" if i == 1 else "evidence"
        # Tracks of one name would become one.
        track.sibling_merge_behavior = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
        packets.describe(track, _DOCTOR)
        for label in labels:
            begin = TrackEvent(
                type=TrackEvent.TYPE_SLICE_BEGIN, track_uuid=_DOCTOR + i, name=label.name, categories=[names.OWN]
            )
            for key, text in label.args.items():
                begin.debug_annotations.add(name=key, string_value=text)
            write(label.start_ns, begin)
            write(label.end_ns, TrackEvent(type=TrackEvent.TYPE_SLICE_END, track_uuid=_DOCTOR + i))
