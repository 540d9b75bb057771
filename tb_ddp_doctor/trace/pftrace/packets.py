"""Packets to JSON without the native library: what native/perfetto.h says, in Python, some 30 times slower."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec
import numpy as np
from msgspec import Raw

from tb_ddp_doctor.storage.wire import (
    BYTES,
    EIGHT_BYTES,
    FOUR_BYTES,
    NUMBER,
    CutError,
    WireError,
    WireField,
    message,
    number_at,
)
from tb_ddp_doctor.trace.args import value
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.pftrace.tracks import Place

#: Fields of a Trace, and of a TracePacket.
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED, _DEFAULTS, _DESCRIPTOR = 8, 10, 11, 12, 13, 41, 59, 60
#: Fields of a TrackEvent, and values of its type.
_CATEGORY_IIDS, _ANNOTATIONS, _TYPE, _NAME_IID, _TRACK, _CATEGORIES, _NAME = 3, 4, 9, 10, 11, 22, 23
_FLOWS, _CORRELATION = (36, 47), 52
BEGIN, END, _INSTANT = 1, 2, 3
#: Fields of a DebugAnnotation.
_ITS_NAME_IID, _BOOL, _UINT, _INT, _DOUBLE, _STRING, _POINTER, _JSON, _ITS_NAME = 1, 2, 3, 4, 5, 6, 7, 9, 10
_MEMBER, _ELEMENT, _STRING_IID = 11, 12, 17
#: Fields of InternedData, and of an entry.
_OF_CATEGORIES, _OF_NAMES, _OF_ARGUMENTS, _OF_STRINGS = 1, 2, 3, 29
_IID, _TEXT = 1, 2
_OF_EVENTS = 11
_MOST_TIME = (1 << 63) - 1
_MOST_NESTED = 16
_LINKED = b"correlation"


class Lost(IntEnum):
    """Why packets, or parts of them, are lost (`enum perfetto_loss`)."""

    BROKEN = 0
    LARGE = 1
    ARGUMENTS = 2
    STRINGS = 3


class Ending(IntEnum):
    """Where the bytes end (`enum perfetto_end`)."""

    WHOLE = 0
    WITHIN = 1
    ASTRAY = 2


class Marks(msgspec.Struct, frozen=True, eq=False):
    """Beginnings and ends of slices, in the file's order; every column has the same length.

    A linear operator of 80 ns, and one of 20 ns within it:

    packet                        track  time_ns  kind
    SLICE_BEGIN aten::linear          0      100     1
    SLICE_BEGIN aten::t               0      110     1
    SLICE_END                         0      130     2
    SLICE_END                         0      180     2
    """

    #: Number of the track.
    track: np.ndarray[tuple[int], np.dtype[np.int32]]
    time_ns: Ints
    #: BEGIN or END.
    kind: np.ndarray[tuple[int], np.dtype[np.uint8]]


class _Sequence(msgspec.Struct):
    """What a packet refers to that earlier ones of its sequence said."""

    track: int = 0
    #: Texts by kind and number.
    strings: dict[tuple[int, int], bytes] = msgspec.field(default_factory=dict)


class PythonPackets:
    """Reads the packets of a trace twice (`survey`, then `write`): see native/perfetto.h."""

    def __init__(self, max_packet_bytes: int, max_strings: int, wanted: Sequence[bytes]) -> None:
        self._max_packet, self._max_strings = max_packet_bytes, max_strings
        self._wanted = frozenset(wanted)
        self._tracks: dict[int, int] = {}
        self._marks: list[tuple[int, int, int]] = []
        self._descriptors: list[bytes] = []
        self._begin(is_writing=False)

    def survey(self, block: memoryview | bytes) -> None:
        """Read a block for the first time."""
        self._feed(bytes(block))

    def rewind(self, places: Sequence[Place], durations: Ints) -> None:
        """Begin to read for the second time."""
        self._begin(is_writing=True)
        self._places, self._durations = places, durations.tolist()

    def write(self, block: memoryview | bytes) -> bytes:
        """Read a block for the second time: its events as JSON."""
        self._text: list[bytes] = []
        self._feed(bytes(block))
        return b"".join(self._text)

    def marks(self) -> Marks:
        """The beginnings and ends that were surveyed."""
        table = np.array(self._marks, np.int64).reshape(-1, 3)
        return Marks(table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 2].astype(np.uint8))

    def tracks(self) -> list[int]:
        """The uuid of each track."""
        return [*self._tracks]

    def descriptors(self) -> list[bytes]:
        """The descriptors of tracks that were surveyed."""
        return self._descriptors

    def ending(self) -> tuple[Ending, int]:
        """How the bytes end that were read, and where the packet begins that is not done with."""
        within = Ending.WITHIN if self._rest or self._skip else Ending.WHOLE
        return Ending.ASTRAY if self._is_astray else within, self._position

    def lost(self) -> dict[Lost, tuple[int, int]]:
        """How much was lost for each reason that there was, and where the first packet of it begins."""
        return {why: (self._lost[why], self._first_lost[why]) for why in Lost if self._lost[why]}

    def pair(self, marks: Marks, order: Ints | None) -> Ints:
        """The duration of each beginning, by its number; -1 without an end."""
        begins = marks.kind == BEGIN
        numbers = (np.cumsum(begins) - 1).tolist()
        duration = np.full(int(begins.sum()), -1, np.int64)
        open_: dict[int, list[tuple[int, int]]] = {}
        rows = list(zip(marks.track.tolist(), marks.time_ns.tolist(), begins.tolist(), numbers, strict=True))
        for row in range(len(rows)) if order is None else order.tolist():
            track, time, is_begin, number = rows[row]
            if is_begin:
                open_.setdefault(track, []).append((number, time))
            elif track >= 0 and open_.get(track):
                begun, start = open_[track].pop()
                duration[begun] = time - start
        return duration

    def _begin(self, *, is_writing: bool) -> None:
        self._is_writing, self._is_astray, self._has_written = is_writing, False, False
        self._rest, self._position, self._skip, self._begun = b"", 0, 0, 0
        self._sequences: dict[int, _Sequence] = {}
        self._strings = 0
        self._lost: Counter[Lost] = Counter()
        self._first_lost: dict[Lost, int] = {}

    def _lose(self, why: Lost) -> None:
        self._lost[why] += 1
        self._first_lost.setdefault(why, self._position)

    def _feed(self, block: bytes) -> None:
        data, at = self._rest + block, 0
        while at < len(data) and not self._is_astray:
            if self._skip:
                used = min(self._skip, len(data) - at)
                self._skip -= used
                at, self._position = at + used, self._position + used
                continue
            try:
                used = self._take_field(data, at)
            except CutError:
                break
            except WireError:
                self._is_astray = True
                break
            at, self._position = at + used, self._position + used
        self._rest = b"" if self._is_astray else data[at:]

    def _take_field(self, data: bytes, at: int) -> int:
        """Take one field of the trace, or its head, before what is to be skipped; returns its size."""
        tag, behind = number_at(data, at)
        number, wire = tag >> 3, tag & 7
        if not number or wire not in (NUMBER, BYTES, EIGHT_BYTES, FOUR_BYTES):
            raise WireError
        if wire == NUMBER:
            return number_at(data, behind)[1] - at
        if wire != BYTES:
            self._skip = 8 if wire == EIGHT_BYTES else 4
            return behind - at
        size, behind = number_at(data, behind)
        if number != _PACKET or size > self._max_packet:
            if number == _PACKET:
                self._lose(Lost.LARGE)
            self._skip = size
            return behind - at
        if size > len(data) - behind:
            raise CutError
        self._take_packet(data[behind : behind + size])
        return behind + size - at

    def _take_packet(self, data: bytes) -> None:
        packet = message(data)
        if packet is None:
            self._lose(Lost.BROKEN)
            return
        said = {field.number: field for field in packet}
        flags = [field for field in packet if field.number in (_FLAGS, _CLEARED)]
        sequence = self._sequence(said.get(_SEQUENCE, WireField(_SEQUENCE, NUMBER, 0, b"")).value)
        if sequence and any(field.value & 1 if field.number == _FLAGS else field.value for field in flags):
            sequence.track, sequence.strings = 0, {}
        parts = {field.number: field.data for field in packet if field.wire == BYTES}
        if sequence and _DEFAULTS in parts:
            sequence.track = _default_track(parts[_DEFAULTS], sequence.track)
        if sequence and _INTERNED in parts and self._is_writing:
            self._intern(sequence, message(parts[_INTERNED]) or [])
        if _DESCRIPTOR in parts and not self._is_writing:
            self._descriptors.append(parts[_DESCRIPTOR])
        if _EVENT in parts:
            time = said[_TIMESTAMP].value if _TIMESTAMP in said else -1
            self._take_event(parts[_EVENT], time, sequence or _Sequence())

    def _sequence(self, number: int) -> _Sequence | None:
        if number not in self._sequences:
            if len(self._sequences) >= self._max_strings:
                self._lose(Lost.STRINGS)
                return None
            self._sequences[number] = _Sequence()
        return self._sequences[number]

    def _intern(self, sequence: _Sequence, entries: list[WireField]) -> None:
        for entry in entries:
            if entry.wire != BYTES or entry.number not in (_OF_CATEGORIES, _OF_NAMES, _OF_ARGUMENTS, _OF_STRINGS):
                continue
            fields = message(entry.data) or []
            texts = [field.data for field in fields if field.number == _TEXT and field.wire == BYTES]
            iids = [field.value for field in fields if field.number == _IID and field.wire == NUMBER]
            if texts:
                self._strings += 1
                if self._strings > self._max_strings:
                    self._lose(Lost.STRINGS)
                    return
                sequence.strings[entry.number, iids[-1] if iids else 0] = texts[-1]

    def _take_event(self, data: bytes, time: int, sequence: _Sequence) -> None:
        event = message(data) if 0 <= time <= _MOST_TIME else None
        if event is None:
            self._lose(Lost.BROKEN)
            return
        said = {field.number: field for field in event}
        kind = said[_TYPE].value if _TYPE in said else 0
        track = said[_TRACK].value if _TRACK in said else sequence.track
        if kind not in (BEGIN, END, _INSTANT):
            return
        if not self._is_writing:
            number = self._tracks.setdefault(track, len(self._tracks))
            if kind != _INSTANT:
                self._marks.append((number, time, kind))
            return
        duration = 0
        if kind == BEGIN:
            duration = self._durations[self._begun] if self._begun < len(self._durations) else -1
            self._begun += 1
        if kind != END and duration >= 0:
            self._put_event(event, said, sequence, track, time, duration if kind == BEGIN else None)

    def _put_event(
        self,
        event: list[WireField],
        said: dict[int, WireField],
        sequence: _Sequence,
        track: int,
        time: int,
        duration: int | None,
    ) -> None:
        """Append an event; an instant has no duration."""
        number = self._tracks.get(track)
        name = said[_NAME].data if _NAME in said and said[_NAME].wire == BYTES else None
        if name is None and _NAME_IID in said:
            name = sequence.strings.get((_OF_NAMES, said[_NAME_IID].value))
        if name is None or number is None:
            self._lose(Lost.BROKEN)
            return
        text = [b",\n" if self._has_written else b"", b'{"ph":"X"' if duration is not None else b'{"ph":"i"']
        if (category := _category(event, sequence)) is not None:
            text += [b',"cat":', _string(category)]
        text += [b',"name":', _string(name), b',"pid":%b,"tid":%b' % self._places[number]]
        text += [b',"ts":', _microseconds(time)]
        if duration is not None:
            text += [b',"dur":', _microseconds(duration)]
        args = list(self._args(event, sequence))
        if not any(key == _LINKED for key, _ in args) and (link := _link(event)) is not None:
            args.append((_LINKED, b"%d" % link))
        text += [b',"args":{', b",".join(_string(key) + b":" + one for key, one in args), b"}}"]
        self._text += text
        self._has_written = True

    def _args(self, event: list[WireField], sequence: _Sequence) -> Iterator[tuple[bytes, bytes]]:
        """Names and values, as JSON, of those arguments that are wanted."""
        is_whole = True
        for field in event:
            if field.number != _ANNOTATIONS or field.wire != BYTES:
                continue
            annotation = message(field.data)
            if annotation is None:
                is_whole = False
                continue
            name = _name(annotation, sequence)
            if name in self._wanted:
                yield name, _value(annotation, sequence, 0)
        if not is_whole:
            self._lose(Lost.ARGUMENTS)


def _default_track(defaults: bytes, before: int) -> int:
    track = before
    for field in message(defaults) or ():
        if field.number == _OF_EVENTS and field.wire == BYTES:
            tracks = [one.value for one in message(field.data) or () if one.number == _TRACK and one.wire == NUMBER]
            track = tracks[-1] if tracks else track
    return track


def _category(event: list[WireField], sequence: _Sequence) -> bytes | None:
    """The first category."""
    for field in event:
        if field.number == _CATEGORIES and field.wire == BYTES:
            return field.data
    for field in event:
        if field.number == _CATEGORY_IIDS:
            try:
                iid = number_at(field.data, 0)[0] if field.wire == BYTES else field.value
            except WireError:
                continue
            return sequence.strings.get((_OF_CATEGORIES, iid))
    return None


def _link(event: list[WireField]) -> int | None:
    """The correlation id, or the first flow."""
    correlations = [field.value for field in event if field.number == _CORRELATION]
    flows = [field.value for field in event if field.number in _FLOWS and field.wire != BYTES]
    return correlations[-1] if correlations else flows[0] if flows else None


def _name(annotation: list[WireField], sequence: _Sequence) -> bytes | None:
    text = None
    for field in annotation:
        if field.number == _ITS_NAME and field.wire == BYTES:
            text = field.data
        elif field.number == _ITS_NAME_IID:
            text = sequence.strings.get((_OF_ARGUMENTS, field.value))
    return text


def _value(annotation: list[WireField], sequence: _Sequence, depth: int) -> bytes:
    """An annotation's value as JSON: that of its last field that has one."""
    encoded = b"null"
    for field in annotation:
        number, is_bytes = field.number, field.wire == BYTES
        if number in (_BOOL, _UINT, _POINTER, _INT, _DOUBLE):
            encoded = b"null" if is_bytes else _number(number, field.value)
        elif number == _STRING_IID:
            text = sequence.strings.get((_OF_STRINGS, field.value))
            encoded = b"null" if text is None else _string(text)
        elif number in (_STRING, _JSON):
            write = _string if number == _STRING else _json
            encoded = write(field.data) if is_bytes else b"null"
        elif number in (_MEMBER, _ELEMENT):
            encoded = _nested(annotation, number, sequence, depth) if is_bytes else b"null"
    return encoded


def _nested(annotation: list[WireField], number: int, sequence: _Sequence, depth: int) -> bytes:
    if depth >= _MOST_NESTED:
        return b"null"
    inner = [message(field.data) for field in annotation if field.number == number and field.wire == BYTES]
    whole = [one for one in inner if one is not None]
    if number == _ELEMENT:
        return b"[" + b",".join(_value(one, sequence, depth + 1) for one in whole) + b"]"
    members = (_string(_name(one, sequence) or b"") + b":" + _value(one, sequence, depth + 1) for one in whole)
    return b"{" + b",".join(members) + b"}"


def _number(number: int, bits: int) -> bytes:
    if number == _BOOL:
        return b"true" if bits else b"false"
    if number == _DOUBLE:
        (double,) = struct.unpack("<d", bits.to_bytes(8, "little"))
        return f"{double:.17g}".encode() if math.isfinite(double) else b"null"
    return b"%d" % (bits - (1 << 64) if number == _INT and bits >> 63 else bits)


def _string(text: bytes) -> bytes:
    """A JSON string; bytes that are no UTF-8 stay, for the readers of JSON to judge."""
    return json.dumps(text.decode("latin-1"), ensure_ascii=False).encode("latin-1")


def _json(text: bytes) -> bytes:
    """Text that claims to be JSON; null where it is none. Bytes that are no UTF-8 stay, as in `_string`."""
    stripped = text.strip(b" \t\r\n")
    return b"null" if value(Raw(stripped.decode("latin-1").encode())) is None else stripped


def _microseconds(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)
