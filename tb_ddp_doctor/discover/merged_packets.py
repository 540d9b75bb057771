"""Traces that somebody put side by side into one file of Perfetto's format: processes by the descriptors of tracks.

Torch's own trace has the process with its threads, and one for each GPU with its streams, all of one name. Where each
of several processes has threads and streams, or streams and a name of its own, each is a trace.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from tb_ddp_doctor.discover import merged
from tb_ddp_doctor.storage.wire import BYTES, WireError, WireField, fields, message

#: Fields of a trace, a packet, a TrackDescriptor and the descriptor of a process in it.
_PACKET, _DESCRIPTOR = 1, 60
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _STATIC_NAME = 1, 2, 3, 4, 5, 10
_PID, _PROCESS_NAME = 1, 6
#: The category of each file that ddp-doctor wrote, behind a byte of its size.
_OWN = b"\nddp-doctor"
_STREAM = re.compile(r"(?:.*\b)?stream -?\d{1,19}\b.*", re.DOTALL)
_OF_CPU = re.compile(r"(?:.*\b)?thread -?\d{1,19}\b.*", re.DOTALL)


Fields: TypeAlias = Mapping[int, WireField]


class _Process(msgspec.Struct):
    """A process, and which tracks it has."""

    pid: int
    name: str
    has_streams: bool = False
    has_threads: bool = False


def parts(head: bytes) -> tuple[str, ...]:
    """The parts of a file that begins so, as `merged.parts`; its descriptors come first."""
    if _OWN in head:
        return ()
    processes: dict[int, _Process] = {}
    tracks: defaultdict[int, list[tuple[str, bool]]] = defaultdict(list)
    for fields_of_track in _descriptors(head):
        uuid = _number(fields_of_track, _UUID)
        name = _text(fields_of_track, _NAME) or _text(fields_of_track, _STATIC_NAME)
        if _PROCESS in fields_of_track:
            process_fields = _by_number(fields_of_track[_PROCESS].data)
            process_name = _text(process_fields, _PROCESS_NAME) or name
            processes[uuid] = _Process(_number(process_fields, _PID), process_name)
        elif _PARENT in fields_of_track:
            tracks[_number(fields_of_track, _PARENT)].append((name, _THREAD in fields_of_track))
    for uuid, process in processes.items():
        process.has_streams = any(_STREAM.fullmatch(name) for name, _ in tracks[uuid])
        process.has_threads = any(is_thread or _OF_CPU.fullmatch(name) for name, is_thread in tracks[uuid])
    with_streams = [process for process in processes.values() if process.has_streams]
    have_names = len({process.name for process in with_streams}) == len(with_streams)
    if not have_names and not all(process.has_threads for process in with_streams):
        return ()
    names = {process.pid: process.name for process in with_streams}
    return merged.of_processes(names, names) if len(names) == len(with_streams) else ()


def _descriptors(head: bytes) -> Iterator[Fields]:
    try:
        for packet in fields(head):
            if packet.number != _PACKET or packet.wire != BYTES:
                return
            for field in message(packet.data) or ():
                if field.number == _DESCRIPTOR and field.wire == BYTES:
                    yield _by_number(field.data)
    except WireError:
        # The beginning of a file ends anywhere.
        return


def _by_number(data: bytes) -> Fields:
    """The last field of each number of a message; none where it is none."""
    return {field.number: field for field in message(data) or ()}


def _number(of: Fields, number: int) -> int:
    """A number; 0 where it is not said, as protobuf leaves it out."""
    return of[number].value if number in of else 0


def _text(of: Fields, number: int) -> str:
    return of[number].data.decode("utf-8", "replace") if number in of else ""
