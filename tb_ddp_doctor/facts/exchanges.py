"""How unevenly AllToAlls of tokens deal them to the ranks, by their sizes; X = matched AllToAlls of the job's steps.

tokens   rank 0  rank 1  rank 2  rank 3
sends       100     100     100     100
receives    160      80      80      80     the larger side: 160, 100, 100, 100; most over least: 1.6
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.routing import EXCHANGES
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.program_names import Program

_ALL_TO_ALL = "all_to_all"
#: Of the exchanges of a job that trains half come from the backward pass; with a smaller share from there than this
#: one, they are the optimizer's or the loader's.
_FROM_BACKWARD = 0.2


class Exchanges(msgspec.Struct, frozen=True, eq=False):
    """AllToAlls whose sizes are known on all of their traced ranks."""

    #: Row of the job's matched collectives, shape (X,).
    row: Ints
    #: The larger side of the largest part over that of the smallest part, shape (X,).
    most: Floats
    #: What is exchanged if it is no tokens: "embeddings" in recommenders, and in jobs that look up sharded tables;
    #: "states" where a job that trains exchanges next to nothing in backward; else "".
    of: str


def exchanges(job: Job) -> Exchanges:
    """The AllToAlls of a job's steps, with the sizes of its ranks' parts."""
    matched = job.matched
    elements = job.calls.column("elements")[matched.call]
    least, most = matched.segments.min(elements), matched.segments.max(elements)
    rows = np.flatnonzero((least > 0) & matched.is_of((_ALL_TO_ALL,)) & np.isin(matched.step, job.steps))
    return Exchanges(rows, most[rows] / least[rows], _of(job))


def _of(job: Job) -> str:
    """What is exchanged if it is no tokens, as `Exchanges.of`."""
    if job_kind.program(job) is Program.RECOMMENDER or any(map(_looks_up_embeddings, job.digests)):
        return "embeddings"
    trains = (job.calls.column("backward") >= 0).any()
    exchange = job.calls.text("kind").where(EXCHANGES.__contains__)
    from_backward = job.calls.column("backward")[exchange] >= 0
    return "states" if trains and len(from_backward) and from_backward.mean() < _FROM_BACKWARD else ""


def _looks_up_embeddings(digest: RankDigest) -> bool:
    return any(names.looks_up_embeddings(digest.strings[name]) for name in np.unique(digest.kernels.name).tolist())
