"""Measures how unevenly the ranks of a job with expert parallelism share the work between exchanges of tokens.

A rank whose experts get more tokens than others computes longer before the exchange that follows, and all ranks wait
for it there. Which rank that is may change from layer to layer, so that no rank is slow over a whole step:

    rank 0  [attention][exchange][experts.......][exchange][attention][exchange][experts][wait....][exchange]
    rank 1  [attention][exchange][experts][wait.][exchange][attention][exchange][experts........  ][exchange]

A piece is the device work of one rank that is launched between two collectives, the second of which exchanges tokens.
N pieces; times are ns.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.numbering import numbered, ordinals
from tb_ddp_doctor.replay.model import Schedule
from tb_ddp_doctor.trace.model import Flags, Floats, Ints
from tb_ddp_doctor.trace.names import COMBINE, DISPATCH

#: Kinds of collectives that exchange tokens between experts.
EXCHANGES = ("all_to_all", DISPATCH, COMBINE)
#: A piece is uneven if the rank with most computes this much longer than the ranks do on average. Kernels that vary by
#: 6 % make the slowest of 8 ranks 9 % longer.
_UNEVEN = 0.2


class Routing(msgspec.Struct, frozen=True, eq=False):
    """The pieces of a job's steps; shape (N,) unless a comment says more."""

    #: Index of the rank.
    rank: Ints
    #: Index of the step.
    step: Ints
    #: How many pieces the rank has earlier in the step.
    ordinal: Ints
    #: The exchange that ends the piece, as a number: pieces with equal numbers end together.
    exchange: Ints
    #: Device work.
    work_ns: Ints
    #: For each row of the schedule, the piece that it belongs to, -1 if none.
    piece: Ints

    def excess_ns(self, among: Flags) -> Floats:
        """How much longer each uneven piece takes than its ranks do on average, ns, shape (N,); 0 for the others."""
        return np.maximum(self.above_mean_ns(among), 0.0)

    def above_mean_ns(self, among: Flags) -> Floats:
        """The same, negative for pieces that take less than the average, ns, shape (N,).

        `among` flags the ranks and steps to compare, shape (R, S). A rank that is slower in most pieces of a step is a
        slow rank, not a sign of uneven routing: its pieces are compared as if it were as fast as the other ranks.
        """
        if not len(self.rank):
            return np.zeros(0)
        chosen = among[self.rank, self.step]
        slower = self._slower(chosen)
        at_equal_speed = self.work_ns / slower
        mean = self._mean(at_equal_speed, chosen)
        above = np.where(chosen, at_equal_speed - mean, 0.0)
        largest = np.zeros(int(self.exchange.max()) + 1)
        np.maximum.at(largest, self.exchange, above)
        uneven = largest[self.exchange] > _UNEVEN * mean
        return np.where(uneven, above * slower, 0.0)

    def _mean(self, values: Floats, chosen: Flags) -> Floats:
        """For each piece, the mean of `values` over the chosen pieces that end with the same exchange, shape (N,)."""
        many = int(self.exchange.max()) + 1
        total = np.bincount(self.exchange, np.where(chosen, values, 0.0), many)
        count = np.bincount(self.exchange, chosen, many)
        return (total / np.maximum(count, 1))[self.exchange]

    def _slower(self, chosen: Flags) -> Floats:
        """How many times the time of the median rank each piece's rank takes in most pieces of the step; 1 or more."""
        work = self.work_ns.astype(np.float64)
        typical = _lower_medians(np.where(chosen, work, np.inf), self.exchange)
        ratio = np.where(np.isfinite(typical), work / np.maximum(typical, 1.0), 1.0)
        # If one of two pieces is uneven, the lower median is that of the other one.
        return np.maximum(_lower_medians(ratio, numbered(self.rank, self.step)), 1.0)


def _lower_medians(values: Floats, group: Ints) -> Floats:
    """For each value, the lower median of the finite values of its group; infinite if the group has none."""
    order = np.lexsort((values, group))
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    finite = np.maximum(np.add.reduceat(np.isfinite(values[order]).astype(np.int64), first), 1)
    medians: Floats = values[order][first + (finite - 1) // 2]
    return medians[group]


def routing(schedule: Schedule, attention_ns: Ints | None = None) -> Routing:
    """Cut the device work of a schedule into pieces between exchanges of tokens; no pieces if there are none.

    Where ranks have requests of their own, pieces with attention (how long it takes of each row, `attention_ns`) are no
    experts' work: how long they take is how the requests are spread.
    """
    rows, parts, families = schedule.rows, schedule.parts, schedule.frame.families
    exchanges = np.array([one.kind in EXCHANGES and not one.between_two for one in families], np.bool_)
    ends = np.flatnonzero((rows.launches >= 0) & (rows.step >= 0)) if exchanges.any() else np.zeros(0, np.int64)
    ends = ends[exchanges[parts.family[rows.launches[ends]]]]
    place = numbered(rows.rank, rows.own_step, rows.between)
    if attention_ns is not None:
        attends = np.bincount(place, attention_ns) > 0
        attended = np.unique(parts.collective[rows.launches[ends]][attends[place[ends]]])
        ends = ends[~np.isin(parts.collective[rows.launches[ends]], attended)]
    if not len(ends):
        nothing = np.zeros(0, np.int64)
        return Routing(nothing, nothing, nothing, nothing, nothing, np.broadcast_to(np.int64(-1), len(rows.rank)))
    of_place = np.full(int(place.max()) + 1, -1, np.int64)
    of_place[place[ends]] = np.arange(len(ends))
    piece = of_place[place]
    mine = piece >= 0
    work = np.bincount(piece[mine], np.maximum(rows.device_ns[mine], 0), len(ends)).astype(np.int64)
    rank, step = rows.rank[ends].astype(np.int64), rows.step[ends].astype(np.int64)
    return Routing(
        rank=rank,
        step=step,
        ordinal=ordinals(numbered(rank, step), rows.between[ends]),
        exchange=numbered(parts.collective[rows.launches[ends]]),
        work_ns=work,
        piece=piece,
    )
