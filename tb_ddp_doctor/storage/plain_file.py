"""Opening what anybody may have put there: a plain file, or nothing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

#: A pipe, opened otherwise, would wait for somebody to write.
_WITHOUT_WAITING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def open_plain(path: Path) -> BinaryIO:
    """A plain file to read, buffered. Raises OSError, also for pipes, sockets and devices."""
    descriptor = os.open(path, _WITHOUT_WAITING)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file")
    return open(descriptor, "rb")
