"""The ranks that a fault of all ranks names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.trace.model import Ints

#: Those with at least this share of what the worst rank has: a few, where one stands out, and all where none does.
_OF_THE_WORST = 0.5


def most_affected(by_step_ns: NDArray[Any]) -> Ints:
    """Indices of the ranks that have most of something, given shape (R, S)."""
    mean = by_step_ns.mean(axis=1)
    found: Ints = np.flatnonzero(mean >= max(_OF_THE_WORST * float(mean.max()), 1.0))
    return found
