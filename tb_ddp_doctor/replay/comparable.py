"""Says which ranks and steps of a job can be compared with each other: those that do the same work.

Work differs by the collectives of a step (`tracks.sequences`), by the length of its sequences, by whether a server
reads prompts or generates, and by the role of a rank. For example, actors and critics of reinforcement learning each
sum gradients among themselves, and work differs:

    ranks 0 to 3  actors, one process group    50 ms of compute    an actor of 90 ms is slow
    ranks 4 to 7  critics, one process group   20 ms of compute    not 2.5 times as fast as they should be
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.collectives import UNEVEN
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import roles
from tb_ddp_doctor.job.segments import joined_by
from tb_ddp_doctor.mesh.mesh import mesh
from tb_ddp_doctor.replay.cells import lower_median
from tb_ddp_doctor.trace import program_names
from tb_ddp_doctor.trace.model import Flags, Floats, Ints
from tb_ddp_doctor.trace.program_names import Program, Role

#: Steps whose kernels' grids differ by no more than this are equally long, relative to the shorter one.
_EQUALLY_LONG = 0.03
#: Batches vary from this relative standard deviation on; of a fixed size, shapes and grids are equal in all steps.
_VARIES = 0.05
#: Groups of ranks whose compute differs by no more than this have the same work; in healthy jobs ranks differ by 8 %.
_SAME_WORK = 0.10


class Comparable(msgspec.Struct, frozen=True, eq=False):
    """Which of R ranks and S steps can be compared, as numbers: equal numbers can."""

    #: Ranks and steps that do the same work have the same number, shape (R, S).
    same: Ints
    #: The same, ignoring the length of the sequences, shape (R, S).
    but_for_length: Ints
    #: How long the sequences of each step are, relative to those of the median step, shape (S,).
    length: Floats
    #: What each rank has to do in each step, relative to what the comparable ranks of the step have to do on average,
    #: shape (R, S). All 1 unless batches vary: each rank has now more and now less to do than the others.
    work: Floats


def comparable(job: Job, sequence: Ints, *, shares_requests: bool = True) -> Comparable:
    """Which ranks and steps can be compared; equal numbers in `sequence`, shape (R, S), have the same collectives.

    A server's ranks share their requests, or have some of their own. Then all ranks of a step are compared, for they
    meet around the experts, and `own_requests` has what each has to do.
    """
    shape, length = sequence.shape, _lengths(job)
    role = np.broadcast_to(_roles(job)[:, None], shape).ravel()
    as_long = np.broadcast_to(_clusters(length, _EQUALLY_LONG)[None, :], shape).ravel()
    serving = job.work(lambda work: work.serving)
    reads, writes = serving.reads > 0, serving.writes > 0
    if not shares_requests:
        reads, writes = (np.broadcast_to(one.any(axis=0), shape) for one in (reads, writes))
    but_for_length = numbered(sequence.ravel(), role, reads.ravel().astype(np.int64), writes.ravel().astype(np.int64))
    return Comparable(
        numbered(but_for_length, as_long).reshape(shape),
        but_for_length.reshape(shape),
        length,
        _work(job, but_for_length.reshape(shape)) if shares_requests else np.ones(shape),
    )


def _work(job: Job, same: Ints) -> Floats:
    """See `Comparable.work`; by FLOP, or by the kernels' grids where shapes do not tell. Equal numbers in `same`, shape
    (R, S), can be compared.
    """
    flops = job.work(lambda work: work.flops.model_flops)
    # What kernels of such grids take usually differs from rank to rank: only steps are compared by it.
    sized = job.work(lambda work: work.kernels.sized_ns)
    work = flops.astype(np.float64) if flops.all() else sized / np.maximum(sized.mean(axis=1, keepdims=True), 1)
    ranks, steps = work.shape
    none = np.ones(work.shape)
    if min(ranks, steps) < 2 or not work.all():
        return none
    group = numbered(same.ravel(), np.tile(np.arange(steps), ranks))
    mean = np.bincount(group, work.ravel()) / np.bincount(group)
    relative: Floats = work / mean[group].reshape(work.shape)
    vary = (relative / relative.mean(axis=1, keepdims=True)).std(axis=1, ddof=1) > _VARIES
    return relative if 2 * vary.sum() > ranks else none


def _lengths(job: Job) -> Floats:
    """How long the sequences of each step are on the median rank, relative to the median step, shape (S,).

    The FLOP of each kernel tell it where shapes are recorded, else the kernels' grids. The grid of a kernel that stays
    on the device for a whole GEMM is as large as the device, whatever the length. The excess of a single rank is
    unbalanced load, not longer sequences.
    """
    flops = job.work(lambda work: work.flops.model_flops)
    sized = job.work(lambda work: work.kernels.sized_ns).astype(np.float64)
    if flops.all():
        sized = flops / np.maximum(job.work(lambda work: work.kernels.kernels), 1)
    typical = np.median(sized, axis=1, keepdims=True)
    length: Floats = lower_median(np.where(typical > 0, sized / np.maximum(typical, 1), 1.0))
    return length


def _roles(job: Job) -> Ints:
    """The role of each rank, as numbers of shape (R,): ranks of one role do the same work.

    1. Ranks that meet in collectives, directly or through other ranks, form a circle. Collectives of all ranks do not
       count. Ranks that share a sequence (context parallelism) are of one circle, though they only send to each other.
    2. Circles with about the same compute have the same role.
    3. If more than half of the circles have the same role, all ranks have it: a circle that computes longer is slow.
    4. In reinforcement learning, ranks that do something else (`rl_roles.roles`) have another role in any case, and so
       have ranks that only read prompts beside others that only generate: their attention shares no kernel.
    """
    every = np.arange(len(job.ranks))
    if job_kind.program(job) is not Program.RL:
        return _roles_by_compute(job, every)
    known = roles(job)
    _, role = np.unique(known, return_inverse=True)
    part = np.zeros(len(every), np.int64)
    for name in sorted(set(known)):
        ranks = every[[one == name for one in known]]
        part[ranks] = _same_attention(job, ranks) if name == Role.ROLLOUT.value else _roles_by_compute(job, ranks)
    return numbered(role, part)


def _same_attention(job: Job, ranks: Ints) -> Ints:
    """Numbers some ranks (indices) that generate: those of equal numbers share a kernel of attention, directly or
    through others.
    """
    part, kernels = np.arange(len(ranks)), [_attention(job.digests[rank]) for rank in ranks.tolist()]
    for one, its in enumerate(kernels):
        for other in range(one):
            if its & kernels[other] or not its or not kernels[other]:
                part[part == part[one]] = part[other]
    return part


def _attention(digest: RankDigest) -> frozenset[str]:
    """The kernels of attention of a rank, by name."""
    return frozenset(
        filter(program_names.attends, (digest.strings[name] for name in set(digest.kernels.name.tolist())))
    )


def _roles_by_compute(job: Job, ranks: Ints) -> Ints:
    """Numbers some ranks (indices) by role, steps 1 to 3 of `_roles`."""
    circle = numbered(_circles(job)[ranks])
    count = int(circle.max()) + 1
    if count < 2:
        return circle
    compute = job.budget.of("compute").mean(axis=1)[ranks]
    typical = np.array([float(lower_median(compute[circle == one])) for one in range(count)])
    role = _clusters(typical, _SAME_WORK)
    if 2 * int(np.bincount(role).max()) > count:
        return np.zeros_like(circle)
    return role[circle]


def _circles(job: Job) -> Ints:
    """Numbers the ranks, shape (R,): equal numbers meet in collectives of some ranks, directly or through others."""
    ranks, matched = len(job.ranks), job.matched
    some = np.flatnonzero(~matched.is_of(UNEVEN) & (matched.parts < ranks))
    if not len(some):
        return np.zeros(ranks, np.int64)
    segments, part = matched.segments.select(some)
    rank = matched.rank[part]
    circle = joined_by(segments, rank, ranks)
    for present in _share_sequences(job):
        joined = np.unique(circle[present])
        circle[np.isin(circle, joined)] = joined[0]
    alone = np.bincount(rank, minlength=ranks) == 0
    if alone.any():
        circle[alone] = circle[alone][0]
    return numbered(circle)


def _share_sequences(job: Job) -> Iterator[Flags]:
    """The ranks of each group that shares a sequence and only sends and receives, shape (R,)."""
    if any(len(digest.messages) for digest in job.digests):
        shared = (one for one in mesh(job).dimensions if one.name in ("cp", "sp"))
        yield from (np.isin(job.ranks, group) for dimension in shared for group in dimension.groups)


def _clusters(values: NDArray[np.float64], apart: float) -> Ints:
    """Numbers the values by cluster, the smallest first.

    Within a cluster each value exceeds the next smaller one by no more than the share `apart`: 10, 10.5 and 20 with a
    share of 0.1 get 0, 0 and 1.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    which = np.empty(len(values), np.int64)
    which[order] = np.concatenate(([0], np.cumsum(ordered[1:] > (1 + apart) * np.maximum(ordered[:-1], 1e-9))))
    return which
