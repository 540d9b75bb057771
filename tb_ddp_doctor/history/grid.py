"""All ranks' step times on one axis of step numbers, and the time that lies between steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.read import MarkedTime, RankHistory, Stretch

#: The job's step is the median of so many ranks at most.
_SAMPLED_RANKS = 33
#: Bins of steps whose medians are compared: fine enough for a thousandth of a day.
_MOST_BINS, _FEWEST_STEPS_A_BIN = 512, 8


class Restart(NamedTuple):
    """A job that ended and went on, ns since 1970; the steps that it trained again."""

    end_ns: int
    begin_ns: int
    trained_again: int


class StepGrid(msgspec.Struct, frozen=True):
    """The time of each rank in each step. R ranks, N steps, columns in order of the step number."""

    #: Shape (R,).
    ranks: NDArray[Any]
    #: Of each rank, where it ran last.
    nodes: tuple[str, ...]
    #: Of each rank, its stage of the pipeline, shape (R,); `NO_STAGE` where it is not known.
    stages: NDArray[Any]
    first_step: int
    #: Busy time of a rank in a step until it waits for other ranks, µs, shape (R, N), float32; NaN where unknown.
    #: The length of the step where ranks do not say when they wait.
    busy_us: NDArray[Any]
    is_busy: bool
    #: Length of each step of the job, the median of up to 33 ranks, µs, shape (N,); NaN where unknown.
    step_us: NDArray[Any]
    #: When each step begins, ns since 1970, shape (N,); 0 where unknown.
    begins_ns: NDArray[Any]
    phases: tuple[MarkedTime, ...]
    restarts: tuple[Restart, ...]
    #: Time of steps that were trained once more later, s.
    trained_again_s: float
    lost_bytes: int
    #: Steps before the first column, which did not fit into memory.
    left_out: int

    @property
    def bin_steps(self) -> int:
        """Steps in a bin."""
        return max(_FEWEST_STEPS_A_BIN, -(-int(self.busy_us.shape[1]) // _MOST_BINS))


def medians_of_bins(values: NDArray[Any], width: int) -> NDArray[Any]:
    """Medians of values, shape (..., N), over whole bins of `width` values, shape (..., B); NaN where all are."""
    count = values.shape[-1] // width
    cut = values[..., : count * width].reshape(*values.shape[:-1], count, width)
    medians: NDArray[Any] = np.median(cut, axis=-1)
    holes = np.isnan(medians)
    if holes.any():
        # Of an even number of steps the lower median: no mean of two, so that NaN sorts to the end.
        part = np.sort(cut[holes], axis=-1)
        known = np.count_nonzero(~np.isnan(part), axis=-1)
        medians[holes] = np.where(known > 0, part[np.arange(len(part)), np.maximum(known - 1, 0) // 2], np.nan)
    return medians


def sampled_rows(ranks: int) -> range:
    """The rows of the ranks whose median step is the job's: up to 33, evenly spaced, the first among them."""
    return range(0, ranks, -(-ranks // _SAMPLED_RANKS))


def place(
    stretch: Stretch,
    first: int,
    phases: Sequence[MarkedTime],
    is_busy: bool,
    busy: NDArray[Any],
    length: NDArray[Any],
    begins: NDArray[Any] | None,
    tokens: NDArray[Any] | None = None,
) -> None:
    """Write a stretch into one rank's row, without the phases (in order of time) that fall into its steps."""
    steps_us = stretch.steps_us.astype(np.float64)
    begins_ns = stretch.begin_ns + np.concatenate(([0.0], np.cumsum(steps_us)[:-1])) * 1000
    known = stretch.busy_us if is_busy else stretch.steps_us
    busy_us = np.full(len(steps_us), np.nan) if known is None else np.where(known > 0, known, np.nan).astype(float)
    end_ns = float(begins_ns[-1] + steps_us[-1] * 1000)
    inside = slice(*(bisect_left(phases, at_ns, key=itemgetter(0)) for at_ns in (stretch.begin_ns, end_ns)))
    for phase in phases[inside]:
        at = int(np.searchsorted(begins_ns, phase.begin_ns, side="right")) - 1
        for times in (steps_us, busy_us):
            remaining = times[at] - (phase.end_ns - phase.begin_ns) / 1000
            # The clocks of both round to µs.
            times[at] = remaining if remaining > 0 else np.nan
    skipped = max(first - stretch.first_step, 0)
    at = stretch.first_step + skipped - first
    until = min(at + len(steps_us) - skipped, len(busy))
    if until <= at:
        return
    part = slice(skipped, skipped + until - at)
    busy[at:until] = busy_us[part]
    length[at:until] = steps_us[part]
    if begins is not None:
        begins[at:until] = begins_ns[part].astype(np.int64)
    if tokens is not None and stretch.tokens is not None:
        tokens[at:until] = stretch.tokens[part]


def restarts_of(files: Sequence[RankHistory]) -> tuple[tuple[Restart, ...], float]:
    """Where one rank's job ended and went on, and the time of its steps that came again, s."""
    restarts, again_us = [], 0.0
    reached, end_ns = -1, 0
    for file in files:
        for number, stretch in enumerate(file.stretches):
            length = len(stretch.steps_us)
            again = max(min(reached + 1, stretch.first_step + length) - stretch.first_step, 0)
            if reached >= 0 and (number == 0 or again):
                restarts.append(Restart(end_ns, max(stretch.begin_ns, end_ns), again))
            again_us += float(stretch.steps_us[:again].sum(dtype=np.float64))
            reached = max(reached, stretch.first_step + length - 1)
            end_ns = stretch.begin_ns + int(stretch.steps_us.sum(dtype=np.int64)) * 1000
    return tuple(restarts), again_us / 1e6
