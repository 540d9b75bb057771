"""Collectives that seem to run on after what waited for them has begun: one wrong digit in a start or a duration.

By all other ranks this one ended long before, and just then compute began on the rank itself:

    rank 0  nccl  [ar........]
    rank 1  nccl  [ar........]
    rank 2  nccl    [ar........]     its start is 2 ms late
            gpu               [update]

Where a rank truly is the last to end a collective, what waits for it begins at that end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor.digest.model import RankDigest, RankOwner
from tb_ddp_doctor.job.collectives import ENDS_APART, UNEVEN, Matched
from tb_ddp_doctor.job.completeness import LEAST_PEERS
from tb_ddp_doctor.trace.model import Flags, Ints

#: How much later than on the median rank, as a multiple of how exactly ends are known.
_LATE = 1.5


def outlasted(digests: Sequence[RankDigest], matched: Matched, offset_ns: Ints, tolerance_ns: int) -> Flags:
    """Parts that end later than those of all other ranks, and later than the rank waited for them; shape (P,).

    `offset_ns`, shape (P,), is what to subtract from each rank's clock; ends are known to within the tolerance.
    """
    segments = matched.segments
    outlasts = np.zeros(len(matched.rank), np.bool_)
    judged = ~matched.is_of(ENDS_APART) & ~matched.is_of(UNEVEN) & matched.together & (matched.parts >= LEAST_PEERS)
    if not judged.any():
        return outlasts
    end = (matched.end_ns - offset_ns).astype(np.float64)
    median = segments.median(end)
    late = end - segments.each(median)
    judged &= segments.count(np.abs(late) > tolerance_ns) == 1
    for part in np.flatnonzero(segments.each(judged) & (late > _LATE * tolerance_ns)).tolist():
        pieces = digests[matched.rank[part]].pieces
        ended = int(median[segments.index[part]]) + offset_ns[part]
        waits = (pieces.owner == RankOwner.COMMUNICATION) & (pieces.end_ns > matched.arrival_ns[part])
        outlasts[part] = bool((np.abs(pieces.end_ns[waits] - ended) <= tolerance_ns).any())
    return outlasts
