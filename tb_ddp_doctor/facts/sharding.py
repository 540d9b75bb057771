"""How long sharded parameters and gradients travel (FSDP, ZeRO), with all waiting taken out."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.facts.transfers import moving
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.numbering import numbered
from tb_ddp_doctor.trace.model import Ints

#: Gradients are scattered by the backward pass, but for the root's, which come when it is over. A group in which more
#: than this share of the reduce-scatters comes from elsewhere moves activations (tensor parallelism).
_MOST_OUTSIDE = 0.3


class Sharding(msgspec.Struct, frozen=True, eq=False):
    """All-gathers and reduce-scatters of the groups that shard, of R ranks in S steps; times have shape (R, S), ns."""

    #: Transfer of the all-gathers before and after the backward pass, and the part with nothing beside it.
    forward_ns: Ints
    forward_exposed_ns: Ints
    #: The same of all that the backward pass launches, and of the last reduce-scatters.
    backward_ns: Ints
    backward_exposed_ns: Ints
    #: Parts of them that nothing can hide: the first all-gather of a step, and the last reduce-scatter.
    first_ns: Ints
    last_ns: Ints
    #: All-gathers of a step, and the bytes of one of them in the middle; 0 if unknown.
    gathers: float
    bytes: float
    #: Element types seen, as torch names them.
    dtypes: tuple[str, ...]


def sharding(job: Job) -> Sharding | None:
    """Measure the sharding of a job; None where no group shards."""
    calls = job.calls
    gather, scatter = of_shards(job)
    if not gather[job.call_step >= 0].any():
        return None
    # A rank that gathers nothing shards nothing.
    gathers = np.bincount(calls.rank[gather], minlength=len(job.ranks)) > 0
    scatter &= gathers[calls.rank]
    start, end = moving(job)
    forward = gather & (calls.column("backward") < 0)
    backward = (gather | scatter) & ~forward
    forwards, backwards = (Intervals.union(start[chosen], end[chosen]) for chosen in (forward, backward))
    length = calls.column("end_ns") - job.waiting.all_arrived_ns
    size = calls.column("bytes")[gather]
    return Sharding(
        forward_ns=job.measure(forwards),
        forward_exposed_ns=job.measure(forwards & job.waiting.exposed),
        backward_ns=job.measure(backwards),
        backward_exposed_ns=job.measure(backwards & job.waiting.exposed),
        first_ns=_of_each_step(job, length, np.flatnonzero(forward)[::-1]),
        last_ns=_of_each_step(job, length, np.flatnonzero(scatter)),
        gathers=int((job.call_step[gather] >= 0).sum()) / job.step_index.size,
        bytes=float(np.median(size[size >= 0])) if (size >= 0).any() else 0.0,
        dtypes=calls.text("dtype").among(gather),
    )


def of_shards(job: Job) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of the job's calls gather parameters, and which scatter gradients."""
    calls = job.calls
    kind, launched = calls.text("kind"), calls.column("step") >= 0
    gather, scatter = (kind.where(name.__eq__) & launched for name in ("all_gather", "reduce_scatter"))
    group = numbered(calls.rank, calls.text("group").code)
    scatters = np.bincount(group[scatter], minlength=len(group))
    outside = np.bincount(group[scatter & (calls.column("backward") < 0)], minlength=len(group))
    shards = ((scatters > 0) & (outside <= _MOST_OUTSIDE * scatters))[group]
    return gather & shards, scatter & shards


def _of_each_step(job: Job, length: Ints, calls: Ints) -> Ints:
    """The length of the last of these calls in each step, 0 where there is none."""
    found = np.zeros(job.step_index.shape, np.int64)
    mine = calls[job.call_step[calls] >= 0]
    found[job.calls.rank[mine], job.call_step[mine]] = length[mine]
    return found
