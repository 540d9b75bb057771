"""Collectives that were matched between ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import COMBINE, DISPATCH

#: Where a rank has no part in a collective, or its part was not recorded.
ABSENT = int(np.iinfo(np.int64).min)
LATEST = int(np.iinfo(np.int64).max)
#: Kinds of collectives that some rank may end before the others have arrived. An exchange of tokens between experts may
#: be two kernels, one that sends and one that receives.
ENDS_APART = ("broadcast", "reduce", "gather", "scatter", DISPATCH, COMBINE)

#: Kinds of collectives whose messages may differ in size from rank to rank.
UNEVEN = ("all_to_all", "send_recv", "gather", "scatter")


class Matched(msgspec.Struct, frozen=True, eq=False):
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
    #: Whether the parts meet each other alone and so end together, shape (M,): not so two kernels that send and receive
    #: where one of them meets a third.
    together: NDArray[np.bool_]
    #: Collectives with a recorded launch that found no partner, by rank index.
    unmatched: tuple[int, ...]
    #: Matches given up because a rank ended before another arrived.
    refused: int
    #: Parts given up, by rank index, since they ended apart from those of all other ranks; () for none.
    odd: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Shape (M, R): whether the rank has a part."""
        return self.row >= 0

    def of_calls(self, calls: Calls) -> Ints:
        """The calls (rows of the job's table) that are parts, collective by collective, shape (sum of `parts`,)."""
        of_parts: Ints = (calls.first[:-1] + self.row)[self.present]
        return of_parts

    def of_rank(self, rank: int) -> Ints:
        """Which collectives a rank (index) has a part in."""
        return np.flatnonzero(self.row[:, rank] >= 0)


def assemble(
    digests: Sequence[RankDigest],
    calls: Calls,
    row: NDArray[np.int64],
    together: NDArray[np.bool_],
    unmatched: Ints,
) -> Matched:
    """The collectives with the given rows in the ranks' tables, shape (M, R), by first arrival.

    `together`, shape (M,), says which end together; `unmatched`, shape (R,), counts the calls that found no partner.
    """
    present = row >= 0
    call = np.where(present, calls.first[:-1] + row, 0)
    first = call[np.arange(len(row)), present.argmax(axis=1)] if row.size else np.empty(0, np.int64)

    def times(name: str) -> Ints:
        column = calls.column(name)
        return np.where(present, column[call], ABSENT) if len(column) else np.full(row.shape, ABSENT)

    def words(name: str) -> tuple[str, ...]:
        text = calls.text(name)
        return tuple(text.words[code] for code in text.code[first].tolist())

    matched = Matched(
        kind=words("kind"),
        group=words("group"),
        group_size=calls.column("group_size")[first],
        bytes=calls.column("bytes")[first],
        step=calls.of_own_steps([digest.steps.number for digest in digests])[first],
        arrival_ns=times("arrival_ns"),
        end_ns=times("end_ns"),
        row=row,
        parts=present.sum(axis=1),
        together=together,
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
        together=matched.together[chosen],
    )


def refuse_impossible(matched: Matched, offset_ns: NDArray[np.int64], tolerance_ns: int) -> Matched:
    """Give up matches in which a rank ends before another has arrived: no collective can.

    Of one that `ends_apart` alone, its part is given up, and the match of the others remains. `offset_ns`, shape (M,
    R), is what to subtract from each rank's clock.
    """
    impossible = _impossible(matched, matched.present, offset_ns, tolerance_ns)
    if not impossible.any():
        return matched
    odd = ends_apart(matched, offset_ns, tolerance_ns)
    given_up = odd.sum(axis=0)
    matched = replace(
        matched,
        arrival_ns=np.where(odd, ABSENT, matched.arrival_ns),
        end_ns=np.where(odd, ABSENT, matched.end_ns),
        row=np.where(odd, -1, matched.row),
        parts=matched.parts - odd.sum(axis=1),
        unmatched=tuple((np.array(matched.unmatched) + given_up).tolist()),
        odd=tuple((given_up + (np.array(matched.odd) if matched.odd else 0)).tolist()),
    )
    refused = impossible & ~odd.any(axis=1)
    kept = _in_order(select(matched, np.flatnonzero(~refused)))
    return replace(kept, refused=matched.refused + int(refused.sum()))


def ends_apart(matched: Matched, offset_ns: NDArray[np.int64], tolerance_ns: int) -> NDArray[np.bool_]:
    """Parts of collectives that end apart from those of all other ranks, so that one ends before another has arrived.

    Of one of three ranks or more, where the match of the others is possible without it; shape (M, R).

        rank0  [ar....]
        rank1  [ar....]
        rank2           [ar....]     ends apart
    """
    odd = np.zeros_like(matched.present)
    impossible = _impossible(matched, matched.present, offset_ns, tolerance_ns)
    which = np.flatnonzero(impossible & (matched.parts > 2))
    if not len(which):
        return odd
    end = matched.end_ns[which] - offset_ns[which]
    odd[which] = _apart(end, matched.present[which], tolerance_ns)
    odd &= ~_impossible(matched, matched.present & ~odd, offset_ns, tolerance_ns)[:, np.newaxis]
    return odd


def _impossible(
    matched: Matched, parts: NDArray[np.bool_], offset_ns: NDArray[np.int64], tolerance_ns: int
) -> NDArray[np.bool_]:
    """Which collectives one of these parts ends before another arrives, shape (M,).

    Broadcasts and reductions to one rank may end early on the root, so they are not judged.
    """
    waits = np.array([kind not in ENDS_APART for kind in matched.kind], np.bool_)
    last_arrival = np.where(parts, matched.arrival_ns - offset_ns, ABSENT).max(axis=1, initial=ABSENT)
    first_end = np.where(parts, matched.end_ns - offset_ns, LATEST).min(axis=1, initial=LATEST)
    ends_early: NDArray[np.bool_] = waits & (first_end < last_arrival - tolerance_ns)
    return ends_early


def _apart(end: Ints, present: NDArray[np.bool_], tolerance_ns: int) -> NDArray[np.bool_]:
    """The rank of each collective that alone ends apart from the others, shape (M, R); none where several do."""
    middle = np.array([np.median(ends[here]) for ends, here in zip(end, present, strict=True)]).reshape(-1, 1)
    apart = present & (np.abs(end.astype(np.float64) - middle) > tolerance_ns)
    alone: NDArray[np.bool_] = apart & (apart.sum(axis=1, keepdims=True) == 1)
    return alone
