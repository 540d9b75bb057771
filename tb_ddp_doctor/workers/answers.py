"""What a process of ours says of a task, and how it is started: shared by those that read files and those that stay.

An answer holds bytes, which are read by the type that the task was to give, or an exception's name and words: nothing
in it can run here.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any
from weakref import WeakSet

import msgspec

from tb_ddp_doctor.storage import transient
from tb_ddp_doctor.storage.message import packed, unpacked, whole_text
from tb_ddp_doctor.workers.limits import Limits
from tb_ddp_doctor.workers.process import CleanProcess

#: Of an exception's text, and of its traceback; and of all that an answer has beside its result.
_MOST_LETTERS, MOST_WORDS = 1 << 14, 1 << 20


class CrashError(Exception):
    """The process that worked on a task died. Its text is a sentence for users."""


class LimitError(CrashError):
    """A task took more than it may. Its text is a sentence for users."""


class TaskAnswer(msgspec.Struct):
    """What a process says of a task."""

    #: As `message.packed` has it; nothing where there was an exception.
    result: bytes = b""
    #: The exception's class, its text, and the traceback, which exceptions lose on the way.
    error: str = ""
    said: str = ""
    where: str = ""
    #: Of an OSError, whose text is then that of the number alone; else 0.
    errno: int = 0
    #: Whether something was not read for a reason that may pass (`storage.transient`).
    is_transient: bool = False
    #: CPU time that it took, s.
    cpu_s: float = 0.0


def answer(work: Callable[[], Any], most_bytes: int) -> TaskAnswer:
    """What `work` gives, or the exception that it ends with: a MemoryError where it gives more than `most_bytes`."""
    since, began = transient.Since(), time.process_time()
    try:
        result = packed(work())
        if len(result) > most_bytes:
            raise MemoryError
        return TaskAnswer(result, is_transient=since.noted(), cpu_s=time.process_time() - began)
    except Exception as error:
        number, said = 0, str(error)
        if isinstance(error, OSError) and error.errno and error.strerror:
            number, said = error.errno, error.strerror
        return TaskAnswer(
            error=type(error).__name__,
            said=whole_text(said)[:_MOST_LETTERS],
            where=whole_text(traceback.format_exc())[-_MOST_LETTERS:],
            errno=number,
            is_transient=since.noted(),
            cpu_s=time.process_time() - began,
        )


def result(
    answer: TaskAnswer,
    gives: Any,
    raises: Sequence[type[Exception]],
    limits: Limits,
    too_much: Callable[[str], LimitError],
) -> Any:
    """What an answer holds, of the type `gives`.

    Raises the exception that the process tells of, with its traceback as cause, as one of `raises` or of Python's own;
    what `too_much` makes of the memory that it may take, where that was not enough; and MessageError.
    """
    if answer.is_transient:
        transient.note()
    if not answer.error:
        return unpacked(answer.result, gives)
    if answer.error in ("MemoryError", "_ArrayMemoryError"):
        transient.note()
        error: Exception = too_much(f"{limits.bytes >> 20:,} MiB of memory")
    else:
        known = {kind.__name__: kind for kind in raises}
        kind = known.get(answer.error) or getattr(builtins, answer.error, None)
        if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(kind, UnicodeError):
            error = RuntimeError(f"{answer.error}: {answer.said}")
        else:
            error = kind(answer.errno, answer.said) if answer.errno else kind(answer.said)
    raise error from RuntimeError(answer.where)


#: This process' ends of pipes to others.
_OURS: WeakSet[Connection] = WeakSet()


def started(serve: Callable[..., None], *arguments: Any) -> tuple[CleanProcess, Connection]:
    """A process that calls `serve` with its end of a pipe, the environment and the arguments; and the other end."""
    pipe, theirs = Pipe()
    _OURS.add(pipe)
    with theirs:
        process = CleanProcess(target=_serve, args=(serve, theirs, dict(os.environ), arguments))
        process.start()
    return process, pipe


def _serve(serve: Callable[..., None], pipe: Connection, environment: dict[str, str], arguments: Sequence[Any]) -> None:
    _OURS.add(pipe)
    # The server that it may be forked from has that of its start: since then, credentials may have come.
    os.environ.clear()
    os.environ.update(environment)
    # Ctrl-C is the parent's to answer: a process ends with the task that it is at, when its pipe is closed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        serve(pipe, *arguments)


def _close_inherited() -> None:
    """A forked process has its parent's ends of all pipes, and would keep them from ending."""
    for pipe in [*_OURS]:
        pipe.close()
    _OURS.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_inherited)
