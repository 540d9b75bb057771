"""What the collectives of each dimension of a job do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tb_ddp_doctor import findings
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.mesh import Dimension, Mesh


def summary(job: Job, mesh: Mesh, table: Sequence[Traffic]) -> findings.MeshTable | None:
    """The dimensions of a job with what their groups communicate in a step; None where there is no dimension."""
    if not mesh.dimensions:
        return None
    return findings.MeshTable(
        dimensions=tuple(_dimension(job, dimension, table) for dimension in mesh.dimensions),
        coordinates={
            str(rank): {
                dimension.name: place for dimension, place in zip(mesh.dimensions, places, strict=True) if place >= 0
            }
            for rank, places in zip(job.ranks.tolist(), mesh.coordinates.tolist(), strict=True)
        },
    )


def _dimension(job: Job, dimension: Dimension, table: Sequence[Traffic]) -> findings.MeshDimension:
    traced = set(job.ranks.tolist())
    there = {frozenset(traced & set(ranks)) for ranks in dimension.groups} - {frozenset()}
    mine = [one for one in table if frozenset(job.ranks[one.ranks].tolist()) in there]
    groups = max(len({tuple(one.ranks.tolist()) for one in mine}), 1)
    # Only collectives that are matched between ranks are measured.
    measured = len(job.matched) > 0 and any(len(ranks) > 1 for ranks in there)
    has_bytes = bool(mine) and all(one.has_bytes for one in mine)

    def of_a_group(amounts: Iterable[float]) -> float | None:
        return sum(amounts) / groups if measured else None

    return findings.MeshDimension(
        name=dimension.name,
        size=dimension.size,
        stride=dimension.stride,
        inferred=dimension.inferred,
        is_axis=dimension.is_axis,
        within_node=_within_node(job, dimension),
        calls=of_a_group(one.calls for one in mine),
        megabytes=of_a_group(one.bytes_per_step / 1e6 for one in mine) if has_bytes else None,
        wait_ms=of_a_group(one.wait_per_step_ns / 1e6 for one in mine),
        transfer_ms=of_a_group(one.transfer_per_step_ns / 1e6 for one in mine),
        exposed_ms=of_a_group(one.exposed_per_step_ns / 1e6 for one in mine),
        share=of_a_group(one.exposed_per_step_ns / job.step_ns for one in mine if job.step_ns),
    )


def _within_node(job: Job, dimension: Dimension) -> bool | None:
    """Whether the traced ranks of each group are on one node; None where some rank's node is not known."""
    node = dict(zip(job.ranks.tolist(), job.nodes, strict=True))
    if "" in node.values():
        return None
    return all(len({node[rank] for rank in ranks if rank in node}) <= 1 for ranks in dimension.groups)
