"""What a command takes with all processes that it starts, those included that outlive it for a moment (Linux)."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took, and what it printed."""

    wall_s: float
    cpu_s: float
    #: The largest resident set of one process so far, GiB.
    peak_gib: float
    output: str
    errors: str


def cost(command: Sequence[str | Path]) -> Cost:
    """Run a command at the repository's root. Raises CalledProcessError if it fails."""
    # Whoever loses its parent becomes this process's child, so that its time is counted here.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    wall = time.perf_counter() - began
    _wait_for_all()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu, after.ru_maxrss / 2**20, done.stdout, done.stderr)


def _wait_for_all() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return
