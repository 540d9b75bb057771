"""Whether the ranks of context parallelism compute unevenly because causal attention is split in order.

Each token attends to those before it, so of a sequence that is cut into four parts the last one attends to all four:

    rank 0  [1 part ]
    rank 1  [1 part ][2 parts]
    rank 2  [1 part ][2 parts][3 parts]
    rank 3  [1 part ][2 parts][3 parts][4 parts]

Zig-zag gives rank i of n the parts i and 2 n - 1 - i of 2 n, which are the same work on all ranks.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.trace.model import Floats, Ints

#: The cause of a straggler whose work is that of its place in context parallelism.
CAUSAL_SPLIT = "causal_split"
#: A rank has more work than the one before it in its group by at least this share of the group's mean.
_LEAST_RISE = 0.02
#: Places whose work is said.
_SHOWN = 8


def above_mean_ns(frame: Frame, work_ns: Ints) -> Floats | None:
    """How much longer each rank computes than its group of context parallelism does on average, shape (R, S), ns.

    `work_ns` is the device work of each rank and step, shape (R, S). None where there is no such dimension, and where
    work does not rise from place to place in all of its groups.
    """
    groups = next((one.groups for one in frame.mesh.dimensions if one.name == "cp"), ())
    index = {rank: row for row, rank in enumerate(frame.all_ranks)}
    above = np.zeros(work_ns.shape)
    for group in groups:
        rows = [index[rank] for rank in group if rank in index]
        work = work_ns[rows]
        if len(rows) < 2 or (np.diff(work.mean(axis=1)) < _LEAST_RISE * work.mean()).any():
            return None
        above[rows] = work - work.mean(axis=0)
    return above if groups else None


def described(mesh: Mesh, work_ns: Ints) -> str:
    """A sentence on how work rises with the place, after a space; `work_ns` as above."""
    axis = next(axis for axis, one in enumerate(mesh.dimensions) if one.name == "cp")
    place, work = mesh.coordinates[:, axis], work_ns.mean(axis=1)
    each = [wording.ms(float(work[place == at].mean())) for at in np.unique(place[place >= 0])[:_SHOWN].tolist()]
    return (
        f" Its work rises with its place along cp ({wording.listing(each)}): causal attention, whose sequence is split "
        "in order."
    )
