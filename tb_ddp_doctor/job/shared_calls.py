"""Which collectives two ranks share, from their digests alone: before ranks are on one clock, and in steps that fit
each other.

One collective ends on all its ranks together, but for what their clocks differ. Records begin and end at other calls,
so that the n-th of one need not be the n-th of the other:

    rank 0        |bc|   |bc|       |bc|   |bc|
    rank 1               |bc|       |bc|   |bc|   |bc|      the first three are the last three of rank 0

Pure: digests in, pairs of calls out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: A group of ranks as its traces name it (group, ranks, size), and what they do in it.
_Kind: TypeAlias = tuple[str, str, int, str]
#: A collective ends on its ranks within a part of the time from one to the next, and within this, ns.
_TOGETHER, _TOGETHER_NS = 0.25, 200_000
#: Of the calls that two ranks make while both are recorded, they share this part: records lose some, and a rank may
#: make others of the kind.
_MOST = 0.9
#: So many calls of a rank are looked for on another one to know by how much its clock is ahead.
_TRIED = 32


class StreamCalls(msgspec.Struct, frozen=True, eq=False):
    """Calls of one kind on one stream of a rank, by end: when each arrives and ends, ns."""

    arrival_ns: Ints
    end_ns: Ints


#: The calls of a rank by kind, and those of one kind by stream.
Calls: TypeAlias = Mapping[_Kind, Sequence[StreamCalls]]


def calls_of(digest: RankDigest) -> Calls:
    """The collectives of more than one rank by their group and kind, and those by their stream: NCCL runs the calls of
    one communicator on one stream, which tells groups apart that have no name.
    """
    table, texts = digest.collectives, digest.strings
    columns = (table.group, table.group_ranks, table.group_size, table.kind, table.stream)
    rows: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, what in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        rows[what].append(row)
    calls: defaultdict[_Kind, list[StreamCalls]] = defaultdict(list)
    for (group, ranks, size, kind, _), mine in rows.items():
        if size != 1:
            by_end = np.array(mine)[np.argsort(table.end_ns[mine], kind="stable")]
            # What one rank sends the other one receives.
            does = "send_recv" if names.is_point_to_point(texts[kind]) else texts[kind]
            calls[texts[group], texts[ranks], size, does].append(
                StreamCalls(table.arrival_ns[by_end], table.end_ns[by_end])
            )
    return calls


def shared(mine: Calls, its: Calls) -> tuple[Ints, Ints]:
    """When the collectives that two ranks share begin on each of them, by time, ns."""
    pairs = [_paired(one, other) for kind in mine for one in mine[kind] for other in its.get(kind, ())]
    on_mine, on_its = (np.concatenate([np.empty(0, np.int64), *(pair[side] for pair in pairs)]) for side in (0, 1))
    order = np.argsort(on_mine, kind="stable")
    return on_mine[order], on_its[order]


def _paired(mine: StreamCalls, its: StreamCalls) -> tuple[Ints, Ints]:
    """When the calls that are the same ones begin on each of two ranks; empty where they are calls of two groups."""
    none = np.empty(0, np.int64), np.empty(0, np.int64)
    if min(len(mine.end_ns), len(its.end_ns)) < 2:
        return none
    apart = np.median(np.concatenate((np.diff(mine.end_ns), np.diff(its.end_ns))))
    close = min(_TOGETHER * float(apart), _TOGETHER_NS)
    tried = mine.end_ns[np.unique(np.linspace(0, len(mine.end_ns) - 1, _TRIED).astype(np.int64))]
    ahead = _ahead(tried, its.end_ns, close)
    place = _nearest(its.end_ns, mine.end_ns + ahead)
    pairs = np.flatnonzero(np.abs(its.end_ns[place] - mine.end_ns - ahead) <= close)
    if not len(pairs):
        return none
    beside = max(pairs[-1] - pairs[0], place[pairs[-1]] - place[pairs[0]]) + 1
    if len(pairs) < 2 or len(pairs) < _MOST * beside:
        return none
    return mine.arrival_ns[pairs], its.arrival_ns[place[pairs]]


def _ahead(some_ns: Ints, all_ns: Ints, close_ns: float) -> int:
    """By how much the ends of another rank are later than these, ns: with that, most of them meet some end there, and
    meet it best.
    """
    ahead = all_ns - some_ns[len(some_ns) // 2]
    expected = some_ns + ahead[:, None]
    apart = np.abs(all_ns[_nearest(all_ns, expected)] - expected)
    met = apart <= close_ns
    return int(ahead[np.lexsort((np.where(met, apart, 0).sum(axis=1), -met.sum(axis=1)))[0]])


def _nearest(sorted_ns: Ints, instants: Ints) -> Ints:
    """The place in some sorted times that is nearest to each instant."""
    after = np.clip(np.searchsorted(sorted_ns, instants), 1, len(sorted_ns) - 1)
    nearest: Ints = after - (instants - sorted_ns[after - 1] < sorted_ns[after] - instants)
    return nearest


def latest(mine: Ints, its: Ints, ends: Ints) -> Ints:
    """When another rank begins the last collective that it shares with this one up to each end, ns; -1 where none."""
    latest: Ints = np.append(-1, its)[np.searchsorted(mine, ends, side="right")]
    return latest
