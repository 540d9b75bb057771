"""Which kernels of modules run between which collectives of a step: what lets the critical path tell them apart.

The path across ranks is a chain of rows of `Track`. A segment of a step is all rows of its track from the launch of one
collective to that of the next, so that steps of a job have the same segments, however many other rows a step has:

    row of the track           0         1        2         3
    it ends with               -    AllReduce     -     AllReduce
    segment                    0         0        1         1
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.columns import distinct, searchsorted
from tb_ddp_doctor.digest.model import ModuleKernels, ModuleSegments, Track
from tb_ddp_doctor.digest.module_kernels import TimeParts
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace.model import Ints

#: Rows of kernels that are kept, those with most time, and rows of modules' times for the others: a digest stays small.
MOST_SEGMENTS = 1024


def row_segments(track: Track) -> Ints:
    """The segment of each row of a track within its step, shape (rows,)."""
    ends = track.launches >= 0
    before: Ints = np.cumsum(ends) - ends
    first = searchsorted(track.step.astype(np.int64), track.step.astype(np.int64))
    return before - before[first] if len(before) else before


def event_segments(track: Track, track_row: Ints) -> Ints:
    """The segment of each device event by the row of the track that launches it, -1 where that is -1."""
    segments: Ints = np.append(row_segments(track), -1)[track_row]
    return segments


def module_segments(segment: Ints, parts: TimeParts, row: Ints, kernels: ModuleKernels, times: int) -> ModuleSegments:
    """The times of the modules' kernels by segment of a step, given the segment of each event.

    `row` is the row of `kernels` that each part counts for, shape (parts,); `ModuleTimes` has `times` rows. Kernels
    with little time are summed by row of `ModuleTimes`.
    """
    of = np.append(segment, -1)[parts.event]
    known = (of >= 0) & (parts.length_ns > 0)
    number, row, ns = _sums(of[known], row[known], parts.length_ns[known], len(kernels))
    is_kept = _longest(ns)
    rest = _sums(number[~is_kept], kernels.of[row[~is_kept]].astype(np.int64), ns[~is_kept], times)
    kept = _longest(rest[2])
    number, row, ns = (
        np.concatenate((named[is_kept], column[kept] + shift))
        for named, column, shift in zip((number, row, ns), rest, (0, len(kernels), 0), strict=True)
    )
    order = np.lexsort((row, number))
    return ModuleSegments(segment=number[order].astype(np.int32), of=row[order].astype(np.int32), total_ns=ns[order])


def _sums(segment: Ints, row: Ints, ns: Ints, rows: int) -> tuple[Ints, Ints, Ints]:
    """The sums of times by segment and row, of so many rows: segment, row and time of each that has any."""
    width = max(rows, 1)
    cells, which = distinct(segment * width + row, (int(segment.max(initial=0)) + 1) * width)
    number, row = np.divmod(cells, width)
    return number, row, summed(which, ns, len(cells))


def _longest(ns: Ints) -> Mask:
    """Which are kept: those with most time."""
    is_kept = np.zeros(len(ns), np.bool_)
    is_kept[np.argsort(-ns, kind="stable")[:MOST_SEGMENTS]] = True
    return is_kept
