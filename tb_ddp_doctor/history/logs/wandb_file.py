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
from tb_ddp_doctor.storage.wire import WireError, WireField, fields

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
#: What is not logged as a step ends.
_NO_STEPS = ("eval", "val", "test", "system", "ddp_doctor", "_")


def read_wandb(path: Path) -> list[LoggedStep]:
    """The calls of `wandb.log` that are about training, up to where the file is damaged. Raises OSError."""
    steps = []
    for record in _records(path):
        try:
            values = dict(_values(record))
        except WireError:
            continue
        step, at_s = values.get("_step", math.nan), values.get("_timestamp", math.nan)
        if math.isfinite(step) and any(not name.lower().startswith(_NO_STEPS) for name in values):
            # Hugging Face's and Lightning's own numbers of steps are apart from W&B's, which counts calls.
            own = values.get("train/global_step", values.get("trainer/global_step", step))
            steps.append(LoggedStep(int(own) if math.isfinite(own) else int(step), at_s))
    return steps


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
    for logged in fields(record):
        for item in fields(logged.data) if logged.number == _HISTORY else ():
            of_item = {field.number: field for field in fields(item.data)} if item.number == _ITEM else {}
            key = of_item.get(_KEY) or of_item.get(_NESTED_KEY)
            if key is not None:
                yield key.data.decode("utf-8", "replace"), _number(of_item)


def _number(item: dict[int, WireField]) -> float:
    written, double, integer = item.get(_JSON), item.get(_NUMBER), item.get(_INTEGER)
    if written is not None:
        try:
            return msgspec.json.decode(written.data, type=float)
        except (msgspec.MsgspecError, UnicodeError):
            return math.nan
    if double is not None:
        return float(struct.unpack("<d", struct.pack("<Q", double.value))[0])
    return float(integer.value >> 1 ^ -(integer.value & 1)) if integer is not None else math.nan
