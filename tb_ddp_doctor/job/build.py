"""All digests of a run to one Job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import LaunchDelay, RankDigest, RankOwner
from tb_ddp_doctor.findings import FileWarning, LeftOutStep
from tb_ddp_doctor.job import file_notes
from tb_ddp_doctor.job.align import Aligned, align
from tb_ddp_doctor.job.axis import Axis
from tb_ddp_doctor.job.beginnings import beginnings
from tb_ddp_doctor.job.budget import budget_and_waiting
from tb_ddp_doctor.job.calls import job_steps
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.completeness import Damages, same_times, whole_steps
from tb_ddp_doctor.job.model import Job, of_steps
from tb_ddp_doctor.job.step_numbers import same_numbers
from tb_ddp_doctor.trace.model import Ints

#: A first step is odd that takes so many times as long as the median of the others, or as much less.
ODD = 1.25
#: Its lateness apart, a fault of its own makes it longer than this many median steps: 1.2 in a healthy job of ours.
FAR_LONGER = 1.5
#: Ranks begin it apart by so much of the median step: then what one of them did before the record delays it.
APART = 0.2
#: What is odd of it is explained by what takes at least this share of it.
EXPLAINS = 0.5


class JobError(Exception):
    """A run that cannot be diagnosed. Its text is a sentence for users."""


def build(
    name: str,
    digests: Mapping[int, RankDigest],
    nodes: Mapping[int, str],
    world_size: int | None,
    warnings: tuple[FileWarning, ...] = (),
) -> Job:
    """Join the digests of the ranks that could be read.

    `nodes` names each rank's node, "" where unknown; `world_size` is None where no file claims one.
    Raises JobError, which repeats the warnings, if no rank has a step.
    """
    notes = [*warnings, *(warning for digest in digests.values() for warning in digest.warnings)]
    usable = {rank: digest for rank, digest in sorted(digests.items()) if len(digest.steps)}
    notes.extend(
        FileWarning(digest.file, f"Rank {rank} is left out: its trace has no complete step.")
        for rank, digest in sorted(digests.items())
        if rank not in usable
    )
    if not usable:
        lacks = "has a complete step" if digests or not warnings else "can be read"
        nothing = f"Nothing can be diagnosed: no trace of this run {lacks}."
        raise JobError(" ".join([nothing, *(f"{note.file}: {note.message}" for note in notes)]))
    notes.extend(file_notes.at_other_times(usable, nodes))
    usable, moved = same_numbers(usable)
    notes.extend(moved)
    aligned, damaged = align(usable, nodes, world_size)
    notes.extend(file_notes.left_out(usable, aligned.ranks, damaged))
    notes.extend(file_notes.other_clocks(aligned))
    notes.extend(file_notes.begun_late(aligned.ranks, damaged, aligned.steps))
    notes.extend(
        FileWarning(name, f"{len(ranks)} ranks have the same event times: their files are copies of one trace.")
        for ranks in same_times(aligned.ranks)
    )
    step_index = aligned.step_index
    left_out_steps = tuple(_left_out_steps(aligned, step_index, _most_steps(aligned, damaged)))
    notes.extend(FileWarning(name, f"Step {one.step} is left out: {one.reason}") for one in left_out_steps)
    first = len(left_out_steps)
    aligned, step_index = aligned.without_first_steps(first), step_index[:, first:]
    axis = Axis.of(aligned.digests)
    budget, waiting = budget_and_waiting(
        aligned.digests, step_index, axis, aligned.calls, aligned.matched, aligned.clock
    )
    sizes = np.array([len(digest.steps) for digest in aligned.digests])
    return Job(
        name=name,
        ranks=np.array(list(aligned.ranks), np.int64),
        nodes=aligned.nodes,
        world_size=max(world_size or 0, max(digests) + 1),
        digests=aligned.digests,
        steps=aligned.steps,
        step_index=step_index,
        clock=aligned.clock,
        axis=axis,
        calls=aligned.calls,
        call_step=job_steps(step_index, aligned.calls.rank, aligned.calls.column("step"), sizes),
        matched=aligned.matched,
        waiting=waiting,
        budget=budget,
        warnings=tuple(notes),
        left_out=left_out_steps,
        damaged=tuple(digest.file for rank, digest in sorted(digests.items()) if rank in damaged or rank not in usable),
        left_out_excess_ns=_left_out_excess_ns(usable, aligned.ranks, damaged),
    )


def _left_out_excess_ns(
    usable: Mapping[int, RankDigest], kept: Mapping[int, RankDigest], damaged: Damages
) -> dict[int, float]:
    """By how much longer than the median compared rank each rank computes in a step whose record lacks collectives
    only, so that it is left out; ns.
    """

    def compute_ns(digest: RankDigest) -> float:
        return float(digest.work.owner_ns[:, RankOwner.COMPUTE].mean())

    median = median_low([compute_ns(digest) for digest in kept.values()])
    left_out = [rank for rank in usable if rank not in kept and rank in damaged]
    return {
        rank: compute_ns(usable[rank]) - median
        for rank in left_out
        if all(damage.of_collectives for damage in damaged[rank])
    }


class _WholeSteps(msgspec.Struct, frozen=True):
    """The ranks with the most whole steps, and where their digests have those steps, shape (ranks, steps)."""

    digests: tuple[RankDigest, ...]
    step_index: Ints


def _most_steps(aligned: Aligned, damaged: Damages) -> _WholeSteps:
    """Of the ranks that serve: where a rank lacks steps that others have, it is theirs that show what is usual."""
    if max(len(digest.steps) for digest in aligned.digests) == len(aligned.steps):
        return _WholeSteps(aligned.digests, aligned.step_index)
    whole = {rank: whole_steps(digest, damaged.get(rank, ())) for rank, digest in aligned.ranks.items()}
    most = max(whole.values(), key=len)
    chosen = tuple(digest for rank, digest in aligned.ranks.items() if whole[rank] == most)
    return _WholeSteps(chosen, np.stack([_first_of_each(digest.steps.number, list(most)) for digest in chosen]))


def _first_of_each(numbers: Ints, wanted: Sequence[int]) -> Ints:
    """Indices of the first step of each wanted number, ascending: two profilers may have marked one number twice."""
    number, first = np.unique(numbers, return_index=True)
    return np.sort(first[np.isin(number, wanted)])


def _left_out_steps(aligned: Aligned, step_index: Ints, most: _WholeSteps) -> Iterator[LeftOutStep]:
    """The first steps, where they cannot stand for the others."""
    lengths_ms = _lengths_ns(aligned.digests, step_index).mean(axis=0) / 1e6
    reasons = _unlike_the_others(aligned, step_index, most)
    for number, length_ms, reason in zip(aligned.steps.tolist(), lengths_ms.tolist(), reasons, strict=False):
        yield LeftOutStep(number, length_ms, reason)


def _unlike_the_others(aligned: Aligned, step_index: Ints, most: _WholeSteps) -> list[str]:
    """Why the first steps of at least three, the first of the traces, cannot stand for the others; empty if they can.

    Only what the traces show counts: a first step that is merely slow may be a rank's fault like any other. The others
    are those of the ranks that have the `most`: what one rank's record lacks makes no first step usual.
    """
    if most.step_index.shape[1] < 3 or step_index.shape[1] < 2 or any(index[0] for index in step_index):
        return []
    if reason := _begun_apart(aligned.digests, step_index, aligned.clock, most):
        return [reason, *_not_yet_met(aligned, step_index)]
    reason = _odd_first(aligned.digests, step_index, most)
    return [reason] if reason else []


def _not_yet_met(aligned: Aligned, step_index: Ints) -> Iterator[str]:
    """Why the steps after a first one that ranks begin apart are left out with it: all up to the first collective.

    Micro-batches that accumulate gradients wait for nobody: what delayed a rank before the record delays the step in
    which all meet.
    """
    steps, meets = aligned.steps, np.flatnonzero(_collectives(aligned.digests, step_index) > 0)
    if len(meets) > 1:
        for _ in range(int(meets[0])):
            yield (
                f"what delayed a rank before step {steps[0]} lasts until step {steps[meets[0]]}, the first in which "
                "ranks wait for each other."
            )


def _begun_apart(digests: tuple[RankDigest, ...], step_index: Ints, clock: ClockFit, most: _WholeSteps) -> str | None:
    """Why the first step cannot stand for the others if ranks begin it apart; None if they begin it together."""
    if clock.residual_ns is None:
        return None
    first, median = _first_and_median(digests, step_index, most)
    begin = beginnings(digests, clock)
    apart, unlike = begin.late_ns.max(), (begin.late_ns - begin.again_ns).max()
    # If the lateness is like every step's, the first stays where it has a fault of its own or other work than most:
    # without it, steps that accumulate would no longer be in proportion.
    count = _collectives(most.digests, most.step_index)
    is_one_of_many = first <= median + apart and count[0] == np.median(count[1:])
    is_late = unlike > APART * median and first <= FAR_LONGER * median + apart
    if apart > APART * median and (is_late or is_one_of_many):
        return (
            f"the ranks begin it {wording.decimals(apart / 1e6, 1)} ms apart, so what delayed the late ones "
            "is not in their traces."
        )
    return None


def _odd_first(digests: tuple[RankDigest, ...], step_index: Ints, most: _WholeSteps) -> str | None:
    """Why the first step, far longer or shorter than the others, cannot stand for them; None if it can."""
    first, median = _first_and_median(digests, step_index, most)
    if first * ODD < median:
        kernels = of_steps([digest.work.kernels.kernels for digest in most.digests], most.step_index).sum(axis=0)
        lacks, earlier = np.median(kernels[1:]) - kernels[0], sum(digest.earlier_kernels for digest in most.digests)
        # Without such kernels it has less to do than the others: a smaller batch, another phase.
        if kernels[0] * ODD < np.median(kernels[1:]) and earlier >= EXPLAINS * lacks:
            return "part of its work was launched before the trace begins."
        # With two steps left, fewer would tell less than a first one costs that lacks some idle time.
        idle = _idle_before_ns(most.digests, most.step_index)
        if step_index.shape[1] > 3 and idle >= EXPLAINS * (median - first):
            return (
                f"before each of the other steps the GPUs idle for {wording.decimals(idle / 1e6, 1)} ms, from the end "
                "of the step before on, and what came before the first is not in the traces."
            )
    if first <= ODD * median:
        return None
    excess = EXPLAINS * (first - median)
    # The rank that nobody waits for is the one whose stalls the others see.
    exposed = of_steps([digest.work.owner_ns[:, RankOwner.COMMUNICATION] for digest in digests], step_index)
    latest = int((_lengths_ns(digests, step_index) - exposed)[:, 0].argmax())
    blocked = digests[latest].work.late_launch_ns[step_index[latest], LaunchDelay.OVERHEAD]
    if blocked[0] - np.median(blocked[1:]) >= excess:
        return (
            "the start of the profiler blocks the CPU of its slowest rank for "
            f"{wording.decimals(blocked[0] / 1e6, 1)} ms."
        )
    if max(map(_before_the_record_ns, digests)) >= excess:
        return "communication that was launched before the trace begins still runs in it."
    return None


def _idle_before_ns(digests: Sequence[RankDigest], step_index: Ints) -> float:
    """For how long the GPUs have nothing to do before a step after the first begins on the CPU.

    Of the median rank in the median step, of two ranks or steps the lesser.
    """
    idle = of_steps([np.maximum(d.steps.host_start_ns - d.steps.start_ns, 0) for d in digests], step_index)[:, 1:]
    of_rank = np.sort(idle, axis=0)[(len(idle) - 1) // 2]
    return float(np.sort(of_rank)[(len(of_rank) - 1) // 2])


def _collectives(digests: Sequence[RankDigest], step_index: Ints) -> Ints:
    """How many collectives the ranks call in each step, all together, shape (S,)."""
    counts = [np.bincount(d.collectives.step[d.collectives.step >= 0], minlength=len(d.steps)) for d in digests]
    together: Ints = of_steps(counts, step_index).sum(axis=0)
    return together


def _lengths_ns(digests: Sequence[RankDigest], step_index: Ints) -> Ints:
    """Length of each rank's steps, shape (R, S), ns."""
    return of_steps([digest.steps.end_ns - digest.steps.start_ns for digest in digests], step_index)


def _first_and_median(digests: Sequence[RankDigest], step_index: Ints, most: _WholeSteps) -> tuple[float, float]:
    """Length of the first step, and the median of the others of the ranks that have most, means over ranks, ns."""
    others = _lengths_ns(most.digests, most.step_index).mean(axis=0)[1:]
    return float(_lengths_ns(digests, step_index)[:, 0].mean()), float(np.median(others))


def _before_the_record_ns(digest: RankDigest) -> int:
    """How long communication whose launch was not recorded runs in the first step."""
    table, start, end = digest.collectives, digest.steps.start_ns[0], digest.steps.end_ns[0]
    unrecorded = table.step < 0
    inside = np.minimum(table.end_ns, end) - np.maximum(table.arrival_ns, start)
    return int(np.maximum(inside[unrecorded], 0).max(initial=0))
