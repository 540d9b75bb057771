"""Packets as torch's `export_chrome_trace` writes them, made of those of other writers.

Perfetto's SDK, which Kineto can use, compresses packets and counts times from packet to packet. Torch's newer CUPTI
monitor (torch/csrc/profiler/cuspy/cuspy_pftrace.cpp) writes what a GPU does as render stages:

    packet                                                    becomes
    compressed_packets                                        the packets in it
    timestamp 120, in a clock that counts from the last one   timestamp 1,700,000,000,000,000,120
    gpu_render_stage_event, duration 900                      SLICE_BEGIN, and SLICE_END 900 ns later

Files that need none of this pass as they are: the first block shows it. Others are rewritten in Python, at some 10 µs a
packet.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappush, heapreplace
from itertools import islice

import msgspec

from tb_ddp_doctor.storage.wire import BYTES, CutError, WireError, WireField, encoded, message, number_at

#: Fields of a Trace, and of a TracePacket.
_PACKET = 1
_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED = 6, 8, 10, 11, 12, 13, 41
COMPRESSED, _STAGE, _CLOCK, _DEFAULTS, _DESCRIPTOR = 50, 53, 58, 59, 60
#: Fields of a ClockSnapshot, of a clock in it, and of TracePacketDefaults.
_CLOCKS, _PRIMARY = 1, 2
_CLOCK_ID, _CLOCK_TIME, _IS_INCREMENTAL, _UNIT_NS = 1, 2, 3, 4
_DEFAULT_CLOCK = 58
#: The clock that times are in where nothing says otherwise (BOOTTIME), and those that a sequence has for itself.
_TRACE_CLOCK, _OWN_CLOCKS = 6, range(64, 128)
#: Fields of a GpuRenderStageEvent, of its extra data, and of a launch and its grid.
_DURATION, _EXTRA, _GPU, _QUEUE_IID, _STAGE_IID, _STAGE_NAME, _KERNEL_IID, _NAME_IID, _LAUNCH = (
    *(2, 6, 11, 13, 14, 17, 19, 20, 21),
)
_KEY, _VALUE = 1, 2
_GRID, _AXES = 1, (1, 2, 3)
#: Fields of InternedData, and of its entries.
_OF_NAMES, _OF_SPECIFICATIONS, _OF_KERNELS = 2, 24, 1000
_IID, _TEXT, _DEMANGLED = 1, 2, 3
#: How the fields begin that tell of such packets: few blocks of other files have these bytes.
_TAGS = re.compile(
    b"|".join(
        re.escape(encoded(number << 3 | wire))
        for number, wire in ((COMPRESSED, BYTES), (_STAGE, BYTES), (_CLOCK, 0), (_OF_SPECIFICATIONS, BYTES))
    )
)
#: Packets that show whether a file may need to be rewritten.
_FIRST_PACKETS = 64
#: Packets at most that one decompresses to, bytes; and texts that are kept of a sequence.
_MOST_INFLATED, _MOST_TEXTS = 64 << 20, 1 << 20
#: What is no packet: readers count it among the damaged ones.
_BROKEN = b"\x00"
#: Kineto's category of a render stage, by what stands in the stage's name.
_CATEGORIES = (("memcpy", "gpu_memcpy"), ("memset", "gpu_memset"), ("kernel", "kernel"))
_NUMBER = re.compile(rb"[0-9]{1,9}")
#: The uuids of tracks of render stages.
_FIRST_TRACK = 1 << 62


def plain(blocks: Iterable[memoryview | bytes]) -> Iterator[memoryview | bytes]:
    """The packets of a trace, in blocks that are cut anywhere, rewritten where the first block shows a need for it."""
    each = iter(blocks)
    first = next(each, None)
    if first is None:
        return
    if not _needs_rewriting(bytes(first)):
        yield first
        yield from each
        return
    rewriting = _Rewriting()
    yield rewriting.take(bytes(first))
    for block in each:
        yield rewriting.take(bytes(block))
    yield rewriting.rest


def _packets(data: bytes) -> Iterator[tuple[bytes | None, int]]:
    """The whole packets of some bytes, None for another field of the trace; each with the place behind it.

    Raises WireError at what is none.
    """
    at = 0
    try:
        while at < len(data):
            tag, behind = number_at(data, at)
            size, behind = number_at(data, behind) if tag & 7 in (0, BYTES) else (8 if tag & 7 == 1 else 4, behind)
            if not tag >> 3 or tag & 7 not in (0, 1, BYTES, 5):
                raise WireError
            end = behind if tag & 7 == 0 else behind + size
            if end > len(data):
                return
            yield (data[behind:end] if tag == _PACKET << 3 | BYTES else None), end
            at = end
    except CutError:
        return


def _needs_rewriting(data: bytes) -> bool:
    """Whether one of the packets that a file begins with is compressed, in a clock of its own, or of render stages.

    Of a file that shows its clocks all packets are looked at, of others the first: torch's exporter shows none, and
    other writers do so, or compress, in their first packets.
    """
    if not _TAGS.search(data):
        return False
    try:
        for number, (packet, _) in enumerate(_packets(data)):
            if number == _FIRST_PACKETS and not _shows_clocks(data):
                return False
            if packet and _TAGS.search(packet) and _is_other(packet):
                return True
    except WireError:
        pass
    return False


def _shows_clocks(data: bytes) -> bool:
    """Whether one of the first packets is a ClockSnapshot."""
    first = islice(_packets(data), _FIRST_PACKETS)
    return any(field.number == _SNAPSHOT for packet, _ in first if packet for field in message(packet) or ())


def _is_other(packet: bytes) -> bool:
    for field in message(packet) or ():
        if field.number in (COMPRESSED, _STAGE) or (field.number == _CLOCK and field.value):
            return True
        inside = {_DEFAULTS: _DEFAULT_CLOCK, _INTERNED: _OF_SPECIFICATIONS}.get(field.number)
        if inside and any(one.number == inside for one in message(field.data) or ()):
            return True
    return False


class _ClockState(msgspec.Struct):
    """How a clock's times become those of the trace."""

    offset_ns: int
    unit_ns: int
    is_incremental: bool
    #: The last time, in units, of one that counts from there.
    last: int


class _SequenceState(msgspec.Struct):
    """What packets of a sequence refer to."""

    clock: int = 0
    clocks: dict[int, _ClockState] = msgspec.field(default_factory=dict)
    #: Texts by table and number.
    texts: dict[tuple[int, int], bytes] = msgspec.field(default_factory=dict)


class _Rewriting:
    """Packets that come in blocks, rewritten."""

    def __init__(self) -> None:
        #: Bytes of a packet that is not whole yet.
        self.rest = b""
        self._is_astray = False
        self._sequences: dict[int, _SequenceState] = {}
        #: Clocks of the machine, by number.
        self._clocks: dict[int, _ClockState] = {}
        #: When the last render stage of each track ends, and its uuid, as a heap for each GPU, stream and category.
        self._tracks: dict[tuple[int, int, str], list[tuple[int, int]]] = {}
        self._next_uuid = _FIRST_TRACK

    def take(self, block: bytes) -> bytes:
        """The packets that this block makes whole, rewritten."""
        data, done = self.rest + block, 0
        made: list[bytes] = []
        if self._is_astray:
            return block
        try:
            for packet, end in _packets(data):
                made += [data[done:end]] if packet is None else map(_framed, self._rewritten(packet, is_inner=False))
                done = end
        except WireError:
            self._is_astray, self.rest = True, b""
            return b"".join(made) + data[done:]
        self.rest = data[done:]
        return b"".join(made)

    def _rewritten(self, data: bytes, *, is_inner: bool) -> Iterator[bytes]:
        packet = message(data)
        if packet is None:
            yield data
            return
        said = {field.number: field for field in packet}
        if COMPRESSED in said:
            yield from self._inflated(said[COMPRESSED].data) if not is_inner else (_BROKEN,)
            return
        sequence = self._sequence(said, packet)
        time = self._time(said, sequence)
        if (_EVENT in said or _STAGE in said) and time is None:
            yield _BROKEN
        elif _STAGE in said and time is not None:
            yield from self._slice(message(said[_STAGE].data) or [], time, sequence)
        elif time is not None and time != said[_TIMESTAMP].value:
            # Of a field that comes twice, the last counts.
            yield data + _number_field(_TIMESTAMP, time)
        else:
            yield data

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        """The packets that are compressed into one."""
        inflating = zlib.decompressobj()
        try:
            inside = inflating.decompress(data, _MOST_INFLATED)
            for packet, _ in _packets(inside):
                if packet is not None:
                    yield from self._rewritten(packet, is_inner=True)
        except (zlib.error, WireError):
            yield _BROKEN
            return
        if not inflating.eof:
            yield _BROKEN

    def _sequence(self, said: dict[int, WireField], packet: Sequence[WireField]) -> _SequenceState:
        """What the packet's sequence has said, up to this packet."""
        number = said[_SEQUENCE].value if _SEQUENCE in said else 0
        sequence = self._sequences.setdefault(number, _SequenceState())
        if any((one.number == _FLAGS and one.value & 1) or (one.number == _CLEARED and one.value) for one in packet):
            sequence.clock, sequence.texts = 0, {}
        if _SNAPSHOT in said:
            self._take_clocks(message(said[_SNAPSHOT].data) or [], sequence)
        if _DEFAULTS in said:
            for field in message(said[_DEFAULTS].data) or ():
                sequence.clock = field.value if field.number == _DEFAULT_CLOCK else sequence.clock
        if _INTERNED in said:
            _intern(message(said[_INTERNED].data) or [], sequence)
        return sequence

    def _take_clocks(self, snapshot: Sequence[WireField], sequence: _SequenceState) -> None:
        """Take what clocks show at one instant."""
        clocks = [_by_number(field.data) for field in snapshot if field.number == _CLOCKS and field.wire == BYTES]
        shown = {clock.get(_CLOCK_ID, 0): clock for clock in clocks}
        primary = next((field.value for field in snapshot if field.number == _PRIMARY), _TRACE_CLOCK)
        known = primary if primary in shown else next((one for one in shown if one not in _OWN_CLOCKS), None)
        if known is None:
            return
        before = self._clocks.get(known)
        now_ns = shown[known].get(_CLOCK_TIME, 0) + (before.offset_ns if before and known != primary else 0)
        for number, clock in shown.items():
            unit_ns, units = clock.get(_UNIT_NS, 0) or 1, clock.get(_CLOCK_TIME, 0)
            state = _ClockState(now_ns - units * unit_ns, unit_ns, bool(clock.get(_IS_INCREMENTAL, 0)), units)
            (sequence.clocks if number in _OWN_CLOCKS else self._clocks)[number] = state

    def _time(self, said: dict[int, WireField], sequence: _SequenceState) -> int | None:
        """When the packet was, ns in the trace's clock; None where it does not say, or in an unknown clock."""
        if _TIMESTAMP not in said:
            return None
        units = said[_TIMESTAMP].value
        number = said[_CLOCK].value if _CLOCK in said else sequence.clock
        clock = (sequence.clocks if number in _OWN_CLOCKS else self._clocks).get(number)
        if clock is None or number in (0, _TRACE_CLOCK):
            return units if number < _OWN_CLOCKS.start else None
        if clock.is_incremental:
            units = clock.last = clock.last + units
        time = units * clock.unit_ns + clock.offset_ns
        return time if 0 <= time < 1 << 63 else None

    def _slice(self, stage: Sequence[WireField], time: int, sequence: _SequenceState) -> Iterator[bytes]:
        """A render stage as a slice on its stream, with a track for it where there was none."""
        said = {field.number: field for field in stage}

        def text(table: int, iid: int) -> bytes:
            return sequence.texts.get((table, said[iid].value), b"") if iid in said else b""

        kind = text(_OF_SPECIFICATIONS, _STAGE_IID).decode("utf-8", "replace").lower()
        category = next((named for part, named in _CATEGORIES if part in kind), "")
        if not category:
            return
        own = said[_STAGE_NAME].data if _STAGE_NAME in said else b""
        name = own or text(_OF_NAMES, _NAME_IID) or text(_OF_KERNELS, _KERNEL_IID) or kind.encode()
        gpu = said[_GPU].value & 0x7FFFFFFF if _GPU in said else 0
        extra = dict(_extra(stage))
        numbered = _NUMBER.fullmatch(extra.get(b"stream", b""))
        queue = said[_QUEUE_IID].value if _QUEUE_IID in said else 0
        stream = int(numbered[0]) if numbered else queue
        end = time + (said[_DURATION].value if _DURATION in said else 0)
        uuid, described = self._track(gpu, stream, category, time, end)
        yield from described
        event = [
            _number_field(9, 1), _number_field(11, uuid), _bytes_field(22, category.encode()), _bytes_field(23, name),
            *(_annotation(key, value) for key, value in ({b"device": b"%d" % gpu} | extra).items()),
            *_grid(said),
        ]  # fmt: skip
        yield _number_field(_TIMESTAMP, time) + _bytes_field(_EVENT, b"".join(event))
        yield _number_field(_TIMESTAMP, end) + _bytes_field(_EVENT, _number_field(9, 2) + _number_field(11, uuid))

    def _track(self, gpu: int, stream: int, category: str, start: int, end: int) -> tuple[int, list[bytes]]:
        """The track of a stage that overlaps none on it, and its descriptors where it is new."""
        tracks = self._tracks.setdefault((gpu, stream, category), [])
        if tracks and tracks[0][0] <= start:
            uuid = tracks[0][1]
            heapreplace(tracks, (end, uuid))
            return uuid, []
        uuid = self._next_uuid
        self._next_uuid += 1
        heappush(tracks, (end, uuid))
        thread = _number_field(1, gpu) + _number_field(2, stream)
        return uuid, [_bytes_field(_DESCRIPTOR, _number_field(1, uuid) + _bytes_field(4, thread))]


def _intern(entries: Sequence[WireField], sequence: _SequenceState) -> None:
    """Keep the texts that render stages refer to."""
    for entry in entries:
        if entry.number in (_OF_NAMES, _OF_SPECIFICATIONS, _OF_KERNELS) and entry.wire == BYTES:
            iid, text = 0, b""
            for field in message(entry.data) or ():
                iid = field.value if field.number == _IID else iid
                is_text = field.number == _TEXT or (field.number == _DEMANGLED and entry.number == _OF_KERNELS)
                text = field.data if is_text else text
            if len(sequence.texts) < _MOST_TEXTS:
                sequence.texts[entry.number, iid] = text


def _extra(stage: Sequence[WireField]) -> Iterator[tuple[bytes, bytes]]:
    for field in stage:
        if field.number == _EXTRA and field.wire == BYTES:
            said = {one.number: one.data for one in message(field.data) or ()}
            yield said.get(_KEY, b""), said.get(_VALUE, b"")


def _grid(said: dict[int, WireField]) -> Iterator[bytes]:
    """The grid of a launch as an annotation."""
    launch = {one.number: one.data for one in message(said[_LAUNCH].data) or ()} if _LAUNCH in said else {}
    if _GRID in launch:
        axes = _by_number(launch[_GRID])
        yield _annotation(b"grid", b"[%b]" % b",".join(b"%d" % axes.get(axis, 1) for axis in _AXES), value_field=9)


def _by_number(data: bytes) -> dict[int, int]:
    """The numbers of a message, by field."""
    return {field.number: field.value for field in message(data) or ()}


def _annotation(name: bytes, value: bytes, *, value_field: int = 6) -> bytes:
    return _bytes_field(4, _bytes_field(10, name) + _bytes_field(value_field, value))


def _number_field(number: int, value: int) -> bytes:
    return encoded(number << 3) + encoded(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    return encoded(number << 3 | BYTES) + encoded(len(value)) + value


def _framed(packet: bytes) -> bytes:
    """A packet as a field of the trace."""
    return _bytes_field(_PACKET, packet)
