"""Step times of a job, all in memory at once: what `history.windows` has to give, piece by piece, for any job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.grid import StepGrid, place, restarts_of, sampled_rows
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.over_ranks import lower_median
from tb_ddp_doctor.history.pyramid import reduced
from tb_ddp_doctor.history.read import RankHistory


def whole(histories: Iterable[RankHistory]) -> JobHistory:
    """The hours of a job whose step times are all in memory."""
    grid = step_grid(histories)
    return JobHistory(reduced(grid), grid.phases, grid.restarts, grid.trained_again_s, grid.lost_bytes, grid.left_out)


def step_grid(histories: Iterable[RankHistory]) -> StepGrid:
    """The steps of all files of a job on one axis. A step that was trained twice has its last time."""
    by_rank: dict[int, list[RankHistory]] = {}
    for history in histories:
        by_rank.setdefault(history.rank, []).append(history)
    timed = [file for files in by_rank.values() for file in files if file.stretches]
    ranks = sorted({file.rank for file in timed})
    first, count = _axis(timed)
    is_busy = all(map(_is_busy, timed))
    files = [sorted(by_rank[rank], key=lambda file: file.started_ns) for rank in ranks]
    busy, step, begins = _rows(files, first, count, is_busy)
    restarts, again_s = restarts_of(files[0])
    return StepGrid(
        np.array(ranks),
        tuple(each[-1].node for each in files),
        np.array([each[-1].stage for each in files]),
        first,
        busy,
        is_busy,
        step,
        begins,
        tuple(sorted(phase for file in files[0] for phase in file.phases)),
        restarts,
        again_s,
        sum(file.lost_bytes for each in by_rank.values() for file in each),
        0,
    )


def _rows(
    files: Sequence[Sequence[RankHistory]], first: int, count: int, is_busy: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Busy times of all ranks, the job's step and when each begins, as in `StepGrid`; files by rank and start."""
    busy = np.full((len(files), count), np.nan, dtype=np.float32)
    sampled = []
    begins = np.zeros(count, dtype=np.int64)
    asked = set(sampled_rows(len(files)))
    for at, of_rank in enumerate(files):
        length = np.full(count, np.nan, dtype=np.float32)
        for file in of_rank:
            phases = sorted(file.phases)
            for stretch in file.stretches:
                place(stretch, first, phases, is_busy, busy[at], length, None if at else begins)
        if at in asked:
            sampled.append(length)
    return busy, lower_median(np.stack(sampled)), begins


def _axis(timed: Sequence[RankHistory]) -> tuple[int, int]:
    """The first step, and how many there are."""
    stretches = [stretch for file in timed for stretch in file.stretches]
    last = max(stretch.first_step + len(stretch.steps_us) for stretch in stretches)
    first = min(stretch.first_step for stretch in stretches)
    return first, last - first


def _is_busy(file: RankHistory) -> bool:
    """Whether most steps of a file say when they wait."""
    known = sum(len(one.steps_us) for one in file.stretches if one.busy_us is not None)
    return known > sum(len(one.steps_us) for one in file.stretches) / 2
