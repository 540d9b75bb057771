"""Which calls of operators each row of the track launches, in a form that does not grow with equal steps.

Steps launch the same operators in the same order, but their rows begin elsewhere, since rows depend on when the host
waits. So the calls of equal steps are cut where a row of any of them begins, into stretches, and summed over the steps:

    step 0     |gemm gelu gemm gelu      |norm|       row 0, row 1
    step 1     |gemm gelu      |gemm gelu norm|       row 2, row 3
    stretches  |0              |1        |2   |       row 0 has 0 and 1, row 1 has 2, row 2 has 0, row 3 has 1 and 2

A rank's table is then as long as one step, where a table of each row's calls would be as long as the record.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.columns import distinct
from tb_ddp_doctor.digest.model import RooflineRows, RooflineStretches
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace.model import Indices, Ints


def calls_of_rows(
    row: Ints, step: Indices, signature: Ints, work: Ints, total_ns: Ints
) -> tuple[RooflineRows, RooflineStretches]:
    """The tables of rows and stretches, from calls in the order of their launches, shape (calls,).

    `row` and `step` are where the host launches each call, both ascending; `signature` is its row of `RooflineCalls`,
    and `work` a number that calls of the same operator and inputs share.
    """
    if not len(row):
        return empty(RooflineRows), empty(RooflineStretches)
    step_begins = _begins(step)
    length = np.diff(step_begins, append=len(row))
    template, offset = _templates(work, step_begins, length)
    place = np.arange(len(row)) - np.repeat(step_begins - offset[template], length)
    row_begins = _begins(row)
    stretch = np.searchsorted(np.unique(place[row_begins]), place, side="right") - 1
    size = int(signature.max()) + 1
    keys, which = distinct(stretch * size + signature, (int(stretch.max()) + 1) * size)
    begins = np.searchsorted(keys, np.arange(int(stretch.max()) + 2) * size)
    of_row = np.searchsorted(step_begins, row_begins, side="right") - 1
    row_ends = np.append(row_begins[1:], len(row)) - 1
    rows = RooflineRows(
        row=row[row_begins].astype(np.int32),
        first=begins[stretch[row_begins]].astype(np.int32),
        end=begins[stretch[row_ends] + 1].astype(np.int32),
        ns=np.add.reduceat(total_ns, row_begins),
        repeats=np.bincount(template)[template[of_row]],
    )
    return rows, RooflineStretches(
        call=(keys % size).astype(np.int32),
        count=np.bincount(which, minlength=len(keys)).astype(np.int64),
        ns=summed(which, total_ns, len(keys)),
    )


def _begins(ascending: Ints | Indices) -> Ints:
    """Where a new number begins."""
    return np.flatnonzero(np.diff(ascending, prepend=ascending[0] - 1))


def _templates(work: Ints, begins: Ints, length: Ints) -> tuple[Ints, Ints]:
    """For each step the number of its template, which steps with the same calls in the same order share; and the place
    of each template's first call, one template after the other.
    """
    known: dict[bytes, int] = {}
    lengths: list[int] = []
    template = []
    for first, size in zip(begins.tolist(), length.tolist(), strict=True):
        calls = work[first : first + size].tobytes()
        if calls not in known:
            known[calls] = len(lengths)
            lengths.append(size)
        template.append(known[calls])
    ends: Ints = np.cumsum(lengths)
    return np.array(template), ends - lengths
