"""Finds a job's step times: a `Doctor`'s, else those in the logs that lie in a folder.

Logs are read in other processes, as traces are: one that no parser ends with costs itself and a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.logs import inspector
from tb_ddp_doctor.history.logs.event_files import MARK, read_event_files
from tb_ddp_doctor.history.logs.points import LoggedStep, job_of
from tb_ddp_doctor.history.logs.tables import METRICS, TRAINER_STATE, read_metrics, read_trainer_state
from tb_ddp_doctor.history.logs.text import read_text
from tb_ddp_doctor.history.logs.wandb_file import SUFFIX, read_wandb
from tb_ddp_doctor.history.read import history_files
from tb_ddp_doctor.history.windows import Keep, read_job
from tb_ddp_doctor.workers import pool

#: How far below a folder logs are looked for, among how many names, and how many are read.
_DEEPEST, _MOST_NAMES, _MOST_LOGS = 4, 20_000, 64
_TEXTS = (".log", ".out", ".txt", ".err")
#: Whose files these are, how their names end, and what reads them.
_PROGRAMS: tuple[tuple[str, str, Callable[[Path], list[LoggedStep]]], ...] = (
    ("W&B", SUFFIX, read_wandb),
    ("Lightning", METRICS, read_metrics),
    ("Hugging Face", TRAINER_STATE, read_trainer_state),
)
_NAMES = (*_TEXTS, *(suffix for _, suffix, _ in _PROGRAMS))


class Log(msgspec.Struct, frozen=True):
    """What was found in a file, or in the event files of a folder."""

    path: Path
    program: str
    #: With step times, of all steps.
    lines: int
    #: None where the lines say no times.
    job: JobHistory | None


def read_hours(
    path: Path, keep: Keep | None = None, since: int | None = None, may_read: Callable[[Path], bool] = lambda _: True
) -> tuple[JobHistory | None, list[str]]:
    """The hours of a job in its log directory, or in one log, from step `since` on, and a sentence for each problem.

    Files that `may_read` refuses are passed over. None where no step is there. Raises CrashError.
    """
    files = [file for file in history_files(path) if may_read(file)] if path.is_dir() else []
    if files:
        return read_job(files, keep, since)
    return read_logs([group for group in log_files(path) if all(may_read(file) for file in group)], since)


def read_logs(groups: Sequence[Sequence[Path]], since: int | None = None) -> tuple[JobHistory | None, list[str]]:
    """The hours of a job in the log of these that has most lines, and a sentence for each problem; see `log_files`."""
    readable, problems = _logs(groups, since)
    if not readable:
        return None, problems
    readable.sort(key=lambda log: -log.lines)
    problems += [
        f"{log.path} has step times of {log.program} too, in fewer lines: name it to read it." for log in readable[1:4]
    ]
    return readable[0].job, problems


def log_files(path: Path, *, directly: bool = False, leave_out: Collection[Path] = ()) -> list[list[Path]]:
    """Files that may be logs by their names, in a folder and below it, or `directly` in it alone; up to 64.

    Event files of one folder are together. Folders to `leave_out` are not looked into.
    """
    return list(islice(_candidates(path, 0 if directly else _DEEPEST, leave_out), _MOST_LOGS))


def read_log(files: Sequence[Path], since: int | None = None) -> Log | None:
    """The step times of a log, or of the event files of a folder; None where there are none. Raises OSError."""
    first, ranks, slowest = files[0], 0, None
    path, readers = first, [(program, read) for program, suffix, read in _PROGRAMS if first.name.endswith(suffix)]
    if MARK in first.name:
        path = first.parent if len(files) > 1 else first
        program, points = "TensorBoard", read_event_files(files)
    elif readers:
        program, points = readers[0][0], readers[0][1](first)
    elif text := read_text(first):
        program, points, ranks, slowest = text
    else:
        return None
    if len(points) < 2:
        return None
    chosen = [point for point in points if since is None or point.step >= since]
    return Log(path, program, len(points), job_of(chosen, program, path, ranks, slowest))


def _logs(groups: Sequence[Sequence[Path]], since: int | None) -> tuple[list[Log], list[str]]:
    """The logs with step times, in the order of their names, and a sentence for each that cannot be read."""
    with_steps, problems = [], []
    asked = [(tuple(files), sum(map(_size, files))) for files in groups]
    answers = pool.run(
        partial(read_log, since=since),
        asked,  # type: ignore[arg-type]
        gives=Log | None,
        imports=("tb_ddp_doctor.history.logs.find",),
    )
    for files, future in answers:
        try:
            log = future.result()
        except OSError as error:
            problems.append(f"{files[0]} cannot be read ({error.strerror or error}).")  # type: ignore[index]
        except pool.CrashError as error:
            problems.append(f"{files[0]} is left out: {error}")  # type: ignore[index]
        else:
            with_steps += [log] if log else []
    return sorted(with_steps, key=lambda log: log.path), sorted(problems)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _candidates(path: Path, deepest: int, leave_out: Collection[Path]) -> Iterator[list[Path]]:
    if not path.is_dir():
        yield [path]
        return
    names = 0
    for folder, folders, files in os.walk(path):
        names += len(files) + len(folders)
        below = Path(folder)
        if names > _MOST_NAMES or len(below.relative_to(path).parts) >= deepest:
            folders.clear()
        folders[:] = sorted(name for name in folders if below / name not in leave_out)
        events = sorted(below / name for name in files if MARK in name)
        if events:
            yield events
        for name in sorted(files):
            if name.endswith(_NAMES) and not inspector.NAME.fullmatch(name):
                yield [below / name]
