"""The directory on a local disk where a process's traces are until they are digested, and how it goes again.

Who uses it holds the file "alive" in it: the process that trains, and its children. A process that is killed holds
nothing any more, and what it left is removed when the next one starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from tb_ddp_doctor.storage.file_lock import is_locked, lock

_PREFIX = "ddp_doctor-"
_ALIVE = "alive"


def new(parent: str | os.PathLike[str] | None) -> Path:
    """The path of a directory that nobody has, in `parent` or where the system keeps temporary files."""
    return Path(parent or tempfile.gettempdir()) / f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"


def use(scratch: Path) -> BinaryIO:
    """Make the directory where there is none, and hold it until the file is closed. Raises OSError."""
    scratch.mkdir(parents=True, exist_ok=True)
    if (scratch / _ALIVE).exists():
        alive = (scratch / _ALIVE).open("rb")
        lock(alive, shared=True)
        return alive
    # Held before it has its name, or somebody might find it free.
    unnamed = scratch / f".{os.urandom(8).hex()}"
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(unnamed.open("w+b"))
        lock(file, shared=True)
        unnamed.replace(scratch / _ALIVE)
        opened.pop_all()
    return file


def leave(scratch: Path) -> None:
    """Remove the directory if nothing is left in it."""
    with contextlib.suppress(OSError):
        if set(os.listdir(scratch)) <= {_ALIVE}:
            (scratch / _ALIVE).unlink(missing_ok=True)
            scratch.rmdir()


def sweep(parent: Path) -> None:
    """Remove what this user's processes left that nobody uses any more."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            if entry.name.startswith(_PREFIX) and _is_left(entry):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_left(entry: os.DirEntry[str]) -> bool:
    about = entry.stat(follow_symlinks=False)
    is_mine = stat.S_ISDIR(about.st_mode) and (not hasattr(os, "getuid") or about.st_uid == os.getuid())
    alive = Path(entry.path, _ALIVE)
    return is_mine and alive.is_file() and not is_locked(alive)
