"""Splits each rank's exposed communication into wait and transfer, and so completes the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import RankDigest, RankOwner
from tb_ddp_doctor.digest.spending import step_owner
from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.job import missing_ranks
from tb_ddp_doctor.job.axis import Axis
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.collectives import Matched
from tb_ddp_doctor.job.model import Budget, Waiting, of_steps
from tb_ddp_doctor.storage.constant import joined
from tb_ddp_doctor.trace.model import Ints

#: Where each of a rank's owners goes; communication is split.
_PLAIN = {owner: step_owner(owner) for owner in RankOwner if owner is not RankOwner.COMMUNICATION}


def budget_and_waiting(
    digests: Sequence[RankDigest], step_index: Ints, axis: Axis, calls: Calls, matched: Matched, clock: ClockFit
) -> tuple[Budget, Waiting]:
    """The budget of R ranks over the steps that `step_index`, shape (R, S), names, and the waiting in collectives.

    A nanosecond of exposed communication is transfer while any running collective has all its ranks, and wait while
    none has. Where ranks have no trace, `absent` tells when they may have arrived.
    """
    each = np.arange(len(digests))
    arrival = matched.arrival_ns - clock.correction(matched.rank, matched.arrival_ns)
    last_ns = matched.segments.max(arrival)
    last_part = matched.segments.argmax(arrival)
    traced_ns, all_ns = _arrived(digests, calls, matched, last_ns, clock)

    start_ns = of_steps([digest.steps.start_ns for digest in digests], step_index)
    end_ns = of_steps([digest.steps.end_ns for digest in digests], step_index)
    window = tuple(axis.place(each[:, None], at).ravel() for at in (start_ns, end_ns))
    exposed = _exposed_communication(digests, axis)
    end = axis.place(calls.rank, calls.column("end_ns"))
    waiting = exposed - Intervals.union(axis.place(calls.rank, traced_ns), end)
    wait = waiting.measure(*window)
    absent = np.zeros_like(wait)
    if (all_ns > traced_ns).any():
        absent = (exposed - Intervals.union(axis.place(calls.rank, all_ns), end)).measure(*window) - wait
    wait, absent = (part.reshape(step_index.shape) for part in (wait + absent, absent))

    work = of_steps([digest.work.owner_ns for digest in digests], step_index)
    owner_ns = np.zeros((*step_index.shape, len(OWNERS)), np.int64)
    for owner, name in _PLAIN.items():
        owner_ns[:, :, OWNERS.index(name)] = work[:, :, owner]
    owner_ns[:, :, OWNERS.index("wait")] = wait
    owner_ns[:, :, OWNERS.index("transfer")] = work[:, :, RankOwner.COMMUNICATION] - wait
    return Budget(owner_ns, start_ns, end_ns - start_ns), Waiting(
        exposed_ns=_exposed_waits(matched, waiting, axis, matched.segments.each(last_ns) - arrival),
        last_part=last_part,
        last=matched.rank[last_part],
        arrival_ns=arrival,
        last_ns=last_ns,
        absent_ns=absent,
        all_traced_arrived_ns=traced_ns,
        all_arrived_ns=all_ns,
        exposed=exposed,
    )


def _exposed_waits(matched: Matched, waiting: Intervals, axis: Axis, later_ns: Ints) -> Ints:
    """How much of each part of a collective is exposed waiting, shape (P,), ns.

    `waiting` is all exposed waiting, `later_ns` how much later than each rank the last one arrives.
    """
    # Of two that meet and end apart each waits for the other one until that arrives: then it may wait for a third.
    together = matched.segments.each(matched.together)
    until = np.where(together, matched.end_ns, matched.arrival_ns + later_ns)
    return waiting.measure(axis.place(matched.rank, matched.arrival_ns), axis.place(matched.rank, until))


def _exposed_communication(digests: Sequence[RankDigest], axis: Axis) -> Intervals:
    """Communication with no compute and no copy beside it."""
    chosen = joined([digest.pieces.owner for digest in digests]) == RankOwner.COMMUNICATION
    rank = np.repeat(np.arange(len(digests)), [len(digest.pieces) for digest in digests])[chosen]
    start, end = (joined([getattr(digest.pieces, of) for digest in digests])[chosen] for of in ("start_ns", "end_ns"))
    return Intervals.union(axis.place(rank, start), axis.place(rank, end))


def _arrived(
    digests: Sequence[RankDigest], calls: Calls, matched: Matched, last_ns: Ints, clock: ClockFit
) -> tuple[Ints, Ints]:
    """When each call has all its ranks that have a trace, and when all, on its own rank's clock.

    Without a match only its own arrival is known. Never after its end: clocks agree only up to the residual.
    """
    own_ns, end_ns = calls.column("arrival_ns"), calls.column("end_ns")
    traced_ns, parts = own_ns.copy(), np.ones(len(calls), np.int64)
    call, each = matched.call, matched.segments.each
    # A kernel that sends and receives may be in several matches, and waits for the last to arrive of all.
    np.maximum.at(traced_ns, call, each(last_ns) + clock.correction(matched.rank, own_ns[call]))
    traced_ns = np.minimum(traced_ns, end_ns)
    parts[call] = each(matched.parts)
    lacking = np.flatnonzero((calls.column("group_size") > parts) & ~calls.between_two)
    if not len(lacking):
        return traced_ns, traced_ns
    all_ns = traced_ns.copy()
    edges = np.searchsorted(lacking, calls.first)
    for rank in np.unique(calls.rank[lacking]).tolist():
        mine = calls.of(rank)
        rows = lacking[edges[rank] : edges[rank + 1]] - mine.start
        all_ns[mine] += missing_ranks.wait_ns(digests[rank].collectives, traced_ns[mine], rows)
    return traced_ns, all_ns
