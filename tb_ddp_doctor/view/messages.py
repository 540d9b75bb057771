"""Point-to-point transfers between two ranks: how many, how much, and for how long both have some running.

The kernel of several sends and receives (`batch_isend_irecv`) does not tell them apart, so bytes over that time are the
least that a link gives: with other transfers beside them it gives more.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.job.model import Job


class PairTransfers(msgspec.Struct, frozen=True):
    """What one rank sends another, in all of the job's steps."""

    #: Rank numbers.
    sender: int
    receiver: int
    count: int
    #: None where the size of some is unknown.
    bytes: int | None
    #: How long both ranks have sends or receives running; None where the traces do not show when.
    running_ns: int | None


def sent(job: Job) -> list[PairTransfers]:
    """Each pair of ranks where traces tell both ends."""
    index = {rank: i for i, rank in enumerate(job.ranks.tolist())}
    running = _running(job)
    pairs = []
    for i, (rank, digest) in enumerate(zip(job.ranks.tolist(), job.digests, strict=True)):
        table = digest.messages
        named = (table.sent == 1) & (table.peer >= 0) & np.isin(table.step, job.step_index[i])
        for peer in np.unique(table.peer[named]).tolist():
            rows = named & (table.peer == peer)
            size = table.bytes[rows]
            both = running[i] & running[index[peer]] if peer in index else None
            pairs.append(
                PairTransfers(
                    sender=rank,
                    receiver=peer,
                    count=int(table.count[rows].sum()),
                    bytes=int(size.sum()) if (size >= 0).all() else None,
                    running_ns=both.total if both else None,
                )
            )
    return pairs


def _running(job: Job) -> list[Intervals]:
    """When each rank has sends or receives running in the job's steps, on the common clock."""
    chosen = np.flatnonzero(job.calls.between_two & (job.call_step >= 0))
    rank = job.calls.rank[chosen]
    start, end = (job.calls.column(of)[chosen] for of in ("arrival_ns", "end_ns"))
    shift = job.clock.correction(rank, start)
    edges = np.searchsorted(rank, np.arange(len(job.ranks) + 1))
    return [
        Intervals.union((start - shift)[a:b], (end - shift)[a:b])
        for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
