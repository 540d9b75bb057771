"""Where the time of a whole job went, and what it would have taken without stragglers."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.grid import StepGrid
from tb_ddp_doctor.history.over_ranks import largest, usual

#: The share of the ranks that are called the slowest.
_SLOWEST = 0.03
#: A step is rare if it is longer than those around it by this much of the median step.
_RARE = 0.5


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a whole job."""

    #: In s, by what it went to: training, stragglers, rare steps, restarts, trained again, and each phase that the job
    #: marked.
    time_s: dict[str, float]
    #: Share of the job's time that trained a step that counts, as long as the job's median rank takes for it.
    goodput: float
    #: S and M_W, of ranks whose busy time is known: docs/history.md has the formulas.
    slowdown: float | None
    slowest_workers: float | None


def account(grid: StepGrid, whole_s: float, median_us: float, max_us: NDArray[Any]) -> Account:
    """The account of a job that took `whole_s` in all; otherwise as `events.events`."""
    all_us = np.nan_to_num(grid.step_us)
    steps_s = float(all_us.sum(dtype=np.float64)) / 1e6
    middle_us = usual(grid.busy_us)
    rare, rare_s = _rare(grid, all_us, median_us)
    straggling_us = np.minimum(np.nan_to_num(max_us - middle_us), all_us) if grid.is_busy else np.zeros(len(all_us))
    straggling_us[rare] = 0
    straggling_s = float(straggling_us.sum(dtype=np.float64)) / 1e6
    time_s = {"training": steps_s - rare_s - straggling_s, "stragglers": straggling_s, "rare steps": rare_s}
    for phase in grid.phases:
        time_s[phase.name] = time_s.get(phase.name, 0.0) + (phase.end_ns - phase.begin_ns) / 1e9
    time_s["restarts"] = sum(restart.begin_ns - restart.end_ns for restart in grid.restarts) / 1e9
    time_s["trained again"] = grid.trained_again_s
    slowdown, slowest = _what_if(grid, max_us, middle_us, steps_s) if grid.is_busy else (None, None)
    return Account(
        time_s={name: value for name, value in time_s.items() if value > 0},
        goodput=time_s["training"] / whole_s if whole_s else 0.0,
        slowdown=slowdown,
        slowest_workers=slowest,
    )


def _rare(grid: StepGrid, all_us: NDArray[Any], median_us: float) -> tuple[NDArray[Any], float]:
    """Columns of rare steps, and the time by which they are longer than those around them, s."""
    usual_us = np.repeat(grid.bins(grid.step_us), grid.bin_steps)[: len(all_us)]
    excess = all_us[: len(usual_us)] - np.nan_to_num(usual_us)
    columns = np.flatnonzero(excess > _RARE * median_us)
    return columns, float(excess[columns].sum(dtype=np.float64)) / 1e6


def _what_if(
    grid: StepGrid, max_us: NDArray[Any], middle_us: NDArray[Any], steps_s: float
) -> tuple[float, float | None]:
    """S and M_W: the job's time with every rank and step at the median, and with the slowest ranks at it."""
    rest_us = np.maximum(grid.step_us - max_us, 0)
    known = ~np.isnan(rest_us)
    ideal_us = float(np.nanmedian(middle_us[known])) + float(np.nanmedian(rest_us))
    ideal_s = ideal_us * int(np.count_nonzero(known)) / 1e6
    if not ideal_s or steps_s <= ideal_s:
        return 1.0, None
    mean_us = np.array([np.nanmean(row, dtype=np.float64) for row in grid.busy_us])
    slowest = np.argsort(-mean_us)[: max(int(np.ceil(_SLOWEST * len(mean_us))), 1)]
    others = np.setdiff1d(np.arange(len(mean_us)), slowest)
    if not len(others):
        return steps_s / ideal_s, None
    gained_us = max_us - np.fmax(largest(grid.busy_us[others]), middle_us)
    gained_s = float(np.nansum(gained_us[known], dtype=np.float64)) / 1e6
    return steps_s / ideal_s, min(max(gained_s / (steps_s - ideal_s), 0.0), 1.0)
