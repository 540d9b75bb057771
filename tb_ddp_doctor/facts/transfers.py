"""How long data moves between the ranks, hidden or exposed, with all waiting taken out."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.intervals import EMPTY, Intervals
from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import between_roles
from tb_ddp_doctor.replay.cells import LargestAt
from tb_ddp_doctor.trace.model import Flags, Indices, Ints


class Transfers(msgspec.Struct, frozen=True, eq=False):
    """Communication of R ranks in S steps."""

    #: Time in which data moves, hidden or exposed, shape (R, S), ns.
    total_ns: Ints
    #: The same of AllReduces of gradients alone, and the part of it with nothing beside it.
    allreduce_ns: Ints
    allreduce_exposed_ns: Ints
    #: Sends and receives with nothing beside them that are no communication of their own, shape (R, S), ns: between
    #: stages of a pipeline, and those whose other side has no known arrival.
    messages_exposed_ns: Ints
    #: The other sends and receives, as of the rings of context parallelism: time in which data moves, and the part of
    #: it with nothing beside it, shape (R, S), ns.
    ring_ns: Ints
    ring_exposed_ns: Ints
    #: The same of collectives of groups most of whose ranks have no trace: nobody knows how much of it is waiting.
    untraced_exposed_ns: Ints
    #: These AllReduces in a step (the most of any step and rank), their bytes (0 if unknown), and the share of the
    #: largest one in them (of their time, where the bytes are unknown).
    allreduces: int
    allreduce_bytes: int
    largest_share: float
    #: Share of them that a backward pass launched.
    from_backward: float
    #: Share of the backward passes that launch some: a quarter where the gradients of four micro-batches accumulate.
    sending_passes: float
    #: Element types seen, as torch names them.
    dtypes: tuple[str, ...]
    #: From a backward pass's first gradient to its last one on the device, the median pass, ns; None if not recorded.
    ready_within_ns: float | None


class LastBuckets(msgspec.Struct, frozen=True, eq=False):
    """The last AllReduce of gradients of every rank and step: it sends what backward completes last."""

    #: The part of its transfer with nothing beside it, shape (R, S), ns.
    exposed_ns: Ints
    #: These collectives, as rows of the job's matched ones.
    rows: Ints
    #: Its bytes, the median of the steps, and the least bytes that would do: those of its largest gradient, or of the
    #: mean one where sizes are not recorded.
    bytes: int
    least_bytes: float


class WeightSync(msgspec.Struct, frozen=True, eq=False):
    """The weights that one role of reinforcement learning sends to another in collectives: R ranks, S steps."""

    #: How long data moves with nothing beside it, without waiting, shape (R, S), ns.
    exposed_ns: Ints
    #: Bytes in a step, on the rank with most of them; 0 where sizes are not known.
    bytes_per_step: float


def transfers(job: Job, *, has_stages: bool = False) -> Transfers:
    """Measure the transfers of every rank and step. `has_stages` says whether the ranks are stages of pipelines."""
    calls, exposed = job.calls, job.waiting.exposed
    start, end = moving(job)
    reduces = calls.of_gradients
    reducing = Intervals.union(start[reduces], end[reduces])
    launched = np.flatnonzero(reduces & (calls.column("step") >= 0))
    # Where a rank lacks the bytes of one, times tell which are large.
    size = calls.column("bytes")
    sized = np.ones(len(job.ranks), np.bool_)
    sized[calls.rank[launched][size[launched] < 0]] = False
    weight = np.where(sized[calls.rank], size, calls.column("end_ns") - job.waiting.all_arrived_ns)[launched]
    total = job.sum_by_step(launched, weight)
    between_stages = calls.between_two if has_stages else calls.between_two & met_nobody(job)
    ring = calls.between_two & ~between_stages
    heaviest = np.zeros(total.shape)
    here = np.flatnonzero(job.call_step[launched] >= 0)
    step = job.call_step[launched[here]]
    LargestAt.of(calls.rank[launched[here]], step, total.shape, here).raise_to(heaviest, weight)
    return Transfers(
        total_ns=job.measure(Intervals.union(start, end)),
        allreduce_ns=job.measure(reducing),
        allreduce_exposed_ns=job.measure(reducing & exposed),
        messages_exposed_ns=job.measure(exposed_alone(job, between_stages)),
        ring_ns=job.measure(Intervals.union(start[ring], end[ring])),
        ring_exposed_ns=job.measure(exposed_alone(job, ring)),
        untraced_exposed_ns=job.measure(exposed_alone(job, mostly_untraced(job))),
        allreduces=int(job.sum_by_step(launched).max()),
        allreduce_bytes=int(total[sized].max(initial=0)),
        largest_share=float((heaviest / np.maximum(total, 1)).max()),
        from_backward=float((calls.column("backward")[launched] >= 0).mean()) if len(launched) else 0.0,
        sending_passes=_sending_passes(calls.column("backward")[launched], calls.rank[launched]),
        dtypes=calls.text("dtype").among(reduces),
        ready_within_ns=_ready_within_ns(job),
    )


def _sending_passes(passes: Ints, rank: Indices) -> float:
    """Of the passes from the first to the last that launched some of these calls, the share that did, on the first of
    their ranks. 1 for a single one.
    """
    launched = passes >= 0
    numbers = np.unique(passes[launched & (rank == rank[launched].min(initial=np.iinfo(np.int32).max))])
    return (len(numbers) - 1) / float(np.ptp(numbers)) if len(numbers) > 1 else 1.0


def _ready_within_ns(job: Job) -> float | None:
    tables = [digest.gradients for digest in job.digests]
    if not any(map(len, tables)):
        return None
    rank = np.repeat(np.arange(len(tables)), list(map(len, tables)))
    backward, done = (np.concatenate([getattr(table, name) for table in tables]) for name in ("backward", "done_ns"))
    order = np.lexsort((backward, rank))
    order = order[backward[order] >= 0]
    passes = np.stack([rank[order], backward[order]])
    begins = np.flatnonzero(np.diff(passes, prepend=-1).any(axis=0))
    several = np.diff(begins, append=len(order)) > 1
    if not several.any():
        return None
    done = done[order]
    return float(np.median((np.maximum.reduceat(done, begins) - np.minimum.reduceat(done, begins))[several]))


def mostly_untraced(job: Job) -> NDArray[np.bool_]:
    """Which of the job's calls are collectives of groups most of whose ranks have no trace, shape (N,)."""
    calls = job.calls
    return ~calls.between_two & (2 * job.parts < calls.column("group_size"))


def met_nobody(job: Job) -> NDArray[np.bool_]:
    """Which of the job's calls no other rank with a trace takes part in, shape (N,)."""
    alone: NDArray[np.bool_] = (job.parts == 1) & (job.calls.column("group_size") != 1)
    return alone


def moving(job: Job) -> tuple[Ints, Ints]:
    """When each of the job's calls moves data, from when all its ranks have arrived to its end, on the job's axis."""
    calls = job.calls
    start, end = job.waiting.all_arrived_ns, calls.column("end_ns")
    return job.axis.place(calls.rank, start), job.axis.place(calls.rank, end)


def messages_alone(job: Job, chosen: Flags | None = None) -> Ints:
    """How long each rank's sends and receives run with nothing beside them, waiting and transfer alike; (R, S), ns.

    `chosen` flags some of the job's calls, shape (N,); else all sends and receives count.
    """
    calls = job.calls
    messages = calls.between_two if chosen is None else chosen
    if not messages.any():
        return np.zeros(job.step_index.shape, np.int64)
    start, end = (job.axis.place(calls.rank, calls.column(of)) for of in ("arrival_ns", "end_ns"))
    others = Intervals.union(*(at[~messages] for at in moving(job)))
    return job.measure((Intervals.union(start[messages], end[messages]) & job.waiting.exposed) - others)


def exposed_alone(job: Job, chosen: NDArray[np.bool_]) -> Intervals:
    """When the chosen ones of the job's calls, shape (N,), move data and nothing else runs, on the job's axis."""
    if not chosen.any():
        return EMPTY
    start, end = moving(job)
    alone = Intervals.union(start[chosen], end[chosen]) & job.waiting.exposed
    return alone - Intervals.union(start[~chosen], end[~chosen])


@fact
def _last_buckets(facts: Facts) -> LastBuckets | None:
    """None where bytes or gradients are not recorded, or where AllReduces carry no gradients."""
    job = facts.job
    calls, size = job.calls, job.calls.column("bytes")
    sent = np.flatnonzero(calls.of_gradients & (job.call_step >= 0) & (calls.column("backward") >= 0) & (size > 0))
    if not len(sent):
        return None
    arrival = calls.column("arrival_ns")[sent]
    order = sent[np.lexsort((arrival, job.call_step[sent], calls.rank[sent]))]
    cell = calls.rank[order].astype(np.int64) * len(job.steps) + job.call_step[order]
    last = order[np.diff(cell, append=-1) != 0]
    is_last = np.zeros(len(calls), np.bool_)
    is_last[last] = True
    if not (largest := _largest_gradients(job)):
        return None
    gradients, share = largest
    median = int(np.median(size[last]))
    return LastBuckets(
        exposed_ns=job.measure(exposed_alone(job, is_last)),
        rows=np.unique(job.matched.segments.index[is_last[job.matched.call]]),
        bytes=median,
        least_bytes=median * max(share, 1 / gradients),
    )


def _largest_gradients(job: Job) -> tuple[float, float] | None:
    """How many gradients the last bucket of a backward pass has, and the share of the largest one in it (0 where sizes
    are not recorded): the median pass of the first rank that records gradients. None where none does, or where no
    gradient's node launches a collective.
    """
    table = next((digest.gradients for digest in job.digests if len(digest.gradients)), None)
    if table is None:
        return None
    passes = []
    for one in np.unique(table.backward[table.backward >= 0]).tolist():
        mine = np.flatnonzero(table.backward == one)
        before = mine[:-1][table.launching_ns[mine[:-1]] > 0]
        if not len(before):
            continue
        elements = table.elements[before[-1] + 1 : mine[-1] + 1]
        known = (elements > 0).all()
        passes.append((len(elements), elements.max() / elements.sum() if known else 0.0))
    if not passes:
        return None
    count, share = np.median(passes, axis=0).tolist()
    return count, share


@fact
def _weight_sync(facts: Facts) -> WeightSync | None:
    """None where roles share no collective, and in other jobs."""
    job = facts.job
    calls = between_roles(job)
    if not calls.any():
        return None
    size = np.maximum(job.calls.column("bytes"), 0)
    return WeightSync(
        job.measure(exposed_alone(job, calls)),
        float(job.sum_by_step(np.flatnonzero(calls), size[calls]).mean(axis=1).max()),
    )
