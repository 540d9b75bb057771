"""How long data moves between the ranks, hidden or exposed, with all waiting taken out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.collectives import between_two
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints

#: A group that reduces more than this share of its elements outside of backward passes carries activations too
#: (tensor parallelism), not gradients alone.
_MOST_OUTSIDE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Communication of R ranks in S steps."""

    #: Time in which data moves, hidden or exposed, shape (R, S), ns.
    total_ns: Ints
    #: The same of AllReduces of gradients alone, and the part of it with nothing beside it.
    allreduce_ns: Ints
    allreduce_exposed_ns: Ints
    #: Sends and receives with nothing beside them, shape (R, S), ns: they wait for each other, as stages of a pipeline.
    messages_exposed_ns: Ints
    #: These AllReduces in a step (the most of any step and rank), their bytes (0 if unknown), and the share of the
    #: largest one in them (of their time, where the bytes are unknown).
    allreduces: int
    allreduce_bytes: int
    largest_share: float
    #: Share of them that a backward pass launched.
    from_backward: float
    #: Element types seen, as torch names them.
    dtypes: tuple[str, ...]


def transfers(job: Job) -> Transfers:
    """Measure the transfers of every rank and step."""
    shape = job.step_index.shape
    total, allreduce, exposed = (np.zeros(shape, np.int64) for _ in range(3))
    count, size, largest = 0, 0, 0.0
    launched, by_backward = 0, 0
    dtypes: set[str] = set()
    for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
        table = digest.collectives
        if not len(table):
            continue
        moving_from, exposed_now = job.waiting.all_arrived_ns[rank], job.waiting.exposed[rank]
        start, end = digest.steps.start_ns[index], digest.steps.end_ns[index]
        reduces = of_gradients(digest)
        reducing = Intervals.union(moving_from[reduces], table.end_ns[reduces])
        total[rank] = Intervals.union(moving_from, table.end_ns).measure(start, end)
        allreduce[rank] = reducing.measure(start, end)
        exposed[rank] = (reducing & exposed_now).measure(start, end)
        here = reduces & (table.step >= 0)
        launched += int(here.sum())
        by_backward += int((here & (table.backward >= 0)).sum())
        weight = table.bytes if (table.bytes[here] >= 0).all() else table.end_ns - moving_from
        by_step = np.bincount(table.step[here], weights=weight[here], minlength=len(digest.steps))[index]
        heaviest = np.zeros(len(digest.steps))
        np.maximum.at(heaviest, table.step[here], weight[here])
        count = max(count, int(np.bincount(table.step[here], minlength=len(digest.steps))[index].max()))
        largest = max(largest, float((heaviest[index] / np.maximum(by_step, 1)).max()))
        if weight is table.bytes:
            size = max(size, int(by_step.max()))
        dtypes.update(digest.strings[d] for d in np.unique(table.dtype[reduces]) if digest.strings[d])
    return Transfers(
        total_ns=total,
        allreduce_ns=allreduce,
        allreduce_exposed_ns=exposed,
        messages_exposed_ns=messages_alone(job),
        allreduces=count,
        allreduce_bytes=size,
        largest_share=largest,
        from_backward=by_backward / launched if launched else 0.0,
        dtypes=tuple(sorted(dtypes)),
    )


def of_gradients(digest: RankDigest) -> NDArray[np.bool_]:
    """Which collectives are AllReduces, without those of groups that reduce activations, shape (C,).

    Tensor-parallel layers reduce in the forward pass as in the backward pass, and wait for the result; a group that
    reduces gradients launches them in the backward pass, or all of them after it.
    """
    table = digest.collectives
    reduces = np.array([text == "all_reduce" for text in digest.strings], np.bool_)[table.kind]
    sized = reduces & (table.step >= 0) & (table.elements > 0)
    inside = sized & (table.backward >= 0)
    groups = len(digest.strings)
    total = np.bincount(table.group[sized], weights=table.elements[sized], minlength=groups)
    ours = np.bincount(table.group[inside], weights=table.elements[inside], minlength=groups)
    carries_activations = (ours > 0) & (total - ours > _MOST_OUTSIDE * total)
    chosen: NDArray[np.bool_] = reduces & ~carries_activations[table.group]
    return chosen


def messages_alone(job: Job) -> Ints:
    """How long each rank's sends and receives run with nothing beside them, waiting and transfer alike; (R, S), ns."""
    alone_ns = np.zeros(job.step_index.shape, np.int64)
    for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
        messages = between_two(digest)
        if not messages.any():
            continue
        alone = exposed_alone(job, rank, messages)
        alone_ns[rank] = alone.measure(digest.steps.start_ns[index], digest.steps.end_ns[index])
    return alone_ns


def exposed_alone(job: Job, rank: int, chosen: NDArray[np.bool_]) -> Intervals:
    """When the chosen collectives of a rank (index), shape (C,), move data and nothing else runs, on its own clock."""
    end, moving_from = job.digests[rank].collectives.end_ns, job.waiting.all_arrived_ns[rank]
    moving = Intervals.union(moving_from[chosen], end[chosen]) & job.waiting.exposed[rank]
    return moving - Intervals.union(moving_from[~chosen], end[~chosen])
