"""Reads files of step times: any bytes, without a traceback; what is damaged is left out and counted."""

from __future__ import annotations

import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.blocks import (
    BLOCK_HEAD_BYTES,
    BLOCK_MAGIC,
    CHECKSUM,
    FILE_HEAD,
    FILE_HEAD_BYTES,
    FILE_MAGIC,
    FIRST_FILE_HEAD,
    FIRST_FILE_MAGIC,
    FOLDER,
    HAS_BUSY,
    HAS_TOKENS,
    NO_STAGE,
    PHASE_ROW,
    PHASES,
    ROW_BYTES,
    SAMPLE_ROW,
    STEPS,
    SUFFIX,
    WHOLE_BLOCK_HEAD,
)
from tb_ddp_doctor.storage.plain_file import open_plain

#: No clock of a healthy machine shows another time: 1970 to 2200, ns.
_LATEST_NS = 7_258_118_400 * 10**9
#: Ranks and steps that a job may have.
_MOST_RANKS, _LAST_STEP = 1 << 22, 1 << 50


#: A block begins within this of the end of the one before it where no time lies between: each has whole µs.
_SAME_TIME_NS = 10_000
#: Bytes that are read at once, and of a block's payload: the writer keeps a million steps at most.
_FIRST_PIECE, _PIECE, _MOST_BYTES = 1 << 16, 1 << 20, 1 << 24
#: Bytes of blocks whose checksum does not fit: of more, the rest of the file is left out. They take a second.
_MOST_BELIEVED = 1 << 30


class _Block(NamedTuple):
    """A block of steps."""

    first_step: int
    begin_ns: int
    rows: int
    #: Bits: whether it has columns of busy times and of tokens.
    columns: int
    payload: memoryview


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
    #: Tokens of each step of the rank, shape (N,); 0 where unknown. None: of no step.
    tokens: NDArray[Any] | None = None


class MarkedTime(NamedTuple):
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
    phases: list[MarkedTime]
    #: Bytes that belong to no whole block: torn by a crash, or damaged.
    lost_bytes: int
    #: Rows of `SAMPLE_ROW`.
    samples: NDArray[Any] = np.zeros(0, dtype=SAMPLE_ROW)
    #: Of the pipeline; `NO_STAGE` where it is not known.
    stage: int = NO_STAGE


def history_files(logdir: Path) -> list[Path]:
    """The files of step times of a log directory, by rank and start; also where it is the folder of them itself."""
    folder = logdir / FOLDER if (logdir / FOLDER).is_dir() else logdir
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_history(path: Path) -> RankHistory | None:
    """All whole blocks of a file; None where it is not a file of step times. Raises OSError."""
    with open_plain(path) as file:
        head = read_head(file)
        if head is None:
            return None
        portion = read_portion(file, FILE_HEAD_BYTES)
    return RankHistory(
        path,
        head.rank,
        head.world_size,
        head.node,
        head.started_ns,
        portion.stretches,
        portion.phases,
        portion.lost_bytes,
        portion.samples,
        head.stage,
    )


class StepTimesHead(NamedTuple):
    """Whose step times a file has."""

    rank: int
    world_size: int
    node: str
    started_ns: int
    #: Of the pipeline; `NO_STAGE` where it is not known.
    stage: int = NO_STAGE


class Portion(NamedTuple):
    """The blocks of a part of a file."""

    stretches: list[Stretch]
    phases: list[MarkedTime]
    lost_bytes: int
    #: From which byte on to read later steps: one block before them, whose phases may fall into them.
    later_at: int
    #: The first of them, None where there are none; whether its block says when the rank waits, and its median tokens,
    #: 0 where it says none.
    later_step: int | None
    later_has_busy: bool
    later_tokens: float
    #: Rows of `SAMPLE_ROW`.
    samples: NDArray[Any]


def read_head(file: BinaryIO) -> StepTimesHead | None:
    """Read the head of a file from its first byte on; None where it is none of a file of step times."""
    data = file.read(FILE_HEAD_BYTES)
    if len(data) < FILE_HEAD_BYTES:
        return None
    packed, (checksum,) = data[: FILE_HEAD.size], CHECKSUM.unpack(data[FILE_HEAD.size :])
    if packed.startswith(FIRST_FILE_MAGIC):
        magic, rank, world_size, started_ns, node = FIRST_FILE_HEAD.unpack(packed)
        stage = NO_STAGE
    else:
        magic, rank, world_size, started_ns, stage, node = FILE_HEAD.unpack(packed)
    is_ours = magic in (FILE_MAGIC, FIRST_FILE_MAGIC) and checksum == zlib.crc32(packed)
    if not is_ours or not rank < world_size <= _MOST_RANKS:
        return None
    stage = stage if 0 <= stage < world_size else NO_STAGE
    return StepTimesHead(rank, world_size, node.rstrip(b"\0").decode("utf-8", "replace"), started_ns, stage)


def read_portion(file: BinaryIO, at: int, until: int = _LAST_STEP) -> Portion:
    """All whole blocks from byte `at` on that begin before step `until`, up to the first that begins later."""
    blocks: list[_Block] = []
    phases: list[MarkedTime] = []
    sampled: list[NDArray[Any]] = [np.zeros(0, dtype=SAMPLE_ROW)]
    lost, believed, piece = 0, 0, _FIRST_PIECE
    #: Where the last block began that has only earlier steps, and what was lost before it.
    earlier_at, lost_before, is_later = at, 0, False
    file.seek(at)
    data, base, place, is_whole = b"", at, 0, False
    while True:
        count = len(blocks)
        end, claimed = _read_block(memoryview(data), place, blocks, phases, sampled)
        if claimed > len(data) - place and not is_whole:
            # It goes on in the next piece.
            more = file.read(piece)
            data, base, place, is_whole, piece = data[place:] + more, base + place, 0, not more, _PIECE
            continue
        if end is None:
            if place >= len(data):
                break
            # Many heads that claim much without a checksum that fits: nothing more is looked for.
            believed += claimed
            magic_at = data.find(BLOCK_MAGIC, place + 1) if believed < _MOST_BELIEVED else -1
            is_last = is_whole or believed >= _MOST_BELIEVED
            end = magic_at if magic_at >= 0 else len(data) if is_last else max(len(data) - len(BLOCK_MAGIC), place + 1)
            lost += end - place
        elif len(blocks) > count:
            is_later = is_later or blocks[-1].first_step + blocks[-1].rows > until
            if blocks[-1].first_step >= until:
                later = blocks.pop()
                samples = np.concatenate(sampled)
                stretches = _stretches(blocks)
                return Portion(stretches, phases, lost_before, earlier_at, later.first_step, *_said(later), samples)
            if not is_later:
                earlier_at, lost_before = base + place, lost
        place = end
    samples = np.concatenate(sampled)
    if is_later:
        return Portion(_stretches(blocks), phases, lost_before, earlier_at, until, *_said(blocks[-1]), samples)
    return Portion(_stretches(blocks), phases, lost, base + place, None, False, 0.0, samples)


def _read_block(
    data: memoryview, at: int, blocks: list[_Block], phases: list[MarkedTime], sampled: list[NDArray[Any]]
) -> tuple[int | None, int]:
    """Add a block's content; returns where it ends, None where no whole one begins there, and the bytes that it has."""
    begin = at + BLOCK_HEAD_BYTES
    if begin > len(data):
        return None, BLOCK_HEAD_BYTES
    magic, kind, columns, rows, first_step, begin_ns, checksum = WHOLE_BLOCK_HEAD.unpack_from(data, at)
    row_bytes = ROW_BYTES.get((kind, columns))
    if magic != BLOCK_MAGIC or row_bytes is None or rows * row_bytes > _MOST_BYTES:
        return None, 0
    size = rows * row_bytes
    if begin + size > len(data):
        return None, BLOCK_HEAD_BYTES + size
    payload = data[begin : begin + size]
    if checksum != zlib.crc32(payload, zlib.crc32(data[at : begin - CHECKSUM.size])):
        return None, BLOCK_HEAD_BYTES + size
    if kind == STEPS and rows and 0 <= first_step < _LAST_STEP and 0 <= begin_ns < _LATEST_NS:
        blocks.append(_Block(first_step, begin_ns, rows, columns, payload))
    elif kind == PHASES:
        for row in np.frombuffer(payload, dtype=PHASE_ROW):
            first, last = int(row["begin_ns"]), int(row["end_ns"])
            if 0 <= first <= last < _LATEST_NS:
                phases.append(MarkedTime(first, last, row["name"].decode("utf-8", "replace")))
    elif kind != STEPS:
        table = np.frombuffer(payload, dtype=SAMPLE_ROW)
        is_time = (table["at_ns"] > 0) & (table["at_ns"] < _LATEST_NS)
        sampled.append(table[is_time & np.isfinite(table["value"])])
    return begin + size, BLOCK_HEAD_BYTES + size


def _stretches(blocks: list[_Block]) -> list[Stretch]:
    """The steps of blocks, of those that follow one another in number and in time as one stretch."""
    if not blocks:
        return []
    first, begins_ns, rows, columns = np.array([block[:4] for block in blocks], dtype=np.int64).T
    steps_us, busy_us, tokens = (_column(blocks, bit) for bit in (0, HAS_BUSY, HAS_TOKENS))
    edges = np.concatenate(([0], np.cumsum(rows)))
    ends_ns = begins_ns + np.add.reduceat(steps_us.astype(np.int64), edges[:-1]) * 1000
    goes_on = (first[1:] == first[:-1] + rows[:-1]) & (np.abs(begins_ns[1:] - ends_ns[:-1]) < _SAME_TIME_NS)
    starts = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), len(blocks)]
    stretches = []
    for one, following in pairwise(starts):
        part = slice(int(edges[one]), int(edges[following]))
        busy, counted = (
            column[part] if (columns[one:following] & bit).any() else None
            for column, bit in ((busy_us, HAS_BUSY), (tokens, HAS_TOKENS))
        )
        stretches.append(Stretch(int(first[one]), int(begins_ns[one]), steps_us[part], busy, counted))
    return stretches


def _said(block: _Block) -> tuple[bool, float]:
    """Whether a block says when the rank waits, and the median of its tokens; 0 where it says none."""
    return bool(block.columns & HAS_BUSY), float(np.median(_column([block], HAS_TOKENS)))


def _column(blocks: list[_Block], bit: int) -> NDArray[Any]:
    """A column of the steps of blocks, by its bit (0: that of lengths); zeros of those that lack it."""
    parts = []
    for block in blocks:
        size = 4 * block.rows
        begin = size * (bool(bit) + (block.columns & (bit - 1) if bit else 0).bit_count())
        parts.append(block.payload[begin : begin + size] if not bit or block.columns & bit else bytes(size))
    return np.frombuffer(b"".join(parts), dtype="<u4")
