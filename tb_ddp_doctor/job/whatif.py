"""What the step would take if a fault were fixed: own times with something removed, step by step.

A rank's own time is its step without the waiting for others, and the step ends when the slowest rank's own time does.
A rank that waits computes nothing beside the transfers that follow, so its transfers are exposed although nothing is
wrong with them; once nobody is late they hide as well as they do on the rank that kept the others waiting. That rank's
exposed transfer is therefore the most that any rank is charged with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """Own times of a job, and the step that follows from them."""

    #: Own time with transfers as exposed as they are on the slowest rank, shape (R, S), ns.
    own_ns: Ints
    #: Index of the slowest rank of each step, shape (S,): the one that has no reason to wait.
    slowest: NDArray[np.int64]

    @classmethod
    def of(cls, budget: Budget) -> WhatIf:
        slowest = budget.own_ns.argmax(axis=0)
        transfer = budget.of("transfer")
        undelayed = transfer[slowest, np.arange(len(slowest))]
        return cls(budget.own_ns - np.maximum(transfer - undelayed, 0), slowest)

    def step_ns(self, removed_ns: Ints | int = 0) -> Ints:
        """Predicted step time without `removed_ns`, shape (R, S), of each rank's own time; shape (S,)."""
        predicted: Ints = (self.own_ns - removed_ns).max(axis=0)
        return predicted

    def cost_ns(self, removed_ns: Ints) -> float:
        """Predicted fall of the step time, mean over steps, ns; never negative."""
        return max(float((self.step_ns() - self.step_ns(removed_ns)).mean()), 0.0)

    def at_slowest(self, values: Ints) -> Ints:
        """Of values of shape (R, S) those of each step's slowest rank, shape (S,)."""
        return values[self.slowest, np.arange(len(self.slowest))]
