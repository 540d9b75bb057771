"""Traces that lie on other machines: s3://, gs://, az://, hdfs:// and whatever else fsspec knows.

A file is streamed, some megabytes at a time, and never copied. What a file is like (size, time, tag) comes with the
listing of its folder, one request for a thousand files, and is not asked again; it is what the cache goes by.

Credentials are those that each service's own tools take (AWS_..., GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_...);
where there are none, the files are asked for as anybody may. Options of fsspec come from FSSPEC_... and its own files.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

#: What is asked for at once: some dozens of requests for a trace of hundreds of megabytes.
_BLOCK_BYTES = 8 << 20
_NAME = re.compile(r"[a-zA-Z][0-9a-zA-Z+.-]*(?=://)")
#: How to ask without credentials, by service.
_ANYBODY: Mapping[str, dict[str, Any]] = {
    "s3": {"anon": True},
    "gs": {"token": "anon"},
    "gcs": {"token": "anon"},
    "az": {"anon": True},
    "abfs": {"anon": True},
}
#: What to install, by service.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "hdfs": "hdfs"}
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
_TAGS = ("ETag", "etag", "md5Hash", "generation")


class RemoteError(Exception):
    """A place that cannot be read. Its text is a sentence for users."""


class FileStatus(NamedTuple):
    """The part of `os.stat_result` that is known of a remote file."""

    st_size: int
    st_mtime_ns: int


class RemotePath(msgspec.Struct, frozen=True):
    """A file on another machine: the part of `Path` that reading takes."""

    #: "s3", and what follows "s3://".
    service: str
    path: str
    size: int = 0
    #: -1 where the service does not tell.
    modified_ns: int = -1
    #: Changes with the content, where the service gives one.
    tag: str = ""
    #: Whether no credentials are used.
    as_anybody: bool = False

    def __str__(self) -> str:
        return f"{self.service}://{self.path}"

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        stem, dot, suffix = self.name.rpartition(".")
        return dot + suffix if stem else ""

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.service, self.path.rpartition("/")[0], as_anybody=self.as_anybody)

    def stat(self) -> FileStatus:
        return FileStatus(self.size, self.modified_ns)

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Raises OSError, whatever the service's library raises."""
        if mode != "rb":
            raise ValueError("remote files are only read")
        try:
            import fsspec  # type: ignore[import-untyped]

            system = fsspec.filesystem(self.service, **_options(self.service, self.as_anybody))
            file = system.open(self.path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return io.BufferedReader(_Stream(file), 1 << 16)


class ProcessPath(msgspec.Struct, frozen=True):
    """One process in a file of several, as recordings are and traces that somebody merged: the part of `Path` that
    reading takes.
    """

    file: Path
    #: The process, as the file numbers it.
    process: int
    #: What the file's name is followed by where it is shown: "pid 144"; of merged traces, as `discover.merged` has it.
    label: str
    #: What its reader is asked for beside the process, as the file's recorder has it; "" for nothing.
    asked: str = ""

    def __str__(self) -> str:
        return f"{self.file} ({self.label})"

    @property
    def name(self) -> str:
        return f"{self.file.name} ({self.label})"

    @property
    def suffix(self) -> str:
        return self.file.suffix

    @property
    def parent(self) -> Path:
        return self.file.parent

    def stat(self) -> os.stat_result:
        return self.file.stat()

    def open(self, mode: str = "rb") -> io.BufferedReader:
        if mode != "rb":
            raise ValueError("recordings are only read")
        return self.file.open("rb")


#: What files are named by, wherever they are.
FilePath: TypeAlias = Path | RemotePath | ProcessPath


def identity(path: FilePath) -> str:
    """What differs between two files, and between two states of a file. Raises OSError."""
    if isinstance(path, RemotePath):
        return f"{path}\n{path.size}\n{path.modified_ns}\n{path.tag}"
    if isinstance(path, ProcessPath):
        return f"{identity(path.file)}\n{path.process}\n{path.asked}"
    status = path.stat()
    return f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"


def find(address: str) -> tuple[str, list[RemotePath]]:
    """The path of a remote folder or file, without its service, and all files below it. Raises RemoteError."""
    service = _service(address)
    try:
        return _find(service, address, as_anybody=False)
    except (ImportError, ValueError) as error:
        raise RemoteError(_how_to_install(service, error)) from None
    except Exception as error:
        if service not in _ANYBODY or isinstance(error, FileNotFoundError):
            raise RemoteError(_why(address, error)) from None
        try:
            return _find(service, address, as_anybody=True)
        except Exception:
            raise RemoteError(_why(address, error)) from None


def _find(service: str, address: str, *, as_anybody: bool) -> tuple[str, list[RemotePath]]:
    import fsspec

    system = fsspec.filesystem(service, **_options(service, as_anybody))
    root: str = system._strip_protocol(address)
    system.invalidate_cache()
    listed = system.find(root, detail=True)
    if not listed and not system.exists(root):
        raise FileNotFoundError
    files = [
        RemotePath(service, path, int(about.get("size") or 0), _time_ns(about), _tag(about), as_anybody)
        for path, about in sorted(listed.items())
        if about.get("type", "file") == "file"
    ]
    return root.rstrip("/"), files


def below(root: str, file: RemotePath) -> Iterator[str]:
    """The parts of a file's path below a folder."""
    yield from file.path[len(root) :].strip("/").split("/") if file.path != root else (file.name,)


def _service(address: str) -> str:
    scheme = _NAME.match(address)
    return scheme[0].lower() if scheme else ""


def _options(service: str, as_anybody: bool) -> dict[str, Any]:
    return dict(_ANYBODY.get(service, {})) if as_anybody else {}


def _how_to_install(service: str, error: Exception) -> str:
    extra = _EXTRAS.get(service)
    if extra and isinstance(error, ImportError):
        return f"Reading {service}:// takes another package: pip install 'tb-ddp-doctor[{extra}]'"
    return f"{service}:// cannot be read here: {_first_line(error)}"


def _why(address: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{address} does not exist."
    return f"{address} cannot be read: {_first_line(error)} Give access to it, or copy the traces to a local folder."


def _first_line(error: Exception) -> str:
    words = str(error).strip().splitlines()
    return f"{words[0].rstrip('.') if words else type(error).__name__}."


def _time_ns(about: Mapping[str, Any]) -> int:
    for key in _TIMES:
        value = about.get(key)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value.replace("Z", "+00:00"))
            except ValueError:
                continue
        if isinstance(value, datetime):
            return int(value.timestamp() * 1e6) * 1000
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value * 1e6) * 1000
    return -1


def _tag(about: Mapping[str, Any]) -> str:
    return next((str(about[key]) for key in _TAGS if about.get(key)), "")


class ByteSource(Protocol):
    """What is read, as `io.RawIOBase` has it."""

    def read(self, size: int, /) -> bytes | None: ...
    def seek(self, offset: int, whence: int, /) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


class FileAround(io.RawIOBase):
    """A file that is read by way of another one."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


class _Stream(FileAround):
    """A file of fsspec's whose every error is an OSError."""

    def readinto(self, buffer: Any, /) -> int:
        try:
            data = self._source.read(len(buffer)) or b""
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        buffer[: len(data)] = data
        return len(data)
