"""Calls one function per file in other processes: as many as cores and memory allow, and a crash costs one file.

Each process has a pipe to the parent that is its alone: whenever it dies, be it in the middle of an answer, its pipe
ends and the other processes go on. Its file is tried again by itself, with all of the memory, and named if its process
dies again.

`ProcessPoolExecutor` and pebble's pool share a pipe or queue among all workers, behind locks: a worker that the kernel
kills while it holds one leaves the others without. With 400 short tasks and one kill at a random time, 1 of 40 runs
hung under the first, and 6 of 40 under pebble 5.2.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.connection import wait as wait_for_pipes
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.workers.process import Process

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
    imports: Sequence[str] = (),
    executor: Executor | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[tuple[FilePath, Future[T]]]:
    """Call `function`, which other processes must be able to import, for each file; yield futures as they finish.

    Runs through `executor`, else in processes of its own where that pays. `imports` names modules that it takes, which
    are then imported once for all processes. A future's exception is the function's, or CrashError. Raises
    CancelledError soon after `cancelled` is set.
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
        Process.share(imports)
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
    function: Callable[[FilePath], T], paths: Sequence[FilePath], workers: int, stop: threading.Event
) -> Iterator[tuple[FilePath, Future[T]]]:
    died: list[FilePath] = []
    yield from _shared_out(function, paths, workers, stop, died)
    for path in died:
        again: list[FilePath] = []
        yield from _shared_out(function, [path], 1, stop, again)
        if again:
            yield path, _failed(CrashError("The process that read it died, perhaps for want of memory."))


def _shared_out(
    function: Callable[[FilePath], T],
    paths: Sequence[FilePath],
    workers: int,
    stop: threading.Event,
    died: list[FilePath],
) -> Iterator[tuple[FilePath, Future[T]]]:
    """Hand each process one file after the other; those whose process died go to `died`."""
    waiting = list(reversed(paths))
    idle: list[Connection] = []
    busy: dict[Connection, FilePath] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                pipe, path = idle.pop() if idle else _started(function), waiting.pop()
                busy[pipe] = path
                with suppress(OSError):  # it is dead, as the wait below finds
                    pipe.send(path)
            ready = wait_for_pipes(list(busy), timeout=_HEARTBEAT_S)
            for pipe in [pipe for pipe in busy if pipe in ready]:
                path = busy.pop(pipe)
                try:
                    answer = pipe.recv_bytes()
                except (EOFError, OSError):
                    pipe.close()
                    died.append(path)
                else:
                    idle.append(pipe)
                    yield path, _unpacked(answer)
            _check(stop)
    finally:
        for pipe in [*idle, *busy]:
            pipe.close()


#: The parent's ends of its processes' pipes.
_OURS: WeakSet[Connection] = WeakSet()


def _close_inherited() -> None:
    """A forked process has the parent's ends of all pipes, and would keep them from ending."""
    for pipe in [*_OURS]:
        pipe.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_inherited)


def _started(function: Callable[[FilePath], T]) -> Connection:
    """The end of a pipe at whose other end a new process calls the function for each path."""
    ours, theirs = Pipe()
    _OURS.add(ours)
    with theirs:
        Process(target=_serve, args=(theirs, function)).start()
    return ours


def _serve(pipe: Connection, function: Callable[[FilePath], T]) -> None:
    # Ctrl-C is the parent's to answer: a process ends with the file that it is at, when its pipe is closed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(_packed(function, pipe.recv()))


def _packed(function: Callable[[FilePath], T], path: FilePath) -> bytes:
    """What the function gives, or its exception with the traceback, which exceptions lose on the way."""
    try:
        return pickle.dumps((function(path), None, ""))
    except Exception as error:
        where = traceback.format_exc()
        try:
            return pickle.dumps((None, error, where))
        except Exception:
            return pickle.dumps((None, RuntimeError(repr(error)), where))


def _unpacked(answer: bytes) -> Future[T]:
    try:
        result, error, where = pickle.loads(answer)  # noqa: S301 - from a process of our own
    except Exception as odd:
        return _failed(odd)
    if error is not None:
        error.__cause__ = RuntimeError(where)
        return _failed(error)
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _finished(running: dict[Future[T], FilePath], stop: threading.Event) -> Iterator[tuple[FilePath, Future[T]]]:
    """Take futures out of `running` as they finish."""
    while running:
        done, _ = wait(running, timeout=_HEARTBEAT_S, return_when=FIRST_COMPLETED)
        if stop.is_set():
            for future in running:
                future.cancel()
        _check(stop)
        for future in done:
            yield running.pop(future), future


def _here(function: Callable[[FilePath], T], path: FilePath) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(function(path))
    except Exception as error:
        return _failed(error)
    return future


def _failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise CancelledError


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows, which cannot wait for more than 63 pipes
        return min(os.cpu_count() or 1, 60)


def _free_bytes() -> int:
    """Free memory of the machine, or of the control group, as containers have it."""
    import psutil

    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return int(free)
