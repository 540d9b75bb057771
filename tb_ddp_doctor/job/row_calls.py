"""The calls of operators in the rows of all ranks' tracks, for what is asked of single calls.

A row's calls are rows of `RooflineStretches`, one after the other, so a sum over its calls is the difference of two
running sums:

    us        200  100   50        row 0 has the first two: 300 us, the running sums 0 and 300
    running     0  200  300  350   row 1 has the last one: 50 us, the running sums 300 and 350
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.trace.model import Floats, Indices, Ints


class RowCalls(msgspec.Struct, frozen=True, eq=False):
    """All ranks' N rows, K calls, and P pairs of a stretch and a call; one rank's after the other's."""

    #: Where each rank's rows begin, and where the last rank's end, shape (R + 1,); and the same of its calls.
    begins: Ints
    calls_begin: Ints
    #: The first pair of each row, and the one behind its last; equal in a row without calls, shape (N,).
    first: Ints
    end: Ints
    #: How much each row's calls count: less than 1 where they run side by side, so that they take longer than the
    #: device needs for the row, shape (N,).
    counts: Floats
    #: What to multiply sums of its pairs by, which are sums over steps, shape (N,): a third if its calls take as
    #: long as the mean of three steps; and the same for what does not depend on how long they take.
    share: Floats
    once: Floats
    #: The call, how many of these calls the stretch has, and how long they take, ns, shape (P,).
    call: Ints
    count: Ints
    ns: Ints

    @classmethod
    def of(cls, digests: Sequence[RankDigest]) -> RowCalls:
        """The calls of some ranks."""
        ranks = [digest.roofline for digest in digests]
        begins = _begins([len(digest.track) for digest in digests])
        calls_begin = _begins([len(one.calls) for one in ranks])
        before = _begins([len(one.stretches) for one in ranks])
        row = _indices([one.rows.row for one in ranks], begins)

        def of_rows(joined: Any) -> Any:
            every = np.zeros(begins[-1], joined.dtype)
            every[row] = joined
            return every

        first = of_rows(_indices([one.rows.first for one in ranks], before))
        end = of_rows(_indices([one.rows.end for one in ranks], before))
        took = of_rows(_joined([one.rows.ns for one in ranks]))
        repeats = of_rows(_joined([one.rows.repeats for one in ranks]))
        device_ns = np.maximum(_joined([digest.track.device_ns for digest in digests]), 0)
        ns = _joined([one.stretches.ns for one in ranks])
        counts = np.minimum(device_ns / np.maximum(took, 1), 1.0)
        running = running_sums(ns)
        return cls(
            begins=begins,
            calls_begin=calls_begin,
            first=first,
            end=end,
            counts=counts,
            share=counts * np.maximum(took, 0) / np.maximum(running[end] - running[first], 1.0),
            once=counts / np.maximum(repeats, 1),
            call=_indices([one.stretches.call for one in ranks], calls_begin),
            count=_joined([one.stretches.count for one in ranks]),
            ns=ns,
        )

    def sums(self, amount: Floats | Ints) -> Floats:
        """Sums of each pair's amount over the pairs of each row, shape (N,)."""
        running = running_sums(amount)
        sums: Floats = running.take(self.end) - running.take(self.first)
        return sums

    def in_rows(self, part_ns: Floats | Ints) -> Floats:
        """The device's time of each row in a part of each pair's time, shape (N,)."""
        return self.share * self.sums(part_ns)

    def in_share(self, share: Floats) -> Floats:
        """The time of a share of each call, 0 to 1, shape (K,), in each pair; ns, shape (P,)."""
        return self.ns * share.take(self.call)

    def of_share(self, share: Floats) -> Ints:
        """The device's time of each row in a share of each call, 0 to 1, shape (K,); ns, shape (N,)."""
        return np.rint(np.maximum(self.in_rows(self.in_share(share)), 0)).astype(np.int64)

    def over_rows(self, of_rows: Floats) -> Floats:
        """Sums of an amount of each row over the rows that have a pair, shape (P,)."""
        size = len(self.call) + 1
        opened = np.bincount(self.first, of_rows, size) - np.bincount(self.end, of_rows, size)
        sums: Floats = np.cumsum(opened)[:-1]
        return sums


def running_sums(amount: Floats | Ints) -> Floats:
    """The sum of an amount of each pair over all before it, and over all; shape (P + 1,)."""
    running = np.zeros(len(amount) + 1)
    np.cumsum(amount, out=running[1:])
    return running


def _begins(lengths: Sequence[int]) -> Ints:
    """Where each rank's begin, and where the last rank's end."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


def _joined(columns: Sequence[Ints]) -> Ints:
    """Ranks' columns, one after the other."""
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def _indices(columns: Sequence[Indices], begins: Ints) -> Ints:
    """Ranks' columns that point into a table, one after the other, by where the rank's part of the table begins."""
    joined = np.repeat(begins[:-1], [len(column) for column in columns])
    if columns:
        joined += np.concatenate(columns)
    return joined
