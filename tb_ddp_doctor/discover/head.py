"""What the head of a trace file tells, without reading the rest.

Heads are read in the process that searches, TensorBoard's too: whatever a file holds, 64 KiB of its text are looked at,
and of a digest 16 MiB, as of Perfetto's packets that tell nothing before. Where several ranks may have been merged into
a file all of it is: beyond 4 MiB of text in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.discover import merged, merged_packets, own_files
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX, has_packets
from tb_ddp_doctor.nccl_logs.profile import begins_profile
from tb_ddp_doctor.storage.column_file import StoreError, described
from tb_ddp_doctor.storage.paths import FilePath, identity
from tb_ddp_doctor.workers import pool

_HEAD_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 13
#: Of compressed text that comes to nothing, no more is read.
_FRUITLESS_BYTES = 1 << 20
#: Text that is looked through here for merged ranks, and for what a process does.
_SOON_READ = 1 << 22
#: Beyond, all are read anew: a bound for directories whose files come and go.
_MOST_REMEMBERED = 1 << 20
_GZIP = b"\x1f\x8b"
_RANK = re.compile(rb'"rank"\s*:\s*"?(\d{1,9})\b')
_WORLD_SIZE = re.compile(rb'"world_size"\s*:\s*"?(\d{1,9})\b')
_BASE_NS = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
#: The first event's time, µs; 0 is none.
_FIRST_US = re.compile(rb'"ts"\s*:\s*"?(?!0+\b(?:\.0+\b)?)(\d{1,17})')
#: Times before are since the machine's start, or since anything: that of 2001.
_EPOCH_NS = 10**18
_HOST_NAME = re.compile(rb'"host_name"\s*:\s*"([^"\\]{1,255})"')
#: Categories that no other tool's events have, and the argument of its kernels.
_KINETO_EVENT = re.compile(
    rb'"cat"\s*:\s*"(cpu_op|cuda_runtime|cuda_driver|gpu_memcpy|python_function|ac2g)"|"External id"\s*:'
)
#: Intel's unitrace calls work of the host cpu_op, too; that of the device, and flows, are named as nowhere else.
UNITRACE_EVENT = re.compile(rb'"cat"\s*:\s*"(?:gpu_op|Flow_[HD]2[HD]_)')
#: The same in Perfetto's format, each behind a byte of its size; and what a file of it begins with: a packet.
_KINETO_CATEGORIES = (
    *(b"cpu_op", b"user_annotation", b"cuda_runtime", b"cuda_driver", b"hip_runtime", b"kernel", b"gpu_memcpy"),
    *(b"gpu_memset", b"gpu_user_annotation", b"python_function", b"cpu_instant_event"),
)
#: Names of operators and steps may fill the beginning, where a file has tables of its names, and categories after them.
_KINETO_PACKET = re.compile(
    b"|".join(
        [*(re.escape(bytes((len(name),)) + name) for name in _KINETO_CATEGORIES), rb"aten::\w", rb"ProfilerStep#\d"]
    )
)
#: What no other program writes, so that it is looked for in so much text behind the beginning, too.
_HOST_PACKET = re.compile(rb"\x06cpu_op|\x0fuser_annotation|\x0ccuda_runtime|aten::\w|ProfilerStep#\d")
_MOST_ENDS = 1 << 24
_PACKET = b"\n"
#: The field of a packet that Perfetto's SDK compressed others into: its size, and zlib's first bytes.
_COMPRESSED = re.compile(rb"\x92\x03[\x80-\xff]{0,4}[\x00-\x7f]\x78[\x01\x5e\x9c\xda]")
#: Packets that are inflated: one of a descriptor alone has some 40 bytes.
_MOST_INFLATED = 1024


class Head(msgspec.Struct, frozen=True):
    """What the start of a file tells; all of it missing where it cannot be read."""

    is_trace: bool = False
    #: Surely Kineto's, not another tool's Chrome trace.
    is_kineto: bool = False
    #: Whether there was any text.
    has_text: bool = False
    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    #: When its first event began, ns since 1970; None where nothing says so.
    begin_ns: int | None = None
    #: The parts of a file that holds several ranks, as `merged.parts`.
    parts: tuple[str, ...] = ()
    #: Of a digest: its trace's `source`; "" where it does not say.
    source: str = ""
    #: What it says of its ranks where ddp-doctor wrote it.
    own: own_files.OwnFile | None = None


def peek(path: FilePath) -> Head:
    """Read the head of a file, plain or gzip or a digest, whatever it holds."""
    if isinstance(path, Path) and path.suffix == DIGEST_SUFFIX:
        return _peek_digest(path)
    try:
        with path.open("rb") as file:
            chunks, is_gzip = _chunks(file)
            text = _gather(chunks)
            if (own := own_files.declared(text)) and own_files.is_large_enough(path.stat().st_size, own, is_gzip):
                return _of_own(own)
            if has_packets(path.name, text):
                head = _read_packets(text, chunks)
                if head.is_kineto and isinstance(path, Path) and merged_packets.may_be(text):
                    # What tells that it is a trace may stand far behind, and was read.
                    file.seek(0)
                    head = replace(head, parts=_parts(path, b"", _chunks(file)[0]))
                return head
            head = _read_head(text)
            if head.is_kineto and isinstance(path, Path) and merged.may_be(text):
                head = replace(head, parts=_parts(path, text, chunks))
            if is_gzip:
                return head
            if head.is_trace and head.rank is None:
                # "traceEvents" may come first; the end of a plain file costs one more read.
                file.seek(max(0, file.seek(0, os.SEEK_END) - _HEAD_BYTES))
                rank, world_size = _read_distributed_info(file.read())
                head = replace(head, rank=rank, world_size=world_size)
            return head
    except OSError:
        return Head()


def _of_own(own: own_files.OwnFile) -> Head:
    return Head(True, True, True, world_size=own.world_size, parts=own.labels, own=own)


def _parts(path: Path, text: bytes, chunks: Iterator[bytes]) -> tuple[str, ...]:
    """The parts of a file that holds several ranks; `text` and `chunks` are what it begins with, and what follows."""
    soon = [text, *islice(chunks, _SOON_READ // _CHUNK_BYTES)]
    if next(chunks, b"") == b"":
        return _parts_of_text(path.name, text, soon)
    try:
        return pool.call(parts_of_file, path, path.stat().st_size, gives=tuple[str, ...])
    except (OSError, pool.CrashError):
        return ()


def parts_of_file(path: FilePath) -> tuple[str, ...]:
    """The parts of a file that holds several ranks, whatever its size. Raises OSError."""
    with path.open("rb") as file:
        chunks, _ = _chunks(file)
        text = _gather(chunks)
        return _parts_of_text(path.name, text, chain([text], chunks))


def _parts_of_text(name: str, head: bytes, chunks: Iterable[bytes]) -> tuple[str, ...]:
    return merged_packets.parts(chunks) if has_packets(name, head) else merged.parts(head, chunks)


def _chunks(file: BinaryIO) -> tuple[Iterator[bytes], bool]:
    """The text of an open file, plain or gzip, in pieces; and whether it is gzip."""
    first = file.read(_CHUNK_BYTES)
    chunks: Iterator[bytes] = chain([first], iter(lambda: file.read(_CHUNK_BYTES), b""))
    is_gzip = first.startswith(_GZIP)
    return (_inflate(chunks) if is_gzip else chunks), is_gzip


def beginning_of(path: FilePath) -> bytes:
    """The beginning of a file's text, plain or gzip, longer than a head. Raises OSError."""
    with path.open("rb") as file:
        chunks, _ = _chunks(file)
        return b"".join(islice(chunks, _SOON_READ // _CHUNK_BYTES))


def source(path: FilePath) -> str:
    """What tells a trace from others, compressed or not: a hash of its beginning, and its size; "" if it has none.

    A digest holds that of the trace that it was made of.
    """
    if not isinstance(path, Path):
        return ""
    try:
        with path.open("rb") as file:
            first = file.read(_CHUNK_BYTES)
            chunks = chain([first], iter(lambda: file.read(_CHUNK_BYTES), b""))
            text = bytearray()
            for chunk in _inflate(chunks) if first.startswith(_GZIP) else chunks:
                text += chunk
                if len(text) >= _HEAD_BYTES:
                    break
            size = file.seek(0, os.SEEK_END)
            if first.startswith(_GZIP):
                # gzip ends with the size of what it holds, modulo 2 to the power of 32.
                file.seek(max(0, size - 4))
                size = int.from_bytes(file.read(4), "little")
    except OSError:
        return ""
    return f"{size % (1 << 32)}-{hashlib.sha256(text[:_HEAD_BYTES]).hexdigest()[:32]}"


class RememberedHeads:
    """Heads of files that have not changed since they were read; safe from several threads."""

    def __init__(self, peek: Callable[[FilePath], Head]) -> None:
        self._peek = peek
        #: By path: its state, and the head.
        self._kept: dict[str, tuple[str, Head]] = {}

    def peek(self, path: FilePath) -> Head:
        try:
            state = identity(path)
        except OSError:
            return Head()
        kept = self._kept.get(str(path))
        if kept is None or kept[0] != state:
            if len(self._kept) >= _MOST_REMEMBERED:
                self._kept.clear()
            kept = self._kept[str(path)] = (state, self._peek(path))
        return kept[1]


class _Header(msgspec.Struct):
    rank: int | None
    world_size: int | None
    host: str


class _OfDigest(msgspec.Struct):
    """What a digest says of its trace."""

    header: _Header
    source: str = ""


class _Contents(msgspec.Struct):
    program: str = ""


class _ContentsOfDigest(msgspec.Struct):
    contents: _Contents


def digested_program(path: Path) -> str:
    """What the program does that a digest is of, as `program_names.Program` has it; "" where the digest is damaged."""
    try:
        return described(path, _ContentsOfDigest).contents.program
    except StoreError:
        return ""


def _peek_digest(path: Path) -> Head:
    """What the digested file said of itself."""
    try:
        digest = described(path, _OfDigest)
    except StoreError:
        return Head()
    header = digest.header
    return Head(True, True, True, header.rank, header.world_size, header.host, source=digest.source)


def _gather(chunks: Iterable[bytes]) -> bytes:
    """Text until a chunk behind "traceEvents", where Kineto's own keys precede it, or `_HEAD_BYTES` of it."""
    text = bytearray()
    for chunk in chunks:
        text += chunk
        begun = text.find(b'"traceEvents"')
        has_events = 0 <= begun <= len(text) - _CHUNK_BYTES
        if len(text) >= _HEAD_BYTES or (has_events and _has_schema(bytes(text[:begun]))):
            break
    return bytes(text)


def _inflate(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The text of a gzip file in small pieces, as far as it can be decompressed."""
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    fruitless = 0
    try:
        for chunk in chunks:
            fruitless += len(chunk)
            while text := inflater.decompress(chunk, _CHUNK_BYTES):
                yield text
                chunk, fruitless = inflater.unconsumed_tail, 0
            if inflater.eof or fruitless > _FRUITLESS_BYTES:
                return
    except zlib.error:
        return


def _read_head(text: bytes) -> Head:
    events = text.find(b'"traceEvents"')
    header = text[:events] if events >= 0 else text
    has_schema = _has_schema(header)
    has_content = events >= 0 or b'"deviceProperties"' in header
    rank, world_size = _read_distributed_info(header)
    host = _HOST_NAME.search(header)
    return Head(
        is_trace=has_schema or has_content or (b'"ph"' in text and not begins_profile(text)),
        # Who rewrites a trace may put these keys behind the events, which then show whose they are.
        is_kineto=(has_schema and has_content)
        or (events >= 0 and bool(_KINETO_EVENT.search(text, events)) and not UNITRACE_EVENT.search(text, events)),
        has_text=bool(text),
        rank=rank,
        world_size=world_size,
        host=host[1].decode(errors="replace") if host else "",
        begin_ns=_begin_ns(header, text[events:]) if events >= 0 else None,
    )


def _begin_ns(header: bytes, events: bytes) -> int | None:
    base, first = _BASE_NS.search(header), _FIRST_US.search(events)
    begin_ns = (int(base[1]) if base else 0) + int(first[1]) * 1000 if first else 0
    return begin_ns if begin_ns > _EPOCH_NS else None


def _read_packets(text: bytes, chunks: Iterable[bytes]) -> Head:
    """What the beginning of a trace in Perfetto's format tells; `chunks` are what follows `text`.

    Ends of slices have no names: a file may begin with those of all, and what it is stands behind.
    """
    is_kineto = text.startswith(_PACKET) and (
        any(map(_KINETO_PACKET.search, (text, *_inflated_packets(text))))
        or any(map(_HOST_PACKET.search, islice(chunks, _MOST_ENDS // _CHUNK_BYTES)))
    )
    return Head(is_trace=is_kineto, is_kineto=is_kineto, has_text=bool(text))


def _inflated_packets(text: bytes) -> Iterator[bytes]:
    """What the compressed packets at the beginning of a trace hold, as much of it as is looked at of plain text."""
    remaining = _HEAD_BYTES
    for field in islice(_COMPRESSED.finditer(text), _MOST_INFLATED):
        try:
            inflated = zlib.decompressobj().decompress(text[field.end() - 2 :], remaining)
        except zlib.error:
            continue
        yield inflated
        remaining -= len(inflated)
        if remaining <= 0:
            break


def _has_schema(header: bytes) -> bool:
    return b'"schemaVersion"' in header or b'"distributedInfo"' in header


def _read_distributed_info(text: bytes) -> tuple[int | None, int | None]:
    """Rank and world size."""
    start = text.rfind(b'"distributedInfo"')
    if start < 0:
        return None, None
    rank, world_size = _RANK.search(text, start), _WORLD_SIZE.search(text, start)
    return int(rank[1]) if rank else None, int(world_size[1]) if world_size else None
