"""Finds which kernels on which ranks are one call of a collective, and which sends and receives meet.

Matched are calls whose launch is recorded, in order within a family: the calls of one process group in one step, or
with one sequence number where the trace has some. The kind is a check. Ranks hold different numbers of collectives,
since the profiler's window cuts through them: where counts or kinds differ, and where no group is named, a family is
the calls of one kind, size and type as well. Sizes are no identity of calls that may be uneven, as all-to-alls are.

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
from tb_ddp_doctor.job.collectives import UNEVEN, Matched, assemble
from tb_ddp_doctor.job.message_matching import matched_messages
from tb_ddp_doctor.job.numbering import in_order, numbered
from tb_ddp_doctor.job.realigning import places
from tb_ddp_doctor.job.unnamed_groups import unnamed_groups
from tb_ddp_doctor.trace.model import Indices, Ints


class _Candidates(msgspec.Struct, frozen=True, eq=False):
    """Calls that can have partners, shape (N,), sorted by family, rank and arrival."""

    family: Ints
    rank: Indices
    #: Row in the rank's `Collectives`.
    row: Ints


def match(digests: Sequence[RankDigest], calls: Calls, ranks: Sequence[int]) -> Matched:
    """Match the collectives and messages of all ranks of a job, which have these numbers; the order of `digests` is the
    order of the R axis.
    """
    candidates = _candidates(digests, calls)
    # A run holds the calls of one family on one rank.
    starts = np.flatnonzero(np.diff(candidates.family, prepend=-1) | np.diff(candidates.rank, prepend=-1))
    lengths = np.diff(starts, append=len(candidates.row))
    family = candidates.family[starts]
    regular = _is_one(family, lengths, int(family.max(initial=-1)) + 1)[family]
    in_regular = np.repeat(regular, lengths)
    ordinal = np.arange(len(candidates.row)) - np.repeat(starts, lengths)
    found = [_pair_regular(candidates, in_regular, ordinal, len(digests))]
    found += [_pair(digests, members) for members in _irregular(candidates, starts[~regular], lengths[~regular])]
    row = np.concatenate(found)
    row = row[(row >= 0).sum(axis=1) > 1]
    met, together = matched_messages(digests, calls, ranks)
    row, whole = np.concatenate((row, met)), np.concatenate((np.ones(len(row), np.bool_), together))
    return assemble(digests, calls, row, whole, _unmatched(calls, row))


def _unmatched(calls: Calls, row: NDArray[np.int64]) -> Ints:
    """How many calls of each rank, shape (R,), have a recorded launch and found no partner."""
    alone = could_match(calls)
    which, rank = np.nonzero(row >= 0)
    alone[calls.first[rank] + row[which, rank]] = False
    return np.bincount(calls.rank[alone], minlength=row.shape[1])


def could_match(calls: Calls) -> NDArray[np.bool_]:
    """Which calls have a recorded launch, and other ranks to meet."""
    could: NDArray[np.bool_] = (calls.column("step") >= 0) & (calls.column("group_size") != 1)
    return could


def _candidates(digests: Sequence[RankDigest], calls: Calls) -> _Candidates:
    chosen = np.flatnonzero(could_match(calls) & ~calls.between_two)
    sequence = calls.column("sequence")[chosen]
    step = calls.of_own_steps([digest.steps.number for digest in digests])[chosen]
    group, ranks, kind, dtype = (calls.text(name) for name in ("group", "group_ranks", "kind", "dtype"))
    named = group.where(bool)[chosen]
    told = np.zeros(len(chosen), np.int64)
    told[~named] = unnamed_groups(calls, chosen[~named], step[~named])
    place = (group.code[chosen], told, ranks.code[chosen], sequence >= 0, np.where(sequence >= 0, sequence, step))
    may_be_uneven = kind.where(UNEVEN.__contains__)[chosen]
    elements = calls.column("elements")[chosen]
    size = np.where(may_be_uneven, -1, elements)
    of_group = numbered(*place)
    of_size = numbered(*place, kind.code[chosen], dtype.code[chosen], size)
    by_order = (named | (told > 0)) & _agree(of_group, of_size, calls.rank[chosen], kind.code[chosen], size)
    family = numbered(by_order, np.where(by_order, of_group, of_size))
    sort = in_order(family)
    rank = calls.rank[chosen[sort]]
    return _Candidates(family[sort], rank, chosen[sort] - calls.first[rank])


def _agree(of_group: Ints, of_size: Ints, rank: Indices, kind: Indices, size: Ints) -> NDArray[np.bool_]:
    """Which calls are of a group whose ranks have as many calls, of the same kinds in the same order; shape (N,).

    Where sizes differ in that order, and calls of one size are as many on all ranks, those are the better match.
    """
    group_runs, size_runs = _Runs.of(of_group, rank), _Runs.of(of_size, rank)
    kinds_agree = np.ones(len(group_runs.as_many), np.bool_)
    sizes_agree, as_many = kinds_agree.copy(), kinds_agree.copy()
    sort = in_order(of_group * (int(rank.max(initial=0)) + 1) + rank)
    starts = np.flatnonzero(np.diff(of_group[sort], prepend=-1) | np.diff(rank[sort], prepend=-1))
    ordinal = np.empty(len(sort), np.int64)
    ordinal[sort] = np.arange(len(sort)) - np.repeat(starts, np.diff(starts, append=len(sort)))
    call = numbered(of_group, ordinal)
    calls, sized = int(call.max(initial=-1)) + 1, size >= 0
    kinds_agree[of_group[~_is_one(call, kind, calls)[call]]] = False
    sizes_agree[of_group[~_is_one(call[sized], size[sized], calls)[call]]] = False
    # Calls of one size on fewer ranks than the group has are no match for the rest.
    alike = size_runs.as_many[of_size] & (size_runs.ranks[of_size] == group_runs.ranks[of_group])
    as_many[of_group[~alike]] = False
    agree: NDArray[np.bool_] = (group_runs.as_many & kinds_agree & (sizes_agree | ~as_many))[of_group]
    return agree


class _Runs(msgspec.Struct, frozen=True, eq=False):
    """How families of calls lie on ranks; a run is the calls of one family on one rank."""

    #: Whether all ranks of a family have as many calls, shape (F,).
    as_many: NDArray[np.bool_]
    #: How many ranks have calls of each family, shape (F,).
    ranks: Ints

    @classmethod
    def of(cls, family: Ints, rank: Indices) -> _Runs:
        """Of calls of these families and ranks, shape (N,)."""
        run = numbered(family, rank)
        length = np.bincount(run)
        of_run = np.empty(len(length), np.int64)
        of_run[run] = family
        families = int(family.max(initial=-1)) + 1
        return cls(_is_one(of_run, length, families), np.bincount(of_run, minlength=families))


def _is_one(of: Ints, values: Ints | Indices, kinds: int) -> NDArray[np.bool_]:
    """For each of so many kinds whether its values, shape (N,), are one value, if there is any; shape (kinds,)."""
    one, some = np.ones(kinds, np.bool_), np.zeros(kinds, np.int64)
    some[of] = values
    one[of[values != some[of]]] = False
    return one


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
            paired[places(end, reference), rank] = rows
        else:
            paired[:, rank] = rows[places(reference, end)]
    return paired
