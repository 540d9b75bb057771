"""Which modules' times lie between which collectives of a step: what lets the critical path tell modules.

The path across ranks is a chain of rows of `Track`. A segment of a step is all rows of its track from the launch of one
collective to that of the next, so that steps of a job have the same segments, however many other rows a step has:

    row of the track           0         1        2         3
    it ends with               -    AllReduce     -     AllReduce
    segment                    0         0        1         1
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.columns import distinct, searchsorted
from tb_ddp_doctor.digest.model import ModuleSegments, Track
from tb_ddp_doctor.digest.module_kernels import TimeParts
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.trace.model import Ints

#: Rows that are kept, those with most time: a digest stays small.
MOST_SEGMENTS = 1024


def row_segments(track: Track) -> Ints:
    """The segment of each row of a track within its step, shape (rows,)."""
    ends = track.launches >= 0
    before: Ints = np.cumsum(ends) - ends
    first = searchsorted(track.step.astype(np.int64), track.step.astype(np.int64))
    return before - before[first] if len(before) else before


def event_segments(track: Track, row_end_ns: Ints, launched_ns: Ints) -> Ints:
    """The segment of each device event by when it was launched, -1 where that is not known, or beyond the track.

    `row_end_ns` is when each row of the track ends on the host, shape (rows,).
    """
    row = searchsorted(row_end_ns, launched_ns, side="right")
    known = (launched_ns >= 0) & (row < len(row_end_ns))
    return np.where(known, np.append(row_segments(track), -1)[np.where(known, row, -1)], -1)


def module_segments(segment: Ints, parts: TimeParts, times: int) -> ModuleSegments:
    """The times of the modules by segment of a step, given that of each event; `times` is how many rows these have."""
    of = np.append(segment, -1)[parts.event]
    known = (of >= 0) & (parts.length_ns > 0)
    row, of, length = parts.row[known], of[known], parts.length_ns[known]
    cells, which = distinct(of * max(times, 1) + row, (int(of.max(initial=0)) + 1) * max(times, 1))
    total = summed(which, length, len(cells))
    kept = np.sort(np.argsort(-total, kind="stable")[:MOST_SEGMENTS])
    number, row = np.divmod(cells[kept], max(times, 1))
    return ModuleSegments(segment=number, of=row.astype(np.int32), total_ns=total[kept])
