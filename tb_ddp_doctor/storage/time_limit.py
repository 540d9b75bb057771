"""Asking a file system with a limit of time: a dead mount, or a file that never gives a byte, answers nobody."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

#: A busy network file system takes seconds at worst.
PATIENCE_S = 10.0
#: Some megabytes of an open file: at 0.3 MB a second they still come, s.
READ_PATIENCE_S = 30.0
T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """What the function gives. Raises TimeoutError if it takes longer; it then goes on, in a thread that nobody awaits.

    A thread that waits for the kernel cannot be stopped, and must not keep the program from ending.
    """
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
        raise TimeoutError(f"It did not answer within {seconds:g} s.")
    return given[0]


class Source(Protocol):
    """What is read, as `io.RawIOBase` has it."""

    def read(self, size: int, /) -> bytes | None: ...
    def seek(self, offset: int, whence: int, /) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


class PatientFile(io.RawIOBase):
    """A file of which each read takes `READ_PATIENCE_S` at most; later ones then fail at once, with TimeoutError."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stalled: TimeoutError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

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
        if not self.closed and not self._stalled:
            self._source.close()
        super().close()


def _read_at_once(source: Source, buffer: Any) -> int:
    """Read into the buffer what the kernel has of the file in memory: nobody waits for that, and no thread is needed.

    Returns how many bytes those are: 0 at the file's end, and where the system or the file system cannot tell.
    """
    if sys.platform != "linux" or not isinstance(source, io.FileIO):
        return 0
    try:
        return os.preadv(source.fileno(), [buffer], -1, os.RWF_NOWAIT)
    except OSError:  # it is not in memory, or the slower way says what is wrong
        return 0
