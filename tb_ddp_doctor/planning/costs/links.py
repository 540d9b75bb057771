"""Finds the speed of links within a node and between nodes, and the quickest algorithm for a collective.

Collectives over several nodes are as fast as the links between nodes, which are the slowest of their rings. The speed
of links within a node comes from groups whose ranks are all on one node, or from a calibration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.model import Calibration, Curve
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.costs import collectives
from tb_ddp_doctor.planning.costs.collectives import MessageLink
from tb_ddp_doctor.planning.costs.messages import Basis, Case, Messages, messages
from tb_ddp_doctor.planning.model import Rests
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Assumed number of ranks of a node if the record has only one node.
_A_NODE = 8
#: Latency and bandwidth are told apart if some collective sends this many times as many bytes a step as another.
_TELLS = 4.0
#: A link explains collectives if their times are off by no more than this share in the mean.
_EXPLAINED = 0.1
#: The least and the most latency that a link can have, ns: a fit outside of this range is not one link's.
_LATENCY_NS = (300.0, 200_000.0)
#: How often a link is fitted: each fit changes which algorithm each collective is taken to use.
_ROUNDS = 4
#: The latency with which the first round chooses the algorithms, ns.
_FIRST_NS = 5_000.0
#: The message sizes at which algorithms are compared, bytes.
_SIZES = tuple(1 << power for power in range(10, 33))


class Scope(msgspec.Struct, frozen=True):
    """Links within a node, or between nodes."""

    link: MessageLink
    basis: Basis
    #: How they are known, for users.
    rests_on: str

    @property
    def shows_latency(self) -> bool:
        """Whether collectives of several sizes show a latency that a link may have."""
        least, most = _LATENCY_NS
        return self.basis == "fitted" and least <= self.link.step_ns <= most


class Links(msgspec.Struct, frozen=True):
    """The links of a job."""

    #: Links within a node; None if they are not known.
    within: Scope | None
    #: Links between nodes; None if they are not known.
    between: Scope | None
    ranks_a_node: int

    def time_ns(self, kind: str, ranks: int, size: float, *, apart: bool = False) -> tuple[str, float]:
        """The quickest algorithm for a collective of `size` bytes, and its time, ns.

        `apart` says that each rank is on another node. Raises CannotPlanError if the links are not known, and
        ValueError for kinds without a formula.
        """
        times = dict(self._times(kind, ranks, size, apart))
        best = min(times, key=times.__getitem__)
        return best, times[best]

    def _times(self, kind: str, ranks: int, size: float, apart: bool) -> Iterator[tuple[str, float]]:
        """Each algorithm whose links are known, and its time, ns."""
        inside = ranks <= self.ranks_a_node and not apart
        flat = (self.within or self.between) if inside else self.between
        if flat is None:
            raise CannotPlanError(
                "What links between nodes take is not known: the record has one node. Record two nodes, or run "
                "torchrun ... -m tb_ddp_doctor.check on several and put its calibration.json beside the traces."
            )
        yield "ring", collectives.ring(kind, ranks, size, flat.link)
        if kind == "all_reduce":
            yield "tree", collectives.tree(ranks, size, flat.link)
            if not inside and not apart and self.within and self.between:
                nodes = -(-ranks // self.ranks_a_node)
                yield (
                    "hierarchical",
                    collectives.hierarchical(self.ranks_a_node, nodes, size, self.within.link, self.between.link),
                )

    def algorithms(self, ranks: int) -> tuple[tuple[str, int], ...]:
        """The quickest AllReduce algorithms, each from its least size on, bytes. Raises CannotPlanError."""
        quickest: list[tuple[str, int]] = []
        for size in _SIZES if ranks > 1 else ():
            name, _ = self.time_ns("all_reduce", ranks, float(size))
            if not quickest or quickest[-1][0] != name:
                quickest.append((name, size if quickest else 0))
        return tuple(quickest)

    def rests(self, ranks: int) -> Iterator[Rests]:
        """The inputs of the time of a collective among `ranks` ranks."""
        if self.between and (ranks > self.ranks_a_node or not self.within):
            yield Rests(self.between.basis, "Links between nodes", self.between.rests_on)
        if self.within:
            yield Rests(self.within.basis, "Links within a node", self.within.rests_on)


def links(record: PlanRecord, kind: str, case: Case, calibration: Calibration | None = None) -> Links:
    """The links of a job, from its collectives, preferably of one kind; or those of `calibration`."""
    job = record.job
    nodes = Counter(filter(None, job.nodes))
    spans = len(nodes) > 1
    groups = [one for one in record.traffic if one.has_bytes and one.kind in collectives.KINDS and one.size > 1]
    within, between = (
        (calibration and _measured(calibration, kind, inside))
        or _recorded(job, [one for one in groups if _is_inside(job, one) is inside], kind, case)
        or (job.calibration and _measured(job.calibration, kind, inside))
        or None
        for inside in (True, False)
    )
    a_node = max(nodes.values()) if spans else max(job.world_size, _A_NODE)
    if calibration and len(set(calibration.nodes)) > 1:
        a_node = max(Counter(calibration.nodes).values())
    return Links(within, between, a_node)


def _is_inside(job: Job, group: Traffic) -> bool:
    """Whether all ranks of a group are on one node, as far as nodes are known."""
    return len({job.nodes[rank] for rank in group.ranks.tolist()} - {""}) < 2


def _is_known_inside(job: Job, group: Traffic) -> bool:
    """Whether all ranks of a group are on one node that the record names, as it names others."""
    named = {job.nodes[rank] for rank in group.ranks.tolist()}
    return len(named) == 1 and "" not in named and len(set(job.nodes)) > 1


def _recorded(job: Job, groups: Sequence[Traffic], kind: str, case: Case) -> Scope | None:
    of_kind = [one for one in groups if one.kind == kind] or list(groups)
    if not of_kind:
        return None
    most = max(of_kind, key=lambda one: one.transfer_per_step_ns)
    same = [one for one in of_kind if (one.kind, one.size) == (most.kind, most.size)]
    size, time = (np.concatenate([getattr(one, name) for one in same]) for name in ("bytes", "transfer_ns"))
    times = messages(
        most.kind, most.size, size, np.maximum(time, 1), job.calibration, within_node=_is_known_inside(job, most)
    )
    if times.basis == "assumed" and (scope := _of_all_kinds(groups, case)):
        return scope
    return Scope(_link(most.kind, most.size, times, case), times.basis, f"{most.kind}: {times.rests_on}")


def _of_all_kinds(groups: Sequence[Traffic], case: Case) -> Scope | None:
    """The link that explains collectives of several kinds, groups and sizes together; None where these do not tell
    latency from bandwidth, or no link explains them.

    A collective by a ring or a tree takes steps * a + bytes * b, of a link's latency a and time of a byte b. Both are
    fitted to the medians of each kind, number of ranks and size, every relative error counting alike:

        AllReduce of 4 ranks, 4 bytes  60 µs     6 a             a = 10 µs
        AllGather of 8 ranks, 8 MB    770 µs     7 a + 7/8 * 8 MB * b     b = 0.1 ns
    """
    kinds: dict[tuple[str, int, int], list[float]] = {}
    for one in groups:
        for size, time in zip(one.bytes.tolist(), one.transfer_ns.tolist(), strict=True):
            kinds.setdefault((one.kind, one.size, size), []).append(max(time, 1))
    known = [(key, float(np.median(times))) for key, times in kinds.items() if key[2] > 0]
    link = MessageLink(_FIRST_NS, _FIRST_NS / 1e5)
    time_ns = np.array([time for _, time in known])
    for _ in range(_ROUNDS):
        parts = np.array([_steps_and_bytes(*key, link) for key, _ in known])
        ratio = parts[:, 1] / parts[:, 0]
        if len(known) < 2 or ratio.max() < _TELLS * ratio.min():
            return None
        weighted = parts / time_ns[:, None]
        (step, byte), *_ = np.linalg.lstsq(weighted, np.ones(len(known)), rcond=None)
        link = MessageLink(max(float(step), 0.0), max(float(byte), 0.0))
    error = float(np.abs(parts @ (link.step_ns, link.byte_ns) / time_ns - 1).mean())
    if error > _EXPLAINED or link.byte_ns <= 0:
        return None
    times = {"likely": 1.0, "quickest": 1 - error, "slowest": 1 + error}[case]
    said = (
        f"{wording.decimals(link.step_ns / 1e3, 1)} µs a step and {wording.decimals(1 / link.byte_ns, 2)} GB/s explain "
        f"{len(known)} sizes and kinds of collectives, {wording.percent(error)} off in the mean"
    )
    scope = Scope(MessageLink(times * link.step_ns, times * link.byte_ns), "fitted", said)
    return scope if scope.shows_latency else None


def _steps_and_bytes(kind: str, ranks: int, size: int, link: MessageLink) -> tuple[float, float]:
    """How many steps, one after the other, and how many bytes the quicker algorithm has with a link."""
    step, byte = MessageLink(1.0, 0.0), MessageLink(0.0, 1.0)
    ring = [collectives.ring(kind, ranks, size, one) for one in (link, step, byte)]
    if kind != "all_reduce":
        return ring[1], ring[2]
    tree = [collectives.tree(ranks, size, one) for one in (link, step, byte)]
    best = min(ring, tree)
    return best[1], best[2]


def _link(kind: str, ranks: int, times: Messages, case: Case) -> MessageLink:
    taken = times.of(case)
    return collectives.link_of(kind, ranks, taken.alpha_ns, taken.beta_ns)


def _measured(calibration: Calibration, kind: str, inside: bool) -> Scope | None:
    """The links within a node, or between nodes, that a calibration measured."""
    curves = [(one, one.fit) for one in calibration.curves if one.fit and one.fit.algbw_gbs > 0]
    curves = [(one, fit) for one, fit in curves if one.kind in collectives.KINDS and one.size > 1]
    curves = [(one, fit) for one, fit in curves if _is_of_node(calibration, one) is inside]
    of_kind = [(one, fit) for one, fit in curves if one.kind == kind] or curves
    if not of_kind:
        return None
    one, fit = max(of_kind, key=lambda curve: curve[0].size)
    link = collectives.link_of(one.kind, one.size, fit.alpha_us * 1e3, 1 / fit.algbw_gbs)
    source = f"{one.kind} of {one.size} ranks in {calibration.source}: alpha {wording.decimals(fit.alpha_us, 0)} µs, "
    return Scope(link, "measured", f"{source}busbw {wording.decimals(fit.busbw_gbs, 1)} GB/s")


def _is_of_node(calibration: Calibration, curve: Curve) -> bool:
    return curve.scope == "node" or len(set(calibration.nodes)) < 2
