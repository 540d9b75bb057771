"""What commands say: answers on standard output, all else on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from rich.console import Console
from rich.text import Text

from tb_ddp_doctor.report.escape import printable, printable_json

T = TypeVar("T")
#: Drawing for each of thousands of files would take seconds.
_REDRAW_S = 0.1
#: Of what takes no longer nothing is shown.
_LONG_S = 1.0
#: Called with a name and how many files it has; what it gives is called with how many are done, and more.
_Counting: TypeAlias = Callable[[str, int], Callable[..., None]]


class Errors(Console):
    """Standard error, and what was complained of there."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False)
        self.complaints: list[str] = []


def complain(errors: Console, sentence: str) -> None:
    """Say what is wrong."""
    if isinstance(errors, Errors):
        errors.complaints.append(sentence)
    errors.print(Text(f"ddp-doctor: {printable(sentence)}"), soft_wrap=True)


def reason(error: OSError | ValueError) -> str:
    """What went wrong, as a sentence: what a file system says without its number, after the file's name."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    said = error.strerror[:1].lower() + error.strerror[1:]
    return f"{error.filename}: {said}." if error.filename is not None else f"{error.strerror}."


def print_json(value: Any) -> None:
    """Print it as UTF-8, whatever the terminal is."""
    sys.stdout.buffer.write(printable_json(value))


def say_written(errors: Console, path: Path, what: str) -> None:
    """Say that a file was written, and what it shows."""
    errors.print(Text(printable(f"{path}: {what}")), soft_wrap=True)


@contextmanager
def progress(errors: Console) -> Iterator[_Counting]:
    """A bar of files on a terminal, for each name and number of files that it is called with; nothing elsewhere."""
    if not errors.is_terminal:
        yield lambda *_: lambda *_: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files"),
        console=errors,
        transient=True,
        auto_refresh=False,  # by a thread, under which the processes that read could not be forked
    )

    def counting(name: str, total: int) -> Callable[..., None]:
        task = bar.add_task(name, total=total)
        drawn_s = 0.0

        def count(done: int, *_: object) -> None:
            nonlocal drawn_s
            is_due = time.monotonic() - drawn_s > _REDRAW_S
            drawn_s = time.monotonic() if is_due else drawn_s
            bar.update(task, completed=done, refresh=is_due)

        return count

    with bar:
        yield counting


@contextmanager
def looking(errors: Console) -> Iterator[Callable[[int], None]]:
    """How many folders were looked into, on a terminal, where that takes long; nothing elsewhere."""
    began_s = drawn_s = time.monotonic()
    shown = False

    def count(folders: int) -> None:
        nonlocal drawn_s, shown
        now_s = time.monotonic()
        if errors.is_terminal and now_s - began_s > _LONG_S and now_s - drawn_s > _REDRAW_S:
            errors.file.write(f"\rLooking for traces: {folders:,} folders")
            errors.file.flush()
            drawn_s, shown = now_s, True

    try:
        yield count
    finally:
        if shown:
            errors.file.write("\r\x1b[K")
            errors.file.flush()


def counted(values: Iterable[T], done: Callable[[int], None]) -> Iterator[T]:
    """The values, each counted when the next one is asked for."""
    for count, value in enumerate(values, 1):
        yield value
        done(count)
