"""Finds which kernels on which ranks are one call of a collective.

Ranks hold different numbers of collectives, since the profiler's window cuts through them. Matched are those whose
launch is recorded, in order within a family: the calls with one group, kind, size and type in one step, or with one
sequence number where the trace has some. Sends and receives are no collectives and are left alone.

In most families all ranks have as many calls, and arrays of all of them at once do; the others are looked at one by
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.collectives import Matched, assemble, between_two
from tb_ddp_doctor.trace.model import Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """All calls of all ranks, shape (N,), sorted by family, rank and arrival."""

    family: Ints
    rank: Ints
    #: Row in the rank's `Collectives`.
    row: Ints


def match(digests: Sequence[RankDigest]) -> Matched:
    """Match the collectives of all ranks of a job; the order of `digests` is the order of the R axis."""
    calls = _calls(digests)
    # A run holds the calls of one family on one rank.
    starts = np.flatnonzero(np.diff(calls.family, prepend=-1) | np.diff(calls.rank, prepend=-1))
    lengths = np.diff(starts, append=len(calls.row))
    regular = _is_regular(calls.family[starts], lengths)
    in_regular = np.repeat(regular, lengths)
    ordinal = np.arange(len(calls.row)) - np.repeat(starts, lengths)
    found = [_pair_regular(calls, in_regular, ordinal, len(digests))]
    found += [_pair(digests, members) for members in _irregular(calls, starts[~regular], lengths[~regular])]
    row = np.concatenate(found)
    row = row[(row >= 0).sum(axis=1) > 1]
    candidates = np.bincount(calls.rank, minlength=len(digests))
    return assemble(digests, row, candidates - (row >= 0).sum(axis=0))


def _calls(digests: Sequence[RankDigest]) -> _Calls:
    identities: dict[tuple[object, ...], int] = {}
    columns: list[tuple[Ints, Ints, Ints, Ints]] = []
    for rank, digest in enumerate(digests):
        rows = _candidates(digest)
        table = digest.collectives
        sequence = table.sequence[rows]
        order = np.where(sequence >= 0, sequence, digest.steps.number[table.step[rows]])
        identity = _number_identities(digest, rows, identities) * 2 + (sequence >= 0)
        columns.append((identity, order, np.full(len(rows), rank, np.int64), rows))
    identity, order, ranks, rows = (np.concatenate(column) for column in zip(*columns, strict=True))
    orders, which = np.unique(order, return_inverse=True)
    _, family = np.unique(identity * max(len(orders), 1) + which, return_inverse=True)
    sort = np.argsort(family, kind="stable")
    return _Calls(family[sort], ranks[sort], rows[sort])


def _candidates(digest: RankDigest) -> Ints:
    """Rows of the collectives that can have partners."""
    table = digest.collectives
    if not len(table):
        return np.empty(0, np.int64)
    return np.flatnonzero((table.step >= 0) & (table.group_size != 1) & ~between_two(digest))


def _number_identities(digest: RankDigest, rows: Ints, identities: dict[tuple[object, ...], int]) -> Ints:
    """The index in `identities` of each collective's group, kind, size and type, adding new ones."""
    if not len(rows):
        return np.empty(0, np.int64)
    table, text = digest.collectives, digest.strings
    columns = [column[rows] for column in (table.group, table.group_ranks, table.kind, table.dtype, table.elements)]
    # As np.unique(axis=0), which takes four times as long.
    order = np.lexsort(columns)
    differs = np.ones(len(order), np.bool_)
    differs[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    numbers = [
        identities.setdefault((*(text[word] for word in words), int(elements)), len(identities))
        for *words, elements in zip(*(column[order[differs]].tolist() for column in columns), strict=True)
    ]
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(differs) - 1
    return np.array(numbers, np.int64)[which]


def _is_regular(family: Ints, lengths: Ints) -> NDArray[np.bool_]:
    """For each run whether all runs of its family are as long."""
    size = int(family.max(initial=-1)) + 1
    shortest, longest = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(shortest, family, lengths)
    np.maximum.at(longest, family, lengths)
    regular: NDArray[np.bool_] = (shortest == longest)[family]
    return regular


def _pair_regular(calls: _Calls, chosen: NDArray[np.bool_], ordinal: Ints, ranks: int) -> NDArray[np.int64]:
    """Pair the chosen calls by family and ordinal, shape (calls, R)."""
    places = calls.family[chosen] * (int(ordinal.max(initial=0)) + 1) + ordinal[chosen]
    different, which = np.unique(places, return_inverse=True)
    paired = np.full((len(different), ranks), -1, np.int64)
    paired[which, calls.rank[chosen]] = calls.row[chosen]
    return paired


def _irregular(calls: _Calls, starts: Ints, lengths: Ints) -> Iterator[list[tuple[int, Ints]]]:
    """The runs of each family as (rank index, rows)."""
    families = calls.family[starts]
    for edge in np.split(np.arange(len(starts)), np.flatnonzero(np.diff(families)) + 1):
        if len(edge):
            yield [(int(calls.rank[starts[i]]), calls.row[starts[i] : starts[i] + lengths[i]]) for i in edge]


def _pair(digests: Sequence[RankDigest], members: list[tuple[int, Ints]]) -> NDArray[np.int64]:
    """Pair the calls of one identity in order, shape (calls, R); where counts differ, ends say which ones are lost."""
    counts = Counter(len(rows) for _, rows in members)
    usual = max(counts, key=lambda count: (counts[count], count))
    ends = [digests[rank].collectives.end_ns[rows] for rank, rows in members]
    reference = next(end for end in ends if len(end) == usual)
    paired = np.full((usual, len(digests)), -1, np.int64)
    for (rank, rows), end in zip(members, ends, strict=True):
        if len(rows) <= usual:
            paired[_places(end, reference), rank] = rows
        else:
            paired[:, rank] = rows[_places(reference, end)]
    return paired


def _places(few_ns: Ints, many_ns: Ints) -> Ints:
    """Which of many calls the few are, in order, so that their ends agree best: an index for each of the few."""
    lost = len(many_ns) - len(few_ns)
    places = np.arange(len(few_ns))
    if not lost:
        return places
    offset = _offset(few_ns, many_ns)
    # best[j] is the least disagreement so far, with j of the many passed over; came[i][j] how many before call i.
    best = np.zeros(lost + 1)
    came = np.empty((len(few_ns), lost + 1), np.int32)
    for i, end in enumerate(few_ns):
        least = np.minimum.accumulate(best)
        came[i] = np.maximum.accumulate(np.where(best == least, np.arange(lost + 1), 0))
        best = least + np.abs(many_ns[i : i + lost + 1] - end - offset)
    passed = int(best.argmin())
    for i in reversed(places):
        places[i] += passed
        passed = int(came[i, passed])
    return places


def _offset(few_ns: Ints, many_ns: Ints) -> float:
    """By how much the clock of the many is ahead of the clock of the few.

    Ends that agree differ by a constant. Of shifts that agree alike the smallest difference wins, since clocks that
    are kept by NTP differ by less than a step.
    """
    scores = []
    for shift in range(len(many_ns) - len(few_ns) + 1):
        difference = many_ns[shift : shift + len(few_ns)] - few_ns
        middle = float(np.median(difference))
        scores.append((float(np.abs(difference - middle).mean()) + abs(middle), middle))
    return min(scores)[1]
