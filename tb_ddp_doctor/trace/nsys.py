"""Reading one process of an export of Nsight Systems to the columns that Kineto's traces have.

| Nsight Systems | Kineto |
|---|---|
| kernels, copies, memsets | the same, named as Kineto names them: "Memcpy HtoD (Pageable -> Device)" |
| calls of runtime and driver | the same, without versions in their names, and without those that Kineto leaves out |
| NVTX ranges that torch's `emit_nvtx` made ("aten::add, op_id = 3, sizes = [[2], [2]]") | operators, with shapes |
| the NVTX range that is a step | `ProfilerStep#N` |
| NCCL's NVTX ranges | metadata of the kernels that they launched, if the export holds their payloads |
| other NVTX ranges | annotations |

Ignored: marks, ranges that did not end, the device's own record of synchronisations, CPU samples, OS calls, metrics.

Rows are streamed in the order of their numbers. A rank with more rows than `MOST_ROWS` is read for a window of time;
where the rows of a table stand in the order of time, as exports have them, only that part of the table is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.findings import FileWarning, WarningKind
from tb_ddp_doctor.nsys import database as tables
from tb_ddp_doctor.nsys import processes
from tb_ddp_doctor.nsys.database import Database, NsysError, opened
from tb_ddp_doctor.nsys.payloads import Payloads, has_payloads
from tb_ddp_doctor.storage.paths import ProcessPath
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.args import MISSING
from tb_ddp_doctor.trace.columns import (
    COMM_TYPES,
    EVENT_TYPES,
    FRAME_TYPES,
    MEMORY_TYPES,
    Shapes,
    Strings,
    Threads,
    mark_annotations,
)
from tb_ddp_doctor.trace.model import (
    Category,
    CommArgs,
    Events,
    Frames,
    Header,
    Indices,
    Ints,
    MemoryEvents,
    RankTrace,
    TraceError,
)
from tb_ddp_doctor.trace.nsys_nccl import Call, told_of_kernels
from tb_ddp_doctor.trace.nsys_steps import Ranges, chosen_steps
from tb_ddp_doctor.trace.nsys_window import window

#: Rows of a rank that are kept: some dozens of steps. What is made of them takes some 400 bytes each at its peak.
MOST_ROWS = 1_200_000
#: Rows that are fetched at once.
_BLOCK = 1 << 15
_PID_MASK = (1 << 24) - 1
_DEVICE_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_HOST_COLUMNS = ("start", "end", "globalTid")
#: Of what runs on a device, as SQL.
_LAUNCHED = ("deviceId", "streamId", "coalesce(correlationId, -1)")
#: NVTX's numbers of ranges that are pushed and popped, and of those that are started and ended.
_RANGES = (59, 60)

_COPY_KINDS = {
    0: "Unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static",
                 6: "Managed Static", 7: "Unknown"}  # fmt: skip
#: Kineto's names of the profiler's own work, by the end of Nsight Systems'.
_OVERHEADS = {
    "DRIVER_COMPILER": "Driver Compiler",
    "BUFFER_FLUSH": "Buffer Flush",
    "INSTRUMENTATION": "Instrumentation",
    "RESOURCE": "Resource",
    "RUNTIME_TRIGGERED_MODULE_LOADING": "Runtime Triggered Module Loading",
    "LAZY_FUNCTION_LOADING": "Lazy Function Loading",
    "COMMAND_BUFFER_FULL": "Command Buffer Full",
}
#: Calls that Kineto leaves out, since they tell nothing.
_LEFT_OUT = {
    "cudaGetDevice", "cudaSetDevice", "cudaGetLastError", "cudaEventCreate", "cudaEventCreateWithFlags",
    "cudaEventDestroy",
}  # fmt: skip
_VERSION = re.compile(r"_v\d+$")
#: What `emit_nvtx` appends to the name of an operator or `record_function`.
_SUFFIXES = (", seq = ", ", op_id = ", ", sizes = ")
_SIZES = re.compile(r", sizes = (\[.*?\])(?:, input_op_ids = |$)")
_OPERATOR = re.compile(r"::|Backward\d*$|^(?:detach_?|record_param_comms)$")


def read(path: ProcessPath) -> RankTrace:
    """The rank that a process is. Raises TraceError, with a sentence."""
    try:
        with opened(path.file) as database:
            return _Reader(database, path).trace()
    except NsysError as error:
        raise TraceError(str(error)) from None


class _Reader:
    """The columns of one process, as they are read."""

    def __init__(self, database: Database, path: ProcessPath) -> None:
        self._database, self._path = database, path
        self._strings, self._threads = Strings(), Threads()
        self._shapes = Shapes(self._strings)
        self._parts: list[dict[str, NDArray[Any]]] = []
        self._stream_threads = _Memo(lambda key: self._threads[key >> 32, key & 0xFFFFFFFF])
        self._host_threads = _Memo(lambda key: self._threads[key >> 24 & _PID_MASK, key & _PID_MASK])
        self._calls: list[Call] = []
        self._warnings: list[FileWarning] = []
        self._window = window(database, path.process, MOST_ROWS)

    def trace(self) -> RankTrace:
        for table in (self._kernels, self._copies, self._runtime, self._overhead, self._nvtx):
            table()
        if self._window.share < 1:
            first, last = (instant / 1e9 for instant in (self._window.start, self._window.end))
            self._say(
                f"Read from {first:.3f} s to {last:.3f} s of the recording, about {self._window.share:.1%} of this "
                f"process's rows: more than {MOST_ROWS:,} are not kept."
            )
        epoch_ns = processes.start_ns(self._database) or 0
        joined = {
            name: np.concatenate([np.empty(0, dtype), *(part[name] for part in self._parts)])
            for name, dtype in EVENT_TYPES.items()
        }
        self._parts.clear()
        comms = self._comms(joined)
        self._mark_steps(joined)
        joined["start_ns"] += epoch_ns
        mark_annotations(joined, self._strings)
        events = Events(**joined)
        has_shapes = bool((events.shape[events.category == Category.OP] >= 0).any())
        return RankTrace(
            file=str(self._path),
            header=replace(self._header(epoch_ns), has_shapes=has_shapes),
            strings=tuple(self._strings),
            threads=tuple(self._threads.texts),
            events=events,
            comms=comms,
            memory=MemoryEvents(**{name: np.empty(0, dtype) for name, dtype in MEMORY_TYPES.items()}),
            frames=Frames(**{name: np.empty(0, dtype) for name, dtype in FRAME_TYPES.items()}),
            dropped={},
            warnings=tuple(self._warnings),
        )

    def _blocks(self, table: str, columns: Sequence[str], where: str) -> Iterator[list[Any]]:
        """Columns of the process's rows in the window, after start and length, some thousands of rows at a time."""
        query = (
            f"SELECT start, end - start, {', '.join(columns)} FROM {table} "
            f"WHERE rowid BETWEEN ? AND ? AND {where} AND start >= ? AND start < ? AND end >= start"
        )
        for first, last in self._window.parts.get(table, ()):
            values = (first, last, self._window.start, self._window.end)
            for block in self._database.blocks(query, values, _BLOCK):
                yield list(zip(*block, strict=True))

    def _add(self, category: Category, start: Ints, length: Ints, **columns: NDArray[Any]) -> None:
        known = {"category": np.full(len(start), category), "start_ns": start, "duration_ns": length, **columns}
        missing = np.full(len(start), MISSING)
        self._parts.append({name: known.get(name, missing).astype(dtype) for name, dtype in EVENT_TYPES.items()})

    def _of_process(self) -> str:
        return f"globalPid = {self._path.process}"

    def _of_threads(self) -> str:
        return f"globalTid BETWEEN {self._path.process} AND {self._path.process + _PID_MASK}"

    def _kernels(self) -> None:
        table = tables.KERNEL
        if not self._has(table, *_DEVICE_COLUMNS):
            return
        name = next((one for one in ("demangledName", "shortName") if self._has(table, one)), "0")
        has_grid = self._has(table, "gridX", "gridY", "gridZ")
        # One number for three: each costs as much as the row itself.
        grid = "(gridX << 32) | (gridY << 16) | gridZ" if has_grid else "-1"
        texts = _Texts(self._database, self._strings, str)
        grids = _Memo(lambda packed: self._shapes[_grid(packed)])
        for block in self._blocks(table, (*_LAUNCHED, name, grid), self._of_process()):
            start, length, device, stream, correlation, text, packed = map(_ints, block)
            self._add(
                Category.KERNEL,
                start,
                length,
                name=texts.of(text),
                thread=self._stream_threads.of((device << 32) | stream),
                device=device,
                stream=stream,
                correlation=correlation,
                shape=grids.of(packed),
            )

    def _copies(self) -> None:
        memory = dict(_MEMORY_KINDS)
        for number, label in self._database.labels("ENUM_CUDA_MEM_KIND").items():
            memory[number] = label.rpartition("KIND_")[2].replace("_", " ").title()

        def copied(key: int) -> str:
            source, target = memory.get(key >> 8 & 0xFF, "Unknown"), memory.get(key & 0xFF, "Unknown")
            return f"Memcpy {_COPY_KINDS.get(key >> 16, 'Unknown')} ({source} -> {target})"

        copy_key = "(copyKind << 16) | (coalesce(srcKind, 7) << 8) | coalesce(dstKind, 7)"
        self._moved(tables.MEMCPY, Category.MEMCPY, copy_key, copied)
        set_key = "coalesce(memKind, 7)" if self._has(tables.MEMSET, "memKind") else "7"
        self._moved(tables.MEMSET, Category.MEMSET, set_key, lambda key: f"Memset ({memory.get(key, 'Unknown')})")

    def _moved(self, table: str, category: Category, key: str, named: Callable[[int], str]) -> None:
        """Copies or memsets, named by a key."""
        if not self._has(table, *_DEVICE_COLUMNS, "bytes"):
            return
        kinds = _Memo(lambda number: self._strings[named(number)])
        for block in self._blocks(table, (*_LAUNCHED, "bytes", key), self._of_process()):
            start, length, device, stream, correlation, size, kind = map(_ints, block)
            self._add(
                category,
                start,
                length,
                name=kinds.of(kind),
                thread=self._stream_threads.of((device << 32) | stream),
                device=device,
                stream=stream,
                correlation=correlation,
                bytes=size,
            )

    def _runtime(self) -> None:
        table = tables.RUNTIME
        if not self._has(table, *_HOST_COLUMNS, "correlationId", "nameId"):
            return
        texts, left_out = _Texts(self._database, self._strings, _call), self._strings[""]
        columns = ("globalTid", "coalesce(correlationId, -1)", "nameId")
        for block in self._blocks(table, columns, self._of_threads()):
            start, length, thread, correlation, text = map(_ints, block)
            name = texts.of(text)
            kept = name != left_out
            self._add(
                Category.RUNTIME,
                start[kept],
                length[kept],
                name=name[kept],
                thread=self._host_threads.of(thread[kept]),
                correlation=correlation[kept],
            )

    def _overhead(self) -> None:
        table = tables.OVERHEAD
        if not self._has(table, *_HOST_COLUMNS, "overheadType"):
            return
        labels = self._database.labels("ENUM_CUPTI_OVERHEAD_TYPE")

        def named(kind: int) -> int:
            label = labels.get(kind, "")
            return self._strings[next((name for end, name in _OVERHEADS.items() if label.endswith(end)), "Unknown")]

        kinds = _Memo(named)
        for block in self._blocks(table, ("globalTid", "overheadType"), self._of_threads()):
            start, length, thread, kind = map(_ints, block)
            threads = self._host_threads.of(thread)
            self._add(Category.OVERHEAD, start, length, name=kinds.of(kind), thread=threads)

    def _nvtx(self) -> None:
        table = tables.NVTX
        if not self._has(table, *_HOST_COLUMNS, "eventType", "text", "textId"):
            return
        payloads = Payloads(self._database) if has_payloads(self._database) else None
        told = ("jsonText", "binaryData") if payloads else ("NULL", "NULL")
        named = _RangeNames(self._strings, self._shapes)
        where = f"{self._of_threads()} AND eventType IN {_RANGES} AND end IS NOT NULL"
        for block in self._blocks(table, ("globalTid", "text", "textId", *told), where):
            start, length, thread = map(_ints, block[:3])
            threads = self._host_threads.of(thread)
            texts = self._nvtx_texts(*block[3:5])
            told_before = len(self._calls)
            is_nccl = np.array([text.startswith("nccl") for text in texts], np.bool_)
            for at in np.flatnonzero(is_nccl).tolist():
                payload = payloads.read(block[5][at], block[6][at]) if payloads else None
                first = int(start[at])
                self._calls.append(Call(int(threads[at]), first, first + int(length[at]), texts[at], payload))
            parsed = np.array([named.parse(text) for text in texts], np.int64).reshape(-1, 3)
            is_operator = parsed[:, 1].astype(np.bool_)
            # As in Kineto's traces, a call that says whom it sends to is an operator on the host.
            is_message = np.array([self._is_message(call) for call in self._calls[told_before:]], np.bool_)
            messages = np.flatnonzero(is_nccl)[is_message]
            parsed[messages, :2] = self._strings[names.RECORD_PARAM_COMMS], True
            is_operator[messages] = True
            for category, chosen in ((Category.OP, is_operator), (Category.ANNOTATION, ~is_operator & ~is_nccl)):
                self._add(
                    category,
                    start[chosen],
                    length[chosen],
                    name=parsed[chosen, 0],
                    thread=threads[chosen],
                    shape=parsed[chosen, 2],
                )

    @staticmethod
    def _is_message(call: Call) -> bool:
        """Whether it is a send or a receive of which the other rank is known."""
        known = call.payload is not None and call.payload.peer >= 0
        return known and names.is_point_to_point(names.collective(call.name))

    def _nvtx_texts(self, given: Sequence[Any], registered: Sequence[Any]) -> list[str]:
        """Texts of ranges, which stand there or in the table of strings."""
        known = self._database.texts(number for number in set(registered) if isinstance(number, int))
        both = zip(given, registered, strict=True)
        return [text if isinstance(text, str) else known.get(number, "") for text, number in both]

    def _mark_steps(self, events: Mapping[str, NDArray[Any]]) -> None:
        """Name the range that is a step as Kineto names steps."""
        ranges = np.flatnonzero((events["category"] == Category.ANNOTATION) | (events["category"] == Category.OP))
        starts_work = np.array([names.launches_work(text) for text in self._strings], np.bool_)
        launches = (events["category"] == Category.RUNTIME) & starts_work[events["name"]]
        if not launches.any():
            self._say(
                "It holds no CUDA API calls, which tell the step that launched a kernel: all of it is one step. Record "
                "with nsys profile --trace=cuda,nvtx."
            )
            marks = np.array([names.is_step(text) for text in self._strings], np.bool_)
            events["name"][marks[events["name"]]] = self._strings["step"]
            return
        steps = chosen_steps(
            Ranges(**{name: events[name][ranges] for name in Ranges._fields}),
            tuple(self._strings),
            events["thread"][launches],
            self._path.step_range,
        )
        if steps is None:
            if self._path.step_range:
                self._say(f"No NVTX range is called {self._path.step_range!r}: there are no steps.")
            return
        for row, number in zip(ranges[steps.rows].tolist(), steps.numbers.tolist(), strict=True):
            events["name"][row] = self._strings[f"ProfilerStep#{number}"]
            events["category"][row] = Category.ANNOTATION
        if steps.name:
            other = "" if self._path.step_range else "; --step-range NAME chooses another"
            self._say(f"Steps are the NVTX range {steps.name!r}, which comes {len(steps.rows)} times{other}.")

    def _comms(self, events: Mapping[str, NDArray[Any]]) -> CommArgs:
        """What NCCL's payloads say of its kernels and of sends and receives."""
        rows = []
        communicates = np.array([names.is_communication_kernel(text) for text in self._strings], np.bool_)
        told = told_of_kernels(events, communicates, self._calls) if len(communicates) else {}
        for row, of in told.items():
            word = self._strings
            group = word[f"{of.communicator:#x}"] if of.communicator >= 0 else MISSING
            dtype = word[names.UNKNOWN_DTYPE] if of.bytes_in >= 0 else MISSING
            rows.append((row, word[of.kind], group, MISSING, of.ranks, of.bytes_in, of.bytes_out, dtype, MISSING, -1))
        # As of Kineto's traces, each operator that encloses a launch has a row, whether or not it tells anything.
        encloses = (events["category"] == Category.OP) & (events["name"] == self._strings[names.RECORD_PARAM_COMMS])
        messages = {(call.thread, call.start_ns): call for call in self._calls if self._is_message(call)}
        job_rank = processes.members(self._database) if messages else {}
        for row in np.flatnonzero(encloses).tolist():
            call = messages.get((int(events["thread"][row]), int(events["start_ns"][row])))
            kind = peer = MISSING
            if call and call.payload:
                kind = self._strings[names.collective(call.name)]
                peer = job_rank.get((call.payload.communicator, call.payload.peer), MISSING)
            rows.append((row, kind, *[MISSING] * (len(COMM_TYPES) - 3), peer))
        table = np.array(rows, np.int64).reshape(-1, len(COMM_TYPES)).T
        columns = zip(COMM_TYPES.items(), table, strict=True)
        return CommArgs(**{name: column.astype(dtype) for (name, dtype), column in columns})

    def _header(self, epoch_ns: int) -> Header:
        rank, world_size = processes.communicators(self._database).get(self._path.process, (None, None))
        return Header(rank=rank, world_size=world_size, base_ns=epoch_ns, **self._devices())

    def _devices(self) -> dict[str, Any]:
        """What the file says of its GPUs, by number."""
        table = "TARGET_INFO_GPU"
        if not self._has(table, "id", "name"):
            return {}
        wanted = ("totalMemory", "smCount", "computeMajor", "computeMinor")
        columns = ", ".join(one if self._has(table, one) else "NULL" for one in wanted)
        rows = list(self._database.rows(f"SELECT id, name, {columns} FROM {table}"))
        known = [row for row in rows if isinstance(row[0], int) and 0 <= row[0] < 1 << 16]
        return {
            "devices": {row[0]: str(row[1]) for row in known},
            "device_bytes": {row[0]: row[2] for row in known if _is_positive(row[2])},
            "multiprocessors": {row[0]: row[3] for row in known if _is_positive(row[3])},
            "capabilities": {
                row[0]: row[4] + (row[5] if _is_positive(row[5]) else 0) / 10 for row in known if _is_positive(row[4])
            },
        }

    def _has(self, table: str, *columns: str) -> bool:
        return self._database.has(table, *columns)

    def _say(self, message: str, kind: WarningKind = "note") -> None:
        self._warnings.append(FileWarning(str(self._path), message, kind))


class _RangeNames:
    """Names of ranges, without what `emit_nvtx` appends: "aten::add, seq = 5, op_id = 3, sizes = [[2]]"."""

    def __init__(self, strings: Strings, shapes: Shapes) -> None:
        self._strings, self._shapes = strings, shapes
        #: Index, and whether it is an operator, by name and whether anything followed.
        self._known: dict[tuple[str, bool], tuple[int, bool]] = {}

    def parse(self, text: str) -> tuple[int, bool, int]:
        """Index of the name, whether it is an operator, and index of its shapes."""
        ends = [end for mark in _SUFFIXES if (end := text.find(mark)) >= 0]
        name = text[: min(ends)] if ends else text
        key = (name, bool(ends))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (self._strings[name], bool(ends and _OPERATOR.search(name)))
        sizes = _SIZES.search(text) if ends and ", sizes = " in text else None
        return (*known, self._shapes[sizes[1].encode()] if sizes else MISSING)


class _Memo:
    """Numbers to indices, each found once."""

    def __init__(self, find: Callable[[int], int]) -> None:
        self._find = find
        self._known: dict[int, int] = {}

    def of(self, numbers: Ints) -> Indices:
        """The index of each number."""
        different, which = np.unique(numbers, return_inverse=True)
        for number in different.tolist():
            if number not in self._known:
                self._known[number] = self._find(number)
        found = np.array([self._known[number] for number in different.tolist()], np.int32)
        return found[which] if len(found) else np.empty(0, np.int32)


class _Texts:
    """Numbers of `StringIds` to indices of the vocabulary, after a change of their texts."""

    def __init__(self, database: Database, strings: Strings, change: Callable[[str], str]) -> None:
        self._database, self._strings, self._change = database, strings, change
        self._known: dict[int, int] = {}

    def of(self, numbers: Ints) -> Indices:
        """The index of each number's text."""
        different, which = np.unique(numbers, return_inverse=True)
        new = [number for number in different.tolist() if number not in self._known]
        texts = self._database.texts(new)
        for number in new:
            self._known[number] = self._strings[self._change(texts.get(number, "unknown"))]
        found = np.array([self._known[number] for number in different.tolist()], np.int32)
        return found[which] if len(found) else np.empty(0, np.int32)


def _call(name: str) -> str:
    """A call's name without its version; "" for one that is left out."""
    name = _VERSION.sub("", name)
    return "" if name in _LEFT_OUT else name


def _grid(packed: int) -> bytes:
    return f"[{packed >> 32}, {packed >> 16 & 0xFFFF}, {packed & 0xFFFF}]".encode() if packed >= 0 else b""


def _ints(column: Sequence[Any]) -> Ints:
    """A column of whole numbers; what is none is -1."""
    try:
        return np.fromiter(column, np.int64, len(column))
    except (TypeError, ValueError, OverflowError):
        return np.array([one if isinstance(one, int) else -1 for one in column], np.int64)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and 0 < value < 1 << 62
