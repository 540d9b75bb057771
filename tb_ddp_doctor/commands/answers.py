"""What commands printed, kept until something that they read changes: the same question is then answered at once.

An answer is named for all that it depends on: the options, the directory's files with their sizes and times, the
terminal, and the code that made it. Giving it again takes neither numpy nor the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from tb_ddp_doctor.commands.output import Errors, complain
from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.report.escape import printable_lines
from tb_ddp_doctor.storage import transient
from tb_ddp_doctor.storage.cache_directory import default_directory
from tb_ddp_doctor.storage.fingerprint import fingerprint
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.storage.whole_file import written_whole
from tb_ddp_doctor.version import PACKAGE, __version__

#: As in `config.read`, which takes long to import.
CONFIG_NAME = "ddp-doctor.toml"
#: Longer answers are not kept.
_MOST_BYTES = 16 << 20
#: What an entry begins with: a hash of the rest.
_DIGEST_BYTES = 32
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _Answer(msgspec.Struct):
    """What a command said."""

    status: int
    printed: bytes
    complaints: tuple[str, ...]


def answered(options: argparse.Namespace, errors: Errors, command: Callable[[], int]) -> int:
    """The command's exit status, and on standard output what it prints, or printed before when asked the same."""
    entry = _entry(options)
    terminal = sys.stdout
    if not entry or not isinstance(terminal, io.TextIOWrapper):
        return command()
    if answer := _load(entry):
        terminal.flush()
        terminal.buffer.write(answer.printed)
        for sentence in answer.complaints:
            complain(errors, sentence)
        return answer.status
    since = transient.Since()
    with _recorded(terminal) as printed:
        status = command()
        sys.stdout.flush()
    # What changed meanwhile was not what was asked, and what could not be read now may be read the next time.
    if len(printed) <= _MOST_BYTES and not since.noted() and _entry(options) == entry:
        _save(entry, _Answer(status, bytes(printed), tuple(errors.complaints)))
    return status


def _entry(options: argparse.Namespace) -> Path | None:
    """Where the answer is kept; None where it depends on more than can be told, or is more than what is printed."""
    given = vars(options)
    read = [Path(given[name]) for name in (*given.get("reads", ()), "calibration") if given.get(name)]
    read += [path for path in (Path.cwd() / CONFIG_NAME,) if path.is_file()]
    writes = any(given.get(name) for name in ("html", "junit", "output", "pprof", "collapsed"))
    if not given.get("reads") or writes or options.no_cache or options.scheduler:
        return None
    if any("://" in str(location) or not location.exists() for location in read):
        return None
    directories = [fingerprint(location) for location in read]
    if None in directories:
        return None
    terminal = Console(highlight=False)
    key = (
        sorted((name, str(value)) for name, value in given.items()),
        [str(location.absolute()) for location in read],
        directories,
        (terminal.width, terminal.color_system, terminal.encoding, terminal.is_terminal, terminal.no_color),
        (sys.stdout.encoding, sys.stdout.errors, terminal.legacy_windows),
        _code(),
    )
    name = hashlib.sha256(repr(key).encode(errors="surrogateescape")).hexdigest()
    return (options.cache or default_directory()) / name[:2] / f"{name}.answer"


def _code() -> tuple[str, ...]:
    """What code there is: that which made an answer is not asked once it has changed."""
    return __version__, platform.python_version(), *sorted(_sources(PACKAGE))


def _sources(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Modules below a folder, with their sizes and times; of 600 `Path.rglob` takes milliseconds longer."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _sources(entry)
            elif entry.name.endswith(".py"):
                state = entry.stat()
                yield f"{entry.path} {state.st_size} {state.st_mtime_ns}"


def _load(entry: Path) -> _Answer | None:
    try:
        data = entry.read_bytes()
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            return None
        answer = msgspec.msgpack.decode(data[_DIGEST_BYTES:], type=known(_Answer))
        os.utime(entry)  # what is used stays
    except (OSError, *REFUSALS):
        return None
    return answer if _is_harmless(answer.printed) else None


def _is_harmless(printed: bytes) -> bool:
    """Whether a terminal obeys nothing of it but colours: who can write the cache could have put anything there."""
    text = _COLOUR.sub("", printed.decode(sys.stdout.encoding or "utf-8", "replace"))
    return printable_lines(text) == text


def _save(entry: Path, answer: _Answer) -> None:
    # A directory that cannot be written keeps nothing.
    data = msgspec.msgpack.encode(answer)
    with contextlib.suppress(OSError), written_whole(entry) as file:
        file.write(hashlib.sha256(data).digest() + data)


@contextmanager
def _recorded(terminal: io.TextIOWrapper) -> Iterator[bytearray]:
    """What is printed on standard output meanwhile."""
    terminal.flush()
    recorder = _Recorder(terminal.buffer)
    sys.stdout = io.TextIOWrapper(
        recorder, terminal.encoding, terminal.errors, line_buffering=terminal.line_buffering, write_through=True
    )
    try:
        yield recorder.written
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.detach()
        sys.stdout = terminal


class _Recorder(io.BufferedIOBase):
    """Writes on, and keeps what was written, until it is too long to be kept."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.written = bytearray()

    def write(self, data: Any) -> int:
        if len(self.written) <= _MOST_BYTES:
            self.written += bytes(data)
        size: int = self._out.write(data)
        return size

    def flush(self) -> None:
        self._out.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        terminal: bool = self._out.isatty()
        return terminal

    def fileno(self) -> int:
        number: int = self._out.fileno()
        return number
