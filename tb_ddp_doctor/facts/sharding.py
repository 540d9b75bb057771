"""How long sharded parameters and gradients travel (FSDP, ZeRO), with all waiting taken out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Indices, Ints

#: Gradients are scattered by the backward pass, but for the root's, which come when it is over. A group in which more
#: than this share of the reduce-scatters comes from elsewhere moves activations (tensor parallelism).
_MOST_OUTSIDE = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Sharding:
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
    times = {name: np.zeros(job.step_index.shape, np.int64) for name in Sharding.__slots__ if name.endswith("_ns")}
    gathers, sizes, dtypes = 0, [], set[str]()
    for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
        gather, scatter = _of_shards(digest)
        if not gather.any():
            continue
        table = digest.collectives
        moving_from, exposed = job.waiting.all_arrived_ns[rank], job.waiting.exposed[rank]
        start, end = digest.steps.start_ns[index], digest.steps.end_ns[index]
        forward = gather & (table.backward < 0)
        for name, chosen in (("forward", forward), ("backward", (gather | scatter) & ~forward)):
            moving = Intervals.union(moving_from[chosen], table.end_ns[chosen])
            times[f"{name}_ns"][rank] = moving.measure(start, end)
            times[f"{name}_exposed_ns"][rank] = (moving & exposed).measure(start, end)
        size = len(digest.steps)
        length = table.end_ns - moving_from
        times["first_ns"][rank] = _of_each_step(table.step, length, np.flatnonzero(forward), size)[index]
        times["last_ns"][rank] = _of_each_step(table.step, length, np.flatnonzero(scatter)[::-1], size)[index]
        gathers += int(np.isin(table.step[gather], index).sum())
        sizes.append(table.bytes[gather & (table.bytes >= 0)])
        dtypes.update(digest.strings[dtype] for dtype in np.unique(table.dtype[gather]) if digest.strings[dtype])
    if not gathers:
        return None
    known = np.concatenate(sizes)
    return Sharding(
        **times,
        gathers=gathers / job.step_index.size,
        bytes=float(np.median(known)) if len(known) else 0.0,
        dtypes=tuple(sorted(dtypes)),
    )


def _of_shards(digest: RankDigest) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which collectives gather parameters, and which scatter gradients; by arrival, as the table."""
    table = digest.collectives
    kinds = np.array(digest.strings, object)[table.kind]
    launched = table.step >= 0
    gather, scatter = (kinds == "all_gather") & launched, (kinds == "reduce_scatter") & launched
    shards = np.zeros(len(table), np.bool_)
    for group in np.unique(table.group[scatter]):
        here = table.group == group
        outside = (table.backward[here & scatter] < 0).mean()
        shards |= here & bool(outside <= _MOST_OUTSIDE)
    return gather & shards, scatter & shards


def _of_each_step(step: Indices, length: Ints, rows: Ints, steps: int) -> Ints:
    """The length of the first of these rows in each step, 0 where there is none."""
    found = np.zeros(steps, np.int64)
    which, first = np.unique(step[rows], return_index=True)
    found[which] = length[rows[first]]
    return found
