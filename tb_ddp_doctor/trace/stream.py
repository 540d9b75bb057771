"""A file's bytes, decompressed, a chunk at a time.

Supported: plain files and gzip, told apart by their first bytes and not by their names; gzip of several members.
A gzip stream that is cut off, damaged or followed by something else gives every byte that can be had.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from tb_ddp_doctor.storage import time_limit, transient
from tb_ddp_doctor.storage.paths import ByteSource, RemotePath
from tb_ddp_doctor.storage.time_limit import PatientFile, within
from tb_ddp_doctor.trace.model import TraceError

_open_gzip: Callable[..., Any]
_gzip_errors: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error)
try:
    from isal import igzip, igzip_lib

    _open_gzip = igzip.open
    _gzip_errors += (igzip_lib.IsalError,)  # type: ignore[operator]  # its stub calls it an instance
except ImportError:  # platforms without a wheel: the same bytes at a third of the speed
    _open_gzip = gzip.open

#: What is asked for at once of a file: each time that it is not in memory a thread is started, for some 0.1 ms.
_READ_BYTES = 1 << 20
#: Decoding is slower in larger chunks (they leave the cache) and in smaller ones (calls per chunk).
CHUNK_BYTES = 1 << 18
#: 30 times the largest trace seen; beyond it a file is a gzip bomb or a mistake.
MAX_BYTES = 16 << 30
#: Traces become 8 to 30 times smaller. What becomes more than this much larger, and large, is a bomb.
MOST_RATIO = 100
SURE_BYTES = 512 << 20

_GZIP_MAGIC = b"\x1f\x8b"
#: zlib loses the output of the call that fails, so the rescue asks for little at a time.
_RESCUE_BYTES = 1 << 12
_GZIP_TRAILER_BYTES = 8
#: zlib: the largest window, in a gzip wrapper.
_GZIP_WINDOW = 31


class StreamCutError(Exception):
    """The bytes ended early, or something follows them; the text says what."""


def open_trace(path: str | Path | RemotePath) -> BufferedReader:
    """The file, open for reading; TraceError says why not."""
    try:
        return BufferedReader(PatientFile(within(time_limit.PATIENCE_S, partial(_opened, path), path)), _READ_BYTES)
    except FileNotFoundError:
        raise TraceError("The file does not exist.") from None
    except PermissionError:
        transient.note()
        raise TraceError("The file may not be read: permission denied.") from None
    except (OSError, ValueError) as error:
        transient.note()
        raise TraceError(f"The file cannot be opened: {_reason(error)}.") from None


def _opened(path: str | Path | RemotePath) -> ByteSource:
    if isinstance(path, RemotePath):
        return path.open()
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise TraceError("This is a directory or a device, not a trace file.")
    return open(path, "rb", buffering=0)


def chunks(file: BufferedReader, max_bytes: int = MAX_BYTES) -> Iterator[memoryview]:
    """The decompressed bytes of an open file; each chunk is valid until the next one is asked for.

    Raises StreamCutError after the last byte that could be had, where that is not the regular end.
    """
    buffer = memoryview(bytearray(CHUNK_BYTES))
    compressed = False
    given = 0
    try:
        compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        if compressed:
            max_bytes = min(max_bytes, max(SURE_BYTES, MOST_RATIO * file.seek(0, os.SEEK_END)))
        file.seek(0)
        source: BufferedReader = _open_gzip(file, "rb") if compressed else file
        while count := source.readinto(buffer):
            if given + count > max_bytes:
                raise StreamCutError(f"Reading stopped at the limit of {max_bytes:,} bytes")
            yield buffer[:count]
            given += count
        return
    except _gzip_errors as error:
        if not compressed or isinstance(error, TimeoutError):
            raise StreamCutError(f"The file could not be read on ({_reason(error)})") from None
    for piece in _rescued(file, given):
        if given + len(piece) > max_bytes:
            raise StreamCutError(f"Reading stopped at the limit of {max_bytes:,} bytes")
        yield memoryview(piece)
        given += len(piece)


def _rescued(file: BufferedReader, skip: int) -> Iterator[bytes]:
    """What a damaged gzip file holds after `skip` decompressed bytes, to the last byte; then StreamCutError."""
    member = zlib.decompressobj(_GZIP_WINDOW)
    try:
        for data in _compressed(file):
            while data:
                out = member.decompress(data, _RESCUE_BYTES)
                data = member.unconsumed_tail or member.unused_data.lstrip(b"\0")
                yield out[skip:]
                skip -= min(skip, len(out))
                if member.eof:
                    if not data.startswith(_GZIP_MAGIC[: len(data)]):
                        raise StreamCutError("The gzip data is followed by bytes that are no gzip")
                    member = zlib.decompressobj(_GZIP_WINDOW)
        yield member.flush()[skip:]
    except (OSError, zlib.error) as error:
        raise StreamCutError(f"The gzip data is damaged ({_reason(error)})") from None
    raise StreamCutError("The gzip data is cut off")


def _compressed(file: BufferedReader) -> Iterator[bytes]:
    """The file from its start; the trailer alone, since its checksum may be wrong when the data before it is not."""
    remaining = file.seek(0, os.SEEK_END) - _GZIP_TRAILER_BYTES
    file.seek(0)
    while remaining > 0 and (data := file.read(min(remaining, CHUNK_BYTES))):
        yield data
        remaining -= len(data)
    yield file.read(_GZIP_TRAILER_BYTES)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it {str(error).rstrip('.').removeprefix('It ')}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
