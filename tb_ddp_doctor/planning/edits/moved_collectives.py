"""Replaces the collectives of a record by others at other places, for other ways to shard parameters and gradients.

1. Cut rows where the host launches a new collective, and where work begins that waits for one.
2. Remove the host's time for launches of the recorded collectives.
3. Put the new ones in their place (`replaced_parts`). They follow each other on the stream of the recorded ones, as
   NCCL orders the collectives of a communicator.

P = passes of `Units`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.planning.edits.cut_rows import Cuts, RowPieces
from tb_ddp_doctor.planning.edits.recorded_rows import RecordedRows
from tb_ddp_doctor.planning.edits.replaced_parts import Gates, NewParts, replaced
from tb_ddp_doctor.planning.shards.units import Units
from tb_ddp_doctor.trace.model import Ints

#: From its launch on an idle device to a collective's arrival, and from its end to what awaits it, ns: 5 to 10 µs each.
_LATENCY_NS = 8_000


class PassCollective(msgspec.Struct, frozen=True, eq=False):
    """A collective that each pass launches."""

    #: When the host launches it, shape (P,), ns.
    at_ns: Ints
    #: How long the host takes for that, ns.
    host_ns: int
    #: When the device is done with the work that it needs, shape (P,), ns; None if it needs none.
    done_ns: Ints | None
    #: When the host begins the work that waits for it, shape (P,), ns; None if none does.
    gate_ns: Ints | None
    bytes: float
    #: How long it transfers, ns.
    takes_ns: float
    #: Whether it gathers the parameters of a unit.
    is_gather: bool = False
    #: Whether it sends what the collective before it has reduced, on a stream of its own: it starts once that one, and
    #: the one before it on that stream, are over.
    continues: bool = False
    #: Whether it is a guest (`guests.py`), which takes no time.
    is_guest: bool = False


def with_pass_collectives(
    tracks: RecordedRows, units: Units, launched: Sequence[PassCollective], freed_ns: int
) -> RecordedRows:
    """The tracks with some collectives in each pass, in the order of their launches, in place of those of `units`.

    Each of the replaced ones took the host `freed_ns` to launch, which is removed too.
    """
    launched = list(_with_guests(launched))
    passes, first = len(units.rank), len(tracks.part_table.rank) - 1
    count = passes * len(launched)
    awaited = [number for number, one in enumerate(launched) if one.gate_ns is not None]
    pieces = RowPieces.of(tracks, _cuts(units, launched, awaited, first))
    launching, gate_cuts = pieces.cut_at[:count], pieces.cut_at[count:]
    gates = Gates(
        piece=np.minimum(gate_cuts + 1, len(pieces.row) - 1),
        part=(passes * np.array(awaited, np.int64)[:, None] + np.arange(passes)).ravel(),
        delay_ns=np.full(len(gate_cuts), _LATENCY_NS),
    )
    removed = np.column_stack([units.parts, units.reduces])
    work_ns = _freed(tracks, removed, freed_ns)
    return replaced(tracks, pieces, work_ns, removed, units.rank, _new(units, launched, launching), gates)


def _with_guests(launched: Sequence[PassCollective]) -> Iterator[PassCollective]:
    """The collectives, with a guest behind each that continues another one and is not the first to do so.

    The guest makes it wait for the one before it on its own stream:

        stream 20  [reduce-scatter 1][reduce-scatter 2]
        stream 24                    [all-reduce 1.............][all-reduce 2...]

    All-reduce 2 comes after reduce-scatter 2, and its guest after all-reduce 1.
    """
    is_first = True
    for one in launched:
        yield one
        if one.continues:
            if not is_first:
                yield replace(one, host_ns=0, done_ns=None, gate_ns=None, bytes=0.0, takes_ns=0.0, is_guest=True)
            is_first = False


def _after(launched: Sequence[PassCollective]) -> list[int]:
    """The collective that each one comes after, -1 for the one before it on the common stream."""
    after, before = [], -1
    for number, one in enumerate(launched):
        if one.is_guest:
            after.append(before)
            before = number - 1
        elif one.continues:
            after.append(number - 1)
            before = number if before < 0 else before
        else:
            after.append(-1)
    return after


def _cuts(units: Units, launched: Sequence[PassCollective], gates: Sequence[int], first: int) -> Cuts:
    """The cuts at the launches of all collectives, pass by pass, then those before the work that waits for some.

    `gates` are the numbers of the collectives that work waits for; `first` is the number of the first new part.
    """
    passes = len(units.rank)
    nowhere = np.full(passes, -1)
    at = [one.at_ns for one in launched] + [_known(launched[number].gate_ns) for number in gates]
    done = [nowhere if one.done_ns is None else one.done_ns for one in launched] + [nowhere] * len(gates)
    host = [one.host_ns for one in launched] + [0] * len(gates)
    part = np.append(first + np.arange(passes * len(launched)), np.full(passes * len(gates), -1))
    return Cuts(
        rank=np.tile(units.rank, len(at)),
        at_ns=np.concatenate(at),
        done_ns=np.concatenate(done),
        launching_ns=np.repeat(host, passes).astype(np.int64),
        part=part,
    )


def _known(gate_ns: Ints | None) -> Ints:
    """The times, empty if there are none."""
    return np.empty(0, np.int64) if gate_ns is None else gate_ns


def launching_ns(tracks: RecordedRows, units: Units, most_ns: int) -> int:
    """How long the host takes to launch a collective of `units`, ns: the mean of what is freed of `most_ns` each.

    That is less than `most_ns` where the host has less work around the launches.
    """
    removed = np.column_stack([units.parts, units.reduces])
    freed = tracks.spent[CpuTime.WORK].sum() - _freed(tracks, removed, most_ns).sum()
    return int(freed // max(removed.size, 1))


def _freed(tracks: RecordedRows, removed: Ints, freed_ns: int) -> Ints:
    """The host's work in each row without the launches of removed collectives, ns.

    A launch's time is removed from the row that ends with it, and the rest of it from the row after.
    """
    work: Ints = tracks.spent[CpuTime.WORK].copy()
    rows = np.flatnonzero(np.isin(tracks.table.launches, removed))
    before = np.minimum(work[rows], freed_ns)
    work[rows] -= before
    after = np.minimum(rows + 1, len(work) - 1)
    work[after] -= np.minimum(work[after], freed_ns - before)
    return work


def _new(units: Units, launched: Sequence[PassCollective], launching: Ints) -> NewParts:
    """The new parts, collective by collective; `launching` is the row that launches each."""
    passes = len(units.rank)

    def each(values: Sequence[float]) -> Ints:
        return np.repeat(np.rint(values).astype(np.int64), passes)

    numbers = np.arange(len(launched))
    pass_ = np.tile(np.arange(passes), len(launched))
    is_guest = np.array([one.is_guest for one in launched])
    in_no_step = np.repeat(is_guest, passes)
    # A guest is a part of the collective before it.
    collective = [
        (number - one.is_guest) * passes + (units.number_of_copies if one.continues else units.number)
        for number, one in enumerate(launched)
    ]
    after = np.array(_after(launched))
    needs = np.repeat([one.done_ns is not None for one in launched], passes)
    return NewParts(
        launched_by=launching,
        same_as=np.full(passes * len(launched), -1),
        queue=np.tile(units.rank, len(launched)),
        rank=np.tile(units.rank, len(launched)),
        row=np.full(passes * len(launched), -1),
        own_step=np.where(in_no_step, -1, np.tile(units.own_step, len(launched))),
        step=np.where(in_no_step, -1, np.tile(units.step, len(launched))),
        collective=np.concatenate(collective),
        absent_ns=np.zeros(passes * len(launched), np.int64),
        transfer_ns=each([one.takes_ns for one in launched]),
        exposed_ns=each([one.takes_ns for one in launched]),
        needs=np.where(needs, launching, -1),
        ready_ns=np.where(in_no_step, 0, _LATENCY_NS),
        like=np.repeat(numbers, passes),
        bytes=each([one.bytes for one in launched]),
        family=np.full(passes * len(launched), -1),
        stream_of=np.tile(units.parts[:, -1], len(launched)),
        after=np.where(np.repeat(after, passes) >= 0, np.repeat(after, passes) * passes + pass_, -1),
        is_guest=in_no_step,
    )
