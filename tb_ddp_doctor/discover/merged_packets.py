"""Traces that somebody put side by side into one file of Perfetto's format: which of its processes are of which trace.

Torch's own trace has the process with its threads, and one for each GPU with its streams, all called "python".
transformer-nuggets names what it merges, in one of two ways:

    "Rank 0", "Rank 1"                      one process for all of a trace, threads and streams
    "before · python", "after · python"     the processes of each, whose numbers may be those of the others

A trace's descriptors may follow the events of the one before. So a file whose beginning has such a process is looked
through.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from tb_ddp_doctor.discover import merged
from tb_ddp_doctor.storage.wire import BYTES, CutError, WireError, WireField, message, number_at

#: Fields of a trace, a packet, a TrackDescriptor and the descriptor of a process in it.
_PACKET, _DESCRIPTOR = 1, 60
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _STATIC_NAME = 1, 2, 3, 4, 5, 10
_PROCESS_NAME = 6
#: How the field of a descriptor begins in a packet.
_MARK = b"\xe2\x03"
#: The category of each file that ddp-doctor wrote, behind a byte of its size.
_OWN = b"\nddp-doctor"
_STREAM = re.compile(r"(?:.*\b)?stream -?\d{1,19}\b.*", re.DOTALL)
_OF_CPU = re.compile(r"(?:.*\b)?thread -?\d{1,19}\b.*", re.DOTALL)
_SEPARATOR = " · "
#: Parts of a file, bytes of a packet that is looked into, and of all that are looked through.
_MOST_PARTS, _MOST_PACKET_BYTES, _MOST_BYTES = 1 << 12, 1 << 16, 1 << 30

Fields: TypeAlias = Mapping[int, WireField]


class _Process(msgspec.Struct):
    """A process, and which tracks it has."""

    name: str
    has_streams: bool = False
    has_threads: bool = False


def may_be(head: bytes) -> bool:
    """Whether several traces may have been merged into a file that begins so."""
    if _OWN in head:
        return False
    processes = _processes(_descriptors([head])).values()
    return any(_SEPARATOR in one.name or (one.has_streams and one.has_threads) for one in processes)


def parts(chunks: Iterable[bytes]) -> tuple[str, ...]:
    """The parts of a file, in order, as `merged.parts`; none where it holds one trace."""
    return tuple(dict.fromkeys(part_of_process(_descriptors(chunks)).values()))


def part_of_process(descriptors: Iterable[bytes]) -> dict[int, str]:
    """The part that each process is of, by the process' uuid; empty where all are of one trace."""
    processes = _processes(descriptors)
    whole = {uuid: one.name for uuid, one in processes.items() if one.has_streams and one.has_threads}
    split = {uuid: one.name.rsplit(_SEPARATOR, 1)[0] for uuid, one in processes.items() if _SEPARATOR in one.name}
    with_streams = {split[uuid] for uuid in split if processes[uuid].has_streams}
    if 1 < len(whole) <= _MOST_PARTS:
        return {uuid: merged.part(number, name) for number, (uuid, name) in enumerate(whole.items())}
    if 1 < len(with_streams) <= _MOST_PARTS:
        number_of = {name: number for number, name in enumerate(dict.fromkeys(split.values()))}
        return {uuid: merged.part(number_of[name], name) for uuid, name in split.items()}
    return {}


def _processes(descriptors: Iterable[bytes]) -> dict[int, _Process]:
    """The processes by their uuid, in order."""
    processes: dict[int, _Process] = {}
    tracks: Counter[tuple[int, bool, bool]] = Counter()
    for descriptor in descriptors:
        track = _by_number(descriptor)
        name = _text(track, _NAME) or _text(track, _STATIC_NAME)
        if _PROCESS in track:
            process_name = _text(_by_number(track[_PROCESS].data), _PROCESS_NAME)
            processes[_number(track, _UUID)] = _Process(process_name or name)
        elif _PARENT in track:
            is_thread = _THREAD in track or _OF_CPU.fullmatch(name) is not None
            tracks[_number(track, _PARENT), is_thread, _STREAM.fullmatch(name) is not None] += 1
    for uuid, is_thread, is_stream in tracks:
        if process := processes.get(uuid):
            process.has_threads |= is_thread
            process.has_streams |= is_stream
    return processes


def _descriptors(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The descriptors of tracks, as far as packets follow each other."""
    rest, remaining = b"", _MOST_BYTES
    for chunk in chunks:
        remaining -= len(chunk)
        data, at = rest + chunk, 0
        try:
            while at < len(data):
                tag, start = number_at(data, at)
                if tag != _PACKET << 3 | BYTES:
                    return
                size, start = number_at(data, start)
                if size > len(data) - start:
                    break
                if size <= _MOST_PACKET_BYTES and data.find(_MARK, start, start + size) >= 0:
                    fields = message(data[start : start + size]) or ()
                    yield from (one.data for one in fields if one.number == _DESCRIPTOR and one.wire == BYTES)
                at = start + size
        except CutError:
            pass
        except WireError:
            return
        rest = data[at:]
        if remaining <= 0:
            return


def _by_number(data: bytes) -> Fields:
    """The last field of each number of a message; none where it is none."""
    return {field.number: field for field in message(data) or ()}


def _number(of: Fields, number: int) -> int:
    """A number; 0 where it is not said, as protobuf leaves it out."""
    return of[number].value if number in of else 0


def _text(of: Fields, number: int) -> str:
    return of[number].data.decode("utf-8", "replace") if number in of else ""
