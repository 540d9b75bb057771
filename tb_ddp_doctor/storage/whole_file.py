"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

#: Written at once, bytes: hundreds of megabytes of small events are then hundreds of calls, not tens of thousands.
_BUFFER = 1 << 20


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its place when all of it is there; otherwise nothing is left of it.

    Folders are made as needed. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not `tempfile`, whose files nobody else may read: a directory on NFS may be a team's.
    unfinished = path.with_name(f".new-{os.urandom(8).hex()}")
    try:
        with unfinished.open("xb", buffering=_BUFFER) as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def check_output(path: Path) -> None:
    """Raise ValueError, with a sentence, where this file cannot be written: before the work, not after it."""
    folder = path.absolute().parent
    if not folder.exists():
        raise ValueError(f"{path} cannot be written: there is no folder {folder}.")
    if not folder.is_dir():
        raise ValueError(f"{path} cannot be written: {folder} is a file.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"{path} cannot be written: permission denied.")
