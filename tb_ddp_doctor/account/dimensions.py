"""What the collectives and messages of each dimension of a job do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor import findings
from tb_ddp_doctor.calibration.model import bus_factor
from tb_ddp_doctor.facts.traffic import Traffic, dimensions_of_traffic
from tb_ddp_doctor.facts.transfers import exposed_alone
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.homes import homes
from tb_ddp_doctor.mesh.mesh import Dimension, Mesh
from tb_ddp_doctor.trace.model import Flags, Ints


class _Communication(msgspec.Struct, frozen=True):
    """What a dimension communicates in a step: of one of its groups, times of one rank; ns and bytes."""

    calls: float = 0.0
    #: None where the traces do not have all sizes.
    bytes: float | None = 0.0
    #: Bytes that each link carries, for nccl-tests' bus bandwidth.
    bus_bytes: float = 0.0
    wait_ns: float = 0.0
    transfer_ns: float = 0.0
    exposed_ns: float = 0.0

    def __add__(self, other: _Communication) -> _Communication:
        return _Communication(
            self.calls + other.calls,
            None if self.bytes is None or other.bytes is None else self.bytes + other.bytes,
            self.bus_bytes + other.bus_bytes,
            self.wait_ns + other.wait_ns,
            self.transfer_ns + other.transfer_ns,
            self.exposed_ns + other.exposed_ns,
        )


def summary(job: Job, mesh: Mesh, table: Sequence[Traffic]) -> findings.MeshTable | None:
    """The dimensions of a job with what their groups communicate in a step; None where there is no dimension."""
    if not mesh.dimensions:
        return None
    its = homes(mesh)
    owners = [dimensions_of_traffic(job, its, one) for one in table]
    return findings.MeshTable(
        dimensions=tuple(
            _dimension(job, mesh, one, [each for each, names in zip(table, owners, strict=True) if one.name in names])
            for one in mesh.dimensions
        ),
        coordinates={
            str(rank): {
                dimension.name: place for dimension, place in zip(mesh.dimensions, places, strict=True) if place >= 0
            }
            for rank, places in zip(job.ranks.tolist(), mesh.coordinates.tolist(), strict=True)
        },
    )


def _dimension(job: Job, mesh: Mesh, dimension: Dimension, table: Sequence[Traffic]) -> findings.MeshDimension:
    traced = set(job.ranks.tolist())
    there = {frozenset(traced & set(ranks)) for ranks in dimension.groups} - {frozenset()}
    mine = [one for one in table if frozenset(job.ranks[one.ranks].tolist()) in there]
    # Only what is matched between ranks is measured.
    measured = len(job.matched) > 0 and any(len(ranks) > 1 for ranks in there)
    total = _of_collectives(mine) + _of_messages(job, mesh, dimension)
    step_ns = job.step_ns or np.inf

    def if_measured(amount: float | None) -> float | None:
        return amount if measured else None

    return findings.MeshDimension(
        name=dimension.name,
        size=dimension.size,
        stride=dimension.stride,
        inferred=dimension.inferred,
        is_axis=dimension.is_axis,
        within_node=_within_node(job, dimension),
        calls=if_measured(total.calls),
        megabytes=if_measured(total.bytes / 1e6 if total.bytes else None),
        bus_gb_s=if_measured(total.bus_bytes / total.transfer_ns if total.bytes and total.transfer_ns else None),
        wait_ms=if_measured(total.wait_ns / 1e6),
        transfer_ms=if_measured(total.transfer_ns / 1e6),
        exposed_ms=if_measured(total.exposed_ns / 1e6),
        wait_share=if_measured(total.wait_ns / step_ns),
        transfer_share=if_measured(total.transfer_ns / step_ns),
        share=if_measured(total.exposed_ns / step_ns),
    )


def _of_collectives(mine: Sequence[Traffic]) -> _Communication:
    groups = max(len({tuple(one.ranks.tolist()) for one in mine}), 1)

    def of_a_group(amounts: Iterable[float]) -> float:
        return sum(amounts) / groups

    return _Communication(
        calls=of_a_group(one.calls for one in mine),
        bytes=of_a_group(one.bytes_per_step for one in mine) if all(one.has_bytes for one in mine) else None,
        bus_bytes=of_a_group(one.bytes_per_step * bus_factor(one.kind, one.size) for one in mine),
        wait_ns=of_a_group(one.wait_per_step_ns for one in mine),
        transfer_ns=of_a_group(one.transfer_per_step_ns for one in mine),
        exposed_ns=of_a_group(one.exposed_per_step_ns for one in mine),
    )


def _of_messages(job: Job, mesh: Mesh, dimension: Dimension) -> _Communication:
    """What a dimension sends and receives within its groups in a step.

    Times are those of one rank, mean over the ranks that send or receive; bytes are those of all ranks of one group.
    """
    group_of = {rank: number for number, ranks in enumerate(dimension.groups) for rank in ranks}
    chosen, sent_bytes, is_sized = _messages(job, group_of)
    has_some = np.unique(job.calls.rank[chosen])
    if not len(has_some) or _is_shadowed(mesh, dimension):
        return _Communication()
    calls, steps = job.calls, len(job.steps)
    rows = np.flatnonzero(chosen & (job.call_step >= 0))
    start, end = calls.column("arrival_ns")[rows], calls.column("end_ns")[rows]
    arrived = np.clip(job.waiting.all_arrived_ns[rows], start, end)
    per_rank = max(len(has_some) * steps, 1)
    exposed = job.measure(exposed_alone(job, chosen))
    total = sent_bytes / max(len({group_of[int(job.ranks[rank])] for rank in has_some.tolist()}), 1)
    return _Communication(
        calls=len(rows) / per_rank,
        bytes=total if is_sized else None,
        bus_bytes=sent_bytes / len(has_some) if is_sized else 0.0,
        wait_ns=float((arrived - start).sum()) / per_rank,
        transfer_ns=float((end - arrived).sum()) / per_rank,
        exposed_ns=float(exposed[has_some].mean()),
    )


def _messages(job: Job, group_of: dict[int, int]) -> tuple[Flags, float, bool]:
    """Which of the job's calls, shape (N,), send or receive within the groups; bytes that they send in a step, and
    whether all sizes are known.
    """
    chosen = np.zeros(len(job.calls), np.bool_)
    total, is_sized = 0.0, True
    for i, (rank, digest) in enumerate(zip(job.ranks.tolist(), job.digests, strict=True)):
        ends, table = digest.message_ends, digest.messages
        if rank not in group_of or not len(ends) + len(table):
            continue
        chosen[job.calls.first[i] + ends.call[_within(ends.peer, group_of[rank], group_of)]] = True
        sends = _within(table.peer, group_of[rank], group_of) & (table.sent == 1)
        total += float(table.bytes[sends].sum()) / max(len(digest.steps), 1)
        is_sized &= not (table.bytes[sends] < 0).any()
    return chosen, total, is_sized


def _within(peer: Ints, own: int, group_of: dict[int, int]) -> Flags:
    """Whether each other rank is in a rank's own group."""
    return np.isin(peer, [each for each in np.unique(peer).tolist() if group_of.get(each, -1) == own])


def _is_shadowed(mesh: Mesh, dimension: Dimension) -> bool:
    """Whether another dimension with the same ranks has the messages: stages and rings do, experts and data do not."""
    return dimension.name == "ep" and any(
        {*dimension.groups} & {*other.groups} for other in mesh.dimensions if other is not dimension
    )


def _within_node(job: Job, dimension: Dimension) -> bool | None:
    """Whether the traced ranks of each group are on one node; None where some rank's node is not known."""
    node = dict(zip(job.ranks.tolist(), job.nodes, strict=True))
    if "" in node.values():
        return None
    return all(len({node[rank] for rank in ranks if rank in node}) <= 1 for ranks in dimension.groups)
