"""Where the time of a whole job went, and what it would have taken without stragglers."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.blocks import NO_STAGE
from tb_ddp_doctor.history.grid import medians_of_bins
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.pyramid import Pyramid, compared_bins
from tb_ddp_doctor.history.rare import of_bins

#: The share of the ranks that are called the slowest.
_SLOWEST = 0.03
#: A step is rare if it is longer than those around it by this much of the median step.
_RARE = 0.5
#: A step that is longer by so many median steps has a pause in it that the job did not mark, such as a checkpoint.
_PAUSE = 10
#: Parts of the job's time whose goodput is said.
_PARTS = 8


class JobTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a whole job."""

    #: In s, by what it went to: training, stragglers, rare steps, unmarked pauses, restarts, trained again, and each
    #: phase that the job marked.
    time_s: dict[str, float]
    #: Share of the job's time that trained a step that counts, as long as the job's median rank takes for it.
    goodput: float
    #: S, M_W and M_S, of ranks whose busy time is known, M_S where their stages of a pipeline are, too: docs/history.md
    #: has the formulas.
    slowdown: float | None
    slowest_workers: float | None
    last_stage: float | None


def account(job: JobHistory, whole_s: float, median_us: float) -> JobTime:
    """The account of a job that took `whole_s` in all and has a median step of `median_us`."""
    steps_s = float(np.nansum(job.pyramid.steps.length_us, dtype=np.float64)) / 1e6
    lost_s = {name: float(each.sum()) / 1e6 for name, each in lost_us(job, median_us).items()}
    time_s = {"training": steps_s - sum(lost_s.values()), **lost_s}
    for phase in job.phases:
        time_s[phase.name] = time_s.get(phase.name, 0.0) + (phase.end_ns - phase.begin_ns) / 1e9
    time_s["restarts"] = sum(restart.begin_ns - restart.end_ns for restart in job.restarts) / 1e9
    time_s["trained again"] = job.trained_again_s
    stragglers = _what_if(job.pyramid, steps_s) if job.pyramid.is_busy else _Stragglers(None, None, None)
    return JobTime(
        time_s={name: value for name, value in time_s.items() if value > 0},
        goodput=time_s["training"] / whole_s if whole_s else 0.0,
        slowdown=stragglers.slowdown,
        slowest_workers=stragglers.slowest_workers,
        last_stage=stragglers.last_stage,
    )


def goodput_trend(job: JobHistory, median_us: float, begin_ns: int, end_ns: int) -> tuple[float, ...]:
    """The goodput of each eighth of the job's time, from `begin_ns` to `end_ns`; () of a job without a time.

    A step that lies in two eighths counts in both for its share.
    """
    length_us = np.nan_to_num(job.pyramid.steps.length_us).astype(np.float64)
    trained_us = length_us - sum(lost_us(job, median_us).values())
    known = np.flatnonzero((job.pyramid.steps.begins_ns > 0) & (length_us > 0))
    if not len(known) or end_ns <= begin_ns:
        return ()
    begins_us = (job.pyramid.steps.begins_ns[known] - begin_ns) / 1000
    # begin, end, begin, end ...: between a step's end and the next one's begin nothing is trained.
    at_us = np.maximum.accumulate(np.stack([begins_us, begins_us + length_us[known]], axis=1).ravel())
    done_us = np.concatenate(([0.0], np.repeat(np.cumsum(trained_us[known]), 2)))[:-1]
    edges_us = np.linspace(0, (end_ns - begin_ns) / 1000, _PARTS + 1)
    shares = np.diff(np.interp(edges_us, at_us, done_us)) / np.diff(edges_us)
    return tuple(np.clip(shares, 0, 1).tolist())


def lost_us(job: JobHistory, median_us: float) -> dict[str, NDArray[Any]]:
    """What each step of a job lost to stragglers, for being rare, or to a pause in it, µs, shape (N,)."""
    steps = job.pyramid.steps
    all_us = np.nan_to_num(steps.length_us).astype(np.float64)
    rare_us = _rare(job.pyramid, all_us, median_us)
    straggling_us = np.zeros(len(all_us))
    if job.pyramid.is_busy:
        straggling_us = np.minimum(np.nan_to_num(steps.largest_us - steps.median_us).astype(np.float64), all_us)
        straggling_us[rare_us > 0] = 0
    pause_us = np.where(rare_us >= _PAUSE * median_us, rare_us, 0)
    return {"stragglers": straggling_us, "rare steps": rare_us - pause_us, "unmarked pauses": pause_us}


def _rare(pyramid: Pyramid, all_us: NDArray[Any], median_us: float) -> NDArray[Any]:
    """By how much rare steps are longer than those around them, µs, shape (N,); 0 of other steps."""
    _, width = compared_bins(pyramid)
    medians_us = medians_of_bins(pyramid.steps.length_us, width)
    if not len(medians_us):
        return np.zeros(len(all_us))
    excess_us = all_us - np.nan_to_num(of_bins(medians_us, width, len(all_us)))
    return np.where(excess_us > _RARE * median_us, excess_us, 0)


class _Stragglers(msgspec.Struct, frozen=True):
    """How much longer the job took for its stragglers: S, and the shares of it M_W and M_S; as in `JobTime`."""

    slowdown: float | None
    slowest_workers: float | None
    last_stage: float | None


def _what_if(pyramid: Pyramid, steps_s: float) -> _Stragglers:
    """The job's time with every rank and step at the median, with the slowest ranks at it, and with the last stage."""
    steps = pyramid.steps
    rest_us = np.maximum(steps.length_us - steps.largest_us, 0)
    known = ~np.isnan(rest_us)
    ideal_us = float(np.nanmedian(steps.median_us[known])) + float(np.nanmedian(rest_us))
    ideal_s = ideal_us * int(np.count_nonzero(known)) / 1e6
    if not ideal_s or steps_s <= ideal_s:
        return _Stragglers(1.0, None, None)
    at = pyramid.sampled
    # How much longer the job would take with all other ranks at the median of their step.
    alone_us = np.fmax(pyramid.sampled_us - steps.median_us[at], 0)
    slowest = np.argsort(-np.nansum(alone_us, axis=1, dtype=np.float64), kind="stable")
    slowest = slowest[: max(int(np.ceil(_SLOWEST * len(slowest))), 1)]

    def share(ranks: NDArray[Any]) -> float | None:
        """What the job would gain with some ranks at the median of their step, as a share of its slowdown."""
        others = np.setdiff1d(np.arange(len(pyramid.ranks)), ranks)
        if not len(others) or not len(ranks):
            return None
        others_us = np.fmax(np.fmax.reduce(pyramid.sampled_us[others], axis=0), steps.median_us[at])
        gained_us = (steps.largest_us[at] - others_us)[known[at]]
        gained_s = float(np.nanmean(gained_us, dtype=np.float64)) * int(np.count_nonzero(known)) / 1e6
        return min(max(gained_s / (steps_s - ideal_s), 0.0), 1.0)

    return _Stragglers(steps_s / ideal_s, share(slowest), share(_last_stage(pyramid)))


def _last_stage(pyramid: Pyramid) -> NDArray[Any]:
    """The rows of the pipeline's last stage; none where there is one stage, or that of a rank is not known."""
    stages = pyramid.stages
    has_pipeline = bool((stages != NO_STAGE).all()) and len(np.unique(stages)) > 1
    return np.flatnonzero(stages == stages.max()) if has_pipeline else np.zeros(0, dtype=np.int64)
