"""Calls one function per file in other processes: as many as cores and memory allow, and a crash costs one file.

Every file is read so, however small: a parser that a file makes run for ever, or take all memory, takes a process that
can be ended, never TensorBoard or the command. Each file has limits by its size (`limits`); what beyond them it would
take is not given, and its process is ended. What comes back is read by its type (`storage.message`): nothing that a
file makes of a parser can run here.

Ranks that were merged into one file share its limits: a small file that names hundreds of ranks would otherwise take
hundreds of times what a file may take.

Each process has a pipe to the parent that is its alone: whenever it dies, be it in the middle of an answer, its pipe
ends and the other processes go on. Its file is tried again by itself, with all of the memory, and named if its process
dies again.

`ProcessPoolExecutor` and pebble's pool share a pipe or queue among all workers, behind locks: a worker that the kernel
kills while it holds one leaves the others without. With 400 short tasks and one kill at a random time, 1 of 40 runs
hung under the first, and 6 of 40 under pebble 5.2.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_pipes
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.storage import transient
from tb_ddp_doctor.storage.message import packed, unpacked
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath, RemotePath
from tb_ddp_doctor.workers import answers
from tb_ddp_doctor.workers.limits import Limits, kept_waiting_s, limit, limits_for, shared_cpu_s
from tb_ddp_doctor.workers.process import CleanProcess

CrashError = answers.CrashError
LimitError = answers.LimitError
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
_TAKEN = "Reading the ranks that were merged into its file takes more in all than a file of its size needs."
#: How often a wait looks whether it was cancelled, s.
_HEARTBEAT_S = 0.2


class CancelledError(Exception):
    """The work was cancelled; files under way are finished and dropped."""


def _nothing() -> None:
    """What there is to do meanwhile, by default."""


#: What processes that read files take, by default. numpy imports numpy.ma when np.unique is first called: once before
#: processes are forked is cheaper than once in each.
READERS = ("tb_ddp_doctor.cache", "tb_ddp_doctor.digest.build", "tb_ddp_doctor.trace.reader", "numpy.ma")


def run(
    function: Callable[[FilePath], T],
    files: Sequence[File],
    *,
    gives: Any,
    raises: Sequence[type[Exception]] = (),
    imports: Sequence[str] = READERS,
    executor: Executor | None = None,
    cancelled: threading.Event | None = None,
    meanwhile: Callable[[], object] = _nothing,
) -> Iterator[tuple[FilePath, Future[T]]]:
    """Call `function`, which other processes must be able to import, for each file; yield futures as they finish.

    Runs through `executor`, else in processes of its own: one where more would not pay. What the function returns has
    to be of the type `gives`. `imports` names modules that it takes, which are then imported once for all processes;
    what this one has to do before it takes an answer, `meanwhile`, it does once while the others are at work. A
    future's exception is the function's, as one of `raises` or of Python's own, or CrashError. Raises CancelledError
    soon after `cancelled` is set.
    """
    stop = cancelled or threading.Event()
    # Largest first: nobody waits at the end for one large file.
    ordered = sorted(files, key=lambda file: -json_bytes(*file))
    if executor is not None:
        yield from _finished({executor.submit(function, path): path for path, _ in ordered}, stop)
        return
    for path, _ in ordered:
        if is_of_this_process(path):
            _check(stop)
            yield path, _here(function, path)
    ordered = [file for file in ordered if not is_of_this_process(file[0])]
    CleanProcess.share(imports)
    pays = len(files) > 1 and sum(json_bytes(*file) for file in files) >= _WORTH_PROCESSES
    workers = workers_for(files, cores=_cores(), free_bytes=_free_bytes()) if pays else 1
    tasks = [_Task(path, limits_for(size, json_bytes(path, size)), size) for path, size in ordered]
    yield from _in_processes(_Calls(function, gives, tuple(raises)), tasks, workers, stop, meanwhile)


def call(
    function: Callable[[Any], T], argument: Any, size: int, *, gives: Any, raises: Sequence[type[Exception]] = ()
) -> T:
    """What `function` makes of an argument in a process of its own, with the limits of a file of so many bytes.

    Raises what the function does, as `run` has it, and CrashError.
    """
    ((_, attempt),) = run(function, [(argument, size)], gives=gives, raises=raises)
    return attempt.result()


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


def json_bytes(path: object, size: int) -> int:
    """Bytes of JSON in a file, estimated from its size on disk."""
    return size * _GZIP_RATIO if getattr(path, "suffix", "") == ".gz" else size


class _Calls(msgspec.Struct, frozen=True):
    """What processes are started for."""

    function: Callable[[Any], Any]
    gives: Any
    raises: tuple[type[Exception], ...]


class _Task(msgspec.Struct, frozen=True):
    """What a process is given."""

    path: FilePath
    limits: Limits
    #: On disk, bytes; of one part of a file, as much as of the others.
    size: int = 0


def _in_processes(
    calls: _Calls, tasks: Sequence[_Task], workers: int, stop: threading.Event, meanwhile: Callable[[], object]
) -> Iterator[tuple[FilePath, Future[Any]]]:
    died: list[_Task] = []
    shared = _Shared.of(tasks)
    yield from _shared_out(calls, tasks, workers, stop, died, shared, meanwhile)
    for task in died:
        again: list[_Task] = []
        yield from _shared_out(calls, [task], 1, stop, again, shared)
        if again:
            yield task.path, _failed(CrashError("The process that read it died, perhaps for want of memory."))


class _Shared:
    """What the parts of each file of several may still take together."""

    def __init__(self, cpu_s: dict[Path, float]) -> None:
        #: CPU time, s, of the files of which more than one part is read.
        self._cpu_s = cpu_s

    @classmethod
    def of(cls, tasks: Sequence[_Task]) -> _Shared:
        sizes: defaultdict[Path, list[int]] = defaultdict(list)
        for task in tasks:
            if isinstance(task.path, ProcessPath):
                sizes[task.path.file].append(task.size)
        return cls(
            {
                file: shared_cpu_s(sum(parts), json_bytes(file, sum(parts)), len(parts))
                for file, parts in sizes.items()
                if len(parts) > 1
            }
        )

    def limits(self, task: _Task) -> Limits | None:
        """What a task may take; None where others of its file have taken all."""
        remaining = self._cpu_s.get(task.path.file) if isinstance(task.path, ProcessPath) else None
        if remaining is None:
            return task.limits
        return replace(task.limits, cpu_s=min(remaining, task.limits.cpu_s)) if remaining > 0 else None

    def take(self, task: _Task, cpu_s: float) -> None:
        """Note what a task took; all that is left, where it took more than it may."""
        if isinstance(task.path, ProcessPath) and task.path.file in self._cpu_s:
            self._cpu_s[task.path.file] -= cpu_s


def _shared_out(
    calls: _Calls,
    tasks: Sequence[_Task],
    workers: int,
    stop: threading.Event,
    died: list[_Task],
    shared: _Shared,
    meanwhile: Callable[[], object] = _nothing,
) -> Iterator[tuple[FilePath, Future[Any]]]:
    """Hand each process one file after the other; those whose process died of no limit go to `died`."""
    waiting = list(reversed(tasks))
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                task = waiting.pop()
                limits = shared.limits(task)
                if limits is None:
                    transient.note()
                    yield task.path, _failed(LimitError(_TAKEN))
                    continue
                worker = idle.pop() if idle else _Worker(calls)
                busy.append(worker)
                worker.begin(task, limits)
            meanwhile()
            meanwhile = _nothing
            ready = wait_for_pipes([worker.pipe for worker in busy], timeout=_HEARTBEAT_S)
            for worker in [worker for worker in busy if worker.pipe in ready or worker.is_late()]:
                busy.remove(worker)
                attempt = worker.result()
                shared.take(worker.task, worker.cpu_s)
                if attempt is not None:
                    yield worker.task.path, attempt
                else:
                    died.append(worker.task)
                if not worker.ended:
                    idle.append(worker)
            _check(stop)
    finally:
        for worker in [*idle, *busy]:
            worker.pipe.close()


class _Worker:
    """A process that calls a function for one file after the other."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._process, self.pipe = answers.started(_serve, calls.function)
        self.ended = False
        #: What the last task took, s; without end where that was more than it may.
        self.cpu_s = 0.0

    def begin(self, task: _Task, limits: Limits) -> None:
        """Hand it a task, with limits that may be less than the task's."""
        self.task, self._limits, self.cpu_s = task, limits, 0.0
        self._until = time.monotonic() + limits.seconds - kept_waiting_s(self._process.pid)
        with suppress(OSError):  # it is dead, as whoever waits for the pipe finds
            self.pipe.send((task.path, limits))

    def is_late(self) -> bool:
        now = time.monotonic()
        return now > self._until and now > self._until + kept_waiting_s(self._process.pid)

    def result(self) -> Future[Any] | None:
        """What came of the task; None if the process died of it, though not of a limit. To be asked once."""
        try:
            limits = self._limits
            if not self.pipe.poll():
                self._end()
                self.cpu_s = math.inf
                return _failed(_too_much(f"{round(limits.seconds):,} s"))
            message = self.pipe.recv_bytes(limits.answer_bytes + answers.MOST_WORDS)
        except (EOFError, OSError):
            self._end()
        else:
            return self._answered(message)
        if sys.platform != "win32" and self._process.exitcode == -signal.SIGXCPU:
            self.cpu_s = math.inf
            return _failed(_too_much(f"{round(self._limits.cpu_s):,} s of CPU time"))
        return None

    def _answered(self, message: bytes) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            answer = unpacked(message, answers.TaskAnswer)
            self.cpu_s = max(answer.cpu_s, 0.0)
            calls = self._calls
            future.set_result(answers.result(answer, calls.gives, calls.raises, self._limits, _too_much))
        except Exception as error:
            return _failed(error)
        return future

    def _end(self) -> None:
        # On another day, or machine, it may be read.
        transient.note()
        self.ended = True
        self.pipe.close()
        self._process.kill()
        # One that waits for the kernel is not waited for.
        self._process.join(_HEARTBEAT_S)


def _too_much(what: str) -> LimitError:
    return LimitError(f"Reading it takes more than {what}, which no file of its size needs.")


def _serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    while True:
        path, limits = pipe.recv()
        limit(limits)
        pipe.send_bytes(packed(answers.answer(partial(function, path), limits.answer_bytes)))


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


def is_of_this_process(path: object) -> bool:
    """Whether no other process can read it: what fsspec keeps in this one's memory, as a notebook may."""
    return isinstance(path, RemotePath) and path.service == "memory"


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
