"""When the record of each rank begins: later than others' for what is in the record too, or for what came before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.steps import FIRST_PART
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.trace.model import Ints


class JoinedLate(msgspec.Struct, frozen=True, eq=False):
    """Ranks whose record begins with a step that others begin later in theirs."""

    #: Indices of ranks.
    ranks: Ints
    #: The others, and the index of that step in their digests.
    others: Ints
    index: Ints


class Beginnings(msgspec.Struct, frozen=True, eq=False):
    """The beginnings of R ranks on the common clock, ns."""

    #: How much later each begins than the first of the ranks whose record begins with the same step, shape (R,).
    late_ns: Ints
    #: How much of it is its CPU's, which is as late again when the record ends, shape (R,): each step is like that.
    again_ns: Ints
    joined: tuple[JoinedLate, ...]


def beginnings(digests: Sequence[RankDigest], clock: ClockFit) -> Beginnings:
    """The beginnings of ranks that have steps."""
    each = np.arange(len(digests))
    first, last, host, device, host_end, device_end = np.array(
        [
            (
                steps.number[0],
                steps.number[-1],
                steps.host_start_ns[0],
                steps.start_ns[0],
                steps.host_end_ns[-1],
                steps.end_ns[-1],
            )
            for steps in (digest.steps for digest in digests)
        ],
        np.int64,
    ).T
    begin, end = (at - clock.correction(each, at) for at in (device, np.maximum(host_end, device_end)))
    late, late_at_end = np.zeros_like(begin), np.zeros_like(begin)
    for number in np.unique(first):
        mine = first == number
        late[mine] = begin[mine] - begin[mine].min()
        ended = mine & (last == np.median(last[mine]))
        if ended.any():
            late_at_end[ended] = end[ended] - end[ended].min()
    again = np.where(host >= device, np.minimum(late, late_at_end), 0)
    # Records that begin within a round do so wherever their rank is: nothing that others gain brings that forward.
    return Beginnings(late, again, () if FIRST_PART in first else tuple(_joined(digests, first)))


def _joined(digests: Sequence[RankDigest], first: Ints) -> Iterator[JoinedLate]:
    for number in np.unique(first)[1:]:
        index = np.array([int(np.searchsorted(digest.steps.number, number)) for digest in digests])
        have = [
            0 < i < len(digest.steps) and digest.steps.number[i] == number
            for digest, i in zip(digests, index, strict=True)
        ]
        others = np.flatnonzero(have)
        if len(others):
            yield JoinedLate(np.flatnonzero(first == number), others, index[others])
