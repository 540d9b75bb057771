"""All ranks' step times on one axis of step numbers, and the time that lies between steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.over_ranks import lower_median
from tb_ddp_doctor.history.read import Phase, RankHistory, Stretch

#: Values of all ranks and steps that are kept at once, 4 bytes each: of more, the last steps are.
_MOST_VALUES = 450_000_000
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
    first_step: int
    #: Busy time of a rank in a step until it waits for other ranks, µs, shape (R, N), float32; NaN where unknown.
    #: The length of the step where ranks do not say when they wait.
    busy_us: NDArray[Any]
    is_busy: bool
    #: Length of each step of the job, the median of up to 33 ranks, µs, shape (N,); NaN where unknown.
    step_us: NDArray[Any]
    #: When each step begins, ns since 1970, shape (N,); 0 where unknown.
    begins_ns: NDArray[Any]
    phases: tuple[Phase, ...]
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


def step_grid(histories: Iterable[RankHistory], since: int | None = None) -> StepGrid | None:
    """The steps of all files of a job, from `since` on, on one axis; None where none of them was timed.

    A step that was trained twice has its last time.
    """
    by_rank: dict[int, list[RankHistory]] = {}
    for history in histories:
        by_rank.setdefault(history.rank, []).append(history)
    timed = [file for files in by_rank.values() for file in files if file.stretches]
    if not timed:
        return None
    ranks = sorted({file.rank for file in timed})
    axis = _axis(timed, len(ranks), since)
    if axis is None:
        return None
    earliest, first, count = axis
    is_busy = all(map(_is_busy, timed))
    files = [sorted(by_rank[rank], key=lambda file: file.started_ns) for rank in ranks]
    busy, step, begins = _rows(files, first, count, is_busy)
    restarts, again_s = restarts_of(files[0])
    return StepGrid(
        np.array(ranks),
        tuple(each[-1].node for each in files),
        first,
        busy,
        is_busy,
        step,
        begins,
        tuple(sorted(phase for file in files[0] for phase in file.phases)),
        restarts,
        again_s,
        sum(file.lost_bytes for each in by_rank.values() for file in each),
        first - earliest,
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


def sampled_rows(ranks: int) -> range:
    """The rows of the ranks whose median step is the job's: up to 33, evenly spaced, the first among them."""
    return range(0, ranks, -(-ranks // _SAMPLED_RANKS))


def _axis(timed: Sequence[RankHistory], ranks: int, since: int | None) -> tuple[int, int, int] | None:
    """The earliest step, the first that fits into memory and how many do; None where all are before `since`."""
    stretches = [stretch for file in timed for stretch in file.stretches]
    last = max(stretch.first_step + len(stretch.steps_us) for stretch in stretches)
    earliest = max(min(stretch.first_step for stretch in stretches), since or 0)
    if last <= earliest:
        return None
    # A hole of numbers takes no memory: the axis is no longer than all steps that were timed.
    most = min(_MOST_VALUES // ranks, sum(len(stretch.steps_us) for stretch in stretches))
    first = max(earliest, last - most)
    return earliest, first, last - first


def _is_busy(file: RankHistory) -> bool:
    """Whether most steps of a file say when they wait."""
    known = sum(len(one.steps_us) for one in file.stretches if one.busy_us is not None)
    return known > sum(len(one.steps_us) for one in file.stretches) / 2


def place(
    stretch: Stretch,
    first: int,
    phases: Sequence[Phase],
    is_busy: bool,
    busy: NDArray[Any],
    length: NDArray[Any],
    begins: NDArray[Any] | None,
) -> None:
    """Write a stretch into one rank's row, without the phases that fall into its steps."""
    steps_us = stretch.steps_us.astype(np.float64)
    begins_ns = stretch.begin_ns + np.concatenate(([0.0], np.cumsum(steps_us)[:-1])) * 1000
    known = stretch.busy_us if is_busy else stretch.steps_us
    busy_us = np.full(len(steps_us), np.nan) if known is None else np.where(known > 0, known, np.nan).astype(float)
    end_ns = float(begins_ns[-1] + steps_us[-1] * 1000)
    for phase in phases:
        if stretch.begin_ns <= phase.begin_ns < end_ns:
            at = int(np.searchsorted(begins_ns, phase.begin_ns, side="right")) - 1
            for times in (steps_us, busy_us):
                left = times[at] - (phase.end_ns - phase.begin_ns) / 1000
                # The clocks of both round to µs.
                times[at] = left if left > 0 else np.nan
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


def restarts_of(files: Sequence[RankHistory]) -> tuple[tuple[Restart, ...], float]:
    """Where one rank's job ended and went on, and the time of its steps that came again, s."""
    found, again_us = [], 0.0
    reached, end_ns = -1, 0
    for file in files:
        for number, stretch in enumerate(file.stretches):
            length = len(stretch.steps_us)
            again = max(min(reached + 1, stretch.first_step + length) - stretch.first_step, 0)
            if reached >= 0 and (number == 0 or again):
                found.append(Restart(end_ns, max(stretch.begin_ns, end_ns), again))
            again_us += float(stretch.steps_us[:again].sum(dtype=np.float64))
            reached = max(reached, stretch.first_step + length - 1)
            end_ns = stretch.begin_ns + int(stretch.steps_us.sum(dtype=np.int64)) * 1000
    return tuple(found), again_us / 1e6
