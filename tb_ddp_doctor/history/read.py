"""Reads files of step times: any bytes, without a traceback; what is damaged is left out and counted."""

from __future__ import annotations

import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.blocks import (
    BLOCK_HEAD_BYTES,
    BLOCK_MAGIC,
    CHECKSUM,
    FILE_HEAD,
    FILE_HEAD_BYTES,
    FILE_MAGIC,
    FOLDER,
    HAS_BUSY,
    PHASE_ROW,
    STEPS,
    SUFFIX,
    WHOLE_BLOCK_HEAD,
    payload_bytes,
)
from tb_ddp_doctor.storage.plain_file import open_plain

#: No clock of a healthy machine shows another time: 1970 to 2200, ns.
_LATEST_NS = 7_258_118_400 * 10**9
#: Ranks and steps that a job may have.
_MOST_RANKS, _LAST_STEP = 1 << 22, 1 << 50


#: A block begins within this of the end of the one before it where no time lies between: each has whole µs.
_SAME_TIME_NS = 10_000
#: First step, begin in ns, rows, whether it has the second column, payload.
_Block: TypeAlias = tuple[int, int, int, int, memoryview]


class Stretch(NamedTuple):
    """Steps with consecutive numbers, one after the other in time.

    first_step 100, begin_ns 0, steps_us [1000, 1010]: step 100 takes 0 to 1.00 ms, step 101 until 2.01 ms
    """

    first_step: int
    #: Nanoseconds since 1970.
    begin_ns: int
    #: Length of each step, µs, shape (N,), uint32.
    steps_us: NDArray[Any]
    #: Time of each step until the rank waits for other ranks, µs, shape (N,); 0 where unknown. None: of no step.
    busy_us: NDArray[Any] | None


class Phase(NamedTuple):
    """A time that the job marked as no step's, ns since 1970."""

    begin_ns: int
    end_ns: int
    name: str


class RankHistory(NamedTuple):
    """One file of step times: one process of one rank."""

    path: Path
    rank: int
    world_size: int
    node: str
    started_ns: int
    stretches: list[Stretch]
    phases: list[Phase]
    #: Bytes that belong to no whole block: torn by a crash, or damaged.
    lost_bytes: int


def history_files(logdir: Path) -> list[Path]:
    """The files of step times of a log directory, by rank and start; also where it is the folder of them itself."""
    folder = logdir / FOLDER if (logdir / FOLDER).is_dir() else logdir
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_history(path: Path) -> RankHistory | None:
    """All whole blocks of a file; None where it is not a file of step times. Raises OSError."""
    with open_plain(path) as file:
        data = file.read()
    if len(data) < FILE_HEAD_BYTES:
        return None
    magic, rank, world_size, started_ns, node = FILE_HEAD.unpack(data[: FILE_HEAD.size])
    (checksum,) = CHECKSUM.unpack(data[FILE_HEAD.size : FILE_HEAD_BYTES])
    if magic != FILE_MAGIC or checksum != zlib.crc32(data[: FILE_HEAD.size]) or not rank < world_size <= _MOST_RANKS:
        return None
    blocks: list[_Block] = []
    phases: list[Phase] = []
    lost = 0
    at = FILE_HEAD_BYTES
    view = memoryview(data)
    while at < len(data):
        end = _read_block(view, at, blocks, phases)
        if end is None:
            found = data.find(BLOCK_MAGIC, at + 1)
            end = found if found >= 0 else len(data)
            lost += end - at
        at = end
    name = node.rstrip(b"\0").decode("utf-8", "replace")
    return RankHistory(path, rank, world_size, name, started_ns, _stretches(blocks), phases, lost)


def _read_block(data: memoryview, at: int, blocks: list[_Block], phases: list[Phase]) -> int | None:
    """Add a block's content, and return where it ends; None where no whole block begins there."""
    begin = at + BLOCK_HEAD_BYTES
    if begin > len(data):
        return None
    magic, kind, columns, rows, first_step, begin_ns, checksum = WHOLE_BLOCK_HEAD.unpack_from(data, at)
    size = payload_bytes(kind, columns, rows)
    if magic != BLOCK_MAGIC or size is None or begin + size > len(data):
        return None
    payload = data[begin : begin + size]
    if checksum != zlib.crc32(payload, zlib.crc32(data[at : begin - CHECKSUM.size])):
        return None
    if kind == STEPS and rows and 0 <= first_step < _LAST_STEP and 0 <= begin_ns < _LATEST_NS:
        blocks.append((first_step, begin_ns, rows, columns & HAS_BUSY, payload))
    elif kind != STEPS:
        for row in np.frombuffer(payload, dtype=PHASE_ROW):
            first, last = int(row["begin_ns"]), int(row["end_ns"])
            if 0 <= first <= last < _LATEST_NS:
                phases.append(Phase(first, last, row["name"].decode("utf-8", "replace")))
    return begin + size


def _stretches(blocks: list[_Block]) -> list[Stretch]:
    """The steps of blocks, of those that follow one another in number and in time as one stretch."""
    if not blocks:
        return []
    first, begins_ns, rows, has_busy = np.array([block[:4] for block in blocks], dtype=np.int64).T
    steps_us = np.frombuffer(b"".join(block[4][: 4 * block[2]] for block in blocks), dtype="<u4")
    unknown = bytes(4 * int(rows.max()))
    busy = b"".join(block[4][4 * block[2] :] if block[3] else unknown[: 4 * block[2]] for block in blocks)
    busy_us = np.frombuffer(busy, dtype="<u4")
    edges = np.concatenate(([0], np.cumsum(rows)))
    ends_ns = begins_ns + np.add.reduceat(steps_us.astype(np.int64), edges[:-1]) * 1000
    goes_on = (first[1:] == first[:-1] + rows[:-1]) & (np.abs(begins_ns[1:] - ends_ns[:-1]) < _SAME_TIME_NS)
    starts = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), len(blocks)]
    found = []
    for one, following in pairwise(starts):
        part = slice(int(edges[one]), int(edges[following]))
        is_known = bool(has_busy[one:following].any())
        found.append(Stretch(int(first[one]), int(begins_ns[one]), steps_us[part], busy_us[part] if is_known else None))
    return found
