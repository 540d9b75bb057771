"""Where NCCL's logs may be: text files beside the traces.

Taken are files with "nccl" in their name, and other `.log`, `.txt`, `.out` and `.err` (a job's own output), in the
folders of the run's traces, in the run's folder and the one above, and in folders there with "nccl" in their name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_MOST_FOLDERS = 256
_TEXT = (".log", ".txt", ".out", ".err")
_NO_TEXT = (".json", ".gz", ".zst", ".xml", ".so", ".py", ".pb", ".bin", ".pt", ".digest", ".csv", ".whl", ".deb")


def find_logs(folders: Iterable[Path], run: Path) -> list[Path]:
    """The files that may be logs of NCCL, for a run whose traces lie in `folders` below `run`."""
    found: dict[Path, None] = {}
    looked: set[Path] = set()
    for folder in [*dict.fromkeys([run, *folders, run.parent])][:_MOST_FOLDERS]:
        for place in (folder, *_named_for_nccl(folder)):
            if place not in looked:
                looked.add(place)
                found.update(dict.fromkeys(_files(place)))
    return list(found)


def _named_for_nccl(folder: Path) -> list[Path]:
    return [
        folder / entry.name for entry in _entries(folder) if "nccl" in entry.name.lower() and _is(entry, folder=True)
    ]


def _files(folder: Path) -> Iterator[Path]:
    for entry in _entries(folder):
        name = entry.name.lower()
        wanted = name.endswith(_TEXT) or ("nccl" in name and not name.endswith(_NO_TEXT))
        if wanted and _is(entry, folder=False):
            yield folder / entry.name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError:
        return []


def _is(entry: os.DirEntry[str], *, folder: bool) -> bool:
    """Whether it is a folder, or else a plain file: reading a pipe or a device may never end."""
    try:
        mode = entry.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)
