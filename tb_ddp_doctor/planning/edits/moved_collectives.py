"""The recorded tracks with other collectives at other places, for other ways to share out parameters and gradients.

Rows are cut where the host launches a collective, and where it comes to what awaits one. The new ones follow each other
on the stream of those that they replace, as NCCL orders the collectives of a communicator.

P = passes of `Units`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.planning.edits.cut_rows import Cuts, RowPieces
from tb_ddp_doctor.planning.edits.recorded_rows import Natural
from tb_ddp_doctor.planning.edits.replaced_parts import NewParts, with_new
from tb_ddp_doctor.planning.edits.streams import Streams
from tb_ddp_doctor.planning.shards.units import Units
from tb_ddp_doctor.replay.model import TrackRows
from tb_ddp_doctor.trace.model import Flags, Ints

#: From its launch on an idle device to a collective's arrival, and from its end to what awaits it, ns: 5 to 10 µs each.
_LATENCY_NS = 8_000


class PassCollective(msgspec.Struct, frozen=True, eq=False):
    """A collective that each pass launches."""

    #: When the host launches it, shape (P,), ns, and for how long.
    at_ns: Ints
    host_ns: int
    #: When the device is done with what it needs, and when the host begins what awaits it, shape (P,), ns; None where
    #: it needs nothing, or nothing awaits it.
    done_ns: Ints | None
    gate_ns: Ints | None
    bytes: float
    takes_ns: float


def placed(tracks: Natural, units: Units, launched: Sequence[PassCollective], freed_ns: int) -> Natural:
    """The tracks with these collectives, in the order in which they are launched, in place of those of `units`.

    Those that go take `freed_ns` of the host each.
    """
    passes, nothing = len(units.rank), len(tracks.part_table.rank) - 1
    count = passes * len(launched)
    ends = nothing + count
    gone = np.zeros(ends + 1, np.bool_)
    gone[units.parts] = True
    gates = [number for number, one in enumerate(launched) if one.gate_ns is not None]
    pieces = RowPieces.of(tracks, _cuts(units, launched, gates, nothing))
    launching = pieces.cut_at[:count]
    work = _freed(tracks, gone, freed_ns)
    spent = pieces.spent({**tracks.spent, CpuTime.WORK: work})
    table = _renumbered(tracks.table, gone, nothing, ends)
    rows = pieces.rows(table, spent, table.launches, ends)
    rows = _held(rows, gone, launching, nothing + np.arange(count))
    awaited = np.array([nothing + number * passes for number in gates], np.int64)[:, None] + np.arange(passes)
    rows = _gated(rows, pieces.cut_at[count:], awaited.ravel())
    parts = with_new(tracks.part_table, gone[: nothing + 1], pieces.last_of, _new(units, launched, launching))
    launches_of_old = np.zeros(nothing, np.bool_)
    launches_of_old[tracks.table.launches[tracks.table.launches >= 0]] = True
    streams = Streams.of(tracks.part_table.after, launches_of_old)
    of_new = np.tile(streams.of_part[units.parts[:, -1]], len(launched))
    return replace(
        tracks,
        table=rows,
        spent=spent,
        part_table=replace(parts, after=streams.chained(parts.after, of_new, rows, units.parts)),
        begin_ns=np.zeros_like(rows.work_ns),
        issued_ns=np.zeros_like(rows.work_ns),
        done_ns=pieces.done_ns,
    )


def _cuts(units: Units, launched: Sequence[PassCollective], gates: Sequence[int], first: int) -> Cuts:
    """First where each collective is launched, pass by pass, then where each of the gates is."""
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
    return np.empty(0, np.int64) if gate_ns is None else gate_ns


def _freed(tracks: Natural, gone: Flags, freed_ns: int) -> Ints:
    """The host's work in each row without the launches of what goes: before each launch, and what is left after it."""
    work: Ints = tracks.spent[CpuTime.WORK].copy()
    rows = np.flatnonzero((tracks.table.launches >= 0) & gone[tracks.table.launches])
    before = np.minimum(work[rows], freed_ns)
    work[rows] -= before
    after = np.minimum(rows + 1, len(work) - 1)
    work[after] -= np.minimum(work[after], freed_ns - before)
    return work


def _renumbered(table: TrackRows, gone: Flags, nothing: int, ends: int) -> TrackRows:
    """The rows, of which none awaits or launches what is gone; the part over long ago has another number."""
    awaits = np.where(gone[table.awaits] | (table.awaits == nothing), ends, table.awaits).astype(np.int32)
    return replace(
        table,
        awaits=awaits,
        delay_ns=np.where(awaits == ends, 0, table.delay_ns),
        queue_part=np.where(table.queue_part == nothing, ends, table.queue_part).astype(np.int32),
        launches=np.where((table.launches >= 0) & gone[table.launches], -1, table.launches).astype(np.int32),
    )


def _held(rows: TrackRows, gone: Flags, launching: Ints, parts: Ints) -> TrackRows:
    """What was held until a collective that is gone was over is held until the last one that is launched before."""
    held, order, queue_part = np.flatnonzero(gone[rows.queue_part]), np.argsort(launching), rows.queue_part.copy()
    at = np.searchsorted(launching[order], held) - 1
    before = launching[order][np.maximum(at, 0)]
    known = (at >= 0) & (rows.rank[before] == rows.rank[held])
    queue_part[held] = np.where(known, parts[order][np.maximum(at, 0)], len(gone) - 1)
    return replace(rows, queue_part=queue_part)


def _gated(rows: TrackRows, cuts: Ints, parts: Ints) -> TrackRows:
    """The rows, of which those behind each cut await a part."""
    awaits, delay = rows.awaits.copy(), rows.delay_ns.copy()
    behind = np.minimum(cuts + 1, len(awaits) - 1)
    awaits[behind], delay[behind] = parts, _LATENCY_NS
    return replace(rows, awaits=awaits, delay_ns=delay)


def _new(units: Units, launched: Sequence[PassCollective], launching: Ints) -> NewParts:
    passes = len(units.rank)

    def each(values: Sequence[float]) -> Ints:
        return np.repeat(np.rint(values).astype(np.int64), passes)

    numbers = np.arange(len(launched))
    needs = np.repeat([one.done_ns is not None for one in launched], passes)
    return NewParts(
        rank=np.tile(units.rank, len(launched)),
        row=np.full(passes * len(launched), -1),
        own_step=np.tile(units.own_step, len(launched)),
        step=np.tile(units.step, len(launched)),
        collective=np.repeat(numbers, passes) * (int(units.number.max()) + 1) + np.tile(units.number, len(launched)),
        absent_ns=np.zeros(passes * len(launched), np.int64),
        transfer_ns=each([one.takes_ns for one in launched]),
        exposed_ns=each([one.takes_ns for one in launched]),
        needs=np.where(needs, launching, -1),
        ready_ns=np.full(passes * len(launched), _LATENCY_NS),
        like=np.repeat(numbers, passes),
        bytes=each([one.bytes for one in launched]),
        family=np.full(passes * len(launched), -1),
    )
