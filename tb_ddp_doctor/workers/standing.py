"""A process that stays: it does one task after the other, and keeps what it made for the next ones.

What may be made to take for ever, or all memory, is done there: such a task costs itself, and the process, which is
ended; the next task begins in another one. A task reads files first, each in a process of its own with its own limits
(`pool`), and then holds itself to limits, from which time on its deadline counts.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, TypeAlias, TypeVar

import msgspec

from tb_ddp_doctor.storage.message import MessageError, packed, unpacked
from tb_ddp_doctor.workers import answers
from tb_ddp_doctor.workers.answers import CrashError, LimitError, TaskAnswer
from tb_ddp_doctor.workers.limits import Limits, kept_waiting_s, limit, release
from tb_ddp_doctor.workers.process import CleanProcess

T = TypeVar("T")
#: How often a wait looks at the deadline, s.
_HEARTBEAT_S = 0.2

#: Called with the number of files read, of files in all, and the file that was read last.
Progress: TypeAlias = Callable[[int, int, str], None]
#: What a task is called with beside its argument: to say how far it is, and to be held to its limits from then on.
Function: TypeAlias = Callable[[Any, Progress, Callable[[], None]], Any]


class StandingProcess:
    """A process that calls one function again and again, for one caller at a time.

    `imports` names modules that the function takes.
    """

    def __init__(self, function: Function, *, imports: Sequence[str] = ()) -> None:
        CleanProcess.share(imports)
        self._process, self._pipe = answers.started(_serve, function)
        # Before Python ends, it waits for its processes.
        self._stop = Finalize(self, _stop, (self._process, self._pipe), exitpriority=1)
        self.ended = False

    def call(self, argument: Any, limits: Limits, progress: Progress, *, gives: type[T]) -> T:
        """What the function makes of the argument, of the type `gives`.

        Raises what the function does, as `pool.run` has it, and CrashError: then the process has ended.
        """
        try:
            self._pipe.send((argument, limits))
            answer = self._answer(limits, progress)
        except (EOFError, OSError):
            self.end()
            if sys.platform != "win32" and self._process.exitcode == -signal.SIGXCPU:
                raise _too_much(f"{round(limits.cpu_s):,} s of CPU time") from None
            raise CrashError("The process that diagnosed it died, perhaps for want of memory.") from None
        except (LimitError, MessageError):
            self.end()
            raise
        try:
            made: T = answers.result(answer, gives, (), limits, _too_much)
        except LimitError:
            # What it keeps may be all that it may have.
            self.end()
            raise
        return made

    def _answer(self, limits: Limits, progress: Progress) -> TaskAnswer:
        until: float | None = None
        while True:
            if self._pipe.poll(_HEARTBEAT_S):
                said: _Said = unpacked(self._pipe.recv_bytes(limits.answer_bytes + answers.MOST_WORDS), _Said)
                if said.answer is not None:
                    return said.answer
                if said.is_limited:
                    until = time.monotonic() + limits.seconds - kept_waiting_s(self._process.pid)
                else:
                    progress(said.done, said.total, said.file)
            elif until is not None and time.monotonic() > until + kept_waiting_s(self._process.pid):
                raise _too_much(f"{round(limits.seconds):,} s")

    def end(self) -> None:
        """End it at once."""
        self.ended = True
        self._stop()
        # One that waits for the kernel is not waited for.
        self._process.join(_HEARTBEAT_S)


def _stop(process: CleanProcess, pipe: Connection) -> None:
    pipe.close()
    # The number of one that has ended may be another process' by now.
    if process.is_alive():
        process.kill()


class _Said(msgspec.Struct):
    """What a process says while it is at a task, and at its end."""

    done: int = 0
    total: int = 0
    file: str = ""
    is_limited: bool = False
    answer: TaskAnswer | None = None


def _too_much(what: str) -> LimitError:
    return LimitError(f"Diagnosing it takes more than {what}, which no run of its size needs.")


def _serve(pipe: Connection, function: Function) -> None:
    # Files may be read by several threads.
    lock = threading.Lock()

    def say(said: _Said) -> None:
        with lock:
            pipe.send_bytes(packed(said))

    def progress(done: int, total: int, file: str) -> None:
        say(_Said(done, total, file))

    while True:
        argument, limits = pipe.recv()
        release()
        once = iter((limits,))

        def limited(once: Any = once) -> None:
            for limits in once:
                limit(limits)
                say(_Said(is_limited=True))

        work = partial(function, argument, progress, limited)
        answer = answers.answer(work, limits.answer_bytes)
        release()
        say(_Said(answer=answer))
