"""Steps whose sequences are as long as those of no other step: slow where they take far longer than that explains.

There is nothing to compare such a step with but steps of other lengths:

    length of the sequences   0.5   0.8   1.0   1.2   1.7
    device time, ms            21    34   105    50    72    the third step is slow: 42 ms are to be expected
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.job.numbering import numbered
from tb_ddp_doctor.replay.cells import lower_median, of_equal
from tb_ddp_doctor.trace.model import Flags, Floats, Ints

#: Among fewer steps of other lengths nobody knows which of them is slow.
_FEWEST = 5
#: Powers of the length that time may grow with: 0 where all is of parameters, 1 where it is of tokens, more where
#: attention is most of it.
_POWERS = np.arange(0, 2.01, 0.05)
#: The share of the steps that are taken to be normal.
_NORMAL = 0.75
#: Powers fit about as well that leave so many times as much between steps, or so little of their time.
_AS_WELL, _FITS = 1.5, 0.02
#: A step is slow that takes longer than expected by this share: time does not grow with one power of the length alone.
_FAR_LONGER = 0.25


def share_at_length(need_ns: Ints, sequence: Ints, but_for_length: Ints, length: Floats) -> Floats:
    """By what to multiply the device time of each rank and step so that no step takes far longer than steps of other
    lengths let expect; shape (R, S), 1 almost everywhere.

    `need_ns` is the device time, shape (R, S), `sequence` and `but_for_length` number the ranks and steps that can be
    compared, with and without regard to `length`, the relative length of the sequences of each step, shape (S,).
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
    """What each of some steps would take if it were like most of them but for the length of its sequences, shape (S,).

    Time is taken to grow with a power of the length: the one by which most steps differ least, or, where others fit
    about as well, the one that lets expect most. Too few steps tell nothing.
    """
    if len(taken_ns) < _FEWEST:
        return taken_ns.astype(np.float64)
    taken = np.log(np.maximum(taken_ns, 1))
    left = taken[:, None] - np.log(np.maximum(length, 1e-3))[:, None] * _POWERS
    left -= np.median(left, axis=0)
    normal = int(np.ceil(_NORMAL * len(taken)))
    apart = np.sort(np.abs(left), axis=0)[:normal].mean(axis=0)
    fits = apart <= max(_AS_WELL * float(apart.min()), _FITS)
    expected: Floats = np.exp(taken - left[:, fits].min(axis=1))
    return expected


def _alone(sequence: Ints) -> Flags:
    """Which ranks and steps, shape (R, S), have a number that no other step has."""
    number = numbered(sequence.ravel())
    step = np.broadcast_to(np.arange(sequence.shape[1]), sequence.shape).ravel()
    pairs = np.unique(np.stack((number, step)), axis=1)
    alone: Flags = (np.bincount(pairs[0]) == 1)[number].reshape(sequence.shape)
    return alone
