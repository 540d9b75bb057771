"""Collectives of hours, as the Inspector of NCCL and RCCL writes them: a file HOST-pidN.log a process, a line a call.

    {"header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
     "metadata": {"dump_timestamp_us": 1748030377748202, "hostname": "node1", ...},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184,
                   "coll_exec_time_us": 61974, "coll_busbw_gbs": 485.119099, ...}}

`rank` is that within the communicator `id`; `coll_sn` counts the calls of a kind in it. The execution time begins when
the rank arrives, so that it includes waiting for the others. Lines of point-to-point transfers are passed over.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.storage.plain_file import open_plain

#: Files' names end like this.
NAME = re.compile(r".*-pid\d{1,10}\.(?:log|jsonl)", re.DOTALL)
#: How far below a folder they are looked for, among how many names; files and lines that are read, and bytes of a line.
_DEEPEST, _MOST_NAMES, _MOST_FILES, _MOST_LINES, _LONGEST_LINE = 3, 50_000, 8_192, 4_000_000, 1 << 16
#: A file whose first lines are of another kind is passed over.
_FIRST_LINES = 16
_LATEST_US, _MOST_RANKS, _LARGEST = 7_258_118_400 * 10**6, 1 << 22, 1 << 60


class _Header(msgspec.Struct):
    id: str | int
    rank: int
    n_ranks: int
    nnodes: int = 0


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int
    hostname: str = ""


class _Performance(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: int
    coll_busbw_gbs: float = 0.0


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Performance


class InspectorCalls(msgspec.Struct, frozen=True):
    """What each rank's calls took: a column a field, shape (N,), int64 but for the bandwidth."""

    #: Places in `communicators` and `kinds`.
    communicator: NDArray[Any]
    kind: NDArray[Any]
    #: Number of the call among those of its kind in its communicator; rank within the communicator.
    number: NDArray[Any]
    rank: NDArray[Any]
    size: NDArray[Any]
    #: When it was written, µs since 1970, and how long it took, µs.
    at_us: NDArray[Any]
    took_us: NDArray[Any]
    busbw_gbs: NDArray[Any]
    #: Of each communicator: ranks and nodes (0: unknown).
    communicators: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...]
    #: Host by communicator and rank.
    hosts: dict[tuple[int, int], str]
    #: Lines that could not be read.
    lost_lines: int


def read_inspector(folder: Path) -> InspectorCalls | None:
    """The calls in the Inspector's files in a folder and below it; None where there are none."""
    columns = _Columns()
    for path in inspector_files(folder):
        for line in _lines(path):
            columns.add(line)
        if len(columns.busbw) >= _MOST_LINES:
            break
    return columns.calls() if columns.busbw else None


class _Columns:
    """Lines on their way into columns."""

    def __init__(self) -> None:
        #: As `InspectorCalls` has them.
        self._columns = [array("q") for _ in range(7)]
        self.busbw = array("d")
        self._communicators: dict[tuple[str | int, int], int] = {}
        self._shapes: list[tuple[int, int]] = []
        self._kinds: dict[str, int] = {}
        self._hosts: dict[tuple[int, int], str] = {}
        self._lost = 0

    def add(self, line: _Line | None) -> None:
        """Add a line; None is one that could not be read."""
        if line is None:
            self._lost += 1
            return
        header, made = line.header, line.coll_perf
        group = self._communicators.setdefault((header.id, header.n_ranks), len(self._communicators))
        if group == len(self._shapes):
            self._shapes.append((header.n_ranks, header.nnodes))
        self._hosts.setdefault((group, header.rank), line.metadata.hostname)
        kind = self._kinds.setdefault(made.coll, len(self._kinds))
        at_us, took_us = line.metadata.dump_timestamp_us, made.coll_exec_time_us
        values = (group, kind, made.coll_sn, header.rank, made.coll_msg_size_bytes, at_us, took_us)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self.busbw.append(made.coll_busbw_gbs)

    def calls(self) -> InspectorCalls:
        """All lines that were added."""
        group, kind, number, rank, size, at_us, took_us = (
            np.frombuffer(column, dtype=np.int64) for column in self._columns
        )
        table = group, kind, number, rank, size, at_us, took_us, np.frombuffer(self.busbw)
        return InspectorCalls(*table, tuple(self._shapes), tuple(self._kinds), self._hosts, self._lost)


def inspector_files(folder: Path) -> Iterator[Path]:
    """The Inspector's files in a folder and below it, by their names."""
    names = files = 0
    for place, folders, file_names in os.walk(folder):
        names += len(file_names) + len(folders)
        below = Path(place)
        if names > _MOST_NAMES or len(below.relative_to(folder).parts) >= _DEEPEST:
            folders.clear()
        folders.sort()
        for name in sorted(file_names):
            if NAME.fullmatch(name) and files < _MOST_FILES:
                files += 1
                yield below / name


def _lines(path: Path) -> Iterator[_Line | None]:
    """The calls of collectives of a file; None for a line that cannot be read."""
    decoder = msgspec.json.Decoder(known(_Line))
    seen = 0
    try:
        with open_plain(path) as file:
            for number in range(_MOST_LINES):
                text = file.readline(_LONGEST_LINE)
                if not text or (number >= _FIRST_LINES and not seen):
                    return
                line = _checked(decoder, text)
                seen += line is not None
                if line is not None or (seen and text.strip() and b'"p2p_perf"' not in text):
                    yield line
    except OSError:
        return


def _checked(decoder: msgspec.json.Decoder[_Line], text: bytes) -> _Line | None:
    try:
        line = decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    header, made = line.header, line.coll_perf
    is_sound = (
        0 <= header.rank < header.n_ranks <= _MOST_RANKS
        and 0 < line.metadata.dump_timestamp_us < _LATEST_US
        and 0 <= made.coll_sn < _LARGEST
        and 0 <= made.coll_msg_size_bytes < _LARGEST
        and 0 < made.coll_exec_time_us < _LATEST_US
        and math.isfinite(made.coll_busbw_gbs)
    )
    return line if is_sound else None
