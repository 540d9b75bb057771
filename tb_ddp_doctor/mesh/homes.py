"""Which dimension of the mesh collectives are of, by the ranks of their process group.

Two dimensions may have the same ranks, as dp and ep do. The group's description says which of them a collective is of;
without one, exchanges of tokens are those of experts, and other collectives are not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from tb_ddp_doctor.mesh.dimensions import EXCHANGES
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.trace import names

#: By dimension: the group of each rank number.
Homes: TypeAlias = Mapping[str, Mapping[int, tuple[int, ...]]]


def homes(mesh: Mesh) -> Homes:
    """Each rank's group of each dimension."""
    return {one.name: {rank: group for group in one.groups for rank in group} for one in mesh.dimensions}


def dimensions_of(its: Homes, ranks: Sequence[int], descriptions: Collection[str], kind: str) -> set[str]:
    """The dimensions that collectives of one kind among some rank numbers are of; none if no dimension has these."""
    if not ranks:
        return set()
    rivals = {name for name, home in its.items() if {*ranks} <= {*home.get(ranks[0], ())}}
    named = {name for description in descriptions for name in names.dimensions(description)} & rivals
    if len(rivals) < 2 or named:
        return named or rivals
    return rivals & {"ep"} if kind in EXCHANGES else rivals - {"ep"}
