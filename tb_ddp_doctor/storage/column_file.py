"""Structs of numpy columns as one file, to be mapped into memory when read.

Layout, little-endian, all blocks aligned to 64 bytes:

    magic (8 bytes)  length of the index (8)  CRC-32 of the index (4)  CRC-32 of the columns (4)
    index: JSON {"kind", "version", "columns": [[dtype, shape, offset, is constant], ...], "values": {...}}
    columns, raw; of a constant one its value alone

The index holds the plain fields; a field that is an array stands in it as the number of its column. Files of another
version are refused; what a struct looks like is a version (`layout`).
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.storage.constant import constant, has_one_value

_MAGIC = b"ddpdoc\x00\x01"
_ALIGNMENT = 64
_START = 24
#: What the layout above is, apart from what is stored.
_FORMAT = 2
#: Columns of more values are never constant, so that a damaged file takes no more memory than its size says.
_LONGEST_CONSTANT = 1 << 16
T = TypeVar("T")


class StoreError(Exception):
    """A file that is damaged, of another version, or something else. Its text is a sentence for users."""


@cache
def layout(kind: type) -> str:
    """A hash of a stored struct: of its fields' names and types, in order, and of all that these types name.

    That is other structs, and enumerations with the values of their members; what a column of numbers
    stands for is told by `Annotated`. Types count as they are spelled, since numpy's own names change with its version.
    """
    told: list[object] = [_FORMAT]
    for each in named_in(kind):
        if issubclass(each, Enum):
            told.append((each.__name__, [(name, str(member.value)) for name, member in each.__members__.items()]))
        else:
            told.append((each.__name__, [(name, str(hint)) for name, hint in each.__annotations__.items()]))
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def named_in(kind: type) -> list[type]:
    """A struct, and the structs and enumerations that its fields' types name, in order, each once."""
    found = [kind]
    for each in found:
        if not issubclass(each, Enum):
            hints = get_type_hints(each, include_extras=True).values()
            found += [one for one in dict.fromkeys(chain.from_iterable(map(_classes, hints))) if one not in found]
    return found


def _classes(hint: Any) -> Iterator[type]:
    """The classes in a type that say how they are stored."""
    if isinstance(hint, type) and issubclass(hint, (msgspec.Struct, Enum)):
        yield hint
    for inner in (*get_args(hint), *getattr(hint, "__metadata__", ())):
        yield from _classes(inner)


class _Index(msgspec.Struct):
    kind: str
    version: str
    columns: list[tuple[str, list[int], int, bool]]
    values: dict[str, msgspec.Raw]


def dump(value: msgspec.Struct, version: str, file: BinaryIO) -> None:
    """Write a struct whose fields are arrays, plain values that JSON can hold, or such structs."""
    columns: list[NDArray[Any]] = []
    values = _pack(value, columns)
    places: list[tuple[str, list[int], int, bool]] = []
    offset = 0
    for i, column in enumerate(columns):
        once = column.size <= _LONGEST_CONSTANT and has_one_value(column)
        places.append((column.dtype.str, list(column.shape), offset, once))
        if once:
            columns[i] = column.reshape(-1)[:1]
        offset += _aligned(columns[i].nbytes)
    index = msgspec.json.encode({"kind": type(value).__name__, "version": version, "columns": places, "values": values})
    index += b" " * (_aligned(_START + len(index)) - _START - len(index))
    checksum = 0
    blocks = []
    for column in columns:
        data = np.ascontiguousarray(column).tobytes()
        data += bytes(_aligned(len(data)) - len(data))
        checksum = zlib.crc32(data, checksum)
        blocks.append(data)
    file.write(_MAGIC + len(index).to_bytes(8, "little"))
    file.write(zlib.crc32(index).to_bytes(4, "little") + checksum.to_bytes(4, "little") + index)
    for data in blocks:
        file.write(data)


def load(kind: type[T], version: str, path: Path, *, checked: bool = True) -> T:
    """Read what `dump` wrote; the arrays are read-only views of the file. Raises StoreError.

    Unchecked, the columns are not compared with their checksum, for which all of them would have to be read.
    """
    index, columns = _open(path, checked=checked)
    if index.kind != kind.__name__ or index.version != version:
        raise StoreError(f"It holds a {index.kind} of version {index.version}, not a {kind.__name__} of {version}.")
    try:
        arrays = [_view(columns, *place) for place in index.columns]
        return _unpack(kind, index.values, arrays)
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError) as error:
        raise StoreError(f"It is damaged: {error}.") from None


def values(path: Path) -> dict[str, Any]:
    """The plain fields of what `dump` wrote, of whatever kind and version. Raises StoreError."""
    index, _ = _open(path, checked=True)
    try:
        return {name: msgspec.json.decode(raw) for name, raw in index.values.items()}
    except msgspec.MsgspecError as error:
        raise StoreError(f"It is damaged: {error}.") from None


def _open(path: Path, *, checked: bool) -> tuple[_Index, NDArray[np.uint8]]:
    """The index, and the columns as bytes."""
    try:
        # A plain view: those of a memmap are as slow to make as they are large.
        data = np.asarray(np.memmap(path, np.uint8, mode="r"))
    except (OSError, ValueError) as error:
        raise StoreError(f"It cannot be read ({error}).") from None
    head = data[:_START].tobytes()
    if len(head) < _START or head[:8] != _MAGIC:
        raise StoreError("It is no file of ddp-doctor.")
    end = _START + int.from_bytes(head[8:16], "little")
    text, columns = data[_START:end].tobytes(), data[end:]
    if len(text) != end - _START or zlib.crc32(text) != int.from_bytes(head[16:20], "little"):
        raise StoreError("It is damaged: its index does not fit its checksum.")
    if checked and zlib.crc32(columns.data) != int.from_bytes(head[20:24], "little"):
        raise StoreError("It is damaged: its columns do not fit their checksum.")
    try:
        return msgspec.json.decode(text, type=_Index), columns
    except msgspec.MsgspecError as error:
        raise StoreError(f"It is damaged: {error}.") from None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _view(columns: NDArray[np.uint8], dtype: str, shape: list[int], offset: int, once: bool) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if once:
        if math.prod(shape) > _LONGEST_CONSTANT:
            raise ValueError(f"a constant column of {shape} values")
        return constant(dtype, tuple(shape), columns[offset : offset + kind.itemsize].tobytes())
    size = kind.itemsize * int(np.prod(shape))
    return columns[offset : offset + size].view(kind).reshape(shape)


def _pack(value: msgspec.Struct, columns: list[NDArray[Any]]) -> dict[str, Any]:
    """Fields by name, arrays moved to `columns` and replaced by their number there."""
    packed: dict[str, Any] = {}
    for name in value.__struct_fields__:
        content = getattr(value, name)
        if isinstance(content, np.ndarray):
            packed[name] = len(columns)
            columns.append(content)
        elif isinstance(content, msgspec.Struct):
            packed[name] = _pack(content, columns)
        else:
            packed[name] = content
    return packed


def _unpack(kind: type[T], values: Mapping[str, msgspec.Raw], columns: list[NDArray[Any]]) -> T:
    fields: dict[str, Any] = {}
    stored: Any = kind
    for name, hint in _types(stored).items():
        raw = values[name]
        if getattr(hint, "__origin__", None) is np.ndarray:
            fields[name] = columns[msgspec.json.decode(raw, type=int)]
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            fields[name] = _unpack(hint, msgspec.json.decode(raw, type=dict[str, msgspec.Raw]), columns)
        else:
            fields[name] = msgspec.json.decode(raw, type=hint)
    return kind(**fields)


@cache
def _types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of a struct's fields, by name: finding them takes as long as reading a digest of three steps."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}
