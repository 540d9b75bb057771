"""What hours of collectives say: bandwidth by kind, size and group, when it changed, and which rank arrives last.

The Inspector's times begin when a rank arrives: of one call, the rank that arrives last takes the shortest, and waits
for nobody. Its bus bandwidth is the call's, and the longest time minus the shortest is what the first rank waits.

    call 7 of a group of 3    rank 0: 5.0 ms    rank 1: 2.0 ms    rank 2: 4.8 ms    rank 1 is last, 3.0 ms after rank 0
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.levels import levels
from tb_ddp_doctor.history.logs.inspector import InspectorCalls, inspector_files, read_inspector
from tb_ddp_doctor.workers import pool

#: Bandwidth that changes by less is noise. Bins that are compared, and the fewest calls of one.
LEAST_CHANGE = 0.05
_MOST_BINS, _FEWEST_CALLS = 512, 8
#: A rank is late if it arrives last in this share of so many calls, and the first waits for this share of each.
LEAST_LATE = 0.5
_FEWEST_COMPARED, _LEAST_WAIT = 50, 0.1
#: Kinds, groups and ranks that are looked at: those of most time.
_MOST_SAID = 50


class CollectiveCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a kind and size in groups of one shape."""

    collective: str
    size: int
    ranks: int
    #: 0 where unknown.
    nodes: int
    calls: int
    #: Bus bandwidth of the median call and of the slowest twentieth, without waiting, GB/s.
    busbw_gbs: float
    low_gbs: float
    #: Transfer time of all calls, s.
    transfer_s: float


class BandwidthChange(msgspec.Struct, frozen=True, kw_only=True):
    """Bandwidth of one group that changed."""

    collective: str
    size: int
    ranks: int
    hosts: tuple[str, ...]
    #: When, s since 1970.
    at_s: float
    before_gbs: float
    after_gbs: float
    #: What all calls since then took longer, s; below 0 where they are faster.
    cost_s: float


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that mostly arrives last."""

    #: Within its group, and on which host.
    rank: int
    host: str
    ranks: int
    #: The share of the calls in which it arrives last, how many were compared, and what the first rank then waits, ms.
    late_share: float
    compared: int
    wait_ms: float


class CollectiveHours(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of hours."""

    calls: int
    groups: int
    begin_s: float
    end_s: float
    #: Most transfer time first.
    kinds: tuple[CollectiveCalls, ...]
    #: Most costly first.
    changes: tuple[BandwidthChange, ...]
    late_ranks: tuple[LateRank, ...]
    lost_lines: int


class _Calls(msgspec.Struct, frozen=True):
    """Calls of groups, of all their ranks together: shape (C,)."""

    communicator: NDArray[Any]
    kind: NDArray[Any]
    size: NDArray[Any]
    at_us: NDArray[Any]
    transfer_us: NDArray[Any]
    busbw_gbs: NDArray[Any]
    #: What the first rank waits, and the rank that arrives last; of calls that not all ranks have, -1.
    wait_us: NDArray[Any]
    last_rank: NDArray[Any]


def read_collectives(folder: Path) -> tuple[CollectiveHours | None, list[str]]:
    """What the Inspector's files in a folder and below it say, and a sentence for each problem; None where there is
    none. They are read in a process of their own, with the limits of files of their size.
    """
    try:
        size = sum(path.stat().st_size for path in inspector_files(folder))
        return (pool.call(_of_folder, folder, size, gives=CollectiveHours | None) if size else None), []
    except OSError as error:
        return None, [f"The Inspector's files in {folder} cannot be read ({error.strerror or error})."]
    except pool.CrashError as error:
        return None, [f"The Inspector's files in {folder} are left out: {error}"]


def _of_folder(folder: Path) -> CollectiveHours | None:
    lines = read_inspector(folder)
    return None if lines is None else collective_hours(lines)


def collective_hours(lines: InspectorCalls) -> CollectiveHours:
    """What the Inspector's lines say."""
    calls = _joined(lines)
    return CollectiveHours(
        calls=len(calls.kind),
        groups=len(lines.communicators),
        begin_s=float(calls.at_us.min()) / 1e6,
        end_s=float(calls.at_us.max()) / 1e6,
        kinds=_kinds(lines, calls),
        changes=_changes(lines, calls),
        late_ranks=_late_ranks(lines, calls),
        lost_lines=lines.lost_lines,
    )


def _joined(lines: InspectorCalls) -> _Calls:
    """Each call with all ranks that recorded it."""
    # Within a call the shortest time first.
    order = np.lexsort((lines.took_us, lines.number, lines.kind, lines.communicator))
    communicator, kind, number = lines.communicator[order], lines.kind[order], lines.number[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (np.diff(communicator) != 0) | (np.diff(kind) != 0) | (np.diff(number) != 0)
    first = np.flatnonzero(is_new)
    end = np.append(first[1:], len(order))
    took_us = lines.took_us[order]
    ranks_of = np.array([ranks for ranks, _ in lines.communicators])
    is_whole = (end - first == ranks_of[communicator[first]]) & (end - first > 1)
    return _Calls(
        communicator[first],
        kind[first],
        lines.size[order][first],
        np.minimum.reduceat(lines.at_us[order], first),
        took_us[first],
        np.maximum.reduceat(lines.busbw_gbs[order], first),
        np.where(is_whole, took_us[end - 1] - took_us[first], -1),
        np.where(is_whole, lines.rank[order][first], -1),
    )


def _kinds(lines: InspectorCalls, calls: _Calls) -> tuple[CollectiveCalls, ...]:
    shapes = np.array(lines.communicators)[calls.communicator]
    bandwidths = []
    for rows in _largest((calls.kind, calls.size, shapes[:, 0], shapes[:, 1]), calls.transfer_us):
        ranks, nodes = lines.communicators[int(calls.communicator[rows[0]])]
        bandwidths.append(
            CollectiveCalls(
                collective=lines.kinds[int(calls.kind[rows[0]])],
                size=int(calls.size[rows[0]]),
                ranks=ranks,
                nodes=nodes,
                calls=len(rows),
                busbw_gbs=float(np.median(calls.busbw_gbs[rows])),
                low_gbs=float(np.percentile(calls.busbw_gbs[rows], 5)),
                transfer_s=float(calls.transfer_us[rows].sum(dtype=np.float64)) / 1e6,
            )
        )
    return tuple(bandwidths)


def _changes(lines: InspectorCalls, calls: _Calls) -> tuple[BandwidthChange, ...]:
    """Changes of the bandwidth of each group, kind and size."""
    bandwidth_changes = []
    for rows in _largest((calls.communicator, calls.kind, calls.size), calls.transfer_us):
        rows = rows[np.argsort(calls.at_us[rows], kind="stable")]
        width = max(_FEWEST_CALLS, -(-len(rows) // _MOST_BINS))
        count = len(rows) // width
        medians = np.median(calls.busbw_gbs[rows[: count * width]].reshape(count, width), axis=1)
        shifts = levels(medians, LEAST_CHANGE * float(np.median(medians)) if count else 0.0).shifts
        edges = [0, *(shift.at for shift in shifts), count]
        communicator = int(calls.communicator[rows[0]])
        for shift, first, end in zip(shifts, edges, edges[2:], strict=False):
            before, after = float(np.median(medians[first : shift.at])), float(np.median(medians[shift.at : end]))
            took_us = calls.transfer_us[rows[shift.at * width : end * width]]
            if abs(after - before) < LEAST_CHANGE * before or before <= 0:
                continue
            bandwidth_changes.append(
                BandwidthChange(
                    collective=lines.kinds[int(calls.kind[rows[0]])],
                    size=int(calls.size[rows[0]]),
                    ranks=lines.communicators[communicator][0],
                    hosts=_hosts(lines, communicator),
                    at_s=float(calls.at_us[rows[shift.at * width]]) / 1e6,
                    before_gbs=before,
                    after_gbs=after,
                    cost_s=float(took_us.sum(dtype=np.float64)) / 1e6 * (1 - after / before),
                )
            )
    return tuple(sorted(bandwidth_changes, key=lambda one: -abs(one.cost_s)))


def _late_ranks(lines: InspectorCalls, calls: _Calls) -> tuple[LateRank, ...]:
    """The ranks that arrive last in most of the calls of their group in which somebody waits."""
    is_waiting = calls.wait_us >= np.maximum(_LEAST_WAIT * calls.transfer_us, 1)
    compared = np.bincount(calls.communicator[calls.last_rank >= 0], minlength=len(lines.communicators))
    rows = np.flatnonzero(is_waiting & (calls.last_rank >= 0))
    late_ranks = []
    for at in _largest((calls.communicator[rows], calls.last_rank[rows]), calls.wait_us[rows]):
        communicator, rank = int(calls.communicator[rows[at[0]]]), int(calls.last_rank[rows[at[0]]])
        ranks = lines.communicators[communicator][0]
        share = len(at) / int(compared[communicator])
        # Of two ranks one is last in half of the calls.
        if compared[communicator] >= _FEWEST_COMPARED and share >= max(LEAST_LATE, 1.5 / ranks):
            wait_ms = float(np.median(calls.wait_us[rows[at]])) / 1000
            host = lines.hosts.get((communicator, rank), "")
            late_ranks.append(
                LateRank(
                    rank=rank,
                    host=host,
                    ranks=ranks,
                    late_share=share,
                    compared=int(compared[communicator]),
                    wait_ms=wait_ms,
                )
            )
    return tuple(late_ranks)


def _largest(keys: tuple[NDArray[Any], ...], weight: NDArray[Any]) -> list[NDArray[Any]]:
    """The rows of each combination of keys, of those with most weight, the largest first."""
    if not len(weight):
        return []
    order = np.lexsort(keys)
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    first = np.flatnonzero(is_new)
    end = np.append(first[1:], len(order))
    weights = np.add.reduceat(weight[order], first)
    return [order[first[at] : end[at]] for at in np.argsort(-weights, kind="stable")[:_MOST_SAID].tolist()]


def _hosts(lines: InspectorCalls, communicator: int) -> tuple[str, ...]:
    """The hosts of a group's ranks, each once."""
    by_rank = sorted((rank, host) for (number, rank), host in lines.hosts.items() if number == communicator)
    return tuple(dict.fromkeys(host for _, host in by_rank))
