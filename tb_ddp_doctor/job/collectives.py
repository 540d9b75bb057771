"""Collectives that were matched between ranks."""

from __future__ import annotations

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
#: Kinds of collectives that some rank may end before the others have arrived.
ENDS_APART = ("broadcast", "reduce", "gather", "scatter")


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
    #: How many ranks have a part, shape (M,).
    parts: Ints
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

    def of_rank(self, rank: int) -> Ints:
        """Which collectives a rank (index) has a part in."""
        return np.flatnonzero(self.row[:, rank] >= 0)


def between_two(digest: RankDigest) -> NDArray[np.bool_]:
    """Which rows of a rank's `Collectives` are sends and receives, which only two ranks take part in.

    NCCL carries out an all-to-all by the same kernel: one without metadata is taken for messages only where the host
    names some.
    """
    has_messages = len(digest.messages) > 0
    is_message = [names.is_point_to_point(text) or (has_messages and text == "send_recv") for text in digest.strings]
    return np.array(is_message, np.bool_)[digest.collectives.kind]


def assemble(digests: Sequence[RankDigest], row: NDArray[np.int64], unmatched: Ints) -> Matched:
    """The collectives with the given rows in the ranks' tables, shape (M, R), by first arrival.

    `unmatched`, shape (R,), counts the calls that found no partner.
    """
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
        parts=(row >= 0).sum(axis=1),
        unmatched=tuple(unmatched.tolist()),
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
        parts=matched.parts[chosen],
    )


def refuse_impossible(matched: Matched, offset_ns: NDArray[np.int64], tolerance_ns: int) -> Matched:
    """Give up matches in which a rank ends before another has arrived: no collective can.

    `offset_ns`, shape (M, R), is what to subtract from each rank's clock; broadcasts and reductions to one rank may
    end early on the root, so they are not judged.
    """
    last_arrival = np.where(matched.present, matched.arrival_ns - offset_ns, ABSENT).max(axis=1, initial=ABSENT)
    first_end = np.where(matched.present, matched.end_ns - offset_ns, LATEST).min(axis=1, initial=LATEST)
    waits = np.array([kind not in ENDS_APART for kind in matched.kind], np.bool_)
    impossible = waits & (first_end < last_arrival - tolerance_ns)
    if not impossible.any():
        return matched
    kept = select(matched, np.flatnonzero(~impossible))
    return replace(kept, refused=matched.refused + int(impossible.sum()))
