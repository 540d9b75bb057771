"""Calls of groups, each with the lines that all its ranks wrote: of collectives, and of transfers between two ranks.

The Inspector's times begin when a rank arrives: of one call, the rank that arrives last takes the shortest, and waits
for nobody. Its bus bandwidth is the call's, and the longest time minus the shortest is what the first rank waits.

    call 7 of a group of 3    rank 0: 5.0 ms    rank 1: 2.0 ms    rank 2: 4.8 ms    rank 1 is last, 3.0 ms after rank 0
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.logs.inspector import InspectorCalls

#: Kinds, groups and ranks that are looked at: those of most time.
_MOST_ROWS = 50


class GroupCalls(msgspec.Struct, frozen=True):
    """Calls of groups, of all their ranks together: shape (C,)."""

    communicator: NDArray[np.int64]
    kind: NDArray[np.int64]
    size: NDArray[np.int64]
    at_us: NDArray[np.int64]
    transfer_us: NDArray[np.int64]
    busbw_gbs: NDArray[np.float64]
    #: What the first rank waits, and the rank that arrives last; of calls that not all ranks have, -1.
    wait_us: NDArray[np.int64]
    last_rank: NDArray[np.int64]


def joined(lines: InspectorCalls) -> GroupCalls:
    """Each call with all ranks that recorded it."""
    # Within a call the shortest time first.
    order = np.lexsort((lines.took_us, lines.number, lines.kind, lines.communicator))
    communicator, kind, number = lines.communicator[order], lines.kind[order], lines.number[order]
    first = begins((communicator, kind, number))
    end = np.append(first[1:], len(order))
    took_us = lines.took_us[order]
    if not len(first):
        none = np.zeros(0, dtype=np.int64)
        return GroupCalls(none, none, none, none, none, np.zeros(0), none, none)
    ranks_of = np.array([ranks for ranks, _ in lines.communicators])
    is_whole = (end - first == ranks_of[communicator[first]]) & (end - first > 1)
    return GroupCalls(
        communicator[first],
        kind[first],
        lines.size[order][first],
        np.minimum.reduceat(lines.at_us[order], first),
        took_us[first],
        np.maximum.reduceat(lines.busbw_gbs[order], first),
        np.where(is_whole, took_us[end - 1] - took_us[first], -1),
        np.where(is_whole, lines.rank[order][first], -1),
    )


def begins(keys: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Where in rows that are sorted by some keys another combination of them begins."""
    is_new = np.ones(len(keys[0]), dtype=bool)
    is_new[1:] = np.any([np.diff(key) != 0 for key in keys], axis=0)
    return np.flatnonzero(is_new)


def largest(keys: tuple[NDArray[np.int64], ...], weight: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows of each combination of keys, of the 50 with most weight, the largest first."""
    if not len(weight):
        return []
    order = np.lexsort(keys)
    first = begins([key[order] for key in keys])
    end = np.append(first[1:], len(order))
    weights = np.add.reduceat(weight[order], first)
    return [order[first[at] : end[at]] for at in np.argsort(-weights, kind="stable")[:_MOST_ROWS].tolist()]


def hosts_of(lines: InspectorCalls, communicator: int) -> tuple[str, ...]:
    """The hosts of a group's ranks, each once."""
    by_rank = sorted((rank, host) for (number, rank), host in lines.hosts.items() if number == communicator)
    return tuple(dict.fromkeys(host for _, host in by_rank))
