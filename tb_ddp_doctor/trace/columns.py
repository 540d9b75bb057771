"""Events to columns: small arrays for each batch, joined at the end; strings and threads interned."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Raw
from numpy.typing import DTypeLike, NDArray

from tb_ddp_doctor.storage.column_table import column_types
from tb_ddp_doctor.trace.args import (
    MISSING,
    Args,
    CommunicationArgs,
    DeviceArgs,
    MemoryArgs,
    OpArgs,
    RuntimeArgs,
    decode_args,
    integer,
    text,
    value,
)
from tb_ddp_doctor.trace.events import NO_TEXT, RawEvent, scan, to_text
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.model import MODULE, SHORTEST_FRAME_NS, Category, CommArgs, Events, Frames, MemoryEvents
from tb_ddp_doctor.trace.names import (
    CATEGORIES,
    INSTANT,
    INSTANT_PHASE,
    MEMORY,
    PYTHON,
    RECORD_PARAM_COMMS,
    is_annotation,
    kernel_function,
)
from tb_ddp_doctor.trace.times import nanoseconds

#: Plain ints: an IntEnum costs a call for each event.
_CODES = {name: int(category) for name, category in CATEGORIES.items()}
#: What `dropped` calls events that say neither category nor phase.
UNKNOWN = "unknown"
#: A copy of which only arguments tell what goes where, as "HtoD".
_COPY, _DIRECTION = "Memcpy", re.compile("[A-Z]to[A-Z]")

EVENT_TYPES, COMM_TYPES = column_types(Events), column_types(CommArgs)
MEMORY_TYPES, FRAME_TYPES = column_types(MemoryEvents), column_types(Frames)


class Strings(dict[str, int]):
    """Text to its index in the vocabulary, growing."""

    def __missing__(self, text: str) -> int:
        index = self[text] = len(self)
        return index


class Threads(dict[tuple[Any, Any], int]):
    """(pid, tid) to the thread's index, growing; a number and its text are the same thread."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[Any, Any]) -> int:
        pid, tid = ("" if part is None else str(part) for part in key)
        index = self[key] = self.texts.setdefault((pid, tid), len(self.texts))
        return index


class Shapes(dict[bytes, int]):
    """Raw JSON to its index in the vocabulary, on one line whatever the file's layout; b"" is missing."""

    def __init__(self, strings: Strings) -> None:
        super().__init__({b"": MISSING})
        self._strings = strings

    def __missing__(self, raw: bytes) -> int:
        line = b" ".join(raw.split()).replace(b"[ ", b"[").replace(b" ]", b"]")
        index = self[raw] = self._strings[line.decode("utf-8", "replace")]
        return index


class Columns:
    """The columns of one trace, as they grow."""

    def __init__(self, losses: Losses) -> None:
        self.strings = Strings()
        self.threads = Threads()
        self.dropped: Counter[str] = Counter()
        self._losses = losses
        self._shapes = Shapes(self.strings)
        self._count = 0
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in EVENT_TYPES}
        self._comms: list[tuple[int, ...]] = []
        self._memory: dict[str, list[NDArray[Any]]] = {name: [] for name in MEMORY_TYPES}
        self._frames: dict[str, list[NDArray[Any]]] = {name: [] for name in FRAME_TYPES}

    def add(self, batch: Sequence[RawEvent], position: int) -> None:
        """Append those events that are kept; `position` is the batch's first byte, for warnings."""
        events = [event for event in batch if event.cat in _CODES and event.ph == "X"]
        if len(events) < len(batch):
            others = [event for event in batch if event.cat not in _CODES or event.ph != "X"]
            self._add_memory([event for event in others if _is_memory(event)], position)
            self._add_frames([event for event in others if _is_frame(event)])
            dropped = [event for event in others if not (_is_memory(event) or _is_frame(event))]
            self.dropped.update([event.cat or event.ph or UNKNOWN for event in dropped])
        start, duration = nanoseconds([event.ts for event in events]), nanoseconds([event.dur for event in events])
        usable = (start >= 0) & (duration >= 0)
        events = self._with_times(events, usable, position)
        start, duration = start[usable], duration[usable]
        if not events:
            return
        part: dict[str, NDArray[Any]] = {
            "name": _column([self.strings[event.name] for event in events], np.int32),
            "category": _column([_CODES[event.cat] for event in events], np.int8),
            "start_ns": start,
            "duration_ns": duration,
            "thread": _column([self.threads[event.pid, event.tid] for event in events], np.int32),
        }
        for name in EVENT_TYPES.keys() - part.keys():
            part[name] = np.full(len(events), MISSING, EVENT_TYPES[name])
        self._fill(part, events, position)
        for name, column in part.items():
            self._parts[name].append(column)
        self._count += len(events)

    def events(self, base_ns: int) -> Events:
        """All columns joined, with `base_ns` added to every start; they are given up on the way."""
        joined = _joined(self._parts, EVENT_TYPES)
        joined["start_ns"] += base_ns
        name_copies(joined, self.strings)
        name_kernel_files(joined, self.strings)
        mark_annotations(joined, self.strings)
        return Events(**joined)

    def memory(self, base_ns: int) -> MemoryEvents:
        """What the allocators did, with `base_ns` added to every time."""
        joined = _joined(self._memory, MEMORY_TYPES)
        joined["time_ns"] += base_ns
        return MemoryEvents(**joined)

    def frames(self, base_ns: int) -> Frames:
        """Python functions that last, with `base_ns` added to every start."""
        joined = _joined(self._frames, FRAME_TYPES)
        joined["start_ns"] += base_ns
        return Frames(**joined)

    def comms(self) -> CommArgs:
        """All rows of communication metadata."""
        table = np.array(self._comms, np.int64).reshape(-1, len(COMM_TYPES)).T
        columns = zip(COMM_TYPES.items(), table, strict=True)
        return CommArgs(**{name: column.astype(dtype) for (name, dtype), column in columns})

    def _with_times(self, events: list[RawEvent], usable: NDArray[np.bool_], position: int) -> list[RawEvent]:
        """Those events that have usable times; the others are told."""
        if usable.all():
            return events
        first = events[int(usable.argmin())]
        detail = f"ts {_excerpt(first.ts)}, dur {_excerpt(first.dur)}"
        self._losses.add(Loss.TIMES, position, detail, len(events) - int(usable.sum()))
        return [event for event, good in zip(events, usable.tolist(), strict=True) if good]

    def _add_memory(self, events: list[RawEvent], position: int) -> None:
        """Append what the allocators did."""
        times = nanoseconds([event.ts for event in events])
        usable = times >= 0
        events = self._with_times(events, usable, position)
        args = decode_args(MemoryArgs, [event.args for event in events], self._tell_arguments(position))
        self._memory["time_ns"].append(times[usable])
        for name in MemoryArgs.__struct_fields__:
            self._memory[name].append(_column([getattr(one, name) for one in args], MEMORY_TYPES[name]))
        self._memory["thread"].append(_column([self.threads[event.pid, event.tid] for event in events], np.int32))

    def _add_frames(self, events: list[RawEvent]) -> None:
        """Append those Python functions that last, and the calls of modules; the others are dropped."""
        start, duration = nanoseconds([event.ts for event in events]), nanoseconds([event.dur for event in events])
        is_module = np.array([event.name.startswith(MODULE) for event in events], np.bool_)
        lasts = (start >= 0) & (duration >= 0) & ((duration >= SHORTEST_FRAME_NS) | is_module)
        self.dropped.update([event.cat for event, kept in zip(events, lasts.tolist(), strict=True) if not kept])
        events = [events[row] for row in np.flatnonzero(lasts).tolist()]
        self._frames["name"].append(_column([self.strings[event.name] for event in events], np.int32))
        self._frames["start_ns"].append(start[lasts])
        self._frames["duration_ns"].append(duration[lasts])
        self._frames["thread"].append(_column([self.threads[event.pid, event.tid] for event in events], np.int32))

    def _tell_arguments(self, position: int) -> Callable[[str], None]:
        return lambda detail: self._losses.add(Loss.ARGUMENTS, position, detail)

    def _fill(self, part: dict[str, NDArray[Any]], events: list[RawEvent], position: int) -> None:
        """Set those columns of a part, and add those rows of communication, that come from arguments."""

        def arguments(kind: type[Args], rows: NDArray[np.intp]) -> list[Args]:
            raws = [events[row].args for row in rows.tolist()]
            return decode_args(kind, raws, self._tell_arguments(position))

        category = part["category"]
        rows = np.flatnonzero((category >= Category.KERNEL) & (category <= Category.MEMSET))
        device = arguments(DeviceArgs, rows)
        for name in ("device", "stream", "correlation", "bytes", "occupancy", "graph"):
            part[name][rows] = _column([getattr(args, name) for args in device])
        part["sequence"][rows] = _column([args.graph_node for args in device])
        part["shape"][rows] = _column([self._shapes[bytes(args.grid)] for args in device])
        part["types"][rows] = _column([self._shapes[bytes(args.autograd_phase)] for args in device])
        part["values"][rows] = _column([self._shapes[bytes(args.annotation())] for args in device])
        for place in np.flatnonzero(category[rows] == Category.MEMCPY).tolist():
            if bytes((copy := device[place]).copy_kind):
                part["shape"][rows[place]] = self._shapes[bytes(copy.copy_kind)]
                part["types"][rows[place]] = self._shapes[bytes(copy.host_memory())]
        has_metadata = np.array([bytes(args.collective) + bytes(args.func) != b"" for args in device], np.bool_)

        communication = np.union1d(rows[has_metadata], np.flatnonzero(part["name"] == self.strings[RECORD_PARAM_COMMS]))
        for row, args in zip(communication.tolist(), arguments(CommunicationArgs, communication), strict=True):
            self._comms.append((self._count + row, *self._metadata(args)))

        rows = np.flatnonzero(category == Category.RUNTIME)
        part["correlation"][rows] = _column([args.correlation for args in arguments(RuntimeArgs, rows)])

        rows = np.flatnonzero(category == Category.OP)
        ops = arguments(OpArgs, rows)
        for column, argument in (("shape", "dims"), ("types", "types"), ("values", "values")):
            part[column][rows] = _column([self._shapes[bytes(getattr(args, argument))] for args in ops])
        part["sequence"][rows] = _column([args.sequence for args in ops])
        part["occupancy"][rows] = _column([self._shapes[bytes(args.kernel_file)] for args in ops])

    def _metadata(self, args: CommunicationArgs) -> tuple[int, ...]:
        """A row of `CommArgs`, but for the event."""
        collective, group, group_ranks, dtype = map(self._word, args.words())
        return (
            collective,
            group,
            group_ranks,
            integer(args.group_size),
            integer(args.elements_in),
            integer(args.elements_out),
            dtype,
            args.sequence(),
            args.peer(),
            integer(args.count),
            self._word(args.algorithm),
            self._word(args.protocol),
            integer(args.channels),
        )

    def _word(self, raw: Raw) -> int:
        word = text(raw)
        return MISSING if word is None else self.strings[word]


def _joined(parts: dict[str, list[NDArray[Any]]], types: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The parts of each column joined, which are given up on the way."""
    return {name: np.concatenate([np.empty(0, dtype), *parts.pop(name)]) for name, dtype in types.items()}


def mark_annotations(columns: Mapping[str, NDArray[Any]], strings: Iterable[str]) -> None:
    """Operators that are annotations by their names, as in 2021, become annotations."""
    annotations = np.array([is_annotation(text) for text in strings], np.bool_)
    category = columns["category"]
    category[(category == Category.OP) & annotations[columns["name"]]] = Category.ANNOTATION


def name_copies(columns: Mapping[str, NDArray[Any]], strings: Strings) -> None:
    """Name copies as Kineto does, "Memcpy HtoD (Pinned -> Device)", where the CUPTI monitor has "Memcpy".

    The columns `shape` and `types` of such copies have the raw JSON of "copy kind" and of the host's memory ("src kind"
    or "dst kind"), as indices into `strings`, and are -1 then.
    """
    rows = np.flatnonzero((columns["category"] == Category.MEMCPY) & (columns["shape"] >= 0))
    if not len(rows):
        return
    of_copies = np.stack([columns[name][rows] for name in ("name", "shape", "types")])
    different, which = np.unique(of_copies, axis=1, return_inverse=True)
    texts = list(strings)
    numbers = []
    for name, *indices in different.T.tolist():
        kind, memory = (_text(texts[index]) if index >= 0 else "" for index in indices)
        is_plain = texts[name] == _COPY and _DIRECTION.fullmatch(kind)
        numbers.append(strings[f"{_COPY} {kind} ({_ends(kind, memory)})"] if is_plain else name)
    columns["name"][rows] = np.array(numbers, np.int32)[which.reshape(-1)]
    for column in ("shape", "types"):
        columns[column][rows] = MISSING


def _ends(kind: str, memory: str) -> str:
    """From where to where a copy goes: "HtoD" from "pinned" is "Pinned -> Device"."""
    memory = memory.replace("_", " ").title()
    has_host = "H" in kind
    return " -> ".join("Device" if has_host and end != "H" else memory for end in (kind[0], kind[-1]))


def name_kernel_files(columns: Mapping[str, NDArray[Any]], strings: Strings) -> None:
    """Spell the files of compiled kernels as stacks do functions: "/tmp/torchinductor/ab/cab.py(1): triton_mul_0".

    The column `occupancy` of operators has the raw JSON of "kernel_file", as an index into `strings`, and then has the
    function, or -1 where the file is none.
    """
    occupancy, name = columns["occupancy"], columns["name"]
    rows = np.flatnonzero((columns["category"] == Category.OP) & (occupancy >= 0))
    if not len(rows):
        return
    pairs, which = np.unique(np.stack((occupancy[rows], name[rows])), axis=1, return_inverse=True)
    texts = list(strings)
    functions = [kernel_function(_text(texts[file]), texts[kernel]) for file, kernel in pairs.T.tolist()]
    numbers = [strings[function] if function else MISSING for function in functions]
    occupancy[rows] = np.array(numbers, np.int32)[which.reshape(-1)]


def _text(raw: str) -> str:
    """The text of a JSON string, mended where it has to be; "" for every other value."""
    if not raw.startswith('"'):
        return ""
    text = value(raw.encode(), str)
    return NO_TEXT.sub("\ufffd", scan(to_text(raw.encode()), 0)[0]) if text is None else str(text)


def _is_memory(event: RawEvent) -> bool:
    return event.cat == INSTANT and event.name == MEMORY and event.ph == INSTANT_PHASE


def _is_frame(event: RawEvent) -> bool:
    return event.cat in PYTHON and event.ph == "X"


def _column(values: list[int], dtype: DTypeLike = np.int64) -> NDArray[Any]:
    # Twice as fast as np.array, which looks at each value first to find a type.
    return np.fromiter(values, dtype, len(values))


def _excerpt(raw: Raw) -> str:
    return bytes(raw)[:32].decode("utf-8", "replace")
