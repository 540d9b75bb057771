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
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest, RankOwner
from tb_ddp_doctor.job.collectives import ENDS_APART, UNEVEN, Matched
from tb_ddp_doctor.job.completeness import LEAST_PEERS, Mask

#: How much later than on the median rank, as a multiple of how exactly ends are known.
_LATE = 1.5


def outlasted(digests: Sequence[RankDigest], matched: Matched, offset_ns: NDArray[np.int64], tolerance_ns: int) -> Mask:
    """Parts that end later than those of all other ranks, and later than the rank waited for them; shape (M, R).

    `offset_ns`, shape (M, R), is what to subtract from each rank's clock; ends are known to within the tolerance.
    """
    found = np.zeros_like(matched.present)
    even = np.array([kind not in ENDS_APART and kind not in UNEVEN for kind in matched.kind], np.bool_)
    judged = np.flatnonzero(even & matched.together & (matched.parts >= LEAST_PEERS))
    if not len(judged):
        return found
    end = np.where(matched.present, matched.end_ns - offset_ns, np.nan)[judged]
    median = np.nanmedian(end, axis=1, keepdims=True)
    late = end - median > _LATE * tolerance_ns
    late &= (np.abs(end - median) > tolerance_ns).sum(axis=1, keepdims=True) == 1
    for row, rank in np.argwhere(late).tolist():
        of, pieces = judged[row], digests[rank].pieces
        ended = int(median[row, 0]) + offset_ns[of, rank]
        waits = (pieces.owner == RankOwner.COMMUNICATION) & (pieces.end_ns > matched.arrival_ns[of, rank])
        found[of, rank] = bool((np.abs(pieces.end_ns[waits] - ended) <= tolerance_ns).any())
    return found
