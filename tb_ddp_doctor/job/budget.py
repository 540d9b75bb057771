"""Splits each rank's exposed communication into wait and transfer, and so completes the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import RankDigest, RankOwner
from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.job import missing_ranks
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.collectives import ABSENT, Matched, between_two
from tb_ddp_doctor.job.model import Budget, Waiting
from tb_ddp_doctor.trace.model import Ints

#: Where each of a rank's owners goes; communication is split.
_PLAIN = {owner: owner.name.lower() for owner in RankOwner if owner is not RankOwner.COMMUNICATION}


def settle(
    digests: Sequence[RankDigest], step_index: Ints, matched: Matched, clock: ClockFit
) -> tuple[Budget, Waiting]:
    """The budget of R ranks over the steps that `step_index`, shape (R, S), names, and the waiting in collectives.

    A nanosecond of exposed communication is transfer while any running collective has all its ranks, and wait while
    none has. Where ranks have no trace, `absent` tells when they may have arrived.
    """
    ranks, steps = step_index.shape
    arrival = np.full((len(matched), ranks), ABSENT, np.int64)
    for rank in range(ranks):
        here = matched.of_rank(rank)
        own = matched.arrival_ns[here, rank]
        arrival[here, rank] = own - clock.correction(rank, own)
    last_ns = arrival.max(axis=1, initial=ABSENT)

    owner_ns = np.zeros((ranks, steps, len(OWNERS)), np.int64)
    start_ns = np.zeros((ranks, steps), np.int64)
    window_ns = np.zeros((ranks, steps), np.int64)
    waits = np.zeros((len(matched), ranks), np.int64)
    absent_ns = np.zeros((ranks, steps), np.int64)
    arrived: list[tuple[Ints, Ints, Intervals]] = []
    for rank, (digest, index) in enumerate(zip(digests, step_index, strict=True)):
        start_ns[rank] = digest.steps.start_ns[index]
        window_ns[rank] = digest.steps.end_ns[index] - start_ns[rank]
        for owner, name in _PLAIN.items():
            owner_ns[rank, :, OWNERS.index(name)] = digest.work.owner_ns[index, owner]
        exposed, end_ns = _exposed_communication(digest), digest.collectives.end_ns
        traced_ns, all_ns = _arrived(digest, matched, rank, last_ns, clock)
        waiting = exposed - Intervals.union(traced_ns, end_ns)
        wait = waiting.measure(start_ns[rank], start_ns[rank] + window_ns[rank])
        if (all_ns > traced_ns).any():
            all_waiting = exposed - Intervals.union(all_ns, end_ns)
            absent_ns[rank] = all_waiting.measure(start_ns[rank], start_ns[rank] + window_ns[rank]) - wait
            wait += absent_ns[rank]
        owner_ns[rank, :, OWNERS.index("wait")] = wait
        owner_ns[rank, :, OWNERS.index("transfer")] = digest.work.owner_ns[index, RankOwner.COMMUNICATION] - wait
        here = matched.of_rank(rank)
        waits[here, rank] = waiting.measure(matched.arrival_ns[here, rank], matched.end_ns[here, rank])
        arrived.append((traced_ns, all_ns, exposed))
    all_traced_arrived_ns, all_arrived_ns, exposed_by_rank = zip(*arrived, strict=True)
    return Budget(owner_ns, start_ns, window_ns), Waiting(
        exposed_ns=waits,
        last=arrival.argmax(axis=1),
        arrival_ns=arrival,
        last_ns=last_ns,
        absent_ns=absent_ns,
        all_traced_arrived_ns=all_traced_arrived_ns,
        all_arrived_ns=all_arrived_ns,
        exposed=exposed_by_rank,
    )


def _exposed_communication(digest: RankDigest) -> Intervals:
    """Communication with no compute and no copy beside it, on the rank's own clock."""
    chosen = digest.pieces.owner == RankOwner.COMMUNICATION
    return Intervals.union(digest.pieces.start_ns[chosen], digest.pieces.end_ns[chosen])


def _arrived(digest: RankDigest, matched: Matched, rank: int, last_ns: Ints, clock: ClockFit) -> tuple[Ints, Ints]:
    """When each collective of a rank has all its ranks that have a trace, and when all, on the rank's own clock.

    Without a match only its own arrival is known. Never after its end: clocks agree only up to the residual.
    """
    table, here = digest.collectives, matched.of_rank(rank)
    rows = matched.row[here, rank]
    seen_ns, parts = table.arrival_ns.copy(), np.ones(len(table), np.int64)
    seen_ns[rows] = np.maximum(seen_ns[rows], last_ns[here] + clock.correction(rank, table.arrival_ns[rows]))
    seen_ns = np.minimum(seen_ns, table.end_ns)
    parts[rows] = matched.parts[here]
    lacking = np.flatnonzero(table.group_size > parts)
    if not len(lacking):
        return seen_ns, seen_ns
    lacking = lacking[~between_two(digest)[lacking]]
    return seen_ns, seen_ns + missing_ranks.wait_ns(table, seen_ns, lacking)
