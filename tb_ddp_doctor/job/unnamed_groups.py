"""Which process group the calls belong to whose traces name none: streams and ends tell them apart.

NCCL runs the calls of one communicator on one stream, so the calls of a rank are split by stream. Streams of ranks that
run the same kinds of calls in the same steps are taken for one group. That cannot be where a rank ends a call before
another rank arrives at it: then they are several groups, as of tensor parallelism within each replica, and ranks whose
ends differ by a constant are together. Two ranks' clocks are apart by that constant where it is steadiest: the calls of
some other group may be late in each step by as much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.trace.model import Ints

#: Streams of more ranks than this are not compared with each other.
_MOST_STREAMS = 256
#: One call in ten in which a rank ends by so much before another one arrives shows several groups, ns.
_APART_NS = 100_000
_OFTEN = 0.1
#: Ends of one group differ by at most so many times as much as those of most ranks and the closest other rank, and by
#: this much in any case, ns.
_TIMES = 5
_CLOSE_NS = 5_000.0


class _Stream(msgspec.Struct, frozen=True, eq=False):
    """The calls of one rank on one stream, by arrival."""

    rank: int
    call: Ints
    #: Those of a round that the record begins within.
    of_first_part: Ints


def unnamed_groups(calls: Calls, chosen: Ints, step: Ints) -> Ints:
    """Number of the group of each of the chosen calls, shape (N,); 0 for all where streams do not tell.

    `step` is the number of the step of each of the chosen calls. Those of a round that records begin within are of the
    groups of their streams: ranks do not have as many of them.
    """
    streams = _streams(calls, chosen)
    group_of = np.zeros(len(calls), np.int64)
    if not streams or len(streams) > _MOST_STREAMS:
        return group_of[chosen]
    of_call = np.zeros(len(calls), np.int64)
    of_call[chosen] = step
    comparable: defaultdict[tuple[int, bytes], list[_Stream]] = defaultdict(list)
    seen: defaultdict[tuple[int, bytes], int] = defaultdict(int)
    kind = calls.text("kind").code
    for stream in streams:
        what = np.stack((of_call[stream.call], kind[stream.call], calls.column("elements")[stream.call])).tobytes()
        # A rank's second stream of the same calls is of another group.
        comparable[seen[stream.rank, what], what].append(stream)
        seen[stream.rank, what] += 1
    if any(len(members) < 2 for members in comparable.values()):
        return group_of[chosen]
    every = [_Comparable.of(members, calls) for members in comparable.values()]
    clock_ns = _clocks(every, int(calls.rank.max()) + 1)
    number = 0
    for one in every:
        for group in one.groups(clock_ns):
            number += 1
            for stream in group:
                group_of[stream.call] = group_of[stream.of_first_part] = number
    return group_of[chosen]


class _Comparable(msgspec.Struct, frozen=True, eq=False):
    """Streams of the same calls, one of each rank."""

    streams: Sequence[_Stream]
    rank: Ints
    #: Shape (streams, calls), ns.
    arrival_ns: Ints
    end_ns: Ints
    #: By how much the ends of each two are apart, in the median call; and how far most calls are from that; shape
    #: (streams, streams), ns.
    offset_ns: NDArray[np.float64]
    spread_ns: NDArray[np.float64]

    @classmethod
    def of(cls, streams: Sequence[_Stream], calls: Calls) -> _Comparable:
        call = np.stack([stream.call for stream in streams])
        end = calls.column("end_ns")[call]
        offset = np.stack([np.median(end - one, axis=1) for one in end], axis=1)
        spread = [np.quantile(np.abs(end - one - offset[:, [i]]), 0.75, axis=1) for i, one in enumerate(end)]
        rank = np.array([stream.rank for stream in streams])
        return cls(streams, rank, calls.column("arrival_ns")[call], end, offset, np.stack(spread, axis=1))

    def groups(self, clock_ns: NDArray[np.float64]) -> list[list[_Stream]]:
        """The streams by group, on clocks that are ahead by so much, shape (R,)."""
        ahead = np.rint(clock_ns[self.rank]).astype(np.int64)[:, None]
        impossible = (self.end_ns - ahead).min(axis=0) < (self.arrival_ns - ahead).max(axis=0) - _APART_NS
        if impossible.mean() <= _OFTEN:
            return [list(self.streams)]
        apart = self.spread_ns + np.diag(np.full(len(self.rank), np.inf))
        limit = max(_CLOSE_NS, _TIMES * float(np.median(apart.min(axis=1))))
        which = np.arange(len(self.rank))
        for i, j in zip(*np.nonzero(apart <= limit), strict=True):
            which[which == which[j]] = which[i]
        groups = [[self.streams[i] for i in np.flatnonzero(which == one).tolist()] for one in np.unique(which).tolist()]
        return groups if all(len(group) > 1 for group in groups) else [list(self.streams)]


def _clocks(every: Sequence[_Comparable], ranks: int) -> NDArray[np.float64]:
    """By how much each rank's clock is ahead, shape (R,), ns: from rank to rank by the steadiest difference of ends."""
    spread, offset = np.full((ranks, ranks), np.inf), np.zeros((ranks, ranks))
    for one in every:
        pairs = np.ix_(one.rank, one.rank)
        closer = one.spread_ns < spread[pairs]
        spread[pairs] = np.where(closer, one.spread_ns, spread[pairs])
        offset[pairs] = np.where(closer, one.offset_ns, offset[pairs])
    clock_ns, known = np.zeros(ranks), np.zeros(ranks, np.bool_)
    known[0] = True
    while not known.all():
        remaining = np.where(known[None, :] & ~known[:, None], spread, np.inf)
        new, old = divmod(int(remaining.argmin()), ranks)
        if not np.isfinite(remaining[new, old]):
            new = old = int((~known).argmax())
        clock_ns[new] = clock_ns[old] + offset[new, old]
        known[new] = True
    return clock_ns


def _streams(calls: Calls, chosen: Ints) -> list[_Stream]:
    """The chosen calls by rank and stream."""
    rank, stream = calls.rank[chosen], calls.column("stream")[chosen]
    order = np.lexsort((chosen, stream, rank))
    begins = np.flatnonzero((np.diff(rank[order], prepend=-1) != 0) | (np.diff(stream[order], prepend=-2) != 0))
    parts = [chosen[part] for part in np.split(order, begins[1:])] if len(order) else []
    cut = calls.in_first_part
    return [
        _Stream(int(calls.rank[part[0]]), whole, part[cut[part]]) for part in parts if len(whole := part[~cut[part]])
    ]
