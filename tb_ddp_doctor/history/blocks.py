"""The file format of step times: one file a rank and process, to which blocks are appended and nothing else is done.

    file    head (128 bytes), block, block, ...
    head    magic "DDPSTEP2", rank, world size, start of the process, pipeline stage (-1: unknown), node, checksum
    block   head (32 bytes): magic, kind, columns, rows, first step, begin, checksum of the head and the payload
    payload of steps: a column of lengths, µs, uint32 (0: not timed, as while a profiler records); then, where the
            columns say so, one of times until the rank waits for other ranks, µs, uint32 (0: unknown), and one of
            tokens, uint32 (0: unknown)
    payload of phases: rows of begin, end and name
    payload of samples: rows of time, quantity (its place in QUANTITIES) and value

Files with the magic "DDPSTEP1" have no stage, and 100 bytes of the node. All little-endian. A block's steps follow one
another in number and in time: the first begins at the block's begin, each other one where the one before it ends. A
step takes 8 bytes at most, 12 with its tokens. A block that was torn by a crash or damaged costs itself: the next one
is found by its magic and believed by its checksum.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Log directories keep the files of step times in this folder.
FOLDER = "history"
SUFFIX = ".steps"
FILE_MAGIC, FIRST_FILE_MAGIC = b"DDPSTEP2", b"DDPSTEP1"
BLOCK_MAGIC = b"DDPb"
STEPS, PHASES, SAMPLES = 0, 1, 2
#: Bits of a block's columns: those of busy times and of tokens are there.
HAS_BUSY, HAS_TOKENS = 1, 2
#: magic, rank, world size, start of the process (ns since 1970), pipeline stage, node; and the first magic's, as long.
FILE_HEAD, FIRST_FILE_HEAD = struct.Struct("<8sIIqi96s"), struct.Struct("<8sIIq100s")
#: Of a rank whose pipeline stage is not known.
NO_STAGE = -1
#: magic, kind, columns, rows, first step, begin (ns since 1970).
BLOCK_HEAD = struct.Struct("<4sHHIqq")
CHECKSUM = struct.Struct("<I")
#: The same with its checksum.
WHOLE_BLOCK_HEAD = struct.Struct(BLOCK_HEAD.format + "I")
#: Bytes of a file's head and of a block's, with their checksums.
FILE_HEAD_BYTES = FILE_HEAD.size + CHECKSUM.size
BLOCK_HEAD_BYTES = BLOCK_HEAD.size + CHECKSUM.size
#: A phase: begin and end in ns since 1970, and its name in UTF-8.
PHASE_ROW = np.dtype([("begin_ns", "<i8"), ("end_ns", "<i8"), ("name", "S32")])
#: What is recorded on request: bytes, MHz, W, degrees Celsius, s of one collection of Python's garbage, s until a batch
#: is there, s of a step on the GPU. New ones come last.
QUANTITIES = (
    "allocated memory", "reserved memory", "process memory", "SM clock", "power", "temperature", "garbage",
    "loading time", "GPU time of a step",
)  # fmt: skip
#: A sample: when (ns since 1970; the begin of a collection), the place of its quantity, and the value.
SAMPLE_ROW = np.dtype([("at_ns", "<i8"), ("quantity", "<u2"), ("value", "<f4")])
#: Bytes of a row by what the head says: the kind of block, and its bits.
ROW_BYTES = {
    (STEPS, 0): 4,
    (STEPS, HAS_BUSY): 8,
    (STEPS, HAS_TOKENS): 8,
    (STEPS, HAS_BUSY | HAS_TOKENS): 12,
    (PHASES, 0): PHASE_ROW.itemsize,
    (SAMPLES, 0): SAMPLE_ROW.itemsize,
}
#: The longest step that fits into a column, µs: 71 minutes. Longer ones are written as this.
LONGEST_US = 2**32 - 1


def file_head(rank: int, world_size: int, started_ns: int, node: str, stage: int = NO_STAGE) -> bytes:
    """The first bytes of a file; a node's name of more than 96 bytes is cut, and a stage that no job has is unknown."""
    stage = stage if 0 <= stage < world_size else NO_STAGE
    head = FILE_HEAD.pack(FILE_MAGIC, rank, world_size, started_ns, stage, node.encode("utf-8", "replace")[:96])
    return head + CHECKSUM.pack(zlib.crc32(head))


def steps_block(
    first_step: int,
    begin_ns: int,
    steps_us: NDArray[Any],
    busy_us: NDArray[Any] | None,
    tokens: NDArray[Any] | None = None,
) -> bytes:
    """A block of steps with consecutive numbers: their lengths, times until each waits, µs, and tokens, shape (N,)."""
    columns = [column for column in (steps_us, busy_us, tokens) if column is not None]
    payload = b"".join(np.clip(column, 0, LONGEST_US).astype("<u4").tobytes() for column in columns)
    bits = (0 if busy_us is None else HAS_BUSY) | (0 if tokens is None else HAS_TOKENS)
    return _block(STEPS, bits, len(steps_us), first_step, begin_ns, payload)


def phases_block(rows: NDArray[Any]) -> bytes:
    """A block of phases, rows of `PHASE_ROW`."""
    return _block(PHASES, 0, len(rows), 0, int(rows["begin_ns"][0]) if len(rows) else 0, rows.tobytes())


def samples_block(rows: NDArray[Any]) -> bytes:
    """A block of samples, at least one row of `SAMPLE_ROW`."""
    return _block(SAMPLES, 0, len(rows), 0, int(rows["at_ns"][0]), rows.tobytes())


def _block(kind: int, columns: int, rows: int, first_step: int, begin_ns: int, payload: bytes) -> bytes:
    head = BLOCK_HEAD.pack(BLOCK_MAGIC, kind, columns, rows, first_step, begin_ns)
    return head + CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head))) + payload
