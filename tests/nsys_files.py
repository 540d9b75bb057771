"""Exports of Nsight Systems, written from traces: a process for each rank, in one file."""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, RankTrace

_TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, totalMemory INTEGER, computeMajor INTEGER, computeMinor INTEGER",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, name TEXT, value TEXT",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "ProcessStreams": "globalPid INTEGER, filenameId INTEGER, contentId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, "
    "gridZ INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start INTEGER, end INTEGER, globalTid INTEGER, overheadType INTEGER",
    "ENUM_CUPTI_OVERHEAD_TYPE": "id INTEGER, name TEXT, label TEXT",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, jsonText TEXT, binaryData BLOB",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER, schemaId INTEGER, idx INTEGER, type INTEGER, name TEXT, "
    "offset INTEGER",
}
_KERNEL, _MEMCPY, _RUNTIME = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "RUNTIME"))
_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2, "Host": 7}
SECRET = "hf_a_token_that_nobody_must_see"
_EPOCH_NS = 1_700_000_000_000_000_000


class Export:
    """An export that is being written."""

    def __init__(self, path: Path, epoch_ns: int = _EPOCH_NS) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(path)
        self._texts: dict[str, int] = {}
        for name, columns in _TABLES.items():
            self._file.execute(f"CREATE TABLE {name} ({columns})")
        self.add("TARGET_INFO_SESSION_START_TIME", [(epoch_ns,)])
        self.add("TARGET_INFO_SYSTEM_ENV", [(1, "EnvironmentVariables", f"HF_TOKEN={SECRET}")])
        self.add("META_DATA_CAPTURE", [("COMMAND_LINE", f"python train.py --token {SECRET}")])
        self.add("ProcessStreams", [(1, self.text("stdout"), self.text(f"logged in with {SECRET}"))])
        self.add("ENUM_CUPTI_OVERHEAD_TYPE", [(8, "OVERHEAD_COMMAND_BUFFER_FULL", "Command buffer full (CUDA)")])

    def add(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append rows."""
        marks = ", ".join("?" * (_TABLES[table].count(",") + 1))
        self._file.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def text(self, text: str) -> int:
        """The number of a text."""
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = len(self._texts) + 1
            self.add("StringIds", [(number, text)])
        return number

    def close(self) -> None:
        self._file.commit()
        self._file.close()


def write(
    path: Path,
    traces: Mapping[int, RankTrace],
    *,
    steps: str = "ProfilerStep#{}",
    operators: bool = True,
    payloads: bool = False,
) -> Path:
    """Ranks as processes of one export; `steps` is what the range of a step is called.

    With `operators` as under emit_nvtx. With `payloads` NCCL's ranges say what the metadata of the kernels does.
    """
    export = Export(path, epoch_ns=1)
    with closing(export):
        for rank, trace in traces.items():
            _process(export, rank, trace, steps, operators)
            if payloads:
                export.add("NVTX_EVENTS", _told(rank, trace))
        names = {name for trace in traces.values() for name in trace.header.devices.values()}
        export.add("TARGET_INFO_GPU", [(rank, name, None, 9, 0) for rank in traces for name in names])
    return path


def process_number(pid: int) -> int:
    """The number that all tables have of a process."""
    return 1 << 48 | pid << 24


_CALLS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "send": "ncclSend",
    "recv": "ncclRecv",
}


def _told(rank: int, trace: RankTrace) -> Iterator[tuple[Any, ...]]:
    """NCCL's ranges with payloads, around the launches of kernels that have metadata."""
    events, comms, number = trace.events, trace.comms, process_number(100 + rank)
    calls = np.flatnonzero(events.category == Category.RUNTIME)
    launches = dict(zip(events.correlation[calls].tolist(), calls.tolist(), strict=True))
    communicators: dict[str, int] = {}
    for at, row in enumerate(comms.event.tolist()):
        launch = launches.get(int(events.correlation[row]))
        name = _CALLS.get(names.collective(trace.strings[comms.collective[at]]))
        if launch is None or name is None:
            continue
        size = int(comms.group_size[at])
        group = trace.strings[comms.group[at]]
        start = int(events.start_ns[launch]) - 2
        thread = number | int(trace.threads[events.thread[launch]][1])
        members = sorted(trace.header.groups.get(group, range(size)))
        if group not in communicators:
            communicators[group] = zlib.crc32(group.encode())
            place = members.index(rank) if rank in members else 0
            told = {"NCCL communicator ID": communicators[group], "No. of ranks": size, "Rank": place}
            yield start, start, 59, "ncclCommInitRank", thread, None, 1, json.dumps(told), None
        element = abs(names.element_bytes(trace.strings[comms.dtype[at]]))
        elements = int(min(comms.elements_in[at], comms.elements_out[at]))
        told = {"NCCL communicator ID": communicators[group], "Message size [bytes]": elements * element}
        if (peer := int(comms.peer[at])) >= 0:
            told["Peer rank"] = members.index(peer)
        end = start + int(events.duration_ns[launch]) + 2
        yield start, end, 59, name, thread, None, 1, json.dumps(told), None


def _process(export: Export, rank: int, trace: RankTrace, steps: str, operators: bool) -> None:
    events = trace.events
    number = process_number(100 + rank)
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _TABLES}
    for i in range(len(events)):
        name = trace.strings[events.name[i]]
        start = int(events.start_ns[i]) - 1
        end = start + int(events.duration_ns[i])
        thread = number | int(trace.threads[events.thread[i]][1]) if events.stream[i] < 0 else 0
        shape = trace.strings[events.shape[i]] if events.shape[i] >= 0 else ""
        correlation = int(events.correlation[i])
        launched = (start, end, rank, int(events.stream[i]), correlation, number)
        category = Category(events.category[i])
        if category is Category.KERNEL:
            grid = json.loads(shape) if shape else [None] * 3
            rows[_KERNEL].append((*launched, export.text(name), export.text(name.partition("(")[0]), *grid))
        elif category is Category.MEMCPY:
            source, target = name.partition("(")[2].rstrip(")").split(" -> ")
            rows[_MEMCPY].append((*launched, int(events.bytes[i]), 1, _MEMORY[source], _MEMORY[target]))
        elif category is Category.RUNTIME:
            rows[_RUNTIME].append((start, end, thread, correlation, export.text(f"{name}_v7000")))
        elif category is Category.OVERHEAD:
            rows["CUPTI_ACTIVITY_KIND_OVERHEAD"].append((start, end, thread, 8))
        else:
            if category is Category.OP and not operators:
                continue
            text = name.replace("ProfilerStep#", steps.partition("{")[0]) if "ProfilerStep#" in name else name
            if category is Category.OP:
                text += f", op_id = {i}" + (f", sizes = {shape}" if shape else "")
            rows["NVTX_EVENTS"].append((start, end, 59, text, thread, None, 0, None, None))
    for table, found in rows.items():
        export.add(table, found)


def payload(schema: int, *fields: int) -> bytes:
    """The bytes of a payload of unsigned numbers of 64 bits."""
    body = struct.pack(f"<{len(fields)}Q", *fields)
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(body), 32 + len(body)) + body


def endless(path: Path) -> None:
    """Let the table of kernels lead from page to page, 60 ways at each of 8: the same leaf at each end."""
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    with sqlite3.connect(path) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        (root,) = connection.execute(query).fetchone()
    at, pages = (root - 1) * page, len(data) // page
    levels = 8
    leaf = data[at : at + page]
    for level in range(levels):
        child = pages + level + 1
        cell = child.to_bytes(4, "big") + b"\x01"
        cells = [page - len(cell) * (i + 1) for i in range(60)]
        head = (
            b"\5\0\0" + len(cells).to_bytes(2, "big") + cells[-1].to_bytes(2, "big") + b"\0" + child.to_bytes(4, "big")
        )
        whole = bytearray((head + b"".join(one.to_bytes(2, "big") for one in cells)).ljust(page, b"\0"))
        for one in cells:
            whole[one : one + len(cell)] = cell
        if level == 0:
            data[at : at + page] = whole
        else:
            data += whole
    data += leaf
    data[28:32] = (len(data) // page).to_bytes(4, "big")
    path.write_bytes(data)


def computed(path: Path) -> None:
    """A column of megabytes that no byte of the file holds; gigabytes would do."""
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE StringIds")
        computed = "value TEXT AS (replace(hex(zeroblob(10000)), '00', hex(zeroblob(1000))))"
        connection.execute(f"CREATE TABLE StringIds (id INTEGER PRIMARY KEY, {computed})")
        connection.execute("INSERT INTO StringIds (id) VALUES (1)")


def calling(path: Path) -> None:
    """A view in the place of a table: to read it calls a function, and this one takes the memory of its result."""
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE StringIds")
        connection.execute("CREATE VIEW StringIds AS SELECT 1 AS id, printf('%1000000d', 1) AS value")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3 // 512 * 512])
