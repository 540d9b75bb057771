"""What was made of trace files, kept between runs: heads, columns, digests and the modules of events, in the user's
cache directory. Parts of a job's step times as well.

An entry is named for the file's path, size and modification time and for the version of what it holds, so a changed
file or a newer doctor finds nothing and writes anew. Entries are written to a temporary file and renamed, so that
readers and writers on one directory, NFS included, never see half of one. Whatever goes wrong here costs time, never
a result: a damaged entry is removed and rebuilt, and a directory that cannot be written is no cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import MEANING, EventModules, RankDigest
from tb_ddp_doctor.digest.valid import InvalidError, check
from tb_ddp_doctor.discover.files import digested_trace
from tb_ddp_doctor.discover.head import Head, peek, source
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX
from tb_ddp_doctor.history.windows import WindowPart
from tb_ddp_doctor.storage.cache_directory import MAX_BYTES
from tb_ddp_doctor.storage.column_file import StoreError, dump, layout, load
from tb_ddp_doctor.storage.paths import FilePath, identity
from tb_ddp_doctor.storage.whole_file import written_whole
from tb_ddp_doctor.trace.model import RankTrace, TraceError
from tb_ddp_doctor.version import __version__

if TYPE_CHECKING:
    from tb_ddp_doctor.digest.rounds import RoundEnds

#: Entries younger than this are not removed, whatever their size: another process may be about to use them.
_KEPT_S = 60.0
#: What entries are called, and what `storage.whole_file` has not finished.
_OWN_NAME = re.compile(r"[0-9a-f]{64}\.(?:head|columns|digest|modules|answer|steps)|\.new-[0-9a-f]{16}")
#: File beside the entries: the limit, bytes, that they were below when they were last looked at.
_LIMIT = "limit"
_log = logging.getLogger(__name__)
#: Directories that nothing could be kept in, as was said.
_warned_of: set[Path] = set()
T = TypeVar("T", Head, RankTrace, RankDigest, EventModules, WindowPart)

_SUFFIX: dict[type, str] = {
    Head: "head",
    RankTrace: "columns",
    RankDigest: "digest",
    EventModules: "modules",
    WindowPart: "steps",
}
#: The packages and modules whose code makes what is kept, the native library among them.
_MADE_BY = (
    "nsys",
    "nccl_logs",
    "discover",
    "trace",
    "digest",
    "history",
    "storage",
    "workers",
    "findings",
    "known_type",
    "step_parts",
    "view",
    "wording",
)
_SOURCES = (".py", ".so", ".dll")


def _version(kind: type) -> str:
    """What entries are the same for: the release, the layout of what they hold, and the code that makes it."""
    return f"{__version__}.{layout(kind)}.{_code()}"


@functools.cache
def _code() -> str:
    """A hash of the code that makes entries: who changes it must not be shown what the code before made."""
    code = hashlib.sha256()
    for path in _sources():
        with contextlib.suppress(OSError):
            code.update(path.read_bytes())
    return code.hexdigest()[:16]


def _sources() -> list[Path]:
    """The files with that code and its tables, of all folders of its packages, in order."""
    names = [Path(__file__).with_name(name) for name in _MADE_BY]
    inside = [path for name in names for path in name.rglob("*") if path.suffix in _SOURCES]
    beside = [name.with_suffix(suffix) for name in names for suffix in (".py", ".toml")]
    return sorted([*inside, *(path for path in beside if path.exists())])


def digest_version() -> str:
    """The version of digest files: of what their values mean and of their layout.

    Neither the release nor the code counts, since they go between machines with others.
    """
    return f"{MEANING}.{layout(RankDigest)}"


def read(path: FilePath) -> RankTrace:
    """Read a rank's trace; what reads and digests is imported when a file is not kept."""
    from tb_ddp_doctor.trace import reader

    return reader.read_rank(path)


def digest(trace: RankTrace, ends: RoundEnds | None = None) -> RankDigest:
    """Digest a trace; its steps are what it marks, or rounds that end at `ends`."""
    from tb_ddp_doctor.digest import build

    return build.digest(trace, ends)


def event_modules(trace: RankTrace, digest: RankDigest) -> EventModules:
    """The modules of a trace's events."""
    from tb_ddp_doctor.digest.event_modules import event_modules as of_trace

    return of_trace(trace, digest)


class Cache(msgspec.Struct, frozen=True):
    """A directory of entries; None keeps nothing. It holds no state, so that it can be sent to other processes."""

    directory: Path | None = None
    max_bytes: int = MAX_BYTES

    def peek(self, path: FilePath) -> Head:
        """The head of a trace file."""
        key = _key(path)
        head = self._load(Head, key)
        if head is None:
            head = peek(path)
            self._save(head, key, path)
        return head

    def digest(self, path: FilePath, ends: RoundEnds | None = None) -> RankDigest:
        """The digest of a trace file, or what a digest file holds. Raises TraceError if it is neither.

        Steps are what the trace marks, or rounds that end at `ends`. A digest file has them only if its trace lies
        beside it.
        """
        if _is_digest(path):
            trace = digested_trace(path)
            if trace and ends is not None:
                return self.digest(trace, ends)
            try:
                return read_digest(path)
            except StoreError as error:
                # One of another release, and beside it what it was made from.
                if trace:
                    return self.digest(trace)
                raise TraceError(str(error)) from None
        kept = self.kept(path, ends)
        if kept is None:
            key = _key(path)
            kept = digest(self.columns(path), ends)
            self._save(kept, key, path, ends)
        return kept

    def kept(self, path: FilePath, ends: RoundEnds | None = None) -> RankDigest | None:
        """What a digest file holds, or the digest of a trace file if it is kept; None if the trace must be read."""
        if _is_digest(path):
            trace = digested_trace(path) if ends is not None else None
            if trace:
                return self.kept(trace, ends)
            with contextlib.suppress(StoreError):
                return read_digest(path)
        return self._load(RankDigest, _of_rounds(_key(path), ends))

    def columns(self, path: FilePath, *, checked: bool = True) -> RankTrace:
        """The columns of a trace file. Raises TraceError if it is no trace.

        Unchecked, only what is looked at of kept columns is read, and what a disk did to them goes unnoticed.
        """
        trace = self.kept_columns(path, checked=checked)
        if trace is None:
            key = _key(path)
            trace = read(path)
            self._save(trace, key, path)
        return trace

    def kept_columns(self, path: FilePath, *, checked: bool = True) -> RankTrace | None:
        """The columns of a trace file if they are kept; None if the trace must be read."""
        return self._load(RankTrace, _key(path), checked=checked)

    def keep_columns(self, path: FilePath) -> RankTrace | None:
        """Read a trace file for another process; None where it finds the columns kept. Raises TraceError."""
        trace = self.columns(path)
        kept = self._path(RankTrace, _key(path))
        return None if kept is not None and kept.exists() else trace

    def event_modules(self, path: FilePath, trace: RankTrace, digest: RankDigest) -> EventModules:
        """The modules of a trace file's events, whose columns and digest are there: of a large trace it takes longer
        than all else of a slice.
        """
        key = _key(path)
        modules = self._load(EventModules, key)
        if modules is None or len(modules.module) != (len(trace.events) if modules.paths else 0):
            modules = event_modules(trace, digest)
            self._save(modules, key, path)
        return modules

    def part(self, key: str) -> WindowPart | None:
        """A part of a job's step times, if it is kept."""
        return self._load(WindowPart, key, checked=False)

    def keep_part(self, part: WindowPart, key: str) -> None:
        """Keep a part of a job's step times."""
        path = self._path(WindowPart, key)
        if path is not None:
            with contextlib.suppress(OSError, UnicodeEncodeError):
                _write(part, _version(WindowPart), path)

    def answer(self, key: str) -> bytes | None:
        """An answer of the tab, if it is kept."""
        path = self._answer_path(key)
        try:
            data = path.read_bytes() if path else b""
        except OSError:
            return None
        checksum, answer = data[: hashlib.sha256().digest_size], data[hashlib.sha256().digest_size :]
        return answer if checksum == hashlib.sha256(answer).digest() else None

    def keep_answer(self, answer: bytes, key: str) -> None:
        """Keep an answer of the tab."""
        path = self._answer_path(key)
        if path is not None:
            with contextlib.suppress(OSError), written_whole(path) as file:
                file.write(hashlib.sha256(answer).digest() + answer)

    def _answer_path(self, key: str) -> Path | None:
        if self.directory is None:
            return None
        name = hashlib.sha256(f"{key}\n{__version__}.{_code()}".encode(errors="surrogateescape")).hexdigest()
        return self.directory / name[:2] / f"{name}.answer"

    def warn_unless_kept(self, paths: Collection[FilePath]) -> None:
        """Say, once, that nothing is kept, where that is so of all traces that were just read."""
        # A path that is no UTF-8 is never kept, nor what a digest file holds.
        paths = [path for path in paths if str(path).isprintable() and not _is_digest(path)]
        if self.directory is None or not paths or self.directory in _warned_of:
            return
        if not any((kept := self._path(RankDigest, _key(path))) and kept.exists() for path in paths):
            _warned_of.add(self.directory)
            _log.warning(
                "Nothing can be kept in the cache %s: its disk is full, or it may not be written to. Traces are read "
                "again each time; ddp-doctor's --cache DIR takes another directory.",
                self.directory,
            )

    def trim(self, *, grew: bool = True) -> None:
        """Remove the entries that were used longest ago, until the others fit the limit.

        All entries are looked at, which takes a second for 100,000: not where none was added (`grew`) since they were
        below this limit or a lower one.
        """
        if self.directory is None or (not grew and self._fits(self.directory)):
            return
        entries = sorted(_entries(self.directory))
        excess = sum(size for _, size, _ in entries) - self.max_bytes
        newest = entries[-1][0] if entries else 0.0
        for used, size, path in entries:
            if excess <= 0 or used > newest - _KEPT_S:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                excess -= size
        # What is too young to be removed is looked at again.
        if entries and excess <= 0:
            with contextlib.suppress(OSError), written_whole(self.directory / _LIMIT) as file:
                file.write(str(self.max_bytes).encode())

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [size for _, size, _ in _entries(self.directory)] if self.directory else []
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Remove all entries, and give how many could not be removed."""
        remaining = 0
        for _, _, path in list(_entries(self.directory)) if self.directory else ():
            try:
                path.unlink(missing_ok=True)
            except OSError:
                remaining += 1
        return remaining

    def _fits(self, directory: Path) -> bool:
        """Whether the entries were below this limit, or a lower one, when they were last looked at."""
        try:
            return int((directory / _LIMIT).read_bytes()) <= self.max_bytes
        except (OSError, ValueError):
            return False

    def _path(self, kind: type, key: str) -> Path | None:
        if self.directory is None or not key:
            return None
        name = hashlib.sha256(f"{key}\n{_version(kind)}".encode(errors="surrogateescape")).hexdigest()
        return self.directory / name[:2] / f"{name}.{_SUFFIX[kind]}"

    def _load(self, kind: type[T], key: str, *, checked: bool = True) -> T | None:
        path = self._path(kind, key)
        if path is None or not path.exists():
            return None
        try:
            entry = load(kind, _version(kind), path, checked=checked)
        except StoreError:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # what is used stays
        return entry

    def _save(
        self,
        value: Head | RankTrace | RankDigest | EventModules,
        key: str,
        source: FilePath,
        ends: RoundEnds | None = None,
    ) -> None:
        path = self._path(type(value), _of_rounds(key, ends))
        if path is None or _key(source) != key:  # the file changed while it was read
            return
        # A path that is no UTF-8 is in the value too, and cannot be written.
        with contextlib.suppress(OSError, UnicodeEncodeError):
            _write(value, _version(type(value)), path)


def write_digest(value: RankDigest, path: Path, trace: FilePath | None = None) -> None:
    """Write a digest file, whole or not at all; it tells the trace that it was made of from others. Raises OSError."""
    _write(replace(value, source=source(trace) if trace else ""), digest_version(), path)


def read_digest(path: Path) -> RankDigest:
    """Read a digest file, which anybody may have written. Raises StoreError.

    Its warnings are about this file, whatever path it says that it was made at.
    """
    content = load(RankDigest, digest_version(), path, mapped=False)
    try:
        check(content)
    except InvalidError as error:
        raise StoreError(f"It is damaged: {error}.") from None
    warnings = tuple(replace(warning, file=str(path)) for warning in content.warnings)
    return replace(content, file=str(path), warnings=warnings)


def _write(value: Head | RankTrace | RankDigest | EventModules | WindowPart, version: str, path: Path) -> None:
    with written_whole(path) as file:
        dump(value, version, file)


def _is_digest(path: FilePath) -> TypeGuard[Path]:
    """Whether it is a digest file, which costs no more to read than what is kept."""
    return isinstance(path, Path) and path.suffix == DIGEST_SUFFIX


def _key(path: FilePath) -> str:
    """What an entry is named for; "" for a file that cannot be asked."""
    try:
        return identity(path)
    except OSError:
        return ""


def _of_rounds(key: str, ends: RoundEnds | None) -> str:
    """The name for an entry whose steps are rounds that end at `ends`; None: what the trace marks."""
    return key if ends is None or not key else f"{key}\n{ends}"


def _entries(directory: Path) -> Iterator[tuple[float, int, Path]]:
    """(time of last use, size, path) of each entry, and of what a killed writer left.

    Nothing else counts: a directory that was named by mistake loses no file.
    """
    for path in directory.glob("??/*"):
        if not _OWN_NAME.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path
