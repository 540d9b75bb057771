"""Finding snapshots of torch.cuda.memory beside traces, and reading them.

Looked at are the folders of the traces, the run's folder and the one above, and below these folders whose names say
"memory", three levels deep (torchtitan: `memory_snapshot/step_10/rank0_memory_snapshot.pickle`). Of several of one rank
the one with the last number in its path is read. A snapshot is known by its first bytes.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tb_ddp_doctor.findings import FileWarning, MemorySnapshot
from tb_ddp_doctor.memory_snapshot.summary import SnapshotError, summary
from tb_ddp_doctor.storage import time_limit
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.storage.time_limit import beginning, within
from tb_ddp_doctor.storage.unpickle import PickleError, loads
from tb_ddp_doctor.workers import pool

_log = logging.getLogger(__name__)

_NAMED = (".pickle", ".pkl")
_MEMORY = "memory"
_DEEPEST, _MOST_FILES, _MOST_RANKS = 3, 4096, 8
_HEAD_BYTES, _MOST_BYTES = 4096, 256 << 20
_KEYS = (b"segments", b"device_traces")
_RANK = re.compile(r"(?:rank|device|gpu)[_-]?(\d{1,7})", re.IGNORECASE)
_FIRST_NUMBER = re.compile(r"\A(\d{1,7})(?=[_.])")


def find(folders: Iterable[Path], run: Path) -> list[Path]:
    """The files that begin as snapshots do, for a run whose traces lie in `folders` below `run`."""
    places = list(dict.fromkeys([run, *folders, run.parent]))
    found = within(time_limit.PATIENCE_S, lambda: _listed(places), run)
    return [path for path in found if _is_snapshot(path)]


def _listed(places: Iterable[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for folder in places:
        found.update(dict.fromkeys(_files(folder, 0)))
        if len(found) >= _MOST_FILES:
            break
    return list(found)[:_MOST_FILES]


def read(files: Iterable[Path]) -> tuple[list[MemorySnapshot], list[FileWarning]]:
    """What the last snapshot of each rank holds, by rank, and what cannot be read."""
    last: dict[tuple[int, str], Path] = {}
    for path in sorted(files, key=_order):
        rank = _rank(path)
        last[(rank, "") if rank >= 0 else (rank, path.name)] = path
    snapshots: list[MemorySnapshot] = []
    warnings: list[FileWarning] = []
    chosen = {path: rank for (rank, _), path in sorted(last.items())[:_MOST_RANKS]}
    for path in list(chosen):
        try:
            beginning(path, 1)
        except TimeoutError as error:
            warnings.append(FileWarning(str(path), f"Left out: {error}"))
            del chosen[path]
        except OSError:
            pass  # said below
    attempts = pool.run(
        read_one, [(path, _size(path)) for path in chosen], gives=MemorySnapshot, raises=(SnapshotError, PickleError)
    )
    for file, attempt in attempts:
        try:
            snapshots.append(attempt.result())
        except (SnapshotError, PickleError, pool.CrashError) as error:
            warnings.append(FileWarning(str(file), f"As a snapshot of memory: {error}"))
        except OSError as error:
            warnings.append(FileWarning(str(file), f"It cannot be read ({error.strerror or error})."))
        except Exception as error:
            _log.debug("reading %s failed", file, exc_info=True)
            warnings.append(
                FileWarning(str(file), f"As a snapshot of memory: reading it failed ({type(error).__name__}).")
            )
    order = {str(path): place for place, path in enumerate(chosen)}
    return sorted(snapshots, key=lambda one: order.get(one.file, -1)), warnings


def read_one(path: FilePath) -> MemorySnapshot:
    """What one snapshot holds. Raises SnapshotError, PickleError and OSError."""
    if path.stat().st_size > _MOST_BYTES:
        raise SnapshotError(
            f"It is larger than {_MOST_BYTES >> 20} MiB, and is not read: keep fewer events, as with "
            "torch.cuda.memory._record_memory_history(max_entries=100_000)."
        )
    with path.open("rb") as file:
        return summary(loads(file.read()), str(path), _rank(Path(str(path))))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        is_folder = _mode(entry, stat.S_ISDIR)
        if entry.name.lower().endswith(_NAMED) and _mode(entry, stat.S_ISREG):
            yield folder / entry.name
        elif is_folder and depth < _DEEPEST and (depth > 0 or _MEMORY in entry.name.lower()):
            yield from _files(folder / entry.name, depth + 1)


def _mode(entry: os.DirEntry[str], test: Callable[[int], bool]) -> bool:
    try:
        return test(entry.stat().st_mode)
    except OSError:
        return False


def _is_snapshot(path: Path) -> bool:
    try:
        head = beginning(path, _HEAD_BYTES)
    except TimeoutError:
        return True  # it is said of it when it is to be read
    except OSError:
        return False
    return head.startswith(b"\x80") and any(key in head for key in _KEYS)


def _rank(path: Path) -> int:
    """The rank that its name, or that of its folder, tells; -1 if none does."""
    for name in (path.name, path.parent.name):
        if found := _RANK.search(name) or _FIRST_NUMBER.search(name):
            return int(found[1])
    return -1


def _order(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,18}", str(path))]
