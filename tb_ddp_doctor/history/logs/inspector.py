"""Collectives and point-to-point transfers of hours, as the Inspector of NCCL and RCCL writes them.

Each process has a file HOST-pidN.log, with a line for each call of a collective and for each end of a transfer:

    {"header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
     "metadata": {"dump_timestamp_us": 1748030377748202, "hostname": "node1", ...},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184,
                   "coll_exec_time_us": 61974, "coll_busbw_gbs": 485.119099, ...}}

    {"header": ..., "metadata": ..., "p2p_perf": {"p2p": "Send", "p2p_sn": 7, "p2p_peer": 3, "p2p_msg_size_bytes": ...,
                                                  "p2p_exec_time_us": 412, "p2p_busbw_gbs": 20.3, ...}}

`rank` and `p2p_peer` are ranks within the communicator `id`; `coll_sn` counts the calls of a kind in it, `p2p_sn` a
rank's own sends and receives. The execution time begins when the rank arrives, so that it includes waiting for the
other ranks. Lines of another kind, such as those of the network proxy, are passed over.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

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


class _Transfer(msgspec.Struct):
    p2p: Literal["Send", "Recv"]
    p2p_sn: int
    p2p_peer: int
    p2p_msg_size_bytes: int
    p2p_exec_time_us: int
    p2p_busbw_gbs: float = 0.0


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Performance | None = None
    p2p_perf: _Transfer | None = None


class _Call(NamedTuple):
    """What is read of a line."""

    header: _Header
    metadata: _Metadata
    kind: str
    number: int
    #: -1 of a collective.
    peer: int
    size: int
    took_us: int
    busbw_gbs: float


# communicator  kind       number  rank  peer  size       at_us             took_us  busbw_gbs
# 0             AllReduce  1407    2     -1    134217728  1748030377748202  61974    485.1
# 1             Send       7       0     1     8388608    1748030377748391  412      20.3
class InspectorCalls(msgspec.Struct, frozen=True):
    """What each rank's collectives, sends and receives took: a column a field, shape (N,), int64 but for bandwidth."""

    #: Places in `communicators` and `kinds`.
    communicator: NDArray[Any]
    kind: NDArray[Any]
    #: Of a collective, its number among those of its kind in its communicator; of a send or receive, its number among
    #: those of its rank in its communicator.
    number: NDArray[Any]
    #: Rank within the communicator; the other rank of a send or receive, -1 of a collective.
    rank: NDArray[Any]
    peer: NDArray[Any]
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


def read_inspector(files: Iterable[Path]) -> InspectorCalls | None:
    """The calls in the Inspector's files; None where there are none."""
    columns = _Columns()
    for path in files:
        for line in _lines(path):
            columns.add(line)
        if len(columns.busbw) >= _MOST_LINES:
            break
    return columns.calls() if columns.busbw else None


class _Columns:
    """Lines on their way into columns."""

    def __init__(self) -> None:
        #: As `InspectorCalls` has them.
        self._columns = [array("q") for _ in range(8)]
        self.busbw = array("d")
        self._communicators: dict[tuple[str | int, int], int] = {}
        self._shapes: list[tuple[int, int]] = []
        self._kinds: dict[str, int] = {}
        self._hosts: dict[tuple[int, int], str] = {}
        self._lost = 0

    def add(self, call: _Call | None) -> None:
        """Add a call; None is a line that could not be read."""
        if call is None:
            self._lost += 1
            return
        header = call.header
        group = self._communicators.setdefault((header.id, header.n_ranks), len(self._communicators))
        if group == len(self._shapes):
            self._shapes.append((header.n_ranks, header.nnodes))
        self._hosts.setdefault((group, header.rank), call.metadata.hostname)
        kind = self._kinds.setdefault(call.kind, len(self._kinds))
        at_us = call.metadata.dump_timestamp_us
        values = (group, kind, call.number, header.rank, call.peer, call.size, at_us, call.took_us)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self.busbw.append(call.busbw_gbs)

    def calls(self) -> InspectorCalls:
        """All lines that were added."""
        columns = (np.frombuffer(column, dtype=np.int64) for column in self._columns)
        group, kind, number, rank, peer, size, at_us, took_us = columns
        table = group, kind, number, rank, peer, size, at_us, took_us, np.frombuffer(self.busbw)
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


def _lines(path: Path) -> Iterator[_Call | None]:
    """The calls of a file; None for a line that cannot be read."""
    decoder = msgspec.json.Decoder(known(_Line))
    seen = 0
    try:
        with open_plain(path) as file:
            for number in range(_MOST_LINES):
                text = file.readline(_LONGEST_LINE)
                if not text or (number >= _FIRST_LINES and not seen):
                    return
                try:
                    line = decoder.decode(text)
                except (msgspec.MsgspecError, UnicodeError, RecursionError):
                    call = None
                else:
                    if line.coll_perf is None and line.p2p_perf is None:
                        seen += 1
                        continue
                    call = _sound(line)
                seen += call is not None
                if call is not None or (seen and text.strip()):
                    yield call
    except OSError:
        return


def _sound(line: _Line) -> _Call | None:
    """The call of a line; None where its numbers make no sense."""
    header, made, sent = line.header, line.coll_perf, line.p2p_perf
    if made is not None:
        of_kind = (made.coll, made.coll_sn, -1, made.coll_msg_size_bytes, made.coll_exec_time_us, made.coll_busbw_gbs)
    elif sent is not None:
        of_kind = (
            *(sent.p2p, sent.p2p_sn, sent.p2p_peer),
            *(sent.p2p_msg_size_bytes, sent.p2p_exec_time_us, sent.p2p_busbw_gbs),
        )
    else:
        return None
    call = _Call(header, line.metadata, *of_kind)
    is_sound = (
        0 <= header.rank < header.n_ranks <= _MOST_RANKS
        and (made is not None or 0 <= call.peer < header.n_ranks)
        and 0 < line.metadata.dump_timestamp_us < _LATEST_US
        and 0 <= call.number < _LARGEST
        and 0 <= call.size < _LARGEST
        and 0 < call.took_us < _LATEST_US
        and math.isfinite(call.busbw_gbs)
    )
    return call if is_sound else None
