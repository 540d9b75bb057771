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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.nsys import processes
from tb_ddp_doctor.nsys.database import Database, NsysError, opened
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.storage.paths import ProcessPath
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.args import MISSING
from tb_ddp_doctor.trace.columns import (
    COMM_TYPES,
    mark_annotations,
)
from tb_ddp_doctor.trace.model import (
    MOST_HEADER_LETTERS,
    Category,
    CommArgs,
    Events,
    Frames,
    Header,
    MemoryEvents,
    RankTrace,
    TraceError,
)
from tb_ddp_doctor.trace.nsys.device import add_copies, add_kernels
from tb_ddp_doctor.trace.nsys.host import add_overhead, add_runtime
from tb_ddp_doctor.trace.nsys.nccl import NcclRange, calls_of_kernels
from tb_ddp_doctor.trace.nsys.nvtx import add_ranges, is_message
from tb_ddp_doctor.trace.nsys.rows import EventRows
from tb_ddp_doctor.trace.nsys.steps import Ranges, chosen_steps

#: Rows of a rank that are kept: some dozens of steps. What is made of them takes some 400 bytes each at its peak.
MOST_ROWS = 1_200_000


def read(path: ProcessPath) -> RankTrace:
    """The rank that a process is. Raises TraceError, with a sentence."""
    try:
        with opened(path.file) as database:
            return _Reader(database, path).trace()
    except NsysError as error:
        raise TraceError(str(error)) from None


class _Reader:
    """Makes one process's columns a trace."""

    def __init__(self, database: Database, path: ProcessPath) -> None:
        self._database, self._path = database, path
        self._rows = EventRows(database, path, MOST_ROWS)
        self._strings = self._rows.strings
        self._warnings: list[FileWarning] = []

    def trace(self) -> RankTrace:
        for add in (add_kernels, add_copies, add_runtime, add_overhead):
            add(self._rows)
        calls = add_ranges(self._rows)
        window = self._rows.window
        if window.share < 1:
            first, last = (instant / 1e9 for instant in (window.start, window.end))
            self._say(
                f"Read from {wording.decimals(first, 3)} s to {wording.decimals(last, 3)} s of the recording, about "
                f"{window.share:.1%} of this process's rows: more than {MOST_ROWS:,} are not kept."
            )
        epoch_ns = processes.start_ns(self._database) or 0
        joined = self._rows.joined()
        comms = self._comms(joined, calls)
        step_range = self._mark_steps(joined)
        joined["start_ns"] += epoch_ns
        mark_annotations(joined, self._strings)
        events = Events(**joined)
        has_shapes = bool((events.shape[events.category == Category.OP] >= 0).any())
        return RankTrace(
            file=str(self._path),
            header=replace(self._header(epoch_ns), has_shapes=has_shapes, step_range=step_range, recorder="nsys"),
            strings=tuple(self._strings),
            threads=tuple(self._rows.threads.texts),
            events=events,
            comms=comms,
            memory=empty(MemoryEvents),
            frames=empty(Frames),
            dropped={},
            warnings=tuple(self._warnings),
        )

    def _mark_steps(self, events: Mapping[str, NDArray[Any]]) -> str:
        """Name the range that is a step as Kineto names steps; returns what it was called."""
        ranges = np.flatnonzero((events["category"] == Category.ANNOTATION) | (events["category"] == Category.OP))
        starts_work = np.array([names.launches_work(text) for text in self._strings], np.bool_)
        launches = (events["category"] == Category.RUNTIME) & starts_work[events["name"]]
        if not launches.any():
            self._say(
                "It holds no CUDA API calls, which tell the step that launched a kernel: all of it is one step. Record "
                "with nsys profile --trace=cuda,nvtx."
            )
            self._unmark_steps(events)
            return ""
        steps = chosen_steps(
            Ranges(**{name: events[name][ranges] for name in Ranges._fields}),
            tuple(self._strings),
            events["thread"][launches],
            self._path.asked,
        )
        if steps is None:
            if self._path.asked:
                self._say(f"No NVTX range is called {self._path.asked!r}: there are no steps.")
            return ""
        self._unmark_steps(events)
        for row, number in zip(ranges[steps.rows].tolist(), steps.numbers.tolist(), strict=True):
            events["name"][row] = self._strings[f"ProfilerStep#{number}"]
            events["category"][row] = Category.ANNOTATION
        if steps.name:
            other = "" if self._path.asked else "; --step-range NAME chooses another"
            self._say(f"Steps are the NVTX range {steps.name!r}, which comes {len(steps.rows)} times{other}.")
        return steps.name

    def _unmark_steps(self, events: Mapping[str, NDArray[Any]]) -> None:
        """Rename ranges that are named as steps are, so that they are none."""
        marks = np.array([names.is_step(text) for text in self._strings], np.bool_)
        events["name"][marks[events["name"]]] = self._strings["step"]

    def _comms(self, events: Mapping[str, NDArray[Any]], calls: Sequence[NcclRange]) -> CommArgs:
        """What NCCL's payloads say of its kernels and of sends and receives."""
        rows = []
        communicates = np.array([names.is_communication_kernel(text) for text in self._strings], np.bool_)
        of_kernel = calls_of_kernels(events, communicates, calls) if len(communicates) else {}
        for row, of in of_kernel.items():
            word = self._strings
            group = word[f"{of.communicator:#x}"] if of.communicator >= 0 else MISSING
            dtype = word[names.UNKNOWN_DTYPE] if of.bytes_in >= 0 else MISSING
            said = (word[of.kind], group, MISSING, of.ranks, of.bytes_in, of.bytes_out, dtype)
            rows.append((row, *said, *[MISSING] * (len(COMM_TYPES) - 1 - len(said))))
        # As of Kineto's traces, each operator that encloses a launch has a row, whether or not it tells anything.
        encloses = (events["category"] == Category.OP) & (events["name"] == self._strings[names.RECORD_PARAM_COMMS])
        messages = {(call.thread, call.start_ns): call for call in calls if is_message(call)}
        job_rank = processes.members(self._database) if messages else {}
        for row in np.flatnonzero(encloses).tolist():
            call = messages.get((int(events["thread"][row]), int(events["start_ns"][row])))
            kind = peer = MISSING
            if call and call.payload:
                kind = self._strings[names.collective(call.name)]
                peer = job_rank.get((call.payload.communicator, call.payload.peer), MISSING)
            about = dict.fromkeys(COMM_TYPES, MISSING) | {"event": row, "collective": kind, "peer": peer}
            rows.append(tuple(about.values()))
        table = np.array(rows, np.int64).reshape(-1, len(COMM_TYPES)).T
        columns = zip(COMM_TYPES.items(), table, strict=True)
        return CommArgs(**{name: column.astype(dtype) for (name, dtype), column in columns})

    def _header(self, epoch_ns: int) -> Header:
        rank, world_size = processes.communicators(self._database).get(self._path.process, (None, None))
        return Header(rank=rank, world_size=world_size, base_ns=epoch_ns, **self._devices())

    def _devices(self) -> dict[str, Any]:
        """What the file says of its GPUs, by number."""
        table = "TARGET_INFO_GPU"
        if not self._database.has(table, "id", "name"):
            return {}
        wanted = ("totalMemory", "smCount", "computeMajor", "computeMinor")
        columns = ", ".join(one if self._database.has(table, one) else "NULL" for one in wanted)
        rows = list(self._database.rows(f"SELECT id, name, {columns} FROM {table}"))
        known = [row for row in rows if isinstance(row[0], int) and 0 <= row[0] < 1 << 16]
        return {
            "devices": {row[0]: str(row[1])[:MOST_HEADER_LETTERS] for row in known},
            "device_bytes": {row[0]: row[2] for row in known if _is_positive(row[2])},
            "multiprocessors": {row[0]: row[3] for row in known if _is_positive(row[3])},
            "capabilities": {
                row[0]: row[4] + (row[5] if _is_positive(row[5]) else 0) / 10 for row in known if _is_positive(row[4])
            },
        }

    def _say(self, message: str) -> None:
        self._warnings.append(FileWarning(str(self._path), message, "note"))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and 0 < value < 1 << 62
