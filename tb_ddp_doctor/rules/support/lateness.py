"""Which slow ranks make others wait, and which are hidden: slower in the replay, but waiting themselves in the record.

    rank 0  [fwd][AllReduce: wait 50..........]    waits 50
    rank 1  [fwd][sleep 50     ][AllReduce    ]    late: the others wait 50 for it
    rank 2  [fwd][AllReduce: wait 50..........]    hidden: its CPU sleeps 40 while its GPU waits

A hidden rank is no straggler yet: it is the next one once rank 1 is fixed.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.waits import Waits
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.rules.support.part import PartOfStep
from tb_ddp_doctor.rules.support.slowness import Slowness
from tb_ddp_doctor.trace.model import Ints


class Lateness(msgspec.Struct, frozen=True, eq=False):
    """What others wait for each of R ranks."""

    #: What the ranks that are not slow wait for each rank, shape (R,), ns: mean over them and all steps.
    caused_ns: NDArray[np.float64]
    #: Whether a slow rank waits as much as others wait for it, and is not late by more than it waits, shape (R,).
    hidden: NDArray[np.bool_]
    #: Indices of the ranks that are not slow.
    others: Ints

    @classmethod
    def of(cls, slow_ranks: Slowness, budget: Budget, waits: Waits, frame: Frame) -> Lateness:
        """From the slow ranks of a job and the straggler waits as recorded: of each role beside its own others."""
        own = budget.of("wait").mean(axis=1)
        caused = np.zeros(len(own))
        caused[slow_ranks.persistent] = waits.caused_ns(slow_ranks.persistent, slow_ranks.others)
        late_ns = np.zeros(len(own))
        for role in frame.of_each_role:
            peers = np.intersect1d(role, slow_ranks.others)
            late_ns[role] = own[peers if len(peers) else slow_ranks.others].mean() - own[role]
        hidden = (own >= np.maximum(caused, slow_ranks.limit_ns)) & (late_ns < slow_ranks.limit_ns)
        return cls(caused, hidden, slow_ranks.others)

    @property
    def late(self) -> NDArray[np.bool_]:
        """Which ranks are not hidden, shape (R,)."""
        return ~self.hidden

    def caused(self, ranks: Ints, frame: Frame) -> PartOfStep:
        """How long the ranks that are not slow wait for some slow ranks (indices), beside their steps."""
        return PartOfStep(float(self.caused_ns[ranks].sum()), float(frame.window_ns[self.others].mean()))
