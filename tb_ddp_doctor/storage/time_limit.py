"""Asking a file system with a limit of time: a dead mount, or a file that never gives a byte, answers nobody."""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tb_ddp_doctor.storage import transient
from tb_ddp_doctor.storage.paths import ByteSource, FileAround, FilePath
from tb_ddp_doctor.storage.patience import patience

#: A busy network file system takes seconds at worst.
PATIENCE_S = 10.0
#: Some megabytes of an open file: at 0.3 MB a second they still come, s.
READ_PATIENCE_S = 30.0
T = TypeVar("T")


#: Threads that still wait for a path, by the path.
_waiting: dict[str, threading.Thread] = {}


def within(seconds: float, function: Callable[[], T], path: object = "") -> T:
    """What the function gives. Raises TimeoutError if it takes longer; it then goes on, in a thread that nobody awaits.

    The time is multiplied by `patience()`.

    A thread that waits for the kernel cannot be stopped, and must not keep the program from ending. While one waits for
    a `path`, no other one is started that would: each search of a directory would cost a thread.
    """
    seconds *= patience()
    key = str(path)
    before = _waiting.get(key)
    if before is not None:
        if before.is_alive():
            raise _late(seconds)
        _waiting.pop(key, None)
    given: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(function())
        except BaseException as error:  # it is raised where it was asked for
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not given:
        if key:
            _waiting[key] = thread
        raise _late(seconds)
    return given[0]


def _late(seconds: float) -> TimeoutError:
    transient.note()
    return TimeoutError(f"It did not answer within {seconds:g} s.")


def beginning(path: FilePath, most: int) -> bytes:
    """The first bytes of a file; none of what is no plain file. Raises OSError, TimeoutError among it."""

    def read() -> bytes:
        if isinstance(path, Path) and not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as file:
            return file.read(most)

    return within(PATIENCE_S, read, path)


class PatientFile(FileAround):
    """A file of which each read takes `READ_PATIENCE_S` at most; later ones then fail at once, with TimeoutError."""

    _stalled: TimeoutError | None = None

    def readinto(self, buffer: Any, /) -> int:
        if self._stalled:
            raise self._stalled
        if count := _read_at_once(self._source, buffer):
            return count
        size = len(buffer)
        try:
            # Not into the buffer itself, which is somebody else's once the read has been given up.
            data = within(READ_PATIENCE_S, lambda: self._source.read(size)) or b""
        except TimeoutError as error:
            self._stalled = error
            raise
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        # Who still reads may hold the file's lock.
        if self._stalled:
            io.RawIOBase.close(self)
        else:
            super().close()


def _read_at_once(source: ByteSource, buffer: Any) -> int:
    """Read into the buffer what the kernel has of the file in memory: nobody waits for that, and no thread is needed.

    Returns how many bytes those are: 0 at the file's end, and where the system or the file system cannot tell.
    """
    if sys.platform != "linux" or not isinstance(source, io.FileIO):
        return 0
    try:
        return os.preadv(source.fileno(), [buffer], -1, os.RWF_NOWAIT)
    except OSError:  # it is not in memory, or the slower way says what is wrong
        return 0
