"""How long a process's threads ran, and could not run because others had the cores, as Linux counts it.

What a rank loses so looks like a slow rank: nothing in its trace says that it was not running.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class CoreTimes(NamedTuple):
    """Of all threads of this process together, since each began, ns."""

    waited_ns: int
    ran_ns: int


def core_times() -> CoreTimes | None:
    """How long the threads of this process were ready to run without a core, and ran; None where nobody counts.

    With the wait counts what a hypervisor took of one core, which no thread of this machine knows.
    """
    counted = None
    try:
        threads = os.listdir("/proc/self/task")
        for thread in threads:
            with contextlib.suppress(OSError):  # it has ended since
                ran, waited = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[:2]
                before = counted or CoreTimes(0, 0)
                counted = CoreTimes(before.waited_ns + int(waited), before.ran_ns + int(ran))
        if counted is not None:
            stolen = int(Path("/proc/stat").read_text().split()[8])
            stolen_ns = stolen * 1_000_000_000 // os.sysconf("SC_CLK_TCK") // (os.cpu_count() or 1)
            counted = CoreTimes(counted.waited_ns + stolen_ns, counted.ran_ns)
    except (OSError, ValueError, IndexError):
        return counted
    return counted
