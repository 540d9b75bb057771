"""Step times in the file that W&B keeps of a run, online or not: wandb/run-*/run-ID.wandb.

After a head of 7 bytes the file is blocks of 32 KB, as a log of LevelDB: pieces of checksum (4), length (2), type (1: a
whole record, 2: its first piece, 3: one in between, 4: its last one) and data. A record is a protobuf Record; that of a
call of `wandb.log` has its values as JSON (or, in newer files, as numbers), and `_step` and `_timestamp` among them.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tb_ddp_doctor.history.logs.points import LoggedStep
from tb_ddp_doctor.storage.plain_file import open_plain

SUFFIX = ".wandb"
_HEAD = b":W&B\xe1\xbe"
_HEAD_BYTES = 7
_BLOCK = 1 << 15
_PIECE = struct.Struct("<IHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4
_MOST_BYTES = 1 << 32
#: Longer records are tables and outputs.
_LONGEST = 1 << 20
#: Fields of Record: what was logged; of that: an item; of that: its key (or the parts of one), and its value as a whole
#: number (zigzag), as a double, and as JSON.
_HISTORY, _ITEM, _KEY, _NESTED_KEY, _INTEGER, _NUMBER, _JSON = 2, 1, 1, 2, 5, 6, 16
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
#: What is not logged as a step ends.
_NO_STEPS = ("eval", "val", "test", "system", "ddp_doctor", "_")


def read_wandb(path: Path) -> list[LoggedStep]:
    """The calls of `wandb.log` that are about training, up to where the file is damaged. Raises OSError."""
    found = []
    for record in _records(path):
        try:
            values = dict(_values(record))
        except (ValueError, IndexError, struct.error):
            continue
        step, at_s = values.get("_step", math.nan), values.get("_timestamp", math.nan)
        if math.isfinite(step) and any(not name.lower().startswith(_NO_STEPS) for name in values):
            # Hugging Face's and Lightning's own numbers of steps are apart from W&B's, which counts calls.
            own = values.get("train/global_step", values.get("trainer/global_step", step))
            found.append(LoggedStep(int(own) if math.isfinite(own) else int(step), at_s))
    return found


def _records(path: Path) -> Iterator[bytes]:
    with open_plain(path) as file:
        if file.read(_HEAD_BYTES)[:-1] != _HEAD:
            return
        at, record = _HEAD_BYTES, b""
        while at < _MOST_BYTES:
            if _BLOCK - at % _BLOCK < _PIECE.size:
                at += len(file.read(_BLOCK - at % _BLOCK))
            head = file.read(_PIECE.size)
            if len(head) < _PIECE.size:
                return
            checksum, length, kind = _PIECE.unpack(head)
            data = file.read(length)
            if checksum != zlib.crc32(data, zlib.crc32(head[-1:])):
                return
            at += _PIECE.size + length
            record = data if kind in (_WHOLE, _FIRST) else record + data if len(record) <= _LONGEST else record
            if kind in (_WHOLE, _LAST) and len(record) <= _LONGEST:
                yield record


def _values(record: bytes) -> Iterator[tuple[str, float]]:
    """Names and numbers that were logged at once; NaN for what is no number."""
    for number, logged in _fields(record):
        if number != _HISTORY or not isinstance(logged, bytes):
            continue
        for item_number, item in _fields(logged):
            if item_number != _ITEM or not isinstance(item, bytes):
                continue
            of_item = dict(_fields(item))
            key = of_item.get(_KEY) or of_item.get(_NESTED_KEY)
            if isinstance(key, bytes):
                yield key.decode("utf-8", "replace"), _number(of_item)


def _number(item: dict[int, int | bytes]) -> float:
    written, double, integer = item.get(_JSON), item.get(_NUMBER), item.get(_INTEGER)
    if isinstance(written, bytes):
        try:
            return msgspec.json.decode(written, type=float)
        except (msgspec.MsgspecError, UnicodeError):
            return math.nan
    if isinstance(double, bytes) and len(double) == struct.calcsize("<d"):
        return float(struct.unpack("<d", double)[0])
    return float(integer >> 1 ^ -(integer & 1)) if isinstance(integer, int) else math.nan


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: their numbers and values. Raises ValueError and IndexError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"there is no kind of field {kind}")
        if at + length > len(data):
            raise ValueError("a field is cut off")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a number has no end")
