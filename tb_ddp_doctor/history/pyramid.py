"""All ranks' step times reduced to what the summary and the view need: megabytes of a job's gigabytes.

Of each step of the job: its length, the slowest ranks, the median rank. Of each rank: minimum, median and maximum of
bins of steps, and its long steps. R ranks, N steps, B bins; NaN where nothing is known.

    4,096 ranks x 100,000 steps    step times 1.6 GB    bins of 64 steps 77 MB, columns of steps 3.6 MB
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.grid import StepGrid, medians_of_bins
from tb_ddp_doctor.history.over_ranks import lower_median
from tb_ddp_doctor.history.rare import LongSteps, long_steps_of, of_bins

#: Steps whose ranks are compared at once, and values of them.
_VALUES = 1 << 19
#: NumPy lets other threads go on while it sorts.
_THREADS = 4
#: Values of all ranks that are kept of some steps, evenly spaced, of each part of a job.
_SAMPLED_VALUES = 1 << 21
#: Bins whose medians are compared.
_MOST_BINS = 512

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.int32]


class StepColumns(msgspec.Struct, frozen=True):
    """The job's steps, shape (N,), busy times of the ranks in µs."""

    #: Length of the step, µs, and when it begins, ns since 1970, 0 where unknown.
    length_us: Floats
    begins_ns: Ints
    #: The largest busy time, whose row it is (-1: unknown), that of the other rows, and that of the other nodes.
    largest_us: Floats
    largest_row: Rows
    second_us: Floats
    other_node_us: Floats
    #: Lower median over ranks.
    median_us: Floats
    #: The largest busy time if long steps were as long as the median of their bin.
    regular_us: Floats


class Pyramid(msgspec.Struct, frozen=True):
    """A stretch of a job's steps, or all of them."""

    #: Shape (R,).
    ranks: Ints
    #: Of each rank, where it ran last.
    nodes: tuple[str, ...]
    #: Of each rank, its stage of the pipeline, shape (R,); `NO_STAGE` where it is not known.
    stages: Ints
    first_step: int
    #: Whether busy times end where a rank waits for others; else they are the lengths of steps.
    is_busy: bool
    #: Steps of a bin; a last one with fewer steps is left out.
    width: int
    steps: StepColumns
    #: Minimum, median and maximum of busy times, µs, shape (R, B).
    low_us: Floats
    median_us: Floats
    high_us: Floats
    long_steps: LongSteps
    #: Columns of some steps, evenly spaced, shape (S,), and all busy times in them, shape (R, S).
    sampled: Ints
    sampled_us: Floats


class Bins(msgspec.Struct, frozen=True):
    """A rank's bins and long steps in a stretch of steps; as in `Pyramid`."""

    low_us: Floats
    median_us: Floats
    high_us: Floats
    long_columns: Ints
    long_excess_us: Floats
    long_busy_us: Floats


def bins_of_row(busy_us: NDArray[Any], width: int, step_us: float) -> Bins:
    """The bins of a rank's busy times, shape (C,), whose job has a median step of `step_us`."""
    count = len(busy_us) // width
    cut = busy_us[: count * width].reshape(count, width)
    medians = medians_of_bins(busy_us, width)
    long = long_steps_of(busy_us, medians, width, step_us) if count else np.zeros(0, dtype=np.int64)
    median_us = of_bins(medians, width, len(busy_us))[long] if count else np.zeros(0)
    return Bins(
        np.fmin.reduce(cut, axis=1).astype(np.float32),
        medians.astype(np.float32),
        np.fmax.reduce(cut, axis=1).astype(np.float32),
        long.astype(np.int64),
        (busy_us[long] - median_us).astype(np.float32),
        busy_us[long].astype(np.float32),
    )


def reduced(grid: StepGrid, width: int | None = None, rows: Sequence[Bins] | None = None) -> Pyramid:
    """The pyramid of steps that are in memory; `rows` are the bins of each rank where they are known."""
    width = width or grid.bin_steps
    busy = grid.busy_us
    if rows is None:
        step_us = float(np.nanmedian(grid.step_us)) if not np.isnan(grid.step_us).all() else np.inf
        rows = [bins_of_row(row, width, step_us) for row in busy]
    long_steps = LongSteps(
        np.repeat(np.arange(len(rows)), [len(row.long_columns) for row in rows]),
        np.concatenate([row.long_columns for row in rows]),
        np.concatenate([row.long_excess_us for row in rows]),
        np.concatenate([row.long_busy_us for row in rows]),
    )
    every = 1 + busy.size // _SAMPLED_VALUES
    sampled = np.arange(0, busy.shape[1], every)
    return Pyramid(
        grid.ranks.astype(np.int64),
        grid.nodes,
        grid.stages.astype(np.int64),
        grid.first_step,
        grid.is_busy,
        width,
        _columns(grid, long_steps),
        np.stack([row.low_us for row in rows]),
        np.stack([row.median_us for row in rows]),
        np.stack([row.high_us for row in rows]),
        long_steps,
        sampled,
        np.ascontiguousarray(busy[:, ::every]),
    )


def joined(parts: Sequence[Pyramid]) -> Pyramid:
    """Parts that follow one another as one; each but the last has whole bins, and all have the same ranks."""
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum([0, *(len(part.steps.length_us) for part in parts)]).tolist()
    last = parts[-1]

    def together(kind: type[msgspec.Struct], tables: Sequence[Any]) -> Any:
        names = kind.__struct_fields__
        return kind(*(np.concatenate([getattr(table, name) for table in tables]) for name in names))

    long_steps = [
        msgspec.structs.replace(part.long_steps, columns=part.long_steps.columns + begin)
        for part, begin in zip(parts, begins, strict=False)
    ]
    return Pyramid(
        last.ranks,
        last.nodes,
        last.stages,
        parts[0].first_step,
        last.is_busy,
        last.width,
        together(StepColumns, [part.steps for part in parts]),
        np.concatenate([part.low_us for part in parts], axis=1),
        np.concatenate([part.median_us for part in parts], axis=1),
        np.concatenate([part.high_us for part in parts], axis=1),
        together(LongSteps, long_steps),
        np.concatenate([part.sampled + begin for part, begin in zip(parts, begins, strict=False)]),
        np.concatenate([part.sampled_us for part in parts], axis=1),
    )


def compared_bins(pyramid: Pyramid) -> tuple[NDArray[Any], int]:
    """Medians of up to 512 bins of each rank, shape (R, at most 512), and the steps of a bin."""
    count = pyramid.median_us.shape[1]
    of = max(-(-count // _MOST_BINS), 1)
    return medians_of_bins(pyramid.median_us, of), pyramid.width * of


def _columns(grid: StepGrid, long_steps: LongSteps) -> StepColumns:
    """What each step has of all ranks, made of some thousand steps at a time."""
    busy, count = grid.busy_us, grid.busy_us.shape[1]
    nodes, node_of = np.unique(grid.nodes, return_inverse=True)
    by_node = np.argsort(node_of, kind="stable")
    of_nodes = (node_of, by_node, np.searchsorted(node_of[by_node], np.arange(len(nodes))))
    ordered = long_steps.where(np.argsort(long_steps.columns, kind="stable"))
    values = np.full((5, count), np.nan, dtype=np.float32)
    row = np.full(count, -1, dtype=np.int32)
    most = max(_VALUES // len(busy), 1)

    def fill(begin: int) -> None:
        at = slice(begin, begin + most)
        long = ordered.where(np.arange(*np.searchsorted(ordered.columns, [begin, begin + most])))
        values[:, at], row[at] = _compared(busy[:, at].T.copy(), long.columns - begin, long, of_nodes)

    with ThreadPoolExecutor(_THREADS) as threads:
        # A list asks for what each thread raised.
        list(threads.map(fill, range(0, count, most)))
    values[values < 0] = np.nan
    row[np.isnan(values[2])] = -1
    return StepColumns(
        length_us=grid.step_us.astype(np.float32),
        begins_ns=grid.begins_ns,
        largest_us=values[2],
        largest_row=row,
        second_us=values[3],
        other_node_us=values[4],
        median_us=values[0],
        regular_us=values[1],
    )


def _compared(
    part: NDArray[Any], columns: NDArray[Any], long: LongSteps, of_nodes: tuple[NDArray[Any], ...]
) -> tuple[tuple[NDArray[Any], ...], NDArray[Any]]:
    """Of steps, shape (C, R): median, largest without what long steps have more, largest, that of other rows, that of
    other nodes; and the row of the largest.

    `columns` are those of the long steps, `of_nodes` as in `_slowest`. Changes `part`.
    """
    median = lower_median_of_rows(part)
    # No busy time is negative: -1 is nothing in what follows.
    np.nan_to_num(part, copy=False, nan=-1)
    regular = _without_excess(part, columns, long).max(axis=1)
    row = part.argmax(axis=1)
    return (median, regular, *_slowest(part, row, of_nodes)), row


def _without_excess(part: NDArray[Any], columns: NDArray[Any], long: LongSteps) -> NDArray[Any]:
    """Busy times of steps, shape (C, R), where long steps are as long as the median of their bin."""
    result: NDArray[Any] = part.copy()
    result[columns, long.rows] -= long.excess_us
    return result


def _slowest(part: NDArray[Any], row: NDArray[Any], of_nodes: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    """Of steps, shape (C, R), whose largest time is in `row`: this one, that of other rows, and of other nodes.

    `of_nodes` are the node of each row, the rows by node, and the first of each node among those. Changes `part`.
    """
    node_of, by_node, first_of_node = of_nodes
    each = np.arange(len(part))
    largest = part[each, row]
    largest_of_node = np.maximum.reduceat(part[:, by_node], first_of_node, axis=1)
    largest_of_node[each, node_of[row]] = -1
    part[each, row] = -1
    return largest, part.max(axis=1), largest_of_node.max(axis=1)


def lower_median_of_rows(values: NDArray[Any]) -> NDArray[Any]:
    """Lower median of each row of a table of shape (C, R); NaN where all are."""
    if not np.isnan(values).any():
        middle = (values.shape[1] - 1) // 2
        return np.partition(values, middle, axis=1)[:, middle]
    return lower_median(values.T)
