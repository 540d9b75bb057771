"""The steps of all ranks one after the other on one axis, so that sets of intervals of all ranks are one set there."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.trace.model import Indices, Ints

#: No axis is longer, ns: 146 years.
LONGEST_NS = 1 << 62


class Axis(msgspec.Struct, frozen=True, eq=False):
    """An axis for R ranks; columns have shape (R,), ns."""

    #: When each rank's first step starts and its last one ends, on its own clock.
    start_ns: Ints
    end_ns: Ints
    #: What to add to its clock. One nanosecond is left between two ranks.
    offset_ns: Ints

    @classmethod
    def of(cls, digests: Sequence[RankDigest]) -> Axis:
        """For ranks that have a step. One whose times are damaged, decades apart, is cut to its share of the axis."""
        most = LONGEST_NS // len(digests)
        start = [int(digest.steps.start_ns[0]) for digest in digests]
        end = [min(int(d.steps.end_ns.max()), since + most) for d, since in zip(digests, start, strict=True)]
        offset, reached = [], 0
        for since, until in zip(start, end, strict=True):
            offset.append(reached - since)
            reached += max(until - since, 0) + 1
        return cls(*(np.array(column, np.int64) for column in (start, end, offset)))

    def place(self, rank: int | Indices | Ints, instant_ns: Ints) -> Ints:
        """Where an instant of a rank's clock is; what is outside of the rank's steps is where these start or end."""
        return np.clip(instant_ns, self.start_ns[rank], self.end_ns[rank]) + self.offset_ns[rank]

    def rank_at(self, place: int) -> int:
        """The rank whose steps are there."""
        return int(np.searchsorted(self.start_ns + self.offset_ns, place, side="right")) - 1

    def instant_at(self, place: int) -> int:
        """The same place on the clock of that rank, ns."""
        return place - int(self.offset_ns[self.rank_at(place)])
