"""How many times as long the collectives of each dimension take on another mesh.

1. The links of a dimension's groups have the latency and bandwidth that its recorded collectives show.
2. On the other mesh a collective has n' ranks, s times the bytes, and is launched c times as often. It takes c times as
   long as a ring or tree of n' ranks needs for these bytes over such links (`costs.collectives`).
3. Groups that lay across nodes may come to lie within them, or the reverse. Their links are then those of other groups
   of this record; else those of a calibration; else, within a node, those of the data sheet.

    tp 4 -> 2 within a node, AllReduce of 64 MiB    ring of 4: 6 a + 1.5 * 64 MiB * b    ring of 2: 2 a + 64 MiB * b
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.facts.peaks import roofs
from tb_ddp_doctor.facts.traffic import Traffic, dimensions_of_traffic
from tb_ddp_doctor.mesh.homes import homes
from tb_ddp_doctor.mesh.mesh import Dimension, Mesh
from tb_ddp_doctor.planning.costs import collectives
from tb_ddp_doctor.planning.costs.collectives import MessageLink
from tb_ddp_doctor.planning.costs.links import Links, Scope, links
from tb_ddp_doctor.planning.costs.messages import Case, Messages, messages, with_latency
from tb_ddp_doctor.planning.mesh.sizes import MeshSizes
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.trace.model import Floats, Ints

#: The share of a data sheet's NVLink or Infinity Fabric bandwidth that collectives of large messages reach, and the
#: latency of a message from one rank to the next there, ns. NCCL's AllReduce has a busbw of some 360 of 450 GB/s on
#: H100 and 235 of 300 on A100 (nccl-tests without NVLS).
_REACHED: dict[Case, float] = {"likely": 0.8, "quickest": 0.95, "slowest": 0.6}
_STEP_NS: dict[Case, float] = {"likely": 5_000.0, "quickest": 1_000.0, "slowest": 15_000.0}
#: The order in which ranks are numbered where the record does not have it, as in Megatron-LM: tp varies fastest.
_ORDER = ("tp", "cp", "dp", "pp")

#: Gives how many times as long messages of some sizes take, shape (N,).
Longer = Callable[[Ints], Floats]


class GroupPlace(msgspec.Struct, frozen=True):
    """How the groups of a dimension lie on the nodes."""

    ranks: int
    #: From one rank of a group to the next.
    stride: int
    #: Whether each group is on one node.
    is_inside: bool


class MeshTransfers:
    """What collectives and messages of each dimension take on another mesh, of R played ranks."""

    def __init__(
        self, record: PlanRecord, mesh: Mesh, sizes: MeshSizes, case: Case, calibration: Calibration | None
    ) -> None:
        self._record, self._mesh, self.sizes = record, mesh, sizes
        self._case, self._calibration = case, calibration
        self._its = homes(mesh)
        job = record.job
        self._a_node = links(record, "all_reduce", case, calibration).ranks_a_node
        self._nodes = dict(zip(job.ranks.tolist(), job.nodes, strict=True))
        self._by_dimension: dict[tuple[str, str], list[Traffic]] = {}
        for one in record.traffic:
            for name in dimensions_of_traffic(job, self._its, one):
                self._by_dimension.setdefault((name, one.kind), []).append(one)
        #: The links that were taken for groups that come to lie elsewhere, by dimension, for users.
        self.taken: dict[str, Scope] = {}

    def kinds(self, dimension: str) -> tuple[str, ...]:
        """The kinds of collectives that run in a dimension."""
        return tuple(kind for name, kind in self._by_dimension if name == dimension)

    def exposed_ns(self, dimension: str) -> float:
        """Exposed communication of a dimension in a step on the other mesh, if as large a share of it is exposed as
        now; of one rank, ns. Raises CannotPlanError.
        """
        total = 0.0
        for (name, kind), several in self._by_dimension.items():
            if name == dimension:
                groups = max(len({tuple(one.ranks.tolist()) for one in several}), 1)
                longer = self.longer(dimension, kind)
                total += sum(float((one.exposed_ns * longer(one.bytes)).sum()) / one.steps for one in several) / groups
        return total

    def longer(self, dimension: str, kind: str) -> Longer:
        """How many times as long the collectives of a kind take. Raises CannotPlanError if that is not known."""
        its = self._dimension(dimension)
        now, then = self._now(its), self._then(its)
        calls, size = self._volume(dimension, kind)
        if then.ranks == 1:
            return lambda sizes: np.zeros(len(sizes))
        several = self._by_dimension.get((dimension, kind), [])
        is_known = bool(several) and all(one.has_bytes for one in several)
        if then.ranks == now.ranks and then.is_inside == now.is_inside and (size == 1 or not is_known):
            return lambda sizes: np.full(len(sizes), calls * size)
        if kind not in collectives.KINDS:
            raise CannotPlanError(
                f"There is no formula for the {kind} of {dimension} among {then.ranks} ranks "
                f"{'within a node' if then.is_inside else 'across nodes'}: record a job of that mesh."
            )
        if not is_known:
            raise CannotPlanError(
                f"The trace does not tell how many bytes the {kind} of {dimension} sends, so what it takes among "
                f"{then.ranks} ranks is not known."
            )
        fit = self._fit(kind, now, several)
        if then.ranks == now.ranks and then.is_inside == now.is_inside:
            return lambda sizes: (
                calls * ((fit.alpha_ns + fit.beta_ns * size * sizes) / np.maximum(fit.time_ns(sizes), 1))
            )
        them = self._links(dimension, kind, now, then, fit)
        is_apart = not then.is_inside and then.stride > 1

        def longer(sizes: Ints) -> Floats:
            different, which = np.unique(sizes, return_inverse=True)
            takes = [them.time_ns(kind, then.ranks, size * each, apart=is_apart)[1] for each in different.tolist()]
            return calls * np.array(takes)[which] / np.maximum(fit.time_ns(sizes), 1)

        return longer

    def messages(self, dimension: str) -> float:
        """How many times as long sends and receives of a dimension take. Raises CannotPlanError."""
        its = self._dimension(dimension)
        now, then = self._now(its), self._then(its)
        if then.ranks == 1:
            return 0.0
        if now.is_inside != then.is_inside:
            known = links(self._record, "all_reduce", self._case, self._calibration)
            of = {True: self._within(known), False: known.between}
            before, after = of[now.is_inside], of[then.is_inside]
            if before is None or after is None:
                raise CannotPlanError(_UNKNOWN_LINKS.format(dimension=dimension))
            self.taken[dimension] = after
            faster = after.link.byte_ns / before.link.byte_ns if before.link.byte_ns > 0 else 1.0
        else:
            faster = 1.0
        calls, size = self._volume(dimension, "send")
        return calls * size * faster

    def _volume(self, dimension: str, kind: str) -> tuple[float, float]:
        """How many times as many collectives of a dimension a rank launches, and how many times as large they are."""
        sizes = self.sizes
        split = sizes.now["tp"] / sizes.then["tp"]
        if "dp" in dimension.split("+"):
            return 1.0, sizes.parameters
        if dimension == "pp":
            # With sequence parallelism a rank sends its part of the sequence alone.
            is_split = "all_gather" in self.kinds("tp")
            return sizes.micro_batches / sizes.recorded_micro_batches, sizes.activations * (split if is_split else 1.0)
        # Rings send the keys and values of a rank's own heads.
        return sizes.calls, sizes.activations * (split if dimension == "cp" and kind == "send" else 1.0)

    def _dimension(self, name: str) -> Dimension:
        return next(one for one in self._mesh.dimensions if one.name == name)

    def _now(self, its: Dimension) -> GroupPlace:
        inside = all(len({self._nodes[rank] for rank in ranks if rank in self._nodes}) < 2 for ranks in its.groups)
        return GroupPlace(its.size, its.stride, inside)

    def _then(self, its: Dimension) -> GroupPlace:
        """How its groups lie on the other mesh, whose dimensions vary in the recorded order."""
        axes = [one for one in self._mesh.dimensions if one.is_axis and "+" not in one.name and one.stride > 0]
        strides = {one.name: one.stride for one in axes}
        order = sorted(_ORDER, key=lambda name: strides.get(name, 0) if name in strides else _ORDER.index(name))
        parts = its.name.split("+")
        sizes = self.sizes.then
        if its.name == "ep":
            ranks, first = sizes["ep"], "dp"
        else:
            ranks, first = prod(sizes[part] for part in parts), min(parts, key=order.index)
        stride = prod(sizes[name] for name in order[: order.index(first)])
        before = GroupPlace(its.size, its.stride, is_inside=False)
        if (ranks, stride) == (before.ranks, before.stride):
            return self._now(its)
        # Groups lie within nodes if a whole number of them does.
        span = ranks * stride
        return GroupPlace(ranks, stride, span <= self._a_node and self._a_node % span == 0)

    def _fit(self, kind: str, now: GroupPlace, several: Sequence[Traffic]) -> Messages:
        ranks = now.ranks
        size, time = (np.concatenate([getattr(one, name) for one in several]) for name in ("bytes", "transfer_ns"))
        time = np.maximum(time, 1)
        within = now.is_inside and len(set(self._nodes.values()) - {""}) > 1
        fit = messages(kind, ranks, size, time, self._record.job.calibration, within_node=within)
        scope = self._scope(kind, is_inside=now.is_inside)
        if fit.basis == "assumed" and scope is not None and scope.shows_latency and kind in collectives.KINDS:
            alpha_ns = collectives.ring(kind, ranks, 0.0, scope.link)
            fit = with_latency(kind, ranks, size, time, alpha_ns, "the job's collectives of other sizes")
        return fit.of(self._case)

    def _scope(self, kind: str, *, is_inside: bool) -> Scope | None:
        """The links within nodes, or between them."""
        known = links(self._record, kind, self._case, self._calibration)
        return known.within if is_inside else known.between

    def _links(self, dimension: str, kind: str, now: GroupPlace, then: GroupPlace, fit: Messages) -> Links:
        """The links for a dimension's other groups: its own where they stay within nodes, or across."""
        known = links(self._record, kind, self._case, self._calibration)
        own = Scope(
            collectives.link_of(kind, now.ranks, fit.alpha_ns, fit.beta_ns),
            fit.basis,
            f"{kind} of {dimension}: {fit.rests_on}",
        )
        within = own if now.is_inside else self._within(known)
        between = known.between if now.is_inside else own
        if (within if then.is_inside else between) is None:
            raise CannotPlanError(_UNKNOWN_LINKS.format(dimension=dimension))
        taken = within if then.is_inside else between
        assert taken is not None  # noqa: S101 - for mypy: refused above
        self.taken[dimension] = taken
        # Links that fall back on others are worth no more than a refusal where the needed ones are not known.
        return replace(known, within=within, between=between, ranks_a_node=self._a_node)

    def _within(self, known: Links) -> Scope | None:
        """Links within a node, by the data sheet where nothing measured them; None if that is not known either."""
        if known.within is not None:
            return known.within
        device = self._record.job.device
        sheet = roofs(device, 0) if device else None
        if sheet is None or not sheet.link:
            return None
        rate = sheet.link / 1e9 * _REACHED[self._case]
        least, most = (wording.percent(_REACHED[case]) for case in ("slowest", "quickest"))
        said = (
            f"{wording.percent(_REACHED['likely'])} ({least} to {most}) of the {wording.decimals(sheet.link / 1e9, 0)} "
            f"GB/s that {device} has to other GPUs of its node"
        )
        return Scope(MessageLink(_STEP_NS[self._case], 1 / rate), "assumed", said)


_UNKNOWN_LINKS = (
    "On that mesh groups of {dimension} use links that no collective of this record uses, and that no data sheet has: "
    "run torchrun ... -m tb_ddp_doctor.check on several nodes and put its calibration.json beside the traces."
)
