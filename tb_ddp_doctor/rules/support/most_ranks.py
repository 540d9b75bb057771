"""A fault that most ranks share, and some do not: theirs, and no straggler's.

Three of four ranks that wait for their DataLoader are no stragglers: the fourth one is the odd one, with a batch in its
page cache or a disk of its own.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Severity
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import limits


class Most(msgspec.Struct, frozen=True, eq=False):
    """Most ranks, but not all: those whose CPUs spend far more time on something than the others' do."""

    #: Shape (R,).
    ranks: NDArray[np.bool_]
    #: What makes their CPUs like those of the other ranks.
    change: Change


def most_ranks(whatif: WhatIf, frame: Frame, kind: CpuTime) -> Most | None:
    """Most ranks, if their CPUs take much longer for something than those of the other ranks, and it costs time.

    The other ranks have as much work for their GPUs. None where no more than half of the ranks do, or all of them.
    """
    if not whatif.plays:
        return None
    spent = whatif.host_ns(kind).mean(axis=1)
    ranks = spent - spent.min() > limits.SLOW_RANK[0] * frame.step_ns
    if 2 * ranks.sum() <= len(ranks) or not whatif.have_as_much_work(~ranks):
        return None
    change = whatif.at_the_median(np.broadcast_to(ranks[:, None], whatif.shape), ~ranks, [kind])
    costly = whatif.cost_ns(change) >= Severity.MINOR.least_share * frame.step_ns
    return Most(ranks, change) if costly else None
