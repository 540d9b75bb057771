"""How long a process's threads could not run because others had the cores, as Linux counts it.

What a rank loses so looks like a slow rank: nothing in its trace says that it was not running.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def core_wait_ns() -> int | None:
    """How long the threads of this process were ready to run so far without a core, ns; None where nobody counts.

    With it counts what a hypervisor took of one core, which no thread of this machine knows.
    """
    waited = None
    try:
        threads = os.listdir("/proc/self/task")
        for thread in threads:
            with contextlib.suppress(OSError):  # it has ended since
                waited = (waited or 0) + int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
        if waited is not None:
            stolen = int(Path("/proc/stat").read_text().split()[8])
            waited += stolen * 1_000_000_000 // os.sysconf("SC_CLK_TCK") // (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return waited
    return waited
