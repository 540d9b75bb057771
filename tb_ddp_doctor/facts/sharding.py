"""How long sharded parameters and gradients travel (FSDP, ZeRO), with all waiting taken out."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.calibration.transfer_fit import transfer_fit
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.numbering import in_order, numbered
from tb_ddp_doctor.facts.transfers import moving
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.model import Schedule
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.names import Phase

#: With this share of its transfer exposed, a call runs alone: prefetched ones have some compute beside them.
_ALONE = 0.9
#: As many all-gathers of a step are nearly all.
_NEARLY_ALL = 0.9
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
    #: The share of latency in the transfer of all-gathers, by their times over bytes; 0 where their sizes do not tell.
    latency_share: float
    #: Element types seen, as torch names them.
    dtypes: tuple[str, ...]
    calls: ShardCalls


class ShardCalls(msgspec.Struct, frozen=True, eq=False):
    """The all-gathers and reduce-scatters of the job's steps, K of them, rank by rank; each column has shape (K,)."""

    #: Index of the rank and of the step, and the row in the rank's `Collectives`.
    rank: Ints
    step: Ints
    row: Ints
    #: Calls of one kind and group have one number.
    like: Ints
    is_gather: Flags
    in_forward: Flags
    #: Whether the backward pass launches it before it has launched any work of its own.
    opens_backward: Flags
    #: Transfer of the call, and the part of it with nothing beside it.
    length_ns: Ints
    exposed_ns: Ints

    @property
    def follow_the_update(self) -> bool:
        """Whether all-gathers send round what each rank has updated (ZeRO 1 and 2, Megatron's distributed optimizer):
        nearly all of them are launched after the last reduce-scatter of their step.
        """
        cell, gathers = numbered(self.rank, self.step), self.is_gather
        last = np.full(int(cell.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        last[cell[~gathers]] = -1
        np.maximum.at(last, cell[~gathers], self.row[~gathers])
        return bool(gathers.any() and (self.row[gathers] > last[cell[gathers]]).mean() >= _NEARLY_ALL)

    def late_ns(self, schedule: Schedule, *, forward: bool) -> Ints:
        """How much of the exposed transfer prefetching would hide, summed over calls, shape (R, S), ns.

        An all-gather that is launched once the unit before it computes, and then runs alone, could run beside that
        unit. A reduce-scatter that runs alone could run beside the unit after it:

            all-gather 1, unit 1, all-gather 2, unit 2    all-gather 2 has unit 1 to hide behind
            all-gather 1, all-gather 2, unit 1, unit 2    all-gather 2 is prefetched

        The all-gather that opens a backward pass brings back the unit that the forward pass has just used: there is
        no unit of the backward pass before it to hide behind.
        """
        late = np.zeros(schedule.frame.step_index.shape, np.int64)
        work, comparable = self._work_before(schedule), numbered(self.rank, self.step, self.like)
        order = np.lexsort((self.row, comparable))
        apart = np.diff(work[order], prepend=0)
        apart[np.diff(comparable[order], prepend=-1) != 0] = 0
        beside = np.zeros(len(order), np.int64)
        beside[order] = apart
        after = np.zeros(len(order), np.int64)
        after[order[:-1]] = apart[1:]
        beside[self.opens_backward] = 0
        alone = self.exposed_ns >= _ALONE * self.length_ns
        hidden = np.minimum(self.exposed_ns, np.maximum(np.where(self.is_gather, beside, after), 0))
        chosen = alone & (self.in_forward == forward) & (work >= 0)
        np.add.at(late, (self.rank[chosen], self.step[chosen]), hidden[chosen])
        return late

    def _work_before(self, schedule: Schedule) -> Ints:
        """The device work that the call's rank has launched before it, -1 where the call's launch is not known."""
        rows, parts = schedule.rows, schedule.parts
        order = in_order(rows.rank)
        work = np.empty(len(order), np.int64)
        work[order] = np.cumsum(np.maximum(rows.device_ns[order], 0))
        launching = np.flatnonzero(rows.launches >= 0)
        part = rows.launches[launching]
        most = int(max(parts.row.max(initial=0), self.row.max(initial=0))) + 1
        before = np.full(len(schedule.frame.step_index) * most, -1, np.int64)
        known = parts.row[part] >= 0
        before[parts.rank[part[known]].astype(np.int64) * most + parts.row[part[known]]] = work[launching[known]]
        of_calls: Ints = before[self.rank * most + self.row]
        return of_calls


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
        latency_share=_latency_share(size, length[gather]),
        dtypes=calls.text("dtype").among(gather),
        calls=_calls(job, gather, scatter, start, end),
    )


def _calls(job: Job, gather: Flags, scatter: Flags, start: Ints, end: Ints) -> ShardCalls:
    """The calls that gather or scatter, given when each of the job's calls moves data."""
    calls = job.calls
    mine = np.flatnonzero((gather | scatter) & (job.call_step >= 0))
    in_backward = calls.column("backward")[mine] >= 0
    return ShardCalls(
        rank=calls.rank[mine].astype(np.int64),
        step=job.call_step[mine].astype(np.int64),
        row=mine - calls.first[calls.rank[mine]],
        like=numbered(gather[mine], calls.text("group").code[mine]),
        is_gather=gather[mine],
        in_forward=gather[mine] & ~in_backward,
        opens_backward=gather[mine] & in_backward & _launched_in_forward(job)[mine],
        length_ns=end[mine] - start[mine],
        exposed_ns=job.waiting.exposed.measure(start[mine], end[mine]),
    )


def _launched_in_forward(job: Job) -> Flags:
    """Which of the job's calls are launched at the end of a stretch in which the CPU mostly runs the forward pass."""
    in_forward = np.zeros(len(job.calls), np.bool_)
    for rank, digest in enumerate(job.digests):
        launches, count = digest.track.launches, len(digest.collectives)
        launching = np.flatnonzero((launches >= 0) & (launches < count))
        in_forward[job.calls.first[rank] + launches[launching]] = digest.track.phase[launching] == Phase.FORWARD
    return in_forward


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


def _latency_share(size: Ints, length_ns: Ints) -> float:
    """The share of latency in calls of some sizes (bytes) and lengths; 0 where these do not tell."""
    known = (size > 0) & (length_ns > 0)
    line = transfer_fit(size[known], length_ns[known]) if known.any() else None
    if line is None or not line.is_significant:
        return 0.0
    return min(max(line.alpha_ns, 0.0) * int(known.sum()) / float(length_ns[known].sum()), 1.0)


def _of_each_step(job: Job, length: Ints, calls: Ints) -> Ints:
    """The length of the last of these calls in each step, 0 where there is none."""
    summed = np.zeros(job.step_index.shape, np.int64)
    mine = calls[job.call_step[calls] >= 0]
    summed[job.calls.rank[mine], job.call_step[mine]] = length[mine]
    return summed
