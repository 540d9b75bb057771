"""How much of the step something takes: the one way in which a rule says "12.3 ms of every 45.6 ms"."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import wording


class PartOfStep(msgspec.Struct, frozen=True):
    """A time a step, and the length of the steps that it was measured in. Never more than the step.

    Made from arrays of one shape only, by `mean` and `median`, so that both numbers are of the same ranks and steps.
    """

    ns: float
    step_ns: float

    def __str__(self) -> str:
        """As in "12.3 ms of every 45.6 ms"."""
        return f"{wording.ms(self.ns)} of every {wording.ms(self.step_ns)}"

    @property
    def share(self) -> float:
        """0 to 1; 0 of steps without length."""
        return self.ns / self.step_ns if self.step_ns else 0.0

    def at_most(self, ns: float) -> PartOfStep:
        """The part, or this time where that is less."""
        return PartOfStep(min(self.ns, ns), self.step_ns)


def mean(times_ns: NDArray[Any], steps_ns: NDArray[Any]) -> PartOfStep:
    """The mean time, and the mean length of the steps.

    `times_ns` and `steps_ns` have one shape: the time of some ranks in some steps, and the length of these steps on
    these ranks. Raises ValueError where the shapes differ.
    """
    within = _within(times_ns, steps_ns)
    return PartOfStep(float(within.mean()), float(steps_ns.mean()))


def median(times_ns: NDArray[Any], steps_ns: NDArray[Any]) -> PartOfStep:
    """The median time, and the median length of the steps; otherwise as `mean`."""
    within = _within(times_ns, steps_ns)
    return PartOfStep(float(np.median(within)), float(np.median(steps_ns)))


def of_cost(cost_ns: float, steps_ns: NDArray[Any]) -> PartOfStep:
    """What the replay saves of a step, the mean over all ranks and steps, beside the lengths of all steps, (R, S)."""
    return PartOfStep(min(cost_ns, float(steps_ns.mean())), float(steps_ns.mean()))


def _within(times_ns: NDArray[Any], steps_ns: NDArray[Any]) -> NDArray[Any]:
    """The times, each at most its step: what runs on several streams at once is counted once for each."""
    if times_ns.shape != steps_ns.shape:
        raise ValueError(f"Times of shape {times_ns.shape} are no part of steps of shape {steps_ns.shape}.")
    within: NDArray[Any] = np.minimum(times_ns, steps_ns)
    return within
