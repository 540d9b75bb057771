"""A process that calls a function of ours, and starts at once where that is possible.

On Linux a process of one thread is forked as it is, with all that it has imported. Under threads, as in TensorBoard, a
fork is not safe: there the processes are forked from multiprocessing's server, which has one thread and has imported
what is needed. Elsewhere a process is spawned and imports it itself.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

#: macOS' frameworks do not bear a fork.
_FORKS = sys.platform == "linux"
#: Before 3.11.1 any user of the machine could talk to the server.
_HAS_SERVER = _FORKS and sys.version_info >= (3, 11, 1)
if _FORKS:
    from multiprocessing.context import ForkProcess
if _HAS_SERVER:
    from multiprocessing.context import ForkServerProcess
    from multiprocessing.forkserver import set_forkserver_preload

#: What each process of ours imports before all else, and what the server imports besides.
_FIRST = "tb_ddp_doctor.workers.process_setup"
_OF_SERVER = "tb_ddp_doctor.workers.server_setup"
#: A thread that Python has joined is there a moment longer: how often that is waited for, s. A server takes a second.
_PAUSES_S = (0.0, 0.001, 0.002, 0.004, 0.008)
#: What they share, in the order in which it was asked for.
_shared: dict[str, None] = {}


class CleanProcess(SpawnProcess):
    """A process that does not run the script again which the parent was started with.

    A script of a user's may call us without guarding its main part; and nothing that we call in a process needs it.
    """

    @staticmethod
    def share(modules: Sequence[str]) -> None:
        """Let the processes share these modules too, imported once, unless one was started before."""
        _shared.update(dict.fromkeys(modules))
        if _HAS_SERVER:
            set_forkserver_preload([_FIRST, _OF_SERVER, *_shared])

    def __getstate__(self) -> dict[str, object]:
        # A spawned process unpickles in this order: what comes after may import numpy.
        return {"_first": _Import(_FIRST), **self.__dict__}

    @staticmethod
    def _Popen(process: BaseProcess) -> Any:  # noqa: N802 - overrides multiprocessing's
        if _FORKS and _has_one_thread():
            with _without_interrupts():
                return ForkProcess._Popen(process)
        # `multiprocessing.spawn` tells the new process of the main module that it finds here.
        with _starting:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                if _HAS_SERVER:
                    # The path of the server's socket may be too long, and the server may have died.
                    with suppress(OSError), _without_interrupts():
                        return ForkServerProcess._Popen(process)
                return SpawnProcess._Popen(process)
            finally:
                sys.modules["__main__"] = main


class _Import:
    """Imports a module where it is unpickled."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return importlib.import_module, (self._module,)


_starting = threading.Lock()


def _has_one_thread() -> bool:
    """Whether no other thread, of Python's or not, may hold a lock that a forked process would find held for ever."""
    try:
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            if len(os.listdir("/proc/self/task")) == 1:
                return True
            if threading.active_count() > 1:
                break
    except OSError:
        pass
    return False


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C is the parent's to answer, and interrupts no process that is started here."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
