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
from tb_ddp_doctor.digest.numbering import RankRuns, chosen_of, numbered
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.collectives import UNEVEN, Matched, assemble
from tb_ddp_doctor.job.message_matching import matched_messages, only_send
from tb_ddp_doctor.job.realigning import can_realign, places
from tb_ddp_doctor.job.unnamed_groups import unnamed_groups
from tb_ddp_doctor.trace.model import Indices, Ints


class _Candidates(msgspec.Struct, frozen=True, eq=False):
    """Calls that can have partners, shape (N,), sorted by family, rank and arrival."""

    runs: RankRuns
    #: Row of the job's `Calls`.
    call: Ints


class _Pairs:
    """Calls, as rows of the job's table, with the number of the collective that each is part of."""

    def __init__(self) -> None:
        self._number: list[Ints] = []
        self._call: list[Ints] = []
        #: How many numbers are in use.
        self.count = 0

    def add(self, number: Ints, call: Ints, count: int) -> None:
        """Add calls of so many more collectives, which are numbered from 0."""
        self._number.append(number + self.count)
        self._call.append(call)
        self.count += count

    def joined(self) -> tuple[Ints, Ints]:
        """Numbers and calls of the collectives that have two parts or more."""
        number, call = np.concatenate(self._number), np.concatenate(self._call)
        several = chosen_of((np.bincount(number) > 1)[number])
        return number[several], call[several]


def match(digests: Sequence[RankDigest], calls: Calls, ranks: Sequence[int]) -> Matched:
    """Match the collectives and messages of all ranks of a job, which have these numbers; the order of `digests` is
    that of the ranks' indices.
    """
    could = could_match(calls)
    candidates = _candidates(digests, calls, could)
    runs = candidates.runs
    regular = runs.as_many[runs.family[runs.start]]
    pairs = _Pairs()
    _pair_regular(candidates, pairs)
    for members in _irregular(candidates, runs.start[~regular], runs.length[~regular]):
        _pair(members, calls.column("end_ns"), pairs)
    number, call, of_messages = matched_messages(digests, calls, ranks)
    sends = only_send(digests, calls)
    together = np.concatenate((np.ones(pairs.count, np.bool_), of_messages))
    pairs.add(number, call, len(of_messages))
    number, call = pairs.joined()
    return assemble(digests, calls, number, call, together, _unmatched(calls, could, call), sends)


def _unmatched(calls: Calls, could: NDArray[np.bool_], matched: Ints) -> Ints:
    """How many calls of each rank, shape (R,), have a recorded launch and are none of the matched ones; without those
    of rounds that records begin within.
    """
    alone = could & ~calls.in_first_part
    alone[matched] = False
    return np.bincount(calls.rank[np.flatnonzero(alone)], minlength=len(calls.first) - 1)


def could_match(calls: Calls) -> NDArray[np.bool_]:
    """Which calls have a recorded launch, and other ranks to meet."""
    could: NDArray[np.bool_] = (calls.column("step") >= 0) & (calls.column("group_size") != 1)
    return could


def _candidates(digests: Sequence[RankDigest], calls: Calls, could: NDArray[np.bool_]) -> _Candidates:
    meets = could & ~calls.between_two
    mine, chosen = chosen_of(meets), np.flatnonzero(meets)
    sequence, rank = calls.column("sequence")[mine], calls.rank[mine]
    step = calls.of_own_steps([digest.steps.number for digest in digests])[mine]
    group, ranks, kind, dtype = (calls.text(name) for name in ("group", "group_ranks", "kind", "dtype"))
    named = group.where(bool)[mine]
    in_order = np.zeros(len(chosen), np.int64)
    if not named.all():
        in_order[~named] = unnamed_groups(calls, chosen[~named], step[~named])
    place = (group.code[mine], in_order, ranks.code[mine], sequence >= 0, np.where(sequence >= 0, sequence, step))
    may_be_uneven = kind.where(UNEVEN.__contains__)[mine]
    size = np.where(may_be_uneven, -1, calls.column("elements")[mine])
    of_group = numbered(*place)
    of_size = numbered(of_group, kind.code[mine], dtype.code[mine], size)
    groups, sizes = RankRuns.of(of_group, rank), RankRuns.of(of_size, rank)
    by_order = (named | (in_order > 0)) & _agree(groups, sizes, of_group, kind.code[mine], size)[of_group]
    runs = groups if by_order.all() else sizes
    if by_order.any() and not by_order.all():
        runs = RankRuns.of(numbered(by_order, np.where(by_order, of_group, of_size)), rank)
    return _Candidates(runs, chosen[runs.order])


def _agree(groups: RankRuns, sizes: RankRuns, of_group: Ints, kind: Indices, size: Ints) -> NDArray[np.bool_]:
    """Which groups have as many calls on all their ranks, of the same kinds in the same order; shape (groups,).

    Where sizes differ in that order, and calls of one size are as many on all ranks, those are the better match. Each
    family of `sizes` is of one group. Of the calls, shape (N,): their group, kind and size, -1 if that may differ from
    rank to rank.
    """
    kinds_agree, sizes_agree, as_many = np.ones((3, len(groups.ranks)), np.bool_)
    regular = chosen_of(groups.as_many[groups.family])
    family, call = groups.family[regular], groups.order[regular]
    # The calls of one place in their runs share the place in the group's first run.
    place = groups.first[family] + groups.ordinal[regular]
    kinds_agree[family[~_are_equal(place, kind[call])]] = False
    sized = chosen_of(size[call] >= 0)
    sizes_agree[family[sized][~_are_equal(place[sized], size[call[sized]])]] = False
    # Calls of one size on fewer ranks than the group has are no match for the rest.
    group = of_group[sizes.order[sizes.first]]
    as_many[group[~(sizes.as_many & (sizes.ranks == groups.ranks[group]))]] = False
    return groups.as_many & kinds_agree & (sizes_agree | ~as_many)


def _are_equal(of: Ints, values: Ints | Indices) -> NDArray[np.bool_]:
    """Which values are the same as another one of the same index, shape (N,): all of an index, if it has one value."""
    some = np.empty(int(of.max(initial=-1)) + 1, values.dtype)
    some[of] = values
    equal: NDArray[np.bool_] = values == some[of]
    return equal


def _pair_regular(candidates: _Candidates, pairs: _Pairs) -> None:
    """Pair the calls of the families that all their ranks have as many of, by ordinal."""
    runs = candidates.runs
    longest = np.where(runs.as_many, np.diff(runs.first, append=len(runs.order)) // np.maximum(runs.ranks, 1), 0)
    first = np.cumsum(longest) - longest
    chosen = chosen_of(runs.as_many[runs.family])
    pairs.add(first[runs.family[chosen]] + runs.ordinal[chosen], candidates.call[chosen], int(longest.sum()))


def _irregular(candidates: _Candidates, starts: Ints, lengths: Ints) -> Iterator[list[Ints]]:
    """The calls of each rank, family by family."""
    families = candidates.runs.family[starts]
    for edge in np.split(np.arange(len(starts)), np.flatnonzero(np.diff(families)) + 1):
        if len(edge):
            yield [candidates.call[starts[i] : starts[i] + lengths[i]] for i in edge]


def _pair(members: list[Ints], end_ns: Ints, pairs: _Pairs) -> None:
    """Pair the calls of one identity, by rank, in order; where counts differ, ends say which ones are lost.

    Calls of a rank that has far more or far fewer are not paired.
    """
    counts = Counter(map(len, members))
    most_common = max(counts, key=lambda count: (counts[count], count))
    reference = next(end_ns[calls] for calls in members if len(calls) == most_common)
    numbers, paired = [], []
    for calls in members:
        if len(calls) != most_common and not can_realign(*sorted((len(calls), most_common))):
            continue
        if len(calls) <= most_common:
            numbers.append(places(end_ns[calls], reference))
            paired.append(calls)
        else:
            numbers.append(np.arange(most_common))
            paired.append(calls[places(reference, end_ns[calls])])
    pairs.add(np.concatenate(numbers), np.concatenate(paired), most_common)
