"""Matched collectives as a table with a row for each collective and a column for each rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.collectives import Matched


def table(matched: Matched, of_parts: NDArray[Any], absent: float = -1) -> NDArray[Any]:
    """A value of each part, shape (M, R); `absent` where a rank has no part."""
    values = np.full((len(matched), len(matched.unmatched)), absent, of_parts.dtype)
    values[matched.segments.index, matched.rank] = of_parts
    return values


def rows(matched: Matched, calls: Calls) -> list[list[int]]:
    """Which of its calls each rank has in each collective, by time; -1 where it has no part."""
    own: list[list[int]] = table(matched, matched.call - calls.first[matched.rank]).tolist()
    return own
