"""Sums over the calls of operators that rows of tracks have, rank by rank: in the native library, else with numpy.

A row's calls are rows of its rank's `RooflineStretches`, one after the other, so a sum over its calls is the difference
of two running sums:

    us        200  100   50        row 0 has the first two: 300 us, the running sums 0 and 300
    running     0  200  300  350   row 1 has the last one: 50 us, the running sums 300 and 350

Jobs of a thousand ranks have millions of these pairs of a stretch and a call. They stay as they are in the digests, and
what one rank needs fits in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import msgspec
import numpy as np

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.model import RooflineStretches
from tb_ddp_doctor.job.native_calls import NativeCalls
from tb_ddp_doctor.trace.model import Floats, Indices, Ints


class ExcessSums(msgspec.Struct, frozen=True, eq=False):
    """Of each row sums over its pairs, ns, shape (N,)."""

    #: What remains of those that take longer than they need at least, and what these need at least.
    took: Floats
    least: Floats
    #: What remains of those of which that is not known.
    unknown: Floats
    #: What does not remain.
    gone: Floats


class PairSums(msgspec.Struct, frozen=True, eq=False, dict=True):
    """All ranks' N rows and K calls, one rank's after the other's, and each rank's pairs of a stretch and a call.

    Of what a pair takes, what needs `least_ns` of each call is known, NaN where it is not; and `remains` says which
    share of each call remains, 0 to 1. Both have the shape (K,).
    """

    #: Where each rank's rows begin, and where the last rank's end, shape (R + 1,); and the same of its calls.
    begins: Ints
    calls_begin: Ints
    #: The first pair of each row among its rank's, and the one behind its last; equal in a row without calls, (N,).
    first: Indices
    end: Indices
    #: The pairs of each rank.
    pairs: tuple[RooflineStretches, ...]

    def in_share(self, share: Floats) -> Floats:
        """The time of each row's pairs in a share of each call, 0 to 1, shape (K,); ns, shape (N,)."""
        if self._native is not None:
            return self._native.in_share(share)
        return _one_after_the_other(
            rank.sums(rank.pairs.ns * share[rank.calls].take(rank.pairs.call)) for rank in self._ranks()
        )

    def placed(self, share: Floats, part: Floats, place: Indices, size: int) -> Ints:
        """The same times a part of each row, shape (N,), in whole ns and not below 0: each row's at its place, shape
        (N,), in a column of `size`, which is 0 elsewhere.
        """
        if self._native is not None:
            return self._native.placed(share, part, place, size)
        ns = np.zeros(size, np.int64)
        ns[place] = np.rint(np.maximum(self.in_share(share) * part, 0))
        return ns

    def excess(self, least_ns: Floats, remains: Floats) -> ExcessSums:
        """How far each row's pairs are from the least that they need."""
        if self._native is not None:
            return ExcessSums(*self._native.excess(least_ns, remains))
        ranks = [rank.excess(least_ns[rank.calls], remains[rank.calls]) for rank in self._ranks()]
        return ExcessSums(*(_one_after_the_other(one[number] for one in ranks) for number in range(4)))

    @cached_property
    def _native(self) -> NativeCalls | None:
        """The same as the native library takes it; None where it was not built."""
        if (library := native.library()) is None:
            return None
        return NativeCalls(library, (self.begins, self.calls_begin), (self.first, self.end), self.pairs)

    def _ranks(self) -> Iterator[_Rank]:
        """The ranks one by one."""
        for rank, pairs in enumerate(self.pairs):
            rows = slice(self.begins[rank], self.begins[rank + 1])
            calls = slice(self.calls_begin[rank], self.calls_begin[rank + 1])
            yield _Rank(pairs, rows, calls, self.first[rows], self.end[rows])


class _Rank(msgspec.Struct, frozen=True, eq=False):
    """The pairs of one rank, which rows and calls are its own, and the first and the end of each row."""

    pairs: RooflineStretches
    rows: slice
    calls: slice
    first: Indices
    end: Indices

    def sums(self, amount: Floats) -> Floats:
        """Sums of each pair's amount over the pairs of each row."""
        running = np.zeros(len(amount) + 1)
        np.cumsum(amount, out=running[1:])
        return running[self.end] - running[self.first]

    def excess(self, least_ns: Floats, remains: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """The columns of `ExcessSums`, by the rank's own calls."""
        needs, remain = least_ns[self.pairs.call] * self.pairs.count, self.pairs.ns * remains[self.pairs.call]
        above, unknown = remain > needs, np.isnan(needs)
        took, least = np.where(above, remain, 0.0), np.where(above, needs, 0.0)
        return (
            self.sums(took),
            self.sums(least),
            self.sums(np.where(unknown, remain, 0.0)),
            self.sums(self.pairs.ns - remain),
        )


def _one_after_the_other(columns: Iterable[Floats]) -> Floats:
    """Ranks' columns in one; empty for none."""
    return np.concatenate([np.empty(0), *columns])
