"""Files that a process holds while it lives: a lock is gone when its process is, however that ended.

Windows, and file systems without locks, hold none: there nothing is ever held.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl


def lock(file: BinaryIO, *, shared: bool = False) -> None:
    """Wait until nobody else holds an open file, or holds it alone, and hold it until it is closed."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def is_locked(path: Path) -> bool:
    """Whether another open file holds this one; False where there is none."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
