"""The lines of a training log as step times: one column for the steps from one line to the next.

lines    step 10 at 12:00:00    step 20 at 12:00:15    step 30 at 12:00:31
columns                         steps 11 to 20: 15 s   steps 21 to 30: 16 s
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.blocks import NO_STAGE
from tb_ddp_doctor.history.grid import Restart, StepGrid, place, restarts_of
from tb_ddp_doctor.history.job import JobHistory, LoggedBy, SlowestRank
from tb_ddp_doctor.history.pyramid import reduced
from tb_ddp_doctor.history.read import MarkedTime, RankHistory, Stretch

#: Columns of a job at most: earlier ones are left out.
_MOST_COLUMNS = 1 << 21
#: Times between two lines beyond what their steps took are time between steps, from so much on: clocks of logs have
#: whole seconds.
_LEAST_BETWEEN_S, _LEAST_BETWEEN_SHARE = 3.0, 0.05
#: Between two lines so many columns are as long as each other at most: of more nothing is known.
_MOST_OF_A_LINE = 64
#: Numbers of steps; the year 2200, s since 1970; a step, and the steps of a line, s.
_LAST_STEP, _LATEST_S, _LONGEST_S = 1 << 50, 7.258e9, 1e6
_BETWEEN = "between steps"


class LoggedStep(NamedTuple):
    """A line of a log."""

    #: The last step that had ended.
    step: int
    #: When the line was written, s since 1970, or since the job's begin where the log has no clock; NaN where unknown.
    at_s: float = math.nan
    #: Mean time of a step since the line before, as the program says it, s; NaN where it does not.
    step_s: float = math.nan


class _Start(NamedTuple):
    """The lines from a start of the job to its end."""

    stretches: list[Stretch]
    between: list[MarkedTime]


def job_of(
    points: Sequence[LoggedStep], program: str, path: Path, ranks: int = 0, slowest: SlowestRank | None = None
) -> JobHistory | None:
    """The hours of a job whose lines these are, in the order in which they were written; None where they say no times.

    `ranks` is how many the job has, 0 where the log does not say.
    """
    points = [_checked(point) for point in points if 0 <= point.step < _LAST_STEP]
    every = _steps_a_line(points)
    if every is None:
        return None
    # Where most columns end.
    shift = Counter(point.step % every for point in points).most_common(1)[0][0]
    starts = [_start(part, every, shift) for part in _starts(points)]
    first = max(
        min((one.first_step for start in starts for one in start.stretches), default=0),
        max((one.first_step + len(one.steps_us) for start in starts for one in start.stretches), default=0)
        - _MOST_COLUMNS,
    )
    grid = _grid(starts, first, every, shift)
    if grid is None:
        return None
    left_out = sum(max(first - one.first_step, 0) for start in starts for one in start.stretches)
    logged_by = LoggedBy(program, str(path), every, ranks, slowest)
    return JobHistory(
        reduced(grid), grid.phases, grid.restarts, grid.trained_again_s, 0, left_out * every, {}, logged_by
    )


def _checked(point: LoggedStep) -> LoggedStep:
    """A point whose times are NaN where no clock shows them, and no step takes them."""
    at_s = point.at_s if 0 <= point.at_s < _LATEST_S else math.nan
    return LoggedStep(point.step, at_s, point.step_s if 0 < point.step_s < _LONGEST_S else math.nan)


def _steps_a_line(points: Sequence[LoggedStep]) -> int | None:
    """Steps from a line to the next one, as most are; None where no step is after another."""
    apart = Counter(after.step - before.step for before, after in pairwise(points) if after.step > before.step)
    return max(apart, key=lambda steps: (apart[steps], -steps)) if apart else None


def _starts(points: Sequence[LoggedStep]) -> list[list[LoggedStep]]:
    """The points of each start of the job: where steps come again, it went on from a checkpoint."""
    starts: list[list[LoggedStep]] = [[]]
    for point in points:
        if starts[-1] and point.step == starts[-1][-1].step:
            # Several lines about one step: the first one was written when it ended.
            continue
        if starts[-1] and point.step < starts[-1][-1].step:
            starts.append([])
        starts[-1].append(point)
    return starts


def _start(points: Sequence[LoggedStep], every: int, shift: int) -> _Start:
    """Steps and the times between them, of lines whose steps ascend.

    Column c is of `every` steps after step c * every + shift.
    """
    start = _Start([], [])
    part: list[tuple[int, int, float]] = []
    now_s = begin_s = 0.0
    for number, point in enumerate(points):
        before = points[number - 1] if number else None
        steps = point.step - before.step if before else every if point.step >= every else 0
        took_s = steps * point.step_s if point.step_s > 0 else point.at_s - before.at_s if before else math.nan
        if not 0 < took_s < _LONGEST_S or steps > _MOST_OF_A_LINE * every:
            _add_stretch(start, part, every, shift, begin_s)
            part, now_s = [], now_s if math.isnan(point.at_s) else point.at_s
            continue
        ended_s = now_s + took_s if math.isnan(point.at_s) else point.at_s
        between_s = ended_s - took_s - now_s
        if not part or between_s > max(_LEAST_BETWEEN_S, _LEAST_BETWEEN_SHARE * took_s):
            if part:
                start.between.append(MarkedTime(int(now_s * 1e9), int((now_s + between_s) * 1e9), _BETWEEN))
            _add_stretch(start, part, every, shift, begin_s)
            part, begin_s = [], max(ended_s - took_s, 0.0)
        part.append((point.step - steps, point.step, took_s))
        now_s = ended_s
    _add_stretch(start, part, every, shift, begin_s)
    return start


def _add_stretch(start: _Start, part: Sequence[tuple[int, int, float]], every: int, shift: int, begin_s: float) -> None:
    """Add successive lines, each with its steps (after the first number, up to the second) and their time, s."""
    if not part:
        return
    edges = (np.array([part[0][0], *(last for _, last, _ in part)]) - shift) / every
    first, end = max(math.floor(edges[0]), 0), math.ceil(edges[-1])
    if not 0 < end - first <= _MOST_COLUMNS:
        return
    done_s = np.concatenate(([0.0], np.cumsum([took_s for *_, took_s in part])))
    columns_s = np.diff(np.interp(np.arange(first, end + 1), edges, done_s))
    # Those that are only partly there count as whole ones of the same pace.
    is_there = np.diff(np.clip(np.arange(first, end + 1), edges[0], edges[-1]))
    start.stretches.append(Stretch(first, int(begin_s * 1e9) + 1, np.rint(columns_s / is_there * 1e6), None))


def _grid(starts: Sequence[_Start], first: int, every: int, shift: int) -> StepGrid | None:
    files: list[RankHistory] = []
    for start in starts:
        if start.stretches:
            begin_ns = start.stretches[0].begin_ns
            files.append(RankHistory(Path(), 0, 1, "", begin_ns, start.stretches, start.between, 0))
    if not files:
        return None
    count = max(one.first_step + len(one.steps_us) for file in files for one in file.stretches) - first
    busy = np.full((1, count), np.nan, dtype=np.float32)
    length: NDArray[Any] = np.full(count, np.nan)
    begins = np.zeros(count, dtype=np.int64)
    for file in files:
        for stretch in file.stretches:
            place(stretch, first, (), False, busy[0], length, begins)
    restarts, again_s = restarts_of(files)
    return StepGrid(
        np.zeros(1, dtype=np.int64),
        ("",),
        np.array([NO_STAGE]),
        first * every + shift + 1,
        busy,
        False,
        length,
        begins,
        tuple(phase for file in files for phase in file.phases),
        tuple(Restart(one.end_ns, one.begin_ns, one.trained_again * every) for one in restarts),
        again_s,
        0,
        0,
    )
