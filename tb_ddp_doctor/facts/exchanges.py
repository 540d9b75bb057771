"""How unevenly AllToAlls of tokens deal them to the ranks, by their sizes; X = matched AllToAlls of the job's steps.

tokens   rank 0  rank 1  rank 2  rank 3
sends       100     100     100     100
receives    160      80      80      80     the larger side: 160, 100, 100, 100
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.collectives import LATEST
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.routing import EXCHANGES
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Floats, Ints

_ALL_TO_ALL = "all_to_all"
#: Of the exchanges of a job that trains half come from the backward pass; with a smaller share from there than this
#: one, they are the optimizer's or the loader's.
_FROM_BACKWARD = 0.2


class Exchanges(msgspec.Struct, frozen=True, eq=False):
    """AllToAlls whose sizes are known on all of their traced ranks."""

    #: Row of the job's matched collectives, index of the step, shape (X,).
    row: Ints
    step: Ints
    #: The larger side of each rank's part, over the smallest of these, shape (X, R); 0 for ranks without a part.
    load: Floats
    #: What is exchanged if it is no tokens: "embeddings" in jobs that look up embedding tables, "states" where a job
    #: that trains exchanges next to nothing in backward; else "".
    of: str

    @property
    def most(self) -> Floats:
        """The largest load in each AllToAll, shape (X,)."""
        largest: Floats = self.load.max(axis=1, initial=0.0)
        return largest


def exchanges(job: Job) -> Exchanges:
    """The AllToAlls of a job's steps, with the sizes of its ranks' parts."""
    matched = job.matched
    kinds = np.array([kind == _ALL_TO_ALL for kind in matched.kind], np.bool_)
    rows = np.flatnonzero(kinds & np.isin(matched.step, job.steps))
    elements = np.zeros((len(rows), len(job.ranks)), np.int64)
    for rank, digest in enumerate(job.digests):
        here = matched.row[rows, rank]
        elements[here >= 0, rank] = digest.collectives.elements[here[here >= 0]]
    present = matched.present[rows]
    known = ((elements > 0) | ~present).all(axis=1)
    rows, elements, present = rows[known], elements[known], present[known]
    least = np.where(present, elements, LATEST).min(axis=1, initial=LATEST)
    load = np.where(present, elements / least[:, None], 0.0)
    return Exchanges(rows, np.searchsorted(job.steps, matched.step[rows]), load, _of(job))


def _of(job: Job) -> str:
    """What is exchanged if it is no tokens, as `Exchanges.of`."""
    if any(_looks_up_embeddings(digest) for digest in job.digests):
        return "embeddings"
    trains = (job.calls.column("backward") >= 0).any()
    exchange = job.calls.text("kind").where(EXCHANGES.__contains__)
    from_backward = job.calls.column("backward")[exchange] >= 0
    return "states" if trains and len(from_backward) and from_backward.mean() < _FROM_BACKWARD else ""


def _looks_up_embeddings(digest: RankDigest) -> bool:
    return any(names.looks_up_embeddings(digest.strings[name]) for name in np.unique(digest.kernels.name).tolist())
