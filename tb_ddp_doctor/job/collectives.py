"""Matches the collectives of all ranks: which kernels on which ranks are one call.

Ranks hold different numbers of collectives, since the profiler's window cuts through them. Matched are those whose
launch is recorded, in order within (step, group, kind, elements, dtype), or by sequence number where the trace has
one. Sends and receives are no collectives and are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import Collectives, RankDigest
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: Where a rank has no part in a collective, or its part was not recorded.
ABSENT = int(np.iinfo(np.int64).min)
LATEST = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """M collectives over R ranks; ABSENT where a rank has no part."""

    kind: tuple[str, ...]
    group: tuple[str, ...]
    #: Shape (M,). -1 if unknown.
    group_size: Ints
    bytes: Ints
    #: Number of the step that launched it.
    step: Ints
    #: Shape (M, R), ns, each rank's own clock.
    arrival_ns: Ints
    end_ns: Ints
    #: Shape (M, R): row in the rank's `Collectives`, or -1.
    row: Ints
    #: Collectives with a recorded launch that found no partner, by rank index.
    unmatched: tuple[int, ...]
    #: Matches given up because a rank ended before another arrived.
    refused: int

    def __len__(self) -> int:
        return len(self.step)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Shape (M, R): whether the rank has a part."""
        return self.row >= 0


def match(digests: Sequence[RankDigest]) -> Matched:
    """Match the collectives of all ranks of a job; the order of `digests` is the order of the R axis."""
    tables = [_candidates(digest) for digest in digests]
    keys: dict[tuple[object, ...], int] = {}
    parts: list[tuple[Ints, Ints]] = []
    for digest, rows in zip(digests, tables, strict=True):
        parts.append((_number_keys(digest, rows, keys), rows))
    families: dict[tuple[object, ...], list[tuple[int, Ints]]] = {}
    labels = list(keys)
    for rank, (ids, rows) in enumerate(parts):
        for key in np.unique(ids):
            families.setdefault(labels[key], []).append((rank, rows[ids == key]))

    found = [_pair(digests, members) for members in families.values() if len(members) > 1]
    row = np.concatenate(found) if found else np.empty((0, len(digests)), np.int64)
    row = row[(row >= 0).sum(axis=1) > 1]
    return _assemble(digests, row, tables)


def _candidates(digest: RankDigest) -> Ints:
    table = digest.collectives
    point_to_point = np.array([names.is_point_to_point(text) for text in digest.strings], np.bool_)
    alone = table.group_size == 1
    launched = table.step >= 0
    if not len(table):
        return np.empty(0, np.int64)
    return np.flatnonzero(launched & ~alone & ~point_to_point[table.kind])


def _number_keys(digest: RankDigest, rows: Ints, keys: dict[tuple[object, ...], int]) -> Ints:
    """The index in `keys` of each collective's identity, adding new ones."""
    table, text = digest.collectives, digest.strings
    step = digest.steps.number[table.step[rows]]
    ids = np.empty(len(rows), np.int64)
    for i, r in enumerate(rows):
        identity: tuple[object, ...] = (
            text[table.group[r]],
            text[table.group_ranks[r]],
            text[table.kind[r]],
            int(table.elements[r]),
            text[table.dtype[r]],
        )
        sequence = int(table.sequence[r])
        order: tuple[object, ...] = ("sequence", sequence) if sequence >= 0 else ("step", int(step[i]))
        ids[i] = keys.setdefault((*identity, *order), len(keys))
    return ids


def _pair(digests: Sequence[RankDigest], members: list[tuple[int, Ints]]) -> NDArray[np.int64]:
    """Pair the calls of one identity in order, shape (calls, R); ranks with fewer calls are slid to where they fit."""
    counts = Counter(len(rows) for _, rows in members)
    usual = max(counts, key=lambda count: (counts[count], count))
    reference = next((rank, rows) for rank, rows in members if len(rows) == usual)
    paired = np.full((usual, len(digests)), -1, np.int64)
    for rank, rows in members:
        shift = 0 if len(rows) == usual else _best_shift(digests, reference, (rank, rows))
        at = np.arange(len(rows)) + shift
        inside = (at >= 0) & (at < usual)
        paired[at[inside], rank] = rows[inside]
    return paired


def _best_shift(digests: Sequence[RankDigest], reference: tuple[int, Ints], other: tuple[int, Ints]) -> int:
    """By how many calls `other` starts later than `reference`, so that their ends agree best.

    Ends that agree differ by a constant (the clocks'); of shifts that agree alike the smallest difference wins,
    since clocks that are kept by NTP differ by less than a step.
    """
    ends = digests[reference[0]].collectives.end_ns[reference[1]]
    others = digests[other[0]].collectives.end_ns[other[1]]
    best, best_score = 0, np.inf
    low, high = sorted((0, len(ends) - len(others)))
    for shift in range(low, high + 1):
        size = min(len(ends) - max(shift, 0), len(others) + min(shift, 0))
        difference = others[max(-shift, 0) :][:size] - ends[max(shift, 0) :][:size]
        middle = np.median(difference)
        score = float(np.abs(difference - middle).mean() + np.abs(middle))
        if score < best_score:
            best, best_score = shift, score
    return best


def _assemble(digests: Sequence[RankDigest], row: NDArray[np.int64], tables: Sequence[Ints]) -> Matched:
    size, ranks = row.shape
    arrival = np.full((size, ranks), ABSENT, np.int64)
    end = np.full((size, ranks), ABSENT, np.int64)
    first = (row >= 0).argmax(axis=1)
    for rank, digest in enumerate(digests):
        here = row[:, rank] >= 0
        arrival[here, rank] = digest.collectives.arrival_ns[row[here, rank]]
        end[here, rank] = digest.collectives.end_ns[row[here, rank]]

    def of(i: int) -> tuple[RankDigest, Collectives, int]:
        digest = digests[first[i]]
        return digest, digest.collectives, int(row[i, first[i]])

    rows = [of(i) for i in range(size)]
    matched = Matched(
        kind=tuple(digest.strings[table.kind[r]] for digest, table, r in rows),
        group=tuple(digest.strings[table.group[r]] for digest, table, r in rows),
        group_size=np.array([table.group_size[r] for _, table, r in rows], np.int64),
        bytes=np.array([table.bytes[r] for _, table, r in rows], np.int64),
        step=np.array([digest.steps.number[table.step[r]] for digest, table, r in rows], np.int64),
        arrival_ns=arrival,
        end_ns=end,
        row=row,
        unmatched=tuple(len(table) - int((row[:, rank] >= 0).sum()) for rank, table in enumerate(tables)),
        refused=0,
    )
    return _in_order(matched)


def _in_order(matched: Matched) -> Matched:
    first = np.where(matched.present, matched.arrival_ns, LATEST).min(axis=1, initial=LATEST)
    return select(matched, np.argsort(first, kind="stable"))


def select(matched: Matched, chosen: Ints) -> Matched:
    """The chosen collectives, in the order given."""
    return replace(
        matched,
        kind=tuple(matched.kind[i] for i in chosen),
        group=tuple(matched.group[i] for i in chosen),
        group_size=matched.group_size[chosen],
        bytes=matched.bytes[chosen],
        step=matched.step[chosen],
        arrival_ns=matched.arrival_ns[chosen],
        end_ns=matched.end_ns[chosen],
        row=matched.row[chosen],
    )


def refuse_impossible(matched: Matched, offset_ns: NDArray[np.int64], tolerance_ns: int) -> Matched:
    """Give up matches in which a rank ends before another has arrived: no collective can.

    `offset_ns`, shape (M, R), is what to subtract from each rank's clock; broadcasts and reductions to one rank may
    end early on the root, so they are not judged.
    """
    last_arrival = np.where(matched.present, matched.arrival_ns - offset_ns, ABSENT).max(axis=1, initial=ABSENT)
    first_end = np.where(matched.present, matched.end_ns - offset_ns, LATEST).min(axis=1, initial=LATEST)
    waits = np.array([kind not in ("broadcast", "reduce", "gather", "scatter") for kind in matched.kind], np.bool_)
    impossible = waits & (first_end < last_arrival - tolerance_ns)
    if not impossible.any():
        return matched
    kept = select(matched, np.flatnonzero(~impossible))
    return replace(kept, refused=matched.refused + int(impossible.sum()))
