"""Puts all ranks on one clock: matched collectives end together, so their ends give each rank's offset and drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.job.collectives import Matched, select
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
    present = matched.present
    offset, drift, noise = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    if not len(matched):
        return ClockFit(offset, drift, 0, None)
    origin = int(matched.end_ns[present].min())
    ends = np.where(present, matched.end_ns - origin, 0).astype(np.float64)
    meetings = present.sum(axis=0)
    # Ranks that a chain of collectives joins have the same number; -1 until they are fitted.
    circle = np.full(ranks, -1)
    while (meetings[circle < 0] > 0).any():
        usable = present & (circle >= 0)
        count = usable.sum(axis=1)
        reachable = (circle < 0) & (present & (count > 0)[:, None]).any(axis=0)
        if not reachable.any():
            circle[np.where(circle < 0, meetings, 0).argmax()] = circle.max() + 1
            continue
        corrected = ends - offset - drift * ends
        reference = np.where(usable, corrected, 0).sum(axis=1) / np.maximum(count, 1)
        met = np.flatnonzero(count > 0)
        both = present[np.ix_(met, reachable)].T
        time = ends[np.ix_(met, reachable)].T
        offset[reachable], drift[reachable], noise[reachable] = _lines(time, time - reference[met], both)
        circle[reachable] = circle.max()
    for number in range(circle.max() + 1):
        members = np.flatnonzero(circle == number)
        offset[members], drift[members] = _relative(offset[members], drift[members])
    if circle.max() > 0 and len(bounding):
        # Of clocks that drift, the offsets in the middle of the record.
        offset += _bridges(bounding, offset + drift * np.ptp(ends) / 2, origin, circle)
    offset, drift = _by_node(offset, drift, noise, circle >= 0, nodes)
    corrected = np.where(present, ends - offset - drift * ends, np.nan)
    spread = np.nanmax(corrected, axis=1) - np.nanmin(corrected, axis=1)
    return ClockFit(offset, drift, origin, float(np.median(spread)), float(spread.max()))


def _bridges(bounding: Matched, offset: Floats, origin: int, circle: NDArray[np.int64]) -> Floats:
    """What to add to the offsets of ranks that only messages join to others, shape (R,), ns; 0 for all others.

    Of a message between rank a and rank b, neither side ends before the other one arrives. With t more to subtract from
    b's clock:

        t >= arrival of b - end of a    and    t <= end of b - arrival of a

    Taken is the middle of the closest bounds of all messages between two circles, if 0 is outside of them: else their
    clocks may well be one. `offset` are the offsets so far, and ranks of one `circle` have one clock.
    """
    present = bounding.present
    sides = present.argmax(axis=1), present.shape[1] - 1 - present[:, ::-1].argmax(axis=1)
    row, circle, added = np.arange(len(present)), circle.copy(), np.zeros(len(offset))

    def shown(times_ns: Ints, rank: NDArray[np.int64]) -> Floats:
        seen: Floats = times_ns[row, rank] - origin - offset[rank] - added[rank]
        return seen

    for _ in range(int(circle.max())):
        one, other = (np.where(circle[sides[0]] == 0, first, second) for first, second in (sides, sides[::-1]))
        across = (circle[one] == 0) & (circle[other] > 0)
        if not across.any():
            break
        met = int(np.bincount(circle[other[across]]).argmax())
        mine = across & (circle[other] == met)
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


def _lines(time: Floats, difference: Floats, known: Flags) -> tuple[Floats, Floats, Floats]:
    """Offset, drift and noise of ranks against the reference, shape (R,); robust against single collectives that ended
    apart. What is given has shape (R, M), and each rank has something known.

    `time` is the rank's own: `ClockFit.correction` is asked by it, and clocks seconds apart drift in between.
    """
    offset = _medians(difference, known)
    apart = np.abs(difference - offset[:, None])
    noise = _medians(apart, known)
    near = known & (apart <= np.maximum(5 * noise, 1.0)[:, None])
    slope, intercept, error, scatter = _least_squares(time, difference, near)
    # Over the trace a believable drift must move the clock by more than the collectives' own noise.
    moves = (np.abs(slope) > SIGNIFICANT * 2 * error) & (np.abs(slope) * _extent(time, known) > SIGNIFICANT * noise)
    drifts = (near.sum(axis=1) >= DRIFT_COLLECTIVES) & (_extent(time, near) > 0) & moves & (np.abs(slope) < MOST_DRIFT)
    return np.where(drifts, intercept, offset), np.where(drifts, slope, 0.0), np.where(drifts, scatter, noise)


def _least_squares(time: Floats, difference: Floats, near: Flags) -> tuple[Floats, Floats, Floats, Floats]:
    """Slope, intercept, the slope's standard error and the median distance of the points, of each row's line."""
    count = np.maximum(near.sum(axis=1), 1)
    mean_time, mean = (np.where(near, of, 0).sum(axis=1) / count for of in (time, difference))
    centred = np.where(near, time - mean_time[:, None], 0)
    squares = np.maximum((centred**2).sum(axis=1), 1)
    slope = (centred * difference).sum(axis=1) / squares
    intercept = mean - slope * mean_time
    rest = np.where(near, difference - intercept[:, None] - slope[:, None] * time, 0)
    error = np.sqrt((rest**2).sum(axis=1) / np.maximum(count - 2, 1) / squares)
    return slope, intercept, error, _medians(np.abs(rest), near)


def _medians(values: Floats, known: Flags) -> Floats:
    """Of the known values of each row."""
    ordered = np.sort(np.where(known, values, np.inf), axis=1)
    row, count = np.arange(len(values)), np.maximum(known.sum(axis=1), 1)
    medians: Floats = (ordered[row, (count - 1) // 2] + ordered[row, count // 2]) / 2
    return medians


def _extent(values: Floats, known: Flags) -> Floats:
    """From the least to the largest known value of each row."""
    largest, least = np.where(known, values, -np.inf).max(axis=1), np.where(known, values, np.inf).min(axis=1)
    extent: Floats = largest - least
    return extent


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
