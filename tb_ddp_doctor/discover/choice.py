"""Which of the runs below a log directory is meant: one by its name, or the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tb_ddp_doctor.choices import no_name
from tb_ddp_doctor.discover.names import CAPTURE_FOLDER, CYCLE_FOLDER, START_FOLDER, natural
from tb_ddp_doctor.discover.runs import Run

#: The start of a job, the step that is captured, and the profiler's cycle, as numbers from names.
_Place: TypeAlias = tuple[int, int, int]


def named(runs: Sequence[Run], name: str) -> list[Run]:
    """The run of this name. Raises ValueError, with the names that there are, where there is none."""
    matching = [run for run in runs if run.name == name]
    if not matching:
        raise ValueError(f"--run: {no_name('run', name, (run.name for run in runs))}")
    return matching


def last(runs: Sequence[Run]) -> list[Run]:
    """The last run of the job that wrote last; of no runs, none.

    Which job wrote last is told by the times of its files. Its runs are told apart by the numbers in their names: its
    start, the captured step and the profiler's cycle. Copying a directory may give all files the time of the copy.
    """
    if not runs:
        return []
    newest = max(runs, key=lambda run: (_written_ns(run), natural(run.name)))
    job, _ = _place(newest.name)
    return [max((run for run in runs if _place(run.name)[0] == job), key=_order)]


def _order(run: Run) -> tuple[_Place, int]:
    return _place(run.name)[1], _written_ns(run)


def _written_ns(run: Run) -> int:
    return max(file.written_ns for file in run.files)


def _place(name: str) -> tuple[str, _Place]:
    """The name of a run's job, and where in the job the run is: what names no start is the first."""
    parts, numbers = name.split("/"), []
    for folder, otherwise in ((CYCLE_FOLDER, 0), (CAPTURE_FOLDER, 0), (START_FOLDER, 1)):
        match = folder.fullmatch(parts[-1]) if parts else None
        numbers.append(int(match[1]) if match else otherwise)
        if match:
            parts.pop()
    return "/".join(parts), (numbers[2], numbers[1], numbers[0])
