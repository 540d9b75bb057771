"""Which process and thread each track of a trace is, from the descriptors of tracks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tb_ddp_doctor.discover import merged_packets
from tb_ddp_doctor.discover.merged import pid_in_part
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.storage.wire import BYTES, message
from tb_ddp_doctor.trace.merged import SEVERAL
from tb_ddp_doctor.trace.model import TraceError
from tb_ddp_doctor.trace.own_slice import FIELD

#: Fields of a TrackDescriptor, and of the descriptors of processes and threads in it.
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _STATIC_NAME = 1, 2, 3, 4, 5, 10
_PID, _TID = 1, 2
#: What torch calls threads and streams.
_NUMBERED = re.compile(r"(?:.*\b)?(?:thread|stream) (-?\d{1,19})\b.*", re.DOTALL)
#: Tracks that lie one in the other.
_DEEPEST = 16


class TrackDescriptor(msgspec.Struct, frozen=True):
    """A descriptor, or what several of one track say together."""

    name: str = ""
    parent: int | None = None
    process: int | None = None
    thread: int | None = None


#: A process and a thread, as Kineto's JSON has "pid" and "tid".
Place: TypeAlias = tuple[bytes, bytes]


def places(uuids: Sequence[int], descriptors: Sequence[bytes], *, is_own: bool) -> list[Place]:
    """The process and the thread of the events of each track; process -1 of what is in none.

    Where traces were merged, processes have the names of their parts, unless ddp-doctor wrote the file (`is_own`).

    Raises TraceError for a track of two processes, as where traces were put one behind the other.

    A track that is described as no thread is one by the number in its name ("thread 41 (python)", "stream 7"), or by
    its name.
    """
    known: dict[int, TrackDescriptor] = {}
    for descriptor in descriptors:
        _describe(known, descriptor)
    part_of_process = {} if is_own else merged_packets.part_of_process(descriptors)
    return [_place(uuid, known, part_of_process) for uuid in uuids]


def said_of_ranks(descriptors: Iterable[bytes]) -> Iterator[Any]:
    """What a file that ddp-doctor wrote says of its ranks, in its order, with what is not JSON left out."""
    for descriptor in descriptors:
        for field in message(descriptor) or ():
            if field.number == FIELD and field.wire == BYTES:
                try:
                    yield msgspec.json.decode(field.data)
                except REFUSALS:
                    continue


def _describe(known: dict[int, TrackDescriptor], descriptor: bytes) -> None:
    fields = message(descriptor)
    uuid = next((field.value for field in fields or () if field.number == _UUID), None)
    if fields is None or uuid is None:
        return
    track = known.get(uuid, TrackDescriptor())
    name, parent, process, thread = track.name, track.parent, track.process, track.thread
    for field in fields:
        if field.number in (_NAME, _STATIC_NAME) and field.wire == BYTES:
            name = field.data.decode("utf-8", "replace")
        elif field.number == _PARENT:
            parent = field.value
        elif field.number == _PROCESS and field.wire == BYTES:
            process = _number(field.data, _PID)
        elif field.number == _THREAD and field.wire == BYTES:
            process, thread = _number(field.data, _PID), _number(field.data, _TID)
    moved = track.parent not in (None, parent) or (thread is None and track.process not in (None, process))
    if moved:
        raise TraceError(f"One of its tracks is of two processes: {SEVERAL}")
    known[uuid] = TrackDescriptor(name, parent, process, thread)


def _number(descriptor: bytes, number: int) -> int | None:
    """A signed number of a descriptor; 0 where it is not said, as protobuf leaves it out, None where it is none."""
    fields = message(descriptor)
    if fields is None:
        return None
    value = next((field.value for field in fields if field.number == number), 0)
    return value - (1 << 64) if value >> 63 else value


def _place(uuid: int, known: Mapping[int, TrackDescriptor], part_of_process: Mapping[int, str]) -> Place:
    track = known.get(uuid, TrackDescriptor())
    process, above, owner = track.process, track, uuid
    for _ in range(_DEEPEST):
        if process is not None or above.parent is None:
            break
        owner = above.parent
        above = known.get(owner, TrackDescriptor())
        process = above.process
    numbered = _NUMBERED.fullmatch(track.name)
    if track.thread is not None:
        thread: int | str = track.thread
    elif numbered:
        thread = int(numbered[1])
    else:
        thread = track.name or f"track {uuid}"
    pid: int | str = -1 if process is None else process
    if part := part_of_process.get(owner):
        pid = pid_in_part(part, str(pid))
    return json.dumps(pid).encode(), json.dumps(thread).encode()
