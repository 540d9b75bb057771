"""What a process may take to read a file of a size, and how it is held to it: time, CPU time and memory.

The kernel counts both: a limit holds in C code too, and whatever a file does to a parser. Where the system has no such
limits (Windows, macOS' memory), the deadline alone holds. Times are multiplied by `patience()`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from tb_ddp_doctor.storage.patience import patience

if sys.platform != "win32":
    import resource

#: What every file may take: a small one takes a hundredth of that. With the process itself these are 512 MB, and small
#: files, compressed or not, may take no more.
_SURE_S = 30.0
_SURE_CPU_S = 20.0
_SURE_BYTES = 384 << 20
#: Beyond that, what a file may take by its size: slow mounts give 0.3 MB a second, the slowest reader takes 10 MB of
#: JSON a second, and columns with what is made of them are as large as the JSON.
_SMALL_BYTES = 2 << 20
_BYTES_PER_S = 100_000
_BYTES_PER_CPU_S = 4_000_000
_BYTES_PER_BYTE = 4
#: What is made of a file to be handed back: a digest has a tenth of its trace, columns half of it.
_SURE_ANSWER_BYTES = 64 << 20


#: The soft limits that the user has set, by their number, of those that were changed here.
_given: dict[int, int] = {}


class Limits(msgspec.Struct, frozen=True):
    """What reading one file may take."""

    #: Until the answer must be there, without the time for which other processes have the cores (see `kept_waiting_s`).
    seconds: float
    cpu_s: float
    #: Of memory, beside what the process itself has.
    bytes: int
    #: Of the answer, which the process that asked takes into its own memory.
    answer_bytes: int = 1 << 62


def limits_for(size: int, unpacked: int) -> Limits:
    """What a file may take that has so many bytes on disk, and as many once it is unpacked, by an estimate."""
    is_small = size <= _SMALL_BYTES
    outside, unpacked = (0, 0) if is_small else (size, unpacked)
    return Limits(
        patience() * (_SURE_S + outside / _BYTES_PER_S),
        patience() * (_SURE_CPU_S + unpacked / _BYTES_PER_CPU_S),
        _SURE_BYTES + _BYTES_PER_BYTE * unpacked,
        _SURE_ANSWER_BYTES + unpacked,
    )


def shared_cpu_s(size: int, unpacked: int, parts: int) -> float:
    """CPU time that the parts of a file may take together, s.

    The parts of a small file may take as much as a file of one part. Of a large file each process that reads parts of
    it reads all of it, and there may be a process for each part.
    """
    return patience() * (_SURE_CPU_S + (0.0 if size <= _SMALL_BYTES else parts * unpacked / _BYTES_PER_CPU_S))


def limit(limits: Limits) -> None:
    """Hold this process to the limits from now on, in place of those before."""
    if sys.platform == "win32":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CORE, 0)
    # The kernel then sends SIGXCPU, which ends the process.
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + limits.cpu_s) + 1)
    if sys.platform == "linux":
        # Private memory alone: what is mapped of files is not theirs.
        _limit(resource.RLIMIT_DATA, _own_bytes() + limits.bytes)


def release() -> None:
    """Hold this process to no limits but the user's, until `limit` is called again; what it has then is its own."""
    if sys.platform == "win32":
        return
    for which, soft in _given.items():
        with suppress(OSError, ValueError):
            resource.setrlimit(which, (soft, resource.getrlimit(which)[1]))
    _own_bytes.cache_clear()


def own_bytes() -> int:
    """Private memory of this process, bytes; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def kept_waiting_s(pid: int | None) -> float:
    """How long a process could have run and other processes had the cores, s; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _limit(which: int, most: int) -> None:
    """Set a limit, as far as the one that the user has set allows it."""
    soft, hard = resource.getrlimit(which)
    _given.setdefault(which, soft)
    with suppress(OSError, ValueError):
        resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


@cache
def _own_bytes() -> int:
    """Private memory of this process when its first file comes: what it frees later it may use again."""
    return own_bytes() or 1 << 30
