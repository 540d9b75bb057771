"""Torch's traces in Perfetto's format: by the native library to columns, without it to the text of Kineto's JSON.

A file is read twice: first when slices begin and end, then their names and arguments. So packets may come in any order
of time, and no more of them is kept than their times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tb_ddp_doctor.findings import FileWarning, WarningKind
from tb_ddp_doctor.trace.args import ARGUMENTS
from tb_ddp_doctor.trace.events import MAX_ITEM_BYTES
from tb_ddp_doctor.trace.losses import Losses
from tb_ddp_doctor.trace.model import Ints, TraceError
from tb_ddp_doctor.trace.native import MAX_STRINGS, NativeColumns
from tb_ddp_doctor.trace.pftrace.native import NativePackets
from tb_ddp_doctor.trace.pftrace.packets import Ending, Lost, Marks, PythonPackets
from tb_ddp_doctor.trace.pftrace.plain import plain
from tb_ddp_doctor.trace.pftrace.tracks import places, said_of_ranks
from tb_ddp_doctor.trace.stream import StreamCutError

_HEAD, _TAIL = b'{"schemaVersion":1,"traceEvents":[\n', b"\n]}\n"
_LOST: dict[Lost, tuple[str, WarningKind]] = {
    Lost.BROKEN: ("skipped from byte {position} on: damaged, or events without a name or a time", "lost-events"),
    Lost.LARGE: (f"skipped from byte {{position}} on: larger than {MAX_ITEM_BYTES >> 20} MiB", "lost-events"),
    Lost.ARGUMENTS: ("from byte {position} on have damaged arguments, which were ignored", "note"),
    Lost.STRINGS: ("from byte {position} on refer to more texts or tracks than are kept", "lost-events"),
}


class _Packets:
    """What both ways to read the packets of a file share; `warnings` says what was lost, once it was read twice."""

    def __init__(self, packets: NativePackets | PythonPackets) -> None:
        self._packets = packets
        self._problem = ""
        self._endless = 0
        #: What it says of its ranks, where ddp-doctor wrote it.
        self.ranks: tuple[Any, ...] = ()

    def survey(self, blocks: Iterable[memoryview | bytes]) -> None:
        """Read all blocks for the first time. Raises TraceError for a file without a packet, or without an event."""
        for block in self._until_cut(blocks):
            self._packets.survey(block)
        marks = self._packets.marks()
        if not len(marks.kind):
            ending, position = self._packets.ending()
            if ending is Ending.ASTRAY and not position:
                raise TraceError("It is no trace in Perfetto's format.")
            raise TraceError((self._problem and f"{self._problem}.") or "It holds no events of torch.profiler.")
        durations = self._packets.pair(marks, _order(marks))
        self._endless = int(np.count_nonzero(durations < 0))
        descriptors = self._packets.descriptors()
        self.ranks = tuple(said_of_ranks(descriptors))
        self._packets.rewind(places(self._packets.tracks(), descriptors, is_own=bool(self.ranks)), durations)

    def warnings(self, file: str) -> Iterator[FileWarning]:
        """What was lost."""
        for why, (count, position) in self._packets.lost().items():
            sentence, kind = _LOST[why]
            packets = "1 packet" if count == 1 else f"{count:,} packets"
            yield FileWarning(file, f"{packets} {sentence.format(position=f'{position:,}')}", kind)
        if self._endless:
            events = "1 event" if self._endless == 1 else f"{self._endless:,} events"
            yield FileWarning(file, f"{events} left out whose end the file does not hold", "lost-events")
        ending, position = self._packets.ending()
        if ending is Ending.WITHIN or self._problem:
            detail = f" ({self._problem})" if self._problem else ""
            yield FileWarning(file, f"cut off at byte {position:,}: what follows is missing{detail}", "lost-end")
        elif ending is Ending.ASTRAY:
            yield FileWarning(file, f"what follows byte {position:,} is no packet, and was not read", "lost-end")

    def _until_cut(self, blocks: Iterable[memoryview | bytes]) -> Iterator[memoryview | bytes]:
        try:
            yield from plain(blocks)
        except StreamCutError as problem:
            self._problem = str(problem)


class PacketsAsColumns(_Packets):
    """The packets of a file as columns. Must not be made unless `trace.native.is_available`."""

    def __init__(self) -> None:
        self._native = NativePackets(MAX_ITEM_BYTES, MAX_STRINGS)
        super().__init__(self._native)

    def columns(self, blocks: Iterable[memoryview | bytes], losses: Losses) -> NativeColumns:
        """The same blocks again: their events. What the events lost goes to `losses`."""
        for block in self._until_cut(blocks):
            self._native.scan(block)
        return self._native.columns(losses)


class PacketsAsJson(_Packets):
    """The packets of a file as Kineto's JSON, by Python."""

    def __init__(self) -> None:
        self._python = PythonPackets(MAX_ITEM_BYTES, MAX_STRINGS, ARGUMENTS)
        super().__init__(self._python)

    def json(self, blocks: Iterable[memoryview | bytes]) -> Iterator[bytes]:
        """The same blocks again: Kineto's JSON, in blocks."""
        yield _HEAD
        for block in self._until_cut(blocks):
            if text := self._python.write(block):
                yield text
        yield _TAIL


def _order(marks: Marks) -> Ints | None:
    """The marks in order of time; None where that is the file's."""
    if bool(np.all(marks.time_ns[1:] >= marks.time_ns[:-1])):
        return None
    return np.argsort(marks.time_ns, kind="stable")
