"""The CPU cores that this process may use, by its affinity and its control groups; Linux tells, others their number."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def cores() -> float:
    """Cores' worth of time that this process may use: its affinity, and its control groups' quotas."""
    return min(float(len(allowed()) or os.cpu_count() or 1), quota())


def allowed() -> tuple[int, ...]:
    """The numbers of the CPUs that this process may run on; empty where the system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Run the calling thread on one CPU. Raises OSError where the system refuses."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def quota(own: Path = _OWN_GROUPS, groups: Path = _GROUPS) -> float:
    """Cores' worth of time that the control groups of this process and those around them allow; inf without a limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return math.inf
    limits = [math.inf]
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            limits += [_ratio(folder / "cpu.max") for folder in _upwards(groups, path)]
        elif "cpu" in controllers.split(","):
            for folder in _upwards(groups / "cpu", path):
                limits.append(_ratio(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"))
    return min(limits)


def _upwards(root: Path, path: str) -> list[Path]:
    """A group's folder and those above it. In a container its path may be the host's: then the root is its own."""
    folder = root.joinpath(*Path(path).parts[1:])
    return [one for one in (folder, *folder.parents) if one == root or root in one.parents]


def _ratio(*files: Path) -> float:
    """Quota over period, which stand in one file or in two; inf where there is no limit, and where nothing tells."""
    try:
        numbers = [int(word) for file in files for word in file.read_text().split()]
    except (OSError, ValueError):  # "max"
        return math.inf
    if len(numbers) != 2 or min(numbers) <= 0:  # -1: none
        return math.inf
    return numbers[0] / numbers[1]


def compact(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: "0-3,8"."""
    starts = [n for i, n in enumerate(numbers) if i == 0 or numbers[i - 1] != n - 1]
    ends = [n for i, n in enumerate(numbers) if i == len(numbers) - 1 or numbers[i + 1] != n + 1]
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in zip(starts, ends, strict=True))


def expanded(ranges: str) -> list[int]:
    """The numbers of "0-3,8"."""
    pairs = [part.partition("-") for part in ranges.split(",") if part]
    return [number for first, _, last in pairs for number in range(int(first), int(last or first) + 1)]
