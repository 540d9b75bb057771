"""The ranks that a fault of all ranks names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.trace.model import Ints

#: Those with at least this share of what the worst rank has: a few, where one stands out, and all where none does.
_OF_THE_WORST = 0.5


def most_affected(by_step_ns: NDArray[Any]) -> Ints:
    """Indices of the ranks that have most of something, given shape (R, S): one at least, if any rank has some."""
    mean = by_step_ns.mean(axis=1)
    return np.flatnonzero((mean > 0) & (mean >= _OF_THE_WORST * float(mean.max())))
