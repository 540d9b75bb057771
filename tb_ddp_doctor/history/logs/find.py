"""Finds a job's step times: a `Doctor`'s, else those in the logs that lie in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tb_ddp_doctor.history.job import JobHistory, SlowestRank
from tb_ddp_doctor.history.logs import inspector
from tb_ddp_doctor.history.logs.event_files import MARK, read_event_files
from tb_ddp_doctor.history.logs.points import LoggedStep, job_of
from tb_ddp_doctor.history.logs.tables import METRICS, TRAINER_STATE, read_metrics, read_trainer_state
from tb_ddp_doctor.history.logs.text import read_text
from tb_ddp_doctor.history.logs.wandb_file import SUFFIX, read_wandb
from tb_ddp_doctor.history.read import history_files
from tb_ddp_doctor.history.windows import Keep, read_job

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


class _Log(NamedTuple):
    """What was found in a file, or in the event files of a folder."""

    path: Path
    program: str
    points: list[LoggedStep]
    ranks: int
    slowest: SlowestRank | None = None


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
    found, problems = _logs(groups)
    if not found:
        return None, problems
    found.sort(key=lambda log: -len(log.points))
    best = found[0]
    problems += [
        f"{log.path} has step times of {log.program} too, in fewer lines: name it to read it." for log in found[1:4]
    ]
    points = [point for point in best.points if since is None or point.step >= since]
    return job_of(points, best.program, best.path, best.ranks, best.slowest), problems


def log_files(path: Path, *, directly: bool = False, leave_out: Collection[Path] = ()) -> list[list[Path]]:
    """Files that may be logs by their names, in a folder and below it, or `directly` in it alone; up to 64.

    Event files of one folder are together. Folders to `leave_out` are not looked into.
    """
    return list(islice(_candidates(path, 0 if directly else _DEEPEST, leave_out), _MOST_LOGS))


def _logs(groups: Sequence[Sequence[Path]]) -> tuple[list[_Log], list[str]]:
    """The logs with step times, and a sentence for each that cannot be read."""
    found, problems = [], []
    for files in groups:
        try:
            log = _read(files)
        except OSError as error:
            problems.append(f"{files[0]} cannot be read ({error.strerror or error}).")
            continue
        if log is not None and len(log.points) > 1:
            found.append(log)
    return found, problems


def _read(files: Sequence[Path]) -> _Log | None:
    first = files[0]
    if MARK in first.name:
        return _Log(first.parent if len(files) > 1 else first, "TensorBoard", read_event_files(files), 0)
    for program, suffix, read in _PROGRAMS:
        if first.name.endswith(suffix):
            return _Log(first, program, read(first), 0)
    text = read_text(first)
    return text and _Log(first, *text)


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
