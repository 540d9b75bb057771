"""The calls of operators in the rows of all ranks' tracks, for what is asked of single calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.pair_sums import PairSums
from tb_ddp_doctor.trace.model import Floats, Indices, Ints


class RowExcess(msgspec.Struct, frozen=True, eq=False):
    """How far N rows are from the least that their calls need; ns, shape (N,)."""

    #: Device time beyond that; in calls of which it is not known; and in the part of calls that does not remain.
    above: Floats
    unknown: Floats
    gone: Floats


class RowCalls(msgspec.Struct, frozen=True, eq=False, dict=True):
    """All ranks' N rows and K calls, one rank's after the other's."""

    pairs: PairSums
    #: How much each row's calls count: less than 1 where they run side by side, so that they take longer than the
    #: device needs for the row, shape (N,).
    counts: Floats
    #: How long each row's calls take, ns, and over how many steps its pairs are sums, shape (N,).
    took_ns: Ints
    repeats: Ints

    @classmethod
    def of(cls, digests: Sequence[RankDigest]) -> RowCalls:
        """The calls of some ranks."""
        ranks = [digest.roofline for digest in digests]
        begins = _begins([len(digest.track) for digest in digests])
        row = np.repeat(begins[:-1], [len(one.rows) for one in ranks])
        row += _joined([one.rows.row for one in ranks])

        def of_rows(name: str, kind: type[np.generic]) -> Any:
            every = np.zeros(begins[-1], kind)
            every[row] = _joined([getattr(one.rows, name) for one in ranks])
            return every

        took_ns = of_rows("ns", np.int64)
        device_ns = np.maximum(_joined([digest.track.device_ns for digest in digests]), 0)
        return cls(
            pairs=PairSums(
                begins=begins,
                calls_begin=_begins([len(one.calls) for one in ranks]),
                first=of_rows("first", np.int32),
                end=of_rows("end", np.int32),
                pairs=tuple(one.stretches for one in ranks),
            ),
            counts=np.minimum(device_ns / np.maximum(took_ns, 1), 1.0),
            took_ns=took_ns,
            repeats=of_rows("repeats", np.int64),
        )

    @property
    def begins(self) -> Ints:
        """Where each rank's rows begin, and where the last rank's end, shape (R + 1,)."""
        return self.pairs.begins

    @property
    def calls_begin(self) -> Ints:
        """The same of its calls."""
        return self.pairs.calls_begin

    @cached_property
    def share(self) -> Floats:
        """What to multiply sums of a row's pairs by, which are sums over steps, shape (N,): a third if its calls take
        as long as the mean of three steps.
        """
        whole_ns = self.pairs.in_share(np.ones(self.calls_begin[-1]))
        return self.counts * np.maximum(self.took_ns, 0) / np.maximum(whole_ns, 1.0)

    @cached_property
    def once(self) -> Floats:
        """The same for what does not depend on how long they take."""
        return self.counts / np.maximum(self.repeats, 1)

    def of_share(self, share: Floats, place: Indices, size: int) -> Ints:
        """The device's time of each row in a share of each call, 0 to 1, shape (K,); ns.

        Each row's is at its place, shape (N,), in a column of `size`, which is 0 elsewhere.
        """
        return self.pairs.placed(share, self.share, place, size)

    def varying_ns(self, share: Floats) -> Ints:
        """The device's time of each row in a share of each call, which differs from step to step, shape (N,).

        It is what the row takes beyond the rest of its calls, which take as long in each of the steps that a row's
        pairs are sums of: attention of 64 and of 16 requests beside GEMMs of the same length.
        """
        there, rest = self.pairs.in_share(share) > 0, self.pairs.in_share(1 - share) * self.once
        return np.where(there, np.rint(np.maximum(self.counts * self.took_ns - rest, 0)), 0).astype(np.int64)

    def excess(self, least_ns: Floats, remains: Floats) -> RowExcess:
        """How far rows are from the least that their calls need, if only a share of each call remains.

        `least_ns` is what each call needs at least, NaN where that is not known, and `remains` that share, 0 to 1;
        shape (K,) each.
        """
        sums = self.pairs.excess(least_ns, remains)
        above = np.maximum(self.share * sums.took - self.once * sums.least, 0.0)
        return RowExcess(above, self.share * sums.unknown, self.share * sums.gone)


def _begins(lengths: Sequence[int]) -> Ints:
    """Where each rank's begin, and where the last rank's end."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


def _joined(columns: Sequence[NDArray[Any]]) -> Ints:
    """Ranks' columns, one after the other."""
    return np.concatenate(columns, dtype=np.int64) if columns else np.empty(0, np.int64)
