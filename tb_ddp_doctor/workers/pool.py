"""Calls one function per file in other processes: as many as cores and memory allow, and a crash costs one file.

The processes are spawned, since forking is not safe under TensorBoard's threads. A pool whose process dies loses all
that it was doing, so no more files are handed to it than it has processes; those that were under way are then tried
again one by one, each in a process of its own, and the one that dies again is named.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from tb_ddp_doctor.storage.paths import FilePath

T = TypeVar("T")
#: A path and its size on disk, bytes.
File: TypeAlias = tuple[FilePath, int]

#: Memory of a process that reads a trace: itself, and its columns as a share of the JSON (benchmarks/read.py).
_PROCESS_BYTES = 120 << 20
_COLUMNS_SHARE = 0.4
#: Bytes of JSON in a byte of a gzipped trace.
_GZIP_RATIO = 16
#: Share of the free memory to plan with.
_MEMORY_SHARE = 0.7
#: Below this many bytes of JSON in all, starting processes takes longer than reading.
_WORTH_PROCESSES = 150 << 20
#: How often a wait looks whether it was cancelled, s.
_HEARTBEAT_S = 0.2


class CancelledError(Exception):
    """The work was cancelled; files under way are finished and dropped."""


class CrashError(Exception):
    """The process that worked on a file died. Its text is a sentence for users."""


def run(
    function: Callable[[FilePath], T],
    files: Sequence[File],
    *,
    executor: Executor | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[tuple[FilePath, Future[T]]]:
    """Call `function`, which other processes must be able to import, for each file; yield futures as they finish.

    Runs through `executor`, else in processes of its own where that pays. A future's exception is the function's, or
    CrashError. Raises CancelledError soon after `cancelled` is set.
    """
    stop = cancelled or threading.Event()
    # Largest first: nobody waits at the end for one large file.
    paths = [path for path, _ in sorted(files, key=lambda file: -json_bytes(*file))]
    if executor is not None:
        yield from _finished({executor.submit(function, path): path for path in paths}, stop)
    elif len(files) < 2 or sum(json_bytes(*file) for file in files) < _WORTH_PROCESSES:
        for path in paths:
            _check(stop)
            yield path, _here(function, path)
    else:
        yield from _in_processes(function, paths, workers_for(files, cores=_cores(), free_bytes=_free_bytes()), stop)


def workers_for(files: Sequence[File], *, cores: int, free_bytes: int) -> int:
    """How many files may be read at once: one per core, as long as the largest ones fit into memory together."""
    needs = sorted((_PROCESS_BYTES + round(_COLUMNS_SHARE * json_bytes(*file)) for file in files), reverse=True)
    budget, workers = free_bytes * _MEMORY_SHARE, 0
    for need in needs[:cores]:
        budget -= need
        if budget < 0:
            break
        workers += 1
    return max(workers, 1)


def json_bytes(path: FilePath, size: int) -> int:
    """Bytes of JSON in a file, estimated from its size on disk."""
    return size * _GZIP_RATIO if path.suffix == ".gz" else size


def _in_processes(
    function: Callable[[FilePath], T], paths: list[FilePath], workers: int, stop: threading.Event
) -> Iterator[tuple[FilePath, Future[T]]]:
    waiting = list(reversed(paths))
    while waiting:
        running: dict[Future[T], FilePath] = {}
        suspects: list[FilePath] = []
        with _pool(workers) as pool:
            while _fill(pool, function, waiting, running, workers) and not suspects:
                for path, future in _finished(running, stop, one=True):
                    if isinstance(future.exception(), BrokenProcessPool):
                        suspects.append(path)
                    else:
                        yield path, future
        for path in suspects + list(running.values()):
            _check(stop)
            yield path, _alone(function, path)


def _fill(
    pool: Executor,
    function: Callable[[FilePath], T],
    waiting: list[FilePath],
    running: dict[Future[T], FilePath],
    workers: int,
) -> bool:
    """Hand the pool as many files as it has workers; returns whether any is under way."""
    # A process may die between two files: then submitting fails, and the file that waits is not to blame.
    with suppress(BrokenProcessPool):
        while waiting and len(running) < workers:
            future = pool.submit(function, waiting[-1])
            running[future] = waiting.pop()
    return bool(running)


def _finished(
    running: dict[Future[T], FilePath], stop: threading.Event, *, one: bool = False
) -> Iterator[tuple[FilePath, Future[T]]]:
    """Take futures out of `running` as they finish: all, or those that finish first."""
    while running:
        done, _ = wait(running, timeout=_HEARTBEAT_S, return_when=FIRST_COMPLETED)
        if stop.is_set():
            for future in running:
                future.cancel()
        _check(stop)
        for future in done:
            yield running.pop(future), future
        if one and done:
            return


def _here(function: Callable[[FilePath], T], path: FilePath) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(function(path))
    except Exception as error:
        future.set_exception(error)
    return future


def _alone(function: Callable[[FilePath], T], path: FilePath) -> Future[T]:
    """Do it in a process of its own."""
    with _pool(1) as pool:
        future = pool.submit(function, path)
        wait([future])
    if not isinstance(future.exception(), BrokenProcessPool):
        return future
    crashed: Future[T] = Future()
    crashed.set_exception(CrashError("The process that read it died, perhaps for want of memory."))
    return crashed


class _Process(SpawnProcess):
    """A spawned process that does not run the script again which the parent was started with.

    A script of a user's may call us without guarding its main part; and nothing that we call in a process needs it.
    """

    @staticmethod
    def _Popen(process: BaseProcess) -> Any:  # noqa: N802 - overrides multiprocessing's
        # `multiprocessing.spawn` tells the new process of the main module that it finds here.
        with _starting:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                return SpawnProcess._Popen(process)
            finally:
                sys.modules["__main__"] = main


class _Spawning(SpawnContext):
    Process = _Process


_starting = threading.Lock()


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    # Ctrl-C is the parent's to answer: workers end with the file they are at.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=_Spawning(),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise CancelledError


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _free_bytes() -> int:
    """Free memory of the machine, or of the control group, as containers have it."""
    import psutil

    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return int(free)
