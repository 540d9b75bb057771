"""Collectives that were matched between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.segments import Segments
from tb_ddp_doctor.trace.model import Flags, Indices, Ints
from tb_ddp_doctor.trace.names import COMBINE, DISPATCH

EARLIEST, LATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
#: Kinds of collectives that some rank may end before the others have arrived. An exchange of tokens between experts may
#: be two kernels, one that sends and one that receives.
ENDS_APART = ("broadcast", "reduce", "gather", "scatter", DISPATCH, COMBINE)

#: Kinds of collectives whose messages may differ in size from rank to rank.
UNEVEN = ("all_to_all", "send_recv", "gather", "scatter")


class Matched(msgspec.Struct, frozen=True, eq=False):
    """M collectives with P parts in all: a part is what one rank has of a collective, which is one call of the rank.

    Columns of parts have shape (P,): collective by collective, and the parts of one by rank. Three ranks, of which two
    meet first:

        collective  0  0  1  1  1     `segments.first` is 0 2 5
        rank        1  2  0  1  2
        call        4  8  0  5  9     ranks 0, 1 and 2 have the calls 0 to 3, 4 to 7 and 8 to 11
    """

    kind: tuple[str, ...]
    group: tuple[str, ...]
    #: Shape (M,). -1 if unknown.
    group_size: Ints
    bytes: Ints
    #: Number of the step that launched it.
    step: Ints
    #: Which parts are each collective's; two at least.
    segments: Segments
    #: Index of the rank, and of the call in the job's `Calls`, shape (P,).
    rank: Indices
    call: Ints
    #: Shape (P,), ns, each rank's own clock.
    arrival_ns: Ints
    end_ns: Ints
    #: Whether a part only sends, shape (P,): NCCL keeps some megabytes for the receiver, so that it may end before that
    #: arrives.
    sends: Flags
    #: Whether the parts meet each other alone and so end together, shape (M,): not so two kernels that send and receive
    #: where one of them meets a third.
    together: Flags
    #: Calls with a recorded launch that found no partner, by rank index, shape (R,).
    unmatched: tuple[int, ...]
    #: Matches given up because a rank ended before another arrived.
    refused: int
    #: Parts given up, by rank index, since they ended apart from those of all other ranks; () for none.
    odd: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    @property
    def parts(self) -> Ints:
        """How many ranks have a part, shape (M,)."""
        return self.segments.length

    @property
    def one_way(self) -> Flags:
        """Which are messages in one direction, shape (M,): only the receiver waits for the other one."""
        one_way: Flags = self.segments.any(self.sends) & (self.parts == 2)
        return one_way

    def is_of(self, kinds: Sequence[str]) -> Flags:
        """Which collectives are of one of these kinds, shape (M,)."""
        return np.array([kind in kinds for kind in self.kind], np.bool_)

    def of_rank(self, values: NDArray[Any] | None = None) -> NDArray[Any]:
        """How many of the parts each rank has, or the sum of a value of each part; shape (R,)."""
        return np.bincount(self.rank, values, len(self.unmatched))


def assemble(
    digests: Sequence[RankDigest],
    calls: Calls,
    match: Ints,
    call: Ints,
    together: Flags,
    unmatched: Ints,
    sends: Flags,
) -> Matched:
    """The collectives that calls are parts of, by first arrival.

    `call` are rows of the job's table and `match` the number of each one's collective, both of shape (P,). `together`,
    by number, says whose parts end together; `unmatched`, shape (R,), counts the calls that found no partner; `sends`
    says which of all calls only send.
    """
    segments, order = Segments.grouped(match)
    call, of = call[order], match[order[segments.first[:-1]]]
    first = call[segments.first[:-1]]

    def words(name: str) -> tuple[str, ...]:
        text = calls.text(name)
        return tuple(text.words[code] for code in text.code[first].tolist())

    matched = Matched(
        kind=words("kind"),
        group=words("group"),
        group_size=calls.column("group_size")[first],
        bytes=calls.column("bytes")[first],
        step=calls.of_own_steps([digest.steps.number for digest in digests])[first],
        segments=segments,
        rank=calls.rank[call],
        call=call,
        arrival_ns=calls.column("arrival_ns")[call],
        end_ns=calls.column("end_ns")[call],
        sends=sends[call],
        together=together[of],
        unmatched=tuple(unmatched.tolist()),
        refused=0,
    )
    return _in_order(matched)


def _in_order(matched: Matched) -> Matched:
    return select(matched, np.argsort(matched.segments.min(matched.arrival_ns), kind="stable"))


def select(matched: Matched, chosen: Ints) -> Matched:
    """The chosen collectives, in the order given."""
    segments, parts = matched.segments.select(chosen)
    return replace(
        matched,
        kind=tuple(matched.kind[i] for i in chosen),
        group=tuple(matched.group[i] for i in chosen),
        group_size=matched.group_size[chosen],
        bytes=matched.bytes[chosen],
        step=matched.step[chosen],
        segments=segments,
        rank=matched.rank[parts],
        call=matched.call[parts],
        arrival_ns=matched.arrival_ns[parts],
        end_ns=matched.end_ns[parts],
        sends=matched.sends[parts],
        together=matched.together[chosen],
    )


def refuse_impossible(matched: Matched, offset_ns: Ints, tolerance_ns: int) -> Matched:
    """Give up matches in which a rank ends before another has arrived: no collective can.

    A message may be sent before its receiver arrives. Nobody waits then, and its match is given up without a word. Of
    one that `ends_apart` alone, its part is given up, and the match of the others remains. `offset_ns`, shape (P,),
    is what to subtract from each rank's clock.
    """
    whole = np.ones(len(matched.rank), np.bool_)
    impossible = _impossible(matched, whole, offset_ns, tolerance_ns)
    if not impossible.any():
        return matched
    sent_early = impossible & ~_impossible(matched, whole, offset_ns, tolerance_ns, ending=~matched.sends)
    odd = ends_apart(matched, offset_ns, tolerance_ns)
    given_up = np.bincount(matched.rank[odd], minlength=len(matched.unmatched))
    refused = impossible & ~matched.segments.any(odd)
    matched = replace(
        matched,
        segments=Segments.of_sizes(matched.segments.count(~odd)),
        rank=matched.rank[~odd],
        call=matched.call[~odd],
        arrival_ns=matched.arrival_ns[~odd],
        end_ns=matched.end_ns[~odd],
        sends=matched.sends[~odd],
        unmatched=tuple((np.array(matched.unmatched) + given_up).tolist()),
        odd=tuple((given_up + (np.array(matched.odd) if matched.odd else 0)).tolist()),
    )
    kept = _in_order(select(matched, np.flatnonzero(~refused)))
    return replace(kept, refused=matched.refused + int((refused & ~sent_early).sum()))


def ends_apart(matched: Matched, offset_ns: Ints, tolerance_ns: int) -> Flags:
    """Parts of collectives that end apart from those of all other ranks, so that one ends before another has arrived.

    Of one of three ranks or more, where the match of the others is possible without it; shape (P,).

        rank0  [ar....]
        rank1  [ar....]
        rank2           [ar....]     ends apart
    """
    segments = matched.segments
    whole = np.ones(len(matched.rank), np.bool_)
    judged = _impossible(matched, whole, offset_ns, tolerance_ns) & (matched.parts > 2)
    if not judged.any():
        return ~whole
    odd: Flags = _apart(matched.end_ns - offset_ns, segments, tolerance_ns) & segments.each(judged)
    odd &= segments.each(~_impossible(matched, ~odd, offset_ns, tolerance_ns))
    return odd


def _impossible(
    matched: Matched, counted: Flags, offset_ns: Ints, tolerance_ns: int, ending: Flags | None = None
) -> Flags:
    """Which collectives one of the counted parts, shape (P,), ends before another arrives, shape (M,).

    Of the counted parts only those that are `ending`, if that is given, are looked at for their ends.
    Broadcasts and reductions to one rank may end early on the root, so they are not judged.
    """
    last_arrival = matched.segments.max(np.where(counted, matched.arrival_ns - offset_ns, EARLIEST))
    looked_at = counted if ending is None else counted & ending
    first_end = matched.segments.min(np.where(looked_at, matched.end_ns - offset_ns, LATEST))
    return ~matched.is_of(ENDS_APART) & (first_end < last_arrival - tolerance_ns)


def _apart(end_ns: Ints, segments: Segments, tolerance_ns: int) -> Flags:
    """The part of each collective that alone ends apart from the others, shape (P,); none where several do."""
    end = end_ns.astype(np.float64)
    apart = np.abs(end - segments.each(segments.median(end))) > tolerance_ns
    alone: Flags = apart & segments.each(segments.count(apart) == 1)
    return alone
