"""Structs of numpy columns as one file, of which small tables are read and large ones may be mapped into memory.

Layout, little-endian, all blocks aligned to 64 bytes:

    magic (8 bytes)  length of the index (8)  CRC-32 of the index (4)  CRC-32 of all that follows it (4)
    index: JSON {"kind", "version", "read", "columns": [[dtype, shape, offset, is constant], ...], "values": {...}}
    the columns of small tables, raw, `read` bytes; of a constant column its value alone
    from the next page on: those of large ones

The index holds the plain fields; a field that is an array stands in it as the number of its column. Offsets count
through both parts as if nothing lay between them. Files of another version are refused; what a struct looks like is a
version (`layout`).

Only files of our own cache are mapped: a file that somebody else shortens while it is mapped ends the process (SIGBUS).
Small tables are read since a page of a map that is looked at brings 15 others with it, and stays until `give_back`.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.storage.array_type import element_type
from tb_ddp_doctor.storage.constant import constant, has_one_value
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.storage.plain_file import open_plain

_MAGIC = b"ddpdoc\x00\x01"
_ALIGNMENT = 64
_START = 24
#: What the layout above is, apart from what is stored.
_FORMAT = 3
_PAGE = 4096
#: What a field holds is large from so many bytes on.
_LARGE = 1 << 14
#: Columns of more values are never constant, so that a damaged file takes no more memory than its size says.
_LONGEST_CONSTANT = 1 << 16
_UNREADABLE = (OSError, ValueError, *REFUSALS)
#: What a file that anybody may have written has at most, bytes: 500 times the index of a rank with 250 names, and the
#: columns of 6,000 steps. Its index takes 25 times as much once it is read.
_MOST_INDEX, _MOST_BYTES = 1 << 24, 1 << 28
_MOST_COLUMNS = 1 << 12
T = TypeVar("T")


class StoreError(Exception):
    """A file that is damaged, of another version, or something else. Its text is a sentence for users."""


@cache
def layout(kind: type) -> str:
    """A hash of a stored struct: of its fields' names and types, in order, and of all that these types name.

    That is other structs, and enumerations with the values of their members; what a column of numbers
    stands for is told by `Annotated`. Types count as they are spelled, since numpy's own names change with its version.
    """
    described: list[object] = [_FORMAT]
    for each in named_in(kind):
        if issubclass(each, Enum):
            described.append((each.__name__, [(name, str(member.value)) for name, member in each.__members__.items()]))
        else:
            described.append((each.__name__, [(name, str(hint)) for name, hint in each.__annotations__.items()]))
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


def named_in(kind: type) -> list[type]:
    """A struct, and the structs and enumerations that its fields' types name, in order, each once."""
    classes = [kind]
    for each in classes:
        if not issubclass(each, Enum):
            hints = get_type_hints(each, include_extras=True).values()
            classes += [one for one in dict.fromkeys(chain.from_iterable(map(_classes, hints))) if one not in classes]
    return classes


def _classes(hint: Any) -> Iterator[type]:
    """The classes in a type that say how they are stored."""
    if isinstance(hint, type) and issubclass(hint, (msgspec.Struct, Enum)):
        yield hint
    for inner in (*get_args(hint), *getattr(hint, "__metadata__", ())):
        yield from _classes(inner)


class _Index(msgspec.Struct):
    kind: str
    version: str
    read: int
    columns: list[tuple[str, list[int], int, bool]]
    values: dict[str, msgspec.Raw]


class _Described(msgspec.Struct, Generic[T]):
    """Of an index, the plain fields alone."""

    values: T


def dump(value: msgspec.Struct, version: str, file: BinaryIO) -> None:
    """Write a struct whose fields are arrays, plain values that JSON can hold, or such structs."""
    columns: list[NDArray[Any]] = []
    values: dict[str, Any] = {}
    small: list[int] = []
    large: list[int] = []
    for name in value.__struct_fields__:
        first = len(columns)
        values[name] = _packed(getattr(value, name), columns)
        size = sum(_stored(column).nbytes for column in columns[first:])
        (large if size >= _LARGE else small).extend(range(first, len(columns)))
    blocks: dict[int, bytes] = {}
    places: dict[int, tuple[str, list[int], int, bool]] = {}
    offset = 0
    for i in (*small, *large):
        column, stored = columns[i], _stored(columns[i])
        places[i] = column.dtype.str, list(column.shape), offset, stored.size < column.size
        blocks[i] = _padded(stored.tobytes())
        offset += len(blocks[i])
    read = sum(len(blocks[i]) for i in small)
    described = _Index(type(value).__name__, version, read, [places[i] for i in range(len(columns))], values)
    index = _padded(msgspec.json.encode(described), filler=b" ", after=_START)
    parts = [blocks[i] for i in small]
    if large:
        parts.append(bytes(-(_START + len(index) + read) % _PAGE))
    parts += [blocks[i] for i in large]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    file.write(_MAGIC + len(index).to_bytes(8, "little"))
    file.write(zlib.crc32(index).to_bytes(4, "little") + checksum.to_bytes(4, "little") + index)
    file.writelines(parts)


def load(kind: type[T], version: str, path: Path, *, checked: bool = True, mapped: bool = True) -> T:
    """Read what `dump` wrote; the arrays are read-only, and of their fields' element types. Raises StoreError.

    Unchecked, the columns are not compared with their checksum, for which all of them would have to be read. What
    others may write is not to be `mapped`: no more is made of it than its size says.
    """
    index, columns = _open(path, checked=checked, mapped=mapped)
    if index.kind != kind.__name__ or index.version != version:
        raise StoreError(f"It holds a {index.kind} of version {index.version}, not a {kind.__name__} of {version}.")
    try:
        if not mapped:
            _check_places(index.columns)
        arrays = [columns.column(*place) for place in index.columns]
        return _unpack(kind, index.values, arrays)
    except (*REFUSALS, KeyError, IndexError, TypeError, ValueError) as error:
        raise StoreError(f"It is damaged: {error}.") from None


def give_back(value: msgspec.Struct) -> None:
    """Let the system have the memory of the map in which a loaded table is, until somebody looks at it again."""
    for name in value.__struct_fields__:
        owner = getattr(value, name)
        if not isinstance(owner, np.ndarray) or not owner.size or not any(owner.strides):
            continue
        # A table is mapped as a whole or not at all.
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, mmap.mmap) and hasattr(owner, "madvise"):
            owner.madvise(mmap.MADV_DONTNEED)
        return


def described(path: Path, fields: type[T]) -> T:
    """Some plain fields of what `dump` wrote, of whatever kind and version: those of the struct `fields`.

    Nothing else of the file is taken apart, whoever wrote it. Raises StoreError.
    """
    try:
        with open_plain(path) as file:
            text, _, _ = _index_text(file, _MOST_INDEX)
        return msgspec.json.decode(text, type=known(_Described[fields])).values  # type: ignore[valid-type]
    except _UNREADABLE as error:
        raise StoreError(f"It cannot be read ({error}).") from None


def _stored(column: NDArray[Any]) -> NDArray[Any]:
    """What a file holds of a column."""
    return column.reshape(-1)[:1] if column.size <= _LONGEST_CONSTANT and has_one_value(column) else column


class _Columns:
    """The columns of a file: the part that is read, and the part that is mapped."""

    def __init__(self, read: bytes, mapped: NDArray[np.uint8]) -> None:
        self._read, self._mapped = np.frombuffer(read, np.uint8), mapped

    def column(self, dtype: str, shape: list[int], offset: int, once: bool) -> NDArray[Any]:
        """A column from its place in the index."""
        kind = np.dtype(dtype)
        if kind.kind not in "iufb" or offset < 0 or any(length < 0 for length in shape):
            raise ValueError(f"a column of {dtype!r} and {shape} at {offset}")
        if once:
            if math.prod(shape) > _LONGEST_CONSTANT:
                raise ValueError(f"a constant column of {shape} values")
            return constant(dtype, tuple(shape), self._bytes(offset, kind.itemsize).tobytes())
        size = kind.itemsize * math.prod(shape)
        return self._bytes(offset, size).view(kind).reshape(shape) if size else _empty(dtype, tuple(shape))

    def _bytes(self, offset: int, size: int) -> NDArray[np.uint8]:
        if offset < len(self._read):
            return self._read[offset : offset + size]
        offset -= len(self._read)
        return self._mapped[offset : offset + size]


@lru_cache(1 << 10)
def _empty(dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A column without values: all that have its shape are one."""
    return np.empty(shape, np.dtype(dtype))


def _check_places(places: list[tuple[str, list[int], int, bool]]) -> None:
    """Raise ValueError where the columns of a file are not those of its bytes: two that share them, or far too many."""
    if len(places) > _MOST_COLUMNS:
        raise ValueError(f"{len(places):,} columns")
    end = 0
    for offset, size in sorted(
        (offset, np.dtype(dtype).itemsize * (1 if once else math.prod(shape))) for dtype, shape, offset, once in places
    ):
        if size and offset < end:
            raise ValueError("two of its columns overlap")
        end = max(end, offset + size)


def _index_text(file: BinaryIO, most: int) -> tuple[bytes, int, int]:
    """The index as it stands, where it ends, and the checksum of what follows."""
    head = file.read(_START)
    if len(head) < _START or head[:8] != _MAGIC:
        raise StoreError("It is no file of ddp-doctor.")
    size = int.from_bytes(head[8:16], "little")
    if size > most:
        raise StoreError(f"It is no file of ddp-doctor: its index has {size:,} bytes.")
    text = file.read(size)
    if zlib.crc32(text) != int.from_bytes(head[16:20], "little"):
        raise StoreError("It is damaged: its index does not fit its checksum.")
    return text, _START + len(text), int.from_bytes(head[20:24], "little")


def _open(path: Path, *, checked: bool, mapped: bool) -> tuple[_Index, _Columns]:
    """The index and the columns."""
    large: NDArray[np.uint8] = np.empty(0, np.uint8)
    try:
        with path.open("rb") if mapped else open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not mapped and size > _MOST_BYTES:
                raise StoreError(f"It is no file of ddp-doctor: it has {size:,} bytes.")
            text, end, checksum = _index_text(file, size if mapped else min(size, _MOST_INDEX))
            index = msgspec.json.decode(text, type=known(_Index))
            end += index.read
            padding = -end % _PAGE
            read = file.read(min(max(index.read, 0) + padding, size))
            if not mapped:
                large = np.frombuffer(file.read(), np.uint8)
            elif size > end + padding:
                # A plain view: those of a memmap are as slow to make as they are large.
                large = np.asarray(np.memmap(file, np.uint8, mode="r", offset=end + padding))
    except _UNREADABLE as error:
        raise StoreError(f"It cannot be read ({error}).") from None
    if checked and zlib.crc32(large.data, zlib.crc32(read)) != checksum:
        raise StoreError("It is damaged: its columns do not fit their checksum.")
    return index, _Columns(read[: index.read], large)


def _padded(data: bytes, filler: bytes = b"\0", after: int = 0) -> bytes:
    return data + filler * (-(after + len(data)) % _ALIGNMENT)


def _packed(content: Any, columns: list[NDArray[Any]]) -> Any:
    """What stands in the index for a field: arrays are moved to `columns`, and stand there as their numbers."""
    if isinstance(content, np.ndarray):
        columns.append(content)
        return len(columns) - 1
    if isinstance(content, msgspec.Struct):
        return {name: _packed(getattr(content, name), columns) for name in content.__struct_fields__}
    return content


def _unpack(kind: type[T], values: Mapping[str, msgspec.Raw], columns: list[NDArray[Any]]) -> T:
    fields: dict[str, Any] = {}
    stored: Any = kind
    for name, hint in _types(stored).items():
        raw = values[name]
        if (dtype := element_type(hint)) is not None:
            fields[name] = column = columns[msgspec.json.decode(raw, type=int)]
            if column.dtype != dtype:
                raise ValueError(f"{name} is a column of {column.dtype}")
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            fields[name] = _unpack(hint, msgspec.json.decode(raw, type=dict[str, msgspec.Raw]), columns)
        else:
            fields[name] = msgspec.json.decode(raw, type=hint)
    return kind(**fields)


@cache
def _types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of a struct's fields, by name: finding them takes as long as reading a digest of three steps."""
    hints = get_type_hints(kind)
    return {name: _known(hints[name]) for name in kind.__struct_fields__}


def _known(hint: Any) -> Any:
    return hint if element_type(hint) is not None else known(getattr(hint, "__supertype__", hint))
