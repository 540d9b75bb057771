"""Which ranks and steps of a job are compared with each other: those that do the same work.

Three things tell work apart: the collectives of a step (`tracks.sequences`), the length of its sequences, and the role
of a rank. In a job of reinforcement learning actors and critics sum gradients among themselves and have other work:

    ranks 0 to 3  actors, one process group    50 ms of compute    an actor of 90 ms is slow
    ranks 4 to 7  critics, one process group   20 ms of compute    not 2.5 times as fast as they should be
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.job.collectives import UNEVEN
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.numbering import numbered
from tb_ddp_doctor.replay.cells import lower_median
from tb_ddp_doctor.trace.model import Floats, Ints

#: Steps whose kernels' grids differ by no more than this are equally long, relative to the shorter one.
_EQUALLY_LONG = 0.03
#: Groups of ranks whose compute differs by no more than this have the same work; ranks of our healthy jobs do by 8 %.
_SAME_WORK = 0.10


class Comparable(msgspec.Struct, frozen=True, eq=False):
    """Which of R ranks and S steps can be compared."""

    #: Those that do the same work have the same number, shape (R, S).
    same: Ints
    #: The same where sequences may be of other lengths, shape (R, S).
    but_for_length: Ints
    #: How long the sequences of each step are, relative to those of the median step, shape (S,).
    length: Floats


def comparable(job: Job, sequence: Ints) -> Comparable:
    """Which ranks and steps can be compared, given those with the same collectives, numbers of shape (R, S)."""
    shape, length = sequence.shape, _lengths(job)
    role = np.broadcast_to(_roles(job)[:, None], shape).ravel()
    as_long = np.broadcast_to(_clusters(length, _EQUALLY_LONG)[None, :], shape).ravel()
    but_for_length = numbered(sequence.ravel(), role)
    return Comparable(
        numbered(but_for_length, as_long).reshape(shape),
        but_for_length.reshape(shape),
        length,
    )


def _lengths(job: Job) -> Floats:
    """How long the sequences of each step are on the median rank, relative to the median step, shape (S,).

    What a single rank has more of is its own: load that is not balanced.
    """
    sized = job.work(lambda work: work.kernels.sized_ns).astype(np.float64)
    usual = np.median(sized, axis=1, keepdims=True)
    length: Floats = lower_median(np.where(usual > 0, sized / np.maximum(usual, 1), 1.0))
    return length


def _roles(job: Job) -> Ints:
    """The role of each rank, indices of shape (R,).

    Ranks that chains of collectives join have one role; those of all ranks join none. Where most of such circles do as
    much work, all have one role, and another one is slow. Else nobody knows which of them is as it should be.
    """
    circle = _circles(job)
    count = int(circle.max()) + 1
    if count < 2:
        return circle
    compute = job.budget.of("compute").mean(axis=1)
    typical = np.array([float(lower_median(compute[circle == one])) for one in range(count)])
    alike = _clusters(typical, _SAME_WORK)
    if 2 * int(np.bincount(alike).max()) > count:
        return np.zeros_like(circle)
    roles: Ints = alike[circle]
    return roles


def _circles(job: Job) -> Ints:
    """Which ranks meet in collectives of fewer than all ranks, directly or through others; indices of shape (R,)."""
    ranks = len(job.ranks)
    circle = np.arange(ranks)
    together = np.array([kind not in UNEVEN for kind in job.matched.kind], np.bool_)
    some = job.matched.present[together & (job.matched.parts > 1) & (job.matched.parts < ranks)]
    if not len(some):
        return np.zeros(ranks, np.int64)
    for present in np.unique(some, axis=0):
        joined = np.unique(circle[present])
        circle[np.isin(circle, joined)] = joined[0]
    alone = ~some.any(axis=0)
    if alone.any():
        circle[alone] = circle[alone][0]
    return numbered(circle)


def _clusters(values: NDArray[np.float64], apart: float) -> Ints:
    """Which values are close: each differs from the next larger one by no more than a share; indices, by size."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    which = np.empty(len(values), np.int64)
    which[order] = np.concatenate(([0], np.cumsum(ordered[1:] > (1 + apart) * np.maximum(ordered[:-1], 1e-9))))
    return which
