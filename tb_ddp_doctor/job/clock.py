"""Puts all ranks on one clock: matched collectives end together, so their ends give each rank's offset and drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.job.collectives import Matched, select
from tb_ddp_doctor.job.segments import Segments, joined_by
from tb_ddp_doctor.trace.model import Flags, Floats, Ints

#: An offset is believed from this many times its own noise on: below it, the ends differ for other reasons, such as a
#: rank's place in the ring.
SIGNIFICANT = 3.0
#: Fewer matched collectives than this say nothing of drift.
DRIFT_COLLECTIVES = 8
#: Ranks whose clocks disagree by more than this have no clock in common, whatever their names say, ns.
ONE_CLOCK_NS = 1_000_000.0
#: Clocks of computers drift by up to 100 ppm; what moves ten times as fast is no clock.
MOST_DRIFT = 1e-3


class ClockFit(msgspec.Struct, frozen=True, eq=False):
    """What to subtract from each rank's clock at time t: offset + drift * (t - origin)."""

    #: Shape (R,), ns.
    offset_ns: Floats
    #: Shape (R,), ns per ns.
    drift: Floats
    origin_ns: int
    #: Median over matched collectives of the spread of their corrected ends, ns; None without any.
    residual_ns: float | None
    #: The largest of these spreads, ns; 0 without any.
    most_apart_ns: float = 0.0

    def correction(self, rank: int | NDArray[np.integer[Any]], instant_ns: Ints) -> Ints:
        """What to subtract from the instants of rank index `rank`, or of one for each instant, ns."""
        correction: Floats = self.offset_ns[rank] + self.drift[rank] * (instant_ns - self.origin_ns)
        return np.rint(correction).astype(np.int64)


def fit(matched: Matched, nodes: Sequence[str]) -> ClockFit:
    """Fit the clocks of R ranks to the first one's; ranks of one node share a clock.

    Ranks that no chain of collectives joins to the first one are fitted to the first of those that they do meet, and
    stay as they are if they meet none. Kernels of messages that meet others than each other (ring attention) do not end
    together, but none ends before the other one arrives: where nothing else joins ranks, that bounds their clocks.
    """
    ranks, bounding = len(nodes), select(matched, np.flatnonzero(~matched.together & (matched.parts == 2)))
    if matched.together.any() and not matched.together.all():
        matched = select(matched, np.flatnonzero(matched.together))
    matched = without_one_way(matched)
    offset, drift, noise = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    if not len(matched):
        return ClockFit(offset, drift, 0, None)
    segments, rank = matched.segments, matched.rank
    origin = int(matched.end_ns.min())
    ends = (matched.end_ns - origin).astype(np.float64)
    circle, fitted = _circles(matched)
    while True:
        known = fitted[rank]
        count = segments.count(known)
        joining = np.flatnonzero(~known & segments.each(count > 0))
        if not len(joining):
            break
        corrected = np.where(known, ends - offset[rank] - drift[rank] * ends, 0)
        reference = segments.sum(corrected) / np.maximum(count, 1)
        of_ranks, order = Segments.grouped(rank[joining])
        joining = joining[order]
        joined = rank[joining[of_ranks.first[:-1]]]
        time = ends[joining]
        offset[joined], drift[joined], noise[joined] = _lines(time, time - segments.each(reference)[joining], of_ranks)
        fitted[joined] = True
    for number in range(circle.max() + 1):
        members = np.flatnonzero(circle == number)
        offset[members], drift[members] = _relative(offset[members], drift[members])
    if circle.max() > 0 and len(bounding):
        # Of clocks that drift, the offsets in the middle of the record.
        offset += _bridges(bounding, offset + drift * np.ptp(ends) / 2, origin, circle)
    offset, drift = _by_node(offset, drift, noise, fitted, nodes)
    corrected = ends - offset[rank] - drift[rank] * ends
    spread = segments.max(corrected) - segments.min(corrected)
    return ClockFit(offset, drift, origin, float(np.median(spread)), float(spread.max()))


def without_one_way(matched: Matched) -> Matched:
    """Without messages in one direction, if all ranks that they join are joined by others.

    Their sender ends as soon as NCCL has them, which may be milliseconds before the receiver does.
    """
    one_way = matched.one_way
    if not one_way.any():
        return matched
    others = select(matched, np.flatnonzero(~one_way))
    joined, still = (joined_by(some.segments, some.rank, len(some.unmatched)) for some in (matched, others))
    return others if np.array_equal(joined, still) else matched


def _circles(matched: Matched) -> tuple[Ints, Flags]:
    """The circle of each rank, shape (R,), -1 for ranks in no collective: a chain of collectives joins its ranks. And
    the ranks that the others of their circles are fitted to: those in the most collectives.

    Circles are numbered by their collectives, the one whose rank is in most of them first.
    """
    meetings, first = matched.of_rank(), joined_by(matched.segments, matched.rank, len(matched.unmatched))
    order = np.lexsort((-meetings, first))
    of_circle = order[np.flatnonzero(np.diff(first[order], prepend=-1))]
    of_circle = of_circle[meetings[of_circle] > 0]
    of_circle = of_circle[np.lexsort((of_circle, -meetings[of_circle]))]
    number, is_reference = np.full(len(meetings), -1), np.zeros(len(meetings), np.bool_)
    number[first[of_circle]] = np.arange(len(of_circle))
    is_reference[of_circle] = True
    return number[first], is_reference


def _bridges(bounding: Matched, offset: Floats, origin: int, circle: NDArray[np.int64]) -> Floats:
    """What to add to the offsets of ranks that only messages join to others, shape (R,), ns; 0 for all others.

    Of a message between rank a and rank b, neither side ends before the other one arrives. With t more to subtract from
    b's clock:

        t >= arrival of b - end of a    and    t <= end of b - arrival of a

    Taken is the middle of the closest bounds of all messages between two circles, if 0 is outside of them: else their
    clocks may well be one. `offset` are the offsets so far, and ranks of one `circle` have one clock.
    """
    rank, circle, added = bounding.rank, circle.copy(), np.zeros(len(offset))
    # The parts of each message.
    sides = np.arange(len(rank)).reshape(-1, 2).T

    def shown(times_ns: Ints, part: Ints) -> Floats:
        return times_ns[part] - origin - offset[rank[part]] - added[rank[part]]

    for _ in range(int(circle.max())):
        of = circle[rank]
        one, other = (np.where(of[sides[0]] == 0, first, second) for first, second in (sides, sides[::-1]))
        across = (of[one] == 0) & (of[other] > 0)
        if not across.any():
            break
        met = int(np.bincount(of[other[across]]).argmax())
        mine = across & (of[other] == met)
        least = float((shown(bounding.arrival_ns, other) - shown(bounding.end_ns, one))[mine].max())
        most = float((shown(bounding.end_ns, other) - shown(bounding.arrival_ns, one))[mine].min())
        if not least <= 0 <= most and abs(most - least) < ONE_CLOCK_NS:
            added[circle == met] = (least + most) / 2
        circle[circle == met] = 0
    return added


def _relative(offset: Floats, drift: Floats) -> tuple[Floats, Floats]:
    """Corrections that lead to the first one's clock instead of to the clock that they have in common."""
    rate = 1 - drift[0]
    return (offset - offset[0]) / rate, 1 - (1 - drift) / rate


def _lines(time: Floats, difference: Floats, of_ranks: Segments) -> tuple[Floats, Floats, Floats]:
    """Offset, drift and noise of ranks against the reference, shape (R,); robust against single collectives that ended
    apart. What is given has shape (P,), rank by rank.

    `time` is the rank's own: `ClockFit.correction` is asked by it, and clocks seconds apart drift in between.
    """
    offset = of_ranks.median(difference)
    apart = np.abs(difference - of_ranks.each(offset))
    noise = of_ranks.median(apart)
    near = apart <= of_ranks.each(np.maximum(5 * noise, 1.0))
    slope, intercept, error, scatter = _least_squares(time, difference, near, of_ranks)
    extent = of_ranks.max(time) - of_ranks.min(time)
    # Over the trace a believable drift must move the clock by more than the collectives' own noise.
    moves = (np.abs(slope) > SIGNIFICANT * 2 * error) & (np.abs(slope) * extent > SIGNIFICANT * noise)
    several = of_ranks.max(np.where(near, time, -np.inf)) > of_ranks.min(np.where(near, time, np.inf))
    drifts = (of_ranks.count(near) >= DRIFT_COLLECTIVES) & several & moves & (np.abs(slope) < MOST_DRIFT)
    return np.where(drifts, intercept, offset), np.where(drifts, slope, 0.0), np.where(drifts, scatter, noise)


def _least_squares(
    time: Floats, difference: Floats, near: Flags, of_ranks: Segments
) -> tuple[Floats, Floats, Floats, Floats]:
    """Slope, intercept, the slope's standard error and the median distance of the points, of each rank's line."""
    count = np.maximum(of_ranks.count(near), 1)
    mean_time, mean = (of_ranks.sum(np.where(near, of, 0)) / count for of in (time, difference))
    centred = np.where(near, time - of_ranks.each(mean_time), 0)
    squares = np.maximum(of_ranks.sum(centred**2), 1)
    slope = of_ranks.sum(centred * difference) / squares
    intercept = mean - slope * mean_time
    rest = np.where(near, difference - of_ranks.each(intercept) - of_ranks.each(slope) * time, 0)
    error = np.sqrt(of_ranks.sum(rest**2) / np.maximum(count - 2, 1) / squares)
    return slope, intercept, error, of_ranks.median(np.abs(rest), near)


def _by_node(
    offset: Floats, drift: Floats, noise: Floats, fitted: Flags, nodes: Sequence[str]
) -> tuple[Floats, Floats]:
    """One clock per node, relative to the first rank's; offsets within the noise are none."""
    which = _clocks(offset, noise, fitted, nodes)
    count = int(which.max()) + 1
    shared_offset, shared_drift, scale = np.zeros(count), np.zeros(count), np.zeros(count)
    members_of = np.flatnonzero(fitted)[np.argsort(which[fitted], kind="stable")]
    for members in np.split(members_of, np.flatnonzero(np.diff(which[members_of])) + 1):
        clock = which[members[0]]
        shared_offset[clock] = np.median(offset[members])
        shared_drift[clock] = np.median(drift[members])
        scale[clock] = max(float(np.median(noise[members])), float(np.ptp(offset[members])))
    shared_offset, shared_drift = _relative(shared_offset, shared_drift)
    unbelievable = np.abs(shared_offset) <= SIGNIFICANT * np.maximum(scale, np.median(scale))
    shared_offset[unbelievable & (shared_drift == 0)] = 0.0
    return shared_offset[which], shared_drift[which]


def _clocks(offset: Floats, noise: Floats, fitted: Flags, nodes: Sequence[str]) -> NDArray[np.int64]:
    """Number of the clock that each rank reads: its node's, or its own where the node is unknown or disagrees."""
    numbers: dict[str, int] = {}
    of_node = np.array([numbers.setdefault(node, len(numbers)) for node in nodes], np.int64)
    largest, least, noisiest = (np.full(len(numbers), start) for start in (-np.inf, np.inf, 0.0))
    for extreme, table, values in (
        (np.maximum, largest, offset),
        (np.minimum, least, offset),
        (np.maximum, noisiest, noise),
    ):
        extreme.at(table, of_node[fitted], values[fitted])
    # A node of which no rank is fitted disagrees with nothing.
    agree = largest - least <= np.maximum(ONE_CLOCK_NS, SIGNIFICANT * noisiest)
    clocks: dict[tuple[str, int], int] = {}
    which = np.empty(len(nodes), np.int64)
    for rank, (node, number) in enumerate(zip(nodes, of_node.tolist(), strict=True)):
        which[rank] = clocks.setdefault((node, -1 if node and agree[number] else rank), len(clocks))
    return which
