"""Finds steps that are slow although no other step has sequences of the same length to compare them with.

Such a step is compared with steps of other lengths: the time that its length lets expect is interpolated from theirs,
with a power of the length. R = ranks, S = steps of the job.

    length of the sequences   0.5   0.8   1.0   1.2   1.7
    device time, ms            21    34   105    50    72    the third step is slow: 42 ms are to be expected
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.replay.cells import lower_median, of_equal
from tb_ddp_doctor.trace.model import Flags, Floats, Ints

#: With fewer steps of other lengths, no step is called slow: too few to know which of them is normal.
_FEWEST = 5
#: The powers of the length with which device time may grow: 0 where parameters take it (the optimizer), 1 where tokens
#: do, more where attention takes most of it.
_POWERS = np.arange(0, 2.01, 0.05)
#: This share of the steps is assumed to be normal.
_NORMAL = 0.75
#: A power fits about as well as the best one if the steps deviate by at most this factor more, or by at most this
#: share of their time.
_AS_WELL, _FITS = 1.5, 0.02
#: A step is slow if it takes longer than expected by more than this share. Less may have another reason: device time
#: does not grow with exactly one power of the length.
_FAR_LONGER = 0.25


def share_at_length(need_ns: Ints, sequence: Ints, but_for_length: Ints, length: Floats) -> Floats:
    """Factors for device times, shape (R, S): slow steps get the time that their length lets expect, all others 1.

    `need_ns` is the device time, shape (R, S). `sequence` and `but_for_length`, shape (R, S), number the ranks and
    steps that can be compared, with and without regard to `length`. `length` is how long the sequences of each step
    are, relative to the median step's, shape (S,). Only steps without an equally long one are ever slow here.
    """
    share, alone = np.ones(need_ns.shape), _alone(sequence)
    if not alone.any():
        return share
    for same in of_equal(but_for_length.ravel()):
        rank, step = np.unravel_index(same, share.shape)
        steps, which = np.unique(step, return_inverse=True)
        taken = np.array([lower_median(need_ns[rank[which == i], steps[i]]) for i in range(len(steps))])
        expected = expected_ns(taken, length[steps])
        slow = taken > (1 + _FAR_LONGER) * expected
        less = np.where(slow, expected / np.maximum(taken, 1), 1.0)
        share[rank, step] = np.where(alone[rank, step], less[which], 1.0)
    return share


def expected_ns(taken_ns: Ints, length: Floats) -> Floats:
    """The time that each step would take if only the length of its sequences made it differ, ns, shape (S,).

    1. For each power of `_POWERS`, fit time = factor x length^power through the median step.
    2. Measure how far most of the steps (`_NORMAL`) deviate from the fit, as a mean of log ratios.
    3. Of the powers that fit about as well as the best one, take the largest expected time for each step.

    With fewer than `_FEWEST` steps the times come back as they are.
    """
    if len(taken_ns) < _FEWEST:
        return taken_ns.astype(np.float64)
    taken = np.log(np.maximum(taken_ns, 1))
    deviation = taken[:, None] - np.log(np.maximum(length, 1e-3))[:, None] * _POWERS
    deviation -= np.median(deviation, axis=0)
    normal = int(np.ceil(_NORMAL * len(taken)))
    of_most = np.sort(np.abs(deviation), axis=0)[:normal].mean(axis=0)
    fits = of_most <= max(_AS_WELL * float(of_most.min()), _FITS)
    expected: Floats = np.exp(taken - deviation[:, fits].min(axis=1))
    return expected


def _alone(sequence: Ints) -> Flags:
    """Flags the ranks and steps whose number of `sequence` no other step has, shape (R, S)."""
    number, steps = numbered(sequence.ravel()), sequence.shape[1]
    step = np.broadcast_to(np.arange(steps), sequence.shape).ravel()
    pairs = np.unique(number.astype(np.int64) * steps + step)
    alone: Flags = (np.bincount(pairs // steps) == 1)[number].reshape(sequence.shape)
    return alone
