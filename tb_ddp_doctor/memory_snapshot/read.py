"""Reading the snapshots of torch.cuda.memory beside traces.

Of several of one rank the one with the last number in its path is read.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from tb_ddp_doctor.findings import FileWarning, MemorySnapshot
from tb_ddp_doctor.memory_snapshot.summary import SnapshotError, summary
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.storage.time_limit import beginning
from tb_ddp_doctor.storage.unpickle import PickleError, loads
from tb_ddp_doctor.workers import pool

_log = logging.getLogger(__name__)

#: Ranks whose snapshots beside traces are read.
_BESIDE = 8
_MOST_BYTES = 256 << 20
_GZIP = b"\x1f\x8b"
_RANK = re.compile(r"(?:rank|device|gpu)[_-]?(\d{1,7})", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,7})")
_STEP = re.compile(r"step|iter|epoch|batch", re.IGNORECASE)
_FIRST_NUMBER = re.compile(r"\A(\d{1,7})(?=[_.])")


def read(files: Iterable[Path], most: int = _BESIDE) -> tuple[list[MemorySnapshot], list[FileWarning]]:
    """What the last snapshot of each rank holds, by rank, and what cannot be read; of the first `most` ranks."""
    last: dict[tuple[int, str], Path] = {}
    paths = sorted(files, key=_order)
    numbered = _numbered(paths)
    for path in paths:
        rank = numbered.get(path, _rank(path))
        last[(rank, "") if rank >= 0 else (rank, path.name)] = path
    snapshots: list[MemorySnapshot] = []
    warnings: list[FileWarning] = []
    chosen = {path: rank for (rank, _), path in sorted(last.items())[:most]}
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
            rank = chosen[Path(str(file))]
            snapshots.append(replace(attempt.result(), rank=rank if rank >= 0 else None))
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
    """What one snapshot holds, plain or gzip. Raises SnapshotError, PickleError and OSError."""
    size, data = path.stat().st_size, b""
    if size <= _MOST_BYTES:
        with path.open("rb") as file:
            data = file.read()
        if data.startswith(_GZIP):
            data = _inflated(data)
        size = len(data)
    if size > _MOST_BYTES:
        raise SnapshotError(
            f"It is larger than {_MOST_BYTES >> 20} MiB, and is not read: keep fewer events, as with "
            "torch.cuda.memory._record_memory_history(max_entries=100_000)."
        )
    return summary(loads(data), str(path), _rank(Path(str(path))))


def _inflated(data: bytes) -> bytes:
    """What gzip holds, at most a byte more than is read. Raises PickleError."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _MOST_BYTES + 1)
    except zlib.error as error:
        raise PickleError(f"It is damaged ({error}).") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _numbered(paths: Sequence[Path]) -> dict[Path, int]:
    """Ranks by a number in which alone all names differ, where these count from 0: oom_0.pickle, oom_1.pickle ...

    None where a name says its rank, or that the number is a step.
    """
    if len(paths) < 2 or any(_rank(path) >= 0 or _STEP.search(path.name) for path in paths):
        return {}
    pieces = [_NUMBER.split(path.name) for path in paths]
    differ = [place for place in zip(*pieces, strict=False) if len(set(place)) > 1]
    if len({len(parts) for parts in pieces}) > 1 or len(differ) != 1:
        return {}
    numbers = [int(number) if number.isdecimal() else -1 for number in differ[0]]
    return dict(zip(paths, numbers, strict=True)) if sorted(numbers) == list(range(len(paths))) else {}


def _rank(path: Path) -> int:
    """The rank that its name, or that of its folder, tells; -1 if none does."""
    for name in (path.name, path.parent.name):
        if named := _RANK.search(name) or _FIRST_NUMBER.search(name):
            return int(named[1])
    return -1


def _order(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,18}", str(path))]
