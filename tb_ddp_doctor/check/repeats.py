"""Repeats of a measure, in rounds in which each rank has one, until it is clear which ranks are outliers.

Ranks of a node that have too few cores take turns (`turns`). All turns of a round lie within a second, so that a load
that others put on the machine meets all ranks alike, and ranks are compared round by round (`outliers`).

R = ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.check.turns import MOST_TURNS, turns

Floats: TypeAlias = NDArray[np.float64]
#: What all ranks give, shape (R, values), to all of them: of this rank's values.
Gather: TypeAlias = Callable[[Sequence[float]], Floats]

#: Rounds after which ranks are compared, and how often at most there are as many more.
ROUNDS, _MOST_BATCHES = 8, 3
#: After it, for a rank that ends late.
_GAP_S = 0.02
#: From the last rank that is ready to the first window.
_LEAD_S = 0.05


def longest_s(window_s: float, batches: int = _MOST_BATCHES) -> float:
    """How long the repeats of one measure may take at most."""
    return batches * (ROUNDS * MOST_TURNS * (window_s + _GAP_S) + _LEAD_S)


class LocalRanks(msgspec.Struct, frozen=True):
    """This rank among the ranks of its node."""

    rank: int
    ranks: tuple[int, ...]
    #: So many compute at the same time.
    together: int
    #: How long a repeat takes, s.
    window_s: float
    gather: Gather

    def begin(self) -> float:
        """When all ranks of the node begin, by the node's clock, s; all ranks of the job call it together."""
        ready = self.gather([time.time()])
        return float(ready[list(self.ranks), 0].max()) + _LEAD_S

    def rounds(self, window: Callable[[], float], first: int) -> list[float]:
        """The repeats of the rounds from a number on, each in its turn."""
        start, values, passed = self.begin(), [], 0
        for number in range(first, first + ROUNDS):
            order = turns(self.ranks, self.together, number)
            own = next(i for i, members in enumerate(order) if self.rank in members)
            sleep_until(start + (passed + own) * (self.window_s + _GAP_S))
            values.append(window())
            passed += len(order)
        return values


def repeated(
    node: LocalRanks, some: Callable[[int], Sequence[float]], is_clear: Callable[[Floats], bool]
) -> list[float]:
    """This rank's repeats, taken until those of all ranks, shape (R, repeats), are clear, or there are enough.

    `some` takes those of the rounds from a number on. All ranks call this together.
    """
    everyone = np.empty((len(node.gather([0.0])), 0))
    for batch in range(_MOST_BATCHES):
        everyone = np.hstack([everyone, node.gather(some(batch * ROUNDS))])
        if is_clear(everyone):
            break
    own: list[float] = everyone[node.rank].tolist()
    return own


def sleep_until(instant: float) -> None:
    """Return at this time of the node's clock, s; at once where it is over or a clock was set back."""
    remaining = instant - time.time()
    if 0 < remaining < 60:
        time.sleep(remaining)
