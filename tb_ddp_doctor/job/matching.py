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

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.collectives import Matched, assemble
from tb_ddp_doctor.job.numbering import in_order, numbered
from tb_ddp_doctor.trace.model import Indices, Ints


class _Candidates(msgspec.Struct, frozen=True, eq=False):
    """Calls that can have partners, shape (N,), sorted by family, rank and arrival."""

    family: Ints
    rank: Indices
    #: Row in the rank's `Collectives`.
    row: Ints


def match(digests: Sequence[RankDigest], calls: Calls) -> Matched:
    """Match the collectives of all ranks of a job; the order of `digests` is the order of the R axis."""
    candidates = _candidates(digests, calls)
    # A run holds the calls of one family on one rank.
    starts = np.flatnonzero(np.diff(candidates.family, prepend=-1) | np.diff(candidates.rank, prepend=-1))
    lengths = np.diff(starts, append=len(candidates.row))
    regular = _is_regular(candidates.family[starts], lengths)
    in_regular = np.repeat(regular, lengths)
    ordinal = np.arange(len(candidates.row)) - np.repeat(starts, lengths)
    found = [_pair_regular(candidates, in_regular, ordinal, len(digests))]
    found += [_pair(digests, members) for members in _irregular(candidates, starts[~regular], lengths[~regular])]
    row = np.concatenate(found)
    row = row[(row >= 0).sum(axis=1) > 1]
    number = np.bincount(candidates.rank, minlength=len(digests))
    return assemble(digests, calls, row, number - (row >= 0).sum(axis=0))


def _candidates(digests: Sequence[RankDigest], calls: Calls) -> _Candidates:
    chosen = np.flatnonzero((calls.column("step") >= 0) & (calls.column("group_size") != 1) & ~calls.between_two)
    sequence = calls.column("sequence")[chosen]
    step = calls.of_own_steps([digest.steps.number for digest in digests])[chosen]
    texts = (calls.text(name).code[chosen] for name in ("group", "group_ranks", "kind", "dtype"))
    place = np.where(sequence >= 0, sequence, step)
    family = numbered(*texts, calls.column("elements")[chosen], sequence >= 0, place)
    sort = in_order(family)
    rank = calls.rank[chosen[sort]]
    return _Candidates(family[sort], rank, chosen[sort] - calls.first[rank])


def _is_regular(family: Ints, lengths: Ints) -> NDArray[np.bool_]:
    """For each run whether all runs of its family are as long."""
    size = int(family.max(initial=-1)) + 1
    shortest, longest = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(shortest, family, lengths)
    np.maximum.at(longest, family, lengths)
    regular: NDArray[np.bool_] = (shortest == longest)[family]
    return regular


def _pair_regular(candidates: _Candidates, chosen: NDArray[np.bool_], ordinal: Ints, ranks: int) -> NDArray[np.int64]:
    """Pair the chosen calls by family and ordinal, shape (calls, R)."""
    places = candidates.family[chosen] * (int(ordinal.max(initial=0)) + 1) + ordinal[chosen]
    which = numbered(places)
    paired = np.full((int(which.max(initial=-1)) + 1, ranks), -1, np.int64)
    paired[which, candidates.rank[chosen]] = candidates.row[chosen]
    return paired


def _irregular(candidates: _Candidates, starts: Ints, lengths: Ints) -> Iterator[list[tuple[int, Ints]]]:
    """The runs of each family as (rank index, rows)."""
    families = candidates.family[starts]
    for edge in np.split(np.arange(len(starts)), np.flatnonzero(np.diff(families)) + 1):
        if len(edge):
            yield [(int(candidates.rank[starts[i]]), candidates.row[starts[i] : starts[i] + lengths[i]]) for i in edge]


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
