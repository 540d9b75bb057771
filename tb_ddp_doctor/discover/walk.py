"""Which files there are: below a log directory, here or remote, and beside the traces of a run.

Every recorder's files are found here; what a file is by its name and first bytes, recorders say (`recorder.Recorder`).
Hidden files and folders are passed over: that is where rsync keeps what it has not finished.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tb_ddp_doctor.discover.recorder import Beside
from tb_ddp_doctor.discover.trace_file import Parts
from tb_ddp_doctor.storage import paths, time_limit
from tb_ddp_doctor.storage.paths import RemotePath
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.storage.time_limit import beginning, within

#: Beside the traces, files are looked for in so many folders, and so many of a recorder are taken.
_MOST_FOLDERS, _MOST_FILES = 256, 4096


def below(
    root: Path, wanted: Callable[[str, str], bool], reach: Reach, failed: Callable[[Path, OSError], None]
) -> Iterator[tuple[Parts, Path, os.stat_result | None]]:
    """Every regular file below a folder that is wanted by its name and its folder's, with its folder and its status
    (None: a link to nowhere). Each folder is entered once; those that cannot be read go to `failed`.
    """
    seen: set[tuple[int, int]] = set()
    real: list[Parts] = [()]
    # After all real folders, so that a folder that is linked to is named by its own path.
    links: list[Parts] = []
    while (real or links) and not reach.is_stopped:
        is_link = not real
        parts = links.pop(0) if is_link else real.pop()
        folder = root.joinpath(*parts)
        try:
            status, entries = within(time_limit.PATIENCE_S, partial(_list, folder, wanted), folder)
        except OSError as error:
            failed(folder, error)
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        if not reach.enters(folder, status.st_dev, is_link=is_link):
            continue
        for name, is_link, status_of_file in entries:
            if status_of_file and stat.S_ISDIR(status_of_file.st_mode):
                (links if is_link else real).append((*parts, name))
            elif wanted(name, folder.name) and (status_of_file is None or stat.S_ISREG(status_of_file.st_mode)):
                yield parts, folder / name, status_of_file


def remote(address: str, wanted: Callable[[str, str], bool]) -> tuple[str, list[tuple[Parts, RemotePath]]]:
    """The name of a remote directory, and the files below it, as `below` has them. Raises RemoteError."""
    root, files = paths.find(address)
    name = root.rpartition("/")[2]
    inside = []
    for file in files:
        *parts, own = paths.below(root, file)
        if not any(part.startswith(".") for part in (*parts, own)) and wanted(own, parts[-1] if parts else name):
            inside.append((tuple(parts), file))
    return name, inside


def beside(
    recorders: Iterable[Beside], folders: Iterable[Path], run: Path, may_read: Callable[[Path], bool] = lambda _: True
) -> dict[type[Beside], list[Path]]:
    """The files of each recorder, of those that `may_read` allows, for a run whose traces lie in `folders` below `run`.

    Looked at are the run's folder, those of its traces and the one above, in this order, and folders there whose name
    has the recorder's `within`. Raises OSError, and TimeoutError if folders do not answer.
    """
    of_recorder: dict[Beside, dict[Path, None]] = {recorder: {} for recorder in recorders}
    places = [*dict.fromkeys([run, *folders, run.parent])][:_MOST_FOLDERS]

    def look() -> None:
        for folder in places:
            _look(folder, list(of_recorder), 0, of_recorder)

    within(time_limit.PATIENCE_S, look, run)
    return {
        type(recorder): [path for path in [*files][:_MOST_FILES] if may_read(path) and begins(recorder, path)]
        for recorder, files in of_recorder.items()
    }


def _look(folder: Path, recorders: Sequence[Beside], depth: int, of_recorder: dict[Beside, dict[Path, None]]) -> None:
    """Add the files of recorders in a folder, then those in folders there."""
    try:
        with os.scandir(folder) as listed:
            entries = _visible(listed)
    except OSError:
        return
    for entry in entries:
        for recorder in recorders:
            if recorder.matches(entry.name) and _is(entry, stat.S_ISREG):
                of_recorder[recorder][folder / entry.name] = None
    for entry in entries:
        further = [
            recorder
            for recorder in recorders
            if depth < recorder.depth
            and (depth or recorder.within in entry.name.lower())
            and len(of_recorder[recorder]) < _MOST_FILES
        ]
        if further and _is(entry, stat.S_ISDIR):
            _look(folder / entry.name, further, depth + 1, of_recorder)


def begins(recorder: Beside, path: Path) -> bool:
    """Whether a file begins as the recorder's do; also if it does not answer, which is said when it is read."""
    if not recorder.head_bytes:
        return True
    try:
        return recorder.begins(beginning(path, recorder.head_bytes))
    except TimeoutError:
        return True
    except OSError:
        return False


def _list(
    folder: Path, wanted: Callable[[str, str], bool]
) -> tuple[os.stat_result, list[tuple[str, bool, os.stat_result | None]]]:
    """A folder's status and what is visible in it, by name: whether it is a link, and its status (None: to nowhere).

    Of what is neither wanted nor a folder, nobody asks a network file system for the status.
    """
    status = folder.stat()
    with os.scandir(folder) as entries:
        return status, [
            (entry.name, entry.is_symlink(), _status(entry))
            for entry in _visible(entries)
            if wanted(entry.name, folder.name) or _is_folder(entry)
        ]


def _visible(entries: Iterable[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is(entry: os.DirEntry[str], kind: Callable[[int], bool]) -> bool:
    """Whether an entry is of a kind: reading a pipe or a device may never end."""
    status = _status(entry)
    return status is not None and kind(status.st_mode)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:
        return None
