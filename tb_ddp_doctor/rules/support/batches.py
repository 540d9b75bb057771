"""Whether ranks are slow in some steps because their batches are larger there: sequences of other lengths."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.compute import BatchWork
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Floats, Ints

#: A FLOP more takes at most so many times as long as one does on average: attention is slower than GEMMs.
_MOST_TIMES_AS_LONG = 2.0
#: Batches explain an excess of which they explain this share.
_MOST = 0.5


class UnevenBatches(msgspec.Struct, frozen=True, eq=False):
    """Steps in which the slowest rank has more FLOP than the ranks have on average."""

    #: FLOP of the slowest rank of each step over the mean of the ranks, shape (N,).
    of_mean: Floats
    #: What batches of equal FLOP on all ranks would save of a step, ns; 0 where the steps cannot be replayed.
    saving_ns: float

    def __str__(self) -> str:
        """A sentence, after a space."""
        least, most = float(self.of_mean.min()) - 1, float(self.of_mean.max()) - 1
        more = (
            wording.percents(least, most) if wording.percent(least) != wording.percent(most) else wording.percent(most)
        )
        saved = f"; batches of equal FLOP would save {wording.ms(self.saving_ns)} a step" if self.saving_ns else ""
        return f" Their sequences differ: the slowest rank of a step has {more} more FLOP than the mean rank{saved}."


def uneven_batches(
    slowest: Ints, steps: Ints, lost_ns: Ints, work: BatchWork | None, whatif: WhatIf, compute_ns: Ints
) -> UnevenBatches | None:
    """The batches of uneven steps, if they explain most of what these steps lose; None where they do not.

    `slowest` are the slowest ranks of the steps (indices), and `lost_ns` by how much these are slower than the median
    rank, all of shape (N,). `compute_ns` is how long each rank computes in each step, shape (R, S).

    1. Fit the time of a FLOP to what ranks compute longer, and have more FLOP, than the median rank of the step.
    2. The batches explain what that time gives for the FLOP that the slowest rank has beyond the median rank.
    3. With equal batches, each rank's compute changes by that time of its FLOP beyond the mean.
    """
    if work is None:
        return None
    flops = work.flops.astype(np.float64)
    more = flops - np.median(flops, axis=0)
    longer = compute_ns - np.median(compute_ns, axis=0)
    spread = float((more * more).sum())
    if not spread:
        return None
    most = _MOST_TIMES_AS_LONG * float(compute_ns.mean()) / float(flops.mean())
    of_flop = min(float((more * longer).sum()) / spread, most)
    mean = flops.mean(axis=0)
    of_mean = (flops / mean)[slowest, steps]
    explained = float((of_flop * more[slowest, steps]).sum())
    if explained < _MOST * float(lost_ns.sum()) or of_mean.min() <= 1:
        return None
    above = np.rint(np.maximum(of_flop * (flops - mean), 0)).astype(np.int64)
    return UnevenBatches(of_mean, whatif.cost_ns(Change(device_ns=above)) if whatif.plays else 0.0)
