"""Imports numpy as suits processes that are the doctor's own: to be imported before all that imports numpy.

- OpenBLAS starts a thread for each core as soon as it is loaded, and each of them spins for a tenth of a second of CPU
  time before it sleeps. No product of matrices here is large enough for a second one.
- Columns of millions of rows come and go by the hundred. glibc hands each one's memory back to the system, which clears
  it for the next one; here it stays with the process, which ends soon (mallopt(3)). Threads share what is freed: with a
  heap each, as glibc has it, two first plays in threads took 177 ms, 114 of them for new pages, and 43 so.
- numpy asks for huge pages for each of these columns. To clear them costs a virtual machine a fifth of the time of a
  large job; with memory that stays they save nothing.

What the user has set stands, and the environment is as before once numpy is there: what this process starts inherits
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OPENBLAS_DEFAULT_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_HUGE_PAGES = "NUMPY_MADVISE_HUGEPAGE"
#: Parameters of mallopt, by the variables that set them too: from how many bytes on the end of the heap is handed back,
#: and an array has a map of its own, which can be no more; and how many heaps there are.
_MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 1 << 30),
    "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 25),
    "MALLOC_ARENA_MAX": (-8, 1),
}


def _keep_memory() -> None:
    """Let glibc keep what is freed; other libraries have no such setting."""
    mallopt = getattr(CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    for variable, setting in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(*setting)


@contextmanager
def _environment(**settings: str) -> Iterator[None]:
    """The environment with settings that it does not have, for a while."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


_keep_memory()
_settings = {_HUGE_PAGES: "0"}
if not any(name in os.environ for name in _BLAS_THREADS):
    _settings["OPENBLAS_NUM_THREADS"] = "1"
with _environment(**_settings):
    import numpy as np  # noqa: F401 - for what it loads
