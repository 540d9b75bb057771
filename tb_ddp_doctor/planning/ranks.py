"""The effect of another number of ranks: collectives by the quickest algorithm, and the slowest of more ranks.

The more ranks there are, the slower the slowest of them is: their busy times spread, and all wait for the last.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.planning.costs import collectives
from tb_ddp_doctor.planning.costs.links import Links, links
from tb_ddp_doctor.planning.costs.messages import Case
from tb_ddp_doctor.planning.effect import Effect
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.replay.model import Family, Parts
from tb_ddp_doctor.trace.model import Floats

#: More ranks are refused: no job has so many.
_MOST = 1 << 20


def links_of_ranks(record: PlanRecord, case: Case, calibration: Calibration | None) -> Links:
    """The links that AllReduces among another number of ranks use."""
    return links(record, "all_reduce", case, calibration)


def effect(record: PlanRecord, ranks: int, case: Case, calibration: Calibration | None, *, strong: bool) -> Effect:
    """The effect of `ranks` ranks; with `strong`, all together have as much work as now. Raises CannotPlanError."""
    job, now = record.job, record.job.world_size
    if not 1 <= ranks < _MOST:
        raise CannotPlanError("--ranks takes a whole number from 1 on.")
    if not record.traffic:
        raise CannotPlanError("No collective was matched between ranks, so what they take is not known.")
    changes = ranks != now or calibration is not None
    times = [
        _Times(record, one, ranks, case, calibration) if changes and one.group_size == now else None
        for one in record.families
    ]

    def factor(parts: Parts) -> Floats:
        longer = np.ones(len(parts.rank))
        for index, one in enumerate(times):
            mine = np.flatnonzero((parts.family == index) & (parts.bytes > 0))
            if one is not None and one.is_known and len(mine):
                size, which = np.unique(parts.bytes[mine], return_inverse=True)
                longer[mine] = np.array([one.of(float(each)) for each in size.tolist()])[which]
        return longer

    grows = collectives.expected_largest(ranks) - collectives.expected_largest(now)
    share = np.full((len(record.ranks), len(job.steps)), now / ranks) if strong else None
    added = max(grows, 0.0) * spread_ns(record) if now > 1 else 0.0
    return Effect(factors=(factor,), device=share, added_ns=added)


class _Times:
    """The factor by which collectives of a family take longer among another number of ranks."""

    def __init__(
        self, record: PlanRecord, family: Family, ranks: int, case: Case, calibration: Calibration | None
    ) -> None:
        """Raises CannotPlanError if the links are not known."""
        self._kind, self._ranks = family.kind, ranks
        fit = record.messages_of(family)
        self.is_known = fit is not None and family.kind in collectives.KINDS
        if fit is not None and self.is_known:
            self._fit = fit.of(case)
            self._links = links(record, family.kind, case, calibration)
            self.of(1.0)

    def of(self, size: float) -> float:
        """The factor for messages of `size` bytes."""
        recorded = self._fit.alpha_ns + self._fit.beta_ns * size
        return self.time_ns(size) / recorded if recorded > 0 else 1.0

    def time_ns(self, size: float) -> float:
        """How long a collective of `size` bytes takes among that number of ranks, ns."""
        return self._links.time_ns(self._kind, self._ranks, size)[1]


def transfers_ns(record: PlanRecord, ranks: int) -> float:
    """How long the collectives of all ranks take in a step among `ranks` ranks, ns. Raises CannotPlanError."""
    job, total = record.job, 0.0
    for one in record.traffic:
        family = next((each for each in record.families if (each.kind, each.group_size) == (one.kind, one.size)), None)
        if family and one.size == job.world_size and one.has_bytes and one.kind in collectives.KINDS:
            times = _Times(record, family, ranks, "likely", None)
            size, count = np.unique(one.bytes, return_counts=True)
            takes = [times.time_ns(float(each)) for each in size.tolist()]
            total += float(np.dot(takes, count)) / one.steps
    return total


def spread_ns(record: PlanRecord) -> float:
    """The standard deviation of the ranks' busy times in the median step, ns."""
    busy = record.whatif.busy_ns
    return float(np.median(busy.std(axis=0, ddof=1))) if len(busy) > 1 else 0.0
