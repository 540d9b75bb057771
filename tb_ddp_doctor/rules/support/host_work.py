"""A stretch of the host's time as a change: which share of each kind of host time it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Floats, Ints

#: What the host's time goes to that is neither waiting nor the DataLoader's, in the order in which long work is taken.
WORK = (CpuTime.OP_STALL, CpuTime.STALL, CpuTime.ALLOC, CpuTime.WORK)


def shares(whatif: WhatIf, host_ns: Ints, kinds: Sequence[CpuTime] = WORK) -> Mapping[CpuTime, Floats]:
    """The shares of some kinds of host time, taken one after the other, that sum to `host_ns`, shape (R, S).

    A stretch outside any op counts for the step in which it begins: what a step has not spent may have begun in the one
    before. The shares sum to less where the host has not spent as much on these kinds.
    """
    remaining, share_of = host_ns.astype(np.float64), {}
    for kind in kinds:
        spent = whatif.host_ns(kind)
        taken = np.minimum(remaining, spent)
        remaining = remaining - taken
        if kind is CpuTime.STALL:
            more = np.minimum(remaining[:, 1:], (spent - taken)[:, :-1])
            remaining[:, 1:] -= more
            taken[:, :-1] += more
        if taken.any():
            share_of[kind] = taken / np.maximum(spent, 1)
    return share_of
