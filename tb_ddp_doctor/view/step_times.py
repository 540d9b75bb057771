"""Where the step times of a run's job lie: what its Doctor kept, else the logs of other programs.

A Doctor's lie in the log directory that the job gave it: the run's own folder, or one above it. Logs are looked for in
the run's folder and below it, then in the folders above it up to the tab's log directory, without those of other jobs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tb_ddp_doctor.discover.names import CAPTURE_FOLDER, START_FOLDER, TORCH_NAME, TRACE_NAME, rank_in_name
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.history.blocks import FOLDER, SUFFIX
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.logs.find import log_files, read_logs
from tb_ddp_doctor.history.logs.inspector import inspector_files
from tb_ddp_doctor.history.read import history_files
from tb_ddp_doctor.history.windows import Keep, read_job

#: A run's folder is at most this far below the log directory of its job: start_2/step_8000.
_FARTHEST = 3
#: Names below a folder that are looked at for traces of other jobs.
_MOST_NAMES = 20_000


class Place(NamedTuple):
    """A folder where step times may lie."""

    folder: Path
    #: A Doctor's files of all ranks; empty where there are only logs, in the folder or below it.
    files: list[Path]
    logs: list[list[Path]]

    def all_files(self) -> Iterator[Path]:
        """Each file."""
        yield from self.files
        for group in self.logs:
            yield from group


class StepTimes(NamedTuple):
    """The step times of a job."""

    #: The job's log directory, or the folder in or below which its log lies.
    folder: Path
    job: JobHistory


def own_folder(result: Result) -> Path | None:
    """The folder of a run's files; None where they are elsewhere than on this machine."""
    return next((path.parent for path in result.files if isinstance(path, Path)), None)


def root_of(result: Result, own: Path) -> Path | None:
    """The tab's log directory, where the run's name is its path below it; None where its name is another."""
    parts = Path(result.diagnosis.name).parts
    return own.parents[len(parts) - 1] if parts and own.parts[-len(parts) :] == parts else None


def places(result: Result) -> list[Place]:
    """Where step times of the job may lie that a run is a capture of: a Doctor's log directory, else nearest first."""
    own = own_folder(result)
    if own is None:
        return []
    above = [own, *own.parents][: _FARTHEST + 1]
    for folder in above:
        if next((folder / FOLDER).glob(f"*{SUFFIX}"), None) is not None:
            return [Place(folder, history_files(folder), [])]
    root, kept_at = root_of(result, own), []
    for folder in above:
        # A run of this name is the log directory itself, or directly below it: what is beside it may be anybody's.
        may_be_outside = folder == root and own.parent == root
        logs = log_files(folder, directly=may_be_outside, leave_out=_other_jobs(folder, own))
        kept_at += [Place(folder, [], logs)] if logs else []
        if folder == root or root is None:
            break
    return kept_at


def inspector_folder(result: Result) -> Path | None:
    """Where the Inspector of NCCL or RCCL wrote for a run: in its folder, else in one above it that is no other job's;
    None where it wrote nothing.
    """
    own = own_folder(result)
    if own is None:
        return None
    root = root_of(result, own)
    for folder in [own, *own.parents][: _FARTHEST + 1]:
        if next(inspector_files(folder), None) is not None:
            return folder
        # Beside a run's folder may lie anybody's, but beside a capture what is of its job.
        is_capture = any(named.fullmatch(folder.name) for named in (CAPTURE_FOLDER, START_FOLDER))
        if root is None or folder == root or (folder.parent == root and not is_capture):
            break
    return None


def read_step_times(places: Sequence[Place], keep: Keep | None) -> tuple[StepTimes | None, list[str]]:
    """The step times of the first place that has some, and a sentence for each problem. Raises CrashError."""
    problems: list[str] = []
    for place in places:
        job, more = read_job(place.files, keep) if place.files else read_logs(place.logs)
        problems += more
        if job is not None:
            return StepTimes(place.folder, job), problems
    return None, problems


def _other_jobs(folder: Path, own: Path) -> set[Path]:
    """The folders directly in `folder` that have traces of their own, below which a run's `own` folder is not."""
    if folder == own:
        return set()
    with contextlib.suppress(OSError):
        return {
            one
            for one in folder.iterdir()
            if one.is_dir() and not one.is_symlink() and not own.is_relative_to(one) and _has_traces(one)
        }
    return set()


def _has_traces(folder: Path) -> bool:
    names = 0
    for _, folders, files in os.walk(folder):
        names += len(folders) + len(files)
        if any(map(_is_trace, files)):
            return True
        if names > _MOST_NAMES:
            break
    return False


def _is_trace(name: str) -> bool:
    if TORCH_NAME.fullmatch(name):
        return True
    named = TRACE_NAME.fullmatch(name)
    return named is not None and rank_in_name(named["worker"]) is not None
