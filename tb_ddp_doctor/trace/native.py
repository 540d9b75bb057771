"""The native scanner (native/scanner.h says what it reads), called through ctypes: the columns of one trace.

It reads the list of events; what stands around it is `Document`'s. Its strings come as the file spells them and are
decoded here, each once. Columns stay in the scanner's memory: an array frees its own when it goes.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import CDLL, POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from tb_ddp_doctor.storage import native_library
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.trace import events
from tb_ddp_doctor.trace.args import Int64, value
from tb_ddp_doctor.trace.columns import (
    COMM_TYPES,
    EVENT_TYPES,
    FRAME_TYPES,
    MEMORY_TYPES,
    UNKNOWN,
    Shapes,
    Strings,
    Threads,
    mark_annotations,
    name_copies,
    name_kernel_files,
)
from tb_ddp_doctor.trace.document import Document
from tb_ddp_doctor.trace.events import NO_TEXT, RawEvent, SalvagedTo, reason, scan, to_text
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.model import Category, CommArgs, Events, Frames, MemoryEvents
from tb_ddp_doctor.trace.names import CATEGORIES, INSTANT, MEMORY, PYTHON, RECORD_PARAM_COMMS
from tb_ddp_doctor.trace.stream import StreamCutError

#: Different names, shapes or threads that one file may have: 500 times those of the largest seen.
MAX_STRINGS = 1 << 20

# From here to `_PROTOTYPES`: native/scanner.h.
_MORE, _LIST_END, _CUT, _NO_MEMORY = range(4)
_REACHED = {_MORE: SalvagedTo.MORE, _LIST_END: SalvagedTo.LIST_END, _CUT: SalvagedTo.CUT}
_EVENTS, _COMMS, _MEMORY, _FRAMES, _ODDITIES = range(5)
#: Codes behind those of `Category`.
_INSTANT, _FRAME = range(len(Category), len(Category) + 2)
_TEXTS, _SHAPES, _THREADS, _CATEGORIES, _VALUES = range(5)
_ODDITY_TYPES: dict[str, DTypeLike] = {
    "table": np.int32,
    "column": np.int32,
    "row": np.int64,
    "value": np.int32,
    "position": np.int64,
}
_TABLES: dict[int, Mapping[str, DTypeLike]] = {
    _EVENTS: EVENT_TYPES,
    _COMMS: COMM_TYPES,
    _MEMORY: MEMORY_TYPES,
    _FRAMES: FRAME_TYPES,
    _ODDITIES: _ODDITY_TYPES,
}
_LOSSES = (Loss.BROKEN, Loss.MISTYPED, Loss.TIMES, Loss.ARGUMENTS)
#: Columns of communication whose numbers are of _TEXTS.
_WORDS = ("collective", "group", "group_ranks", "dtype", "algorithm", "protocol")

#: Arguments of `Losses.add`.
_Lost: TypeAlias = tuple[Loss, int, str, int]


class _LossRecord(Structure):
    _fields_ = (
        ("count", c_uint64),
        ("position", c_uint64),
        ("detail", c_char_p),
        ("start", c_char * 33),
        ("duration", c_char * 33),
    )


_PROTOTYPES: native_library.Prototypes = {
    "scanner_new": (c_void_p, [c_uint64, c_char_p, c_char_p, c_uint64, c_uint32]),
    "scanner_keep": (c_int, [c_void_p, c_char_p, c_int]),
    "scanner_feed": (c_int, [c_void_p, c_void_p, c_size_t]),
    "scanner_finish": (c_int, [c_void_p]),
    "scanner_free": (None, [c_void_p]),
    "scanner_position": (c_uint64, [c_void_p]),
    "scanner_rest": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "scanner_seen": (c_uint64, [c_void_p]),
    "scanner_lost": (POINTER(_LossRecord), [c_void_p, c_int]),
    "scanner_dropped": (POINTER(c_uint64), [c_void_p]),
    "scanner_rows": (c_size_t, [c_void_p, c_int]),
    "scanner_take": (c_void_p, [c_void_p, c_int, c_int]),
    "scanner_release": (None, [c_void_p]),
    "scanner_strings": (
        c_size_t,
        [c_void_p, c_int, POINTER(c_void_p), POINTER(POINTER(c_uint64)), POINTER(POINTER(c_uint64))],
    ),
    "scanner_remap": (None, [c_void_p, c_size_t, c_void_p]),
}


@cache
def _library() -> CDLL:
    return native_library.required(_PROTOTYPES)


def is_available() -> bool:
    """Whether the scanner was built here and fits this code."""
    return native_library.load() is not None


class Scanner:
    """One scan; the methods are those of native/scanner.h."""

    def __init__(self, position: int) -> None:
        self.library = _library()
        communication, memory = _json(RECORD_PARAM_COMMS), _json(MEMORY)
        self.handle = self.library.scanner_new(position, communication, memory, events.MAX_ITEM_BYTES, MAX_STRINGS)
        if not self.handle:
            raise MemoryError
        weakref.finalize(self, self.library.scanner_free, self.handle)
        for category, code in [*CATEGORIES.items(), (INSTANT, _INSTANT), *((name, _FRAME) for name in PYTHON)]:
            self.library.scanner_keep(self.handle, _json(category), int(code))

    def feed(self, block: memoryview | bytes) -> SalvagedTo:
        data = np.frombuffer(block, np.uint8)
        return self._reached(self.library.scanner_feed(self.handle, data.ctypes.data, len(data)))

    def finish(self) -> SalvagedTo:
        return self._reached(self.library.scanner_finish(self.handle))

    def position(self) -> int:
        return int(self.library.scanner_position(self.handle))

    def rest(self) -> bytes:
        size = c_size_t()
        return ctypes.string_at(self.library.scanner_rest(self.handle, byref(size)), size.value)

    def seen(self) -> int:
        return int(self.library.scanner_seen(self.handle))

    def losses(self) -> list[_Lost]:
        """Of each kind that there was: kind, position, detail and count."""
        records = [(kind, self.library.scanner_lost(self.handle, index).contents) for index, kind in enumerate(_LOSSES)]
        return [(kind, loss.position, _detail(kind, loss), loss.count) for kind, loss in records if loss.count]

    def dropped(self) -> dict[bytes, int]:
        """Events dropped, by category as the file spells it."""
        counts = self.library.scanner_dropped(self.handle)
        tokens, _ = self.vocabulary(_CATEGORIES)
        return {token: counts[index] for index, token in enumerate(tokens) if counts[index]}

    def table(self, number: int) -> dict[str, NDArray[Any]]:
        """A table's columns by name; each can be taken once."""
        rows = self.library.scanner_rows(self.handle, number)
        return {
            name: self._array(self.library.scanner_take(self.handle, number, column), rows, dtype)
            for column, (name, dtype) in enumerate(_TABLES[number].items())
        }

    def vocabulary(self, number: int) -> tuple[list[bytes], list[int]]:
        """Strings as the file spells them, and where each was first seen."""
        data, ends, positions = c_void_p(), POINTER(c_uint64)(), POINTER(c_uint64)()
        count = self.library.scanner_strings(self.handle, number, byref(data), byref(ends), byref(positions))
        if not count:
            return [], []
        stops = ends[:count]
        whole = ctypes.string_at(data.value or 0, stops[-1])
        return [whole[start:stop] for start, stop in zip([0, *stops], stops, strict=False)], positions[:count]

    def remap(self, column: NDArray[Any], numbers: Sequence[int]) -> None:
        """Replace each number of an int32 column by what stands there in `numbers`; -1 stays."""
        if numbers != [*range(len(numbers))]:
            table = np.array(numbers, np.int32)
            self.library.scanner_remap(column.ctypes.data, len(column), table.ctypes.data)

    def _array(self, address: int | None, rows: int, dtype: DTypeLike) -> NDArray[Any]:
        if not address:
            return np.empty(0, dtype)
        memory = (c_char * (rows * np.dtype(dtype).itemsize)).from_address(address)
        # Not at the interpreter's exit, which may find the array in use.
        weakref.finalize(memory, self.library.scanner_release, address).atexit = False
        return np.frombuffer(memoryview(memory), np.dtype(dtype))

    def _reached(self, status: int) -> SalvagedTo:
        if status == _NO_MEMORY:
            raise MemoryError
        return _REACHED[status]


class NativeColumns:
    """The columns of one trace: what `columns.Columns` is to the msgspec reader."""

    def __init__(self, scanner: Scanner, losses: Losses) -> None:
        self.strings = Strings()
        self.threads = Threads()
        self.dropped = {_text(token)[0] or UNKNOWN: count for token, count in scanner.dropped().items()}
        self._scanner = scanner
        self._events = scanner.table(_EVENTS)
        self._comms = scanner.table(_COMMS)
        self._memory = scanner.table(_MEMORY)
        self._frames = scanner.table(_FRAMES)
        seen = [*scanner.losses(), *self._decode_texts(), *self._judge_oddities()]
        self._decode_shapes()
        self._decode_threads()
        for loss in sorted(seen, key=lambda loss: loss[1]):
            losses.add(*loss)

    def events(self, base_ns: int) -> Events:
        """All columns, with `base_ns` added to every start."""
        self._events["start_ns"] += base_ns
        name_copies(self._events, self.strings)
        name_kernel_files(self._events, self.strings)
        mark_annotations(self._events, self.strings)
        return Events(**self._events)

    def memory(self, base_ns: int) -> MemoryEvents:
        """What the allocators did, with `base_ns` added to every time."""
        self._memory["time_ns"] += base_ns
        return MemoryEvents(**self._memory)

    def frames(self, base_ns: int) -> Frames:
        """Python functions that last, with `base_ns` added to every start."""
        self._frames["start_ns"] += base_ns
        return Frames(**self._frames)

    def comms(self) -> CommArgs:
        """All rows of communication metadata."""
        return CommArgs(**self._comms)

    def _decode_texts(self) -> Iterator[_Lost]:
        tokens, positions = self._scanner.vocabulary(_TEXTS)
        texts, problems = zip(*map(_text, tokens), strict=True)
        bad = [index for index, problem in enumerate(problems) if problem]
        rows = np.isin(self._events["name"], bad)
        if rows.any():
            first = min(self._events["name"][rows].tolist(), key=lambda index: positions[index])
            yield Loss.TEXT, positions[first], problems[first], int(rows.sum())
        numbers = [self.strings[text] for text in texts]
        for column in (self._events["name"], self._frames["name"], *(self._comms[name] for name in _WORDS)):
            self._scanner.remap(column, numbers)

    def _decode_shapes(self) -> None:
        shapes = Shapes(self.strings)
        tokens, _ = self._scanner.vocabulary(_SHAPES)
        numbers = [shapes[token] for token in tokens]
        for name in ("shape", "types", "values"):
            self._scanner.remap(self._events[name], numbers)
        # Of operators, "kernel_file"; of device events it is no index.
        files = self._events["occupancy"]
        rows = np.flatnonzero((self._events["category"] == Category.OP) & (files >= 0))
        if len(rows):
            files[rows] = np.array(numbers, np.int32)[files[rows]]

    def _decode_threads(self) -> None:
        tokens, _ = self._scanner.vocabulary(_THREADS)
        numbers = [self.threads[_pair(token)] for token in tokens]
        for column in (self._events["thread"], self._memory["thread"], self._frames["thread"]):
            self._scanner.remap(column, numbers)

    def _judge_oddities(self) -> Iterator[_Lost]:
        """Set integers that are not spelled plainly ("1.0"), and tell of arguments that are none."""
        oddities = self._scanner.table(_ODDITIES)
        tokens, _ = self._scanner.vocabulary(_VALUES)
        read = [value(token, Int64) for token in tokens]
        known = np.array([number is not None for number in read], np.bool_)
        numbers = np.array([number or 0 for number in read], np.int64)
        refused = np.zeros(len(oddities["row"]), np.bool_)
        for table, columns in ((_EVENTS, self._events), (_COMMS, self._comms), (_MEMORY, self._memory)):
            for index, column in enumerate(columns.values()):
                here = np.flatnonzero((oddities["table"] == table) & (oddities["column"] == index))
                values = oddities["value"][here]
                limits = np.iinfo(column.dtype)
                good = known[values] & (numbers[values] >= limits.min) & (numbers[values] <= limits.max)
                column[oddities["row"][here[good]]] = numbers[values[good]]
                refused[here[~good]] = table != _COMMS
        if refused.any():
            first = int(refused.argmax())
            name = [*_TABLES[int(oddities["table"][first])]][oddities["column"][first]]
            spelled = tokens[oddities["value"][first]][:32].decode("utf-8", "replace")
            events_lost = len(np.unique(np.stack([oddities["table"][refused], oddities["row"][refused]]), axis=1).T)
            yield Loss.ARGUMENTS, int(oddities["position"][first]), f"{name} is {spelled}", events_lost


def read_columns(blocks: Iterable[memoryview | bytes], losses: Losses) -> tuple[dict[str, Any], NativeColumns]:
    """The members around the events, and the events' columns. Must not be called unless `is_available`."""
    document = _NativeDocument(blocks, losses)
    for _ in document.batches():
        pass
    return document.members, document.columns


class _NativeDocument(Document):
    """A document whose events go to the scanner: `columns` is complete when `batches` is exhausted."""

    columns: NativeColumns

    def _next(self) -> tuple[list[RawEvent], SalvagedTo]:
        """Read the whole list; instead of its events, one that stands for those that have a phase."""
        scanner = Scanner(self._position)
        reached = self._scan(scanner)
        self._position, self._buffer = scanner.position(), scanner.rest()
        self.columns = NativeColumns(scanner, self._losses)
        return [RawEvent(ph="X")] * bool(scanner.seen()), reached

    def _scan(self, scanner: Scanner) -> SalvagedTo:
        reached = scanner.feed(self._buffer)
        try:
            while reached is SalvagedTo.MORE:
                block = next(self._blocks, None)
                reached = scanner.finish() if block is None else scanner.feed(block)
        except StreamCutError as problem:
            self._stream_problem = str(problem)
            reached = scanner.finish()
        return reached

    def _goes_on(self) -> bool:
        """The scanner has looked ahead."""
        return False


def _json(text: str) -> bytes:
    return json.dumps(text).encode()


def _detail(kind: Loss, record: _LossRecord) -> str:
    if kind is Loss.TIMES:
        start, duration = (part.decode("utf-8", "replace") or "null" for part in (record.start, record.duration))
        return f"ts {start}, dur {duration}"
    return str(record.detail.decode())


def _text(token: bytes) -> tuple[str, str]:
    """A JSON string's text, or any other value as it is spelled; and what was wrong with it, if it had to be mended."""
    if not token.startswith(b'"'):
        return token.decode("utf-8", "replace"), ""
    try:
        return msgspec.json.decode(token, type=str), ""
    except REFUSALS as error:
        return NO_TEXT.sub("\ufffd", scan(to_text(token), 0)[0]), reason(error)


def _pair(token: bytes) -> tuple[Any, Any]:
    """The two JSON values in "pid,tid"."""
    pid, tid = value(b"[" + token + b"]") or scan(to_text(b"[" + token + b"]"), 0)[0]
    return pid, tid
