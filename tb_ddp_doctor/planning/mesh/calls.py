"""Which dimension of the mesh each collective and message of the played ranks is of. R = played ranks."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.mesh.groups import ranks_of_groups
from tb_ddp_doctor.mesh.homes import Homes, dimensions_of, homes
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.trace.model import Ints


def dimension_of_calls(record: PlanRecord, mesh: Mesh) -> list[Ints]:
    """For each played rank, the dimension (index into the mesh's) of each row of its `Collectives`; -1 for none."""
    its, job = homes(mesh), record.job
    return [_of_rank(job.digests[rank], int(job.ranks[rank]), its, mesh) for rank in record.ranks.tolist()]


def _of_rank(digest: RankDigest, rank: int, its: Homes, mesh: Mesh) -> Ints:
    table, text = digest.collectives, digest.strings
    names = [one.name for one in mesh.dimensions]
    dimension = np.full(len(table), -1, np.int64)
    ranks_of, described = ranks_of_groups(digest), digest.header.group_descriptions
    pairs, which = np.unique(np.stack([table.group, table.kind], axis=1), axis=0, return_inverse=True)
    for number, (group, kind) in enumerate(pairs.tolist()):
        said = {described.get(text[group], "")}
        of = dimensions_of(its, ranks_of.get(text[group], ()), said, text[kind])
        dimension[which.reshape(-1) == number] = names.index(min(of)) if of else -1
    ends = digest.message_ends
    for name in ("cp", "pp"):
        if len(ends) and name in names:
            group = its[name].get(rank, ())
            dimension[ends.call[np.isin(ends.peer, [each for each in group if each != rank])]] = names.index(name)
    return dimension
