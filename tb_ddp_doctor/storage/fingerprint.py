"""Whether anything below a directory changed, from names, sizes and times alone."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tb_ddp_doctor.storage.time_limit import PATIENCE_S, within

#: Where there is more, asking for it all takes as long as what it is asked for.
_MOST_FILES = 20_000
#: A file that was written so shortly before may change again without a sign, ns: file systems' clocks are coarse.
_SETTLED_NS = 2_000_000_000
#: In the names of folders beside traces in which NCCL's logs and snapshots of memory are looked for.
_BESIDE = ("memory", "nccl")


def fingerprint(path: Path) -> str | None:
    """A hash of all that lies below a folder, of the files beside it, and of the folders beside it that `_BESIDE`
    names; of a file, the same of its folder.

    None where that cannot be told: too much is there, something cannot be asked or was written just now.
    """
    folder = path if path.is_dir() else path.parent
    latest_ns = time.time_ns() - _SETTLED_NS
    digest = hashlib.sha256()
    try:
        for number, (name, status) in enumerate(within(PATIENCE_S, partial(_files, folder.absolute()), folder)):
            if number >= _MOST_FILES or status.st_mtime_ns > latest_ns:
                return None
            # The time of its last change of any kind: who may read it is part of what was found.
            state = f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\0"
            digest.update(state.encode(errors="surrogateescape"))
    except (OSError, TimeoutError):
        return None
    return digest.hexdigest()


def _files(root: Path) -> list[tuple[str, os.stat_result]]:
    """Paths and states of the files that `fingerprint` is of, in order; not all of more than `_MOST_FILES`."""
    beside: list[str] = []
    states = [*_listed(str(root.parent), beside)]
    seen: set[tuple[int, int]] = set()
    folders = [str(root), *(path for path in beside if any(name in Path(path).name.lower() for name in _BESIDE))]
    while folders and len(states) <= _MOST_FILES:
        folder = folders.pop()
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            states += _listed(folder, folders)
    return sorted(states, key=lambda one: one[0])


def _listed(folder: str, folders: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """A folder's files; the folders in it are added to `folders`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                folders.append(entry.path)
            elif entry.is_file():
                yield entry.path, entry.stat()
