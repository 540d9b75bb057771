"""How a record shards its model's states, and which of its all-gathers wait for the CPU to launch them.

    cpu   [gather 1][gather 2]                           [gather 3]
    nccl            [gather 1.....][gather 2.....]                 [gather 3.....]
    gpu                            [unit 1......][unit 2...]                      [unit 3 ...

Gather 3 starts as soon as it is launched, with the device idle: it waits for the CPU. Gather 2 is launched before
gather 1 is over: it waits for nothing but its stream.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.planning.model import ShardedRecord
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.shards.units import Units, ranks_of_shards
from tb_ddp_doctor.trace.model import Flags, Ints

#: A collective that starts this soon after its launch, ns, waited for nothing but the launch.
_AT_ONCE_NS = 50_000


def sharded_record(record: PlanRecord, units: Units) -> ShardedRecord | None:
    """How the record shards its states; None where it does not, or gathers no units before it computes them: a
    distributed optimizer (stage 1 of ZeRO) scatters gradients, and gathers what it has updated after that.
    """
    if not units.is_sharded or _gathers_last(record, units):
        return None
    job = record.job
    shards = ranks_of_shards(job)
    size = np.sort(units.elements * units.parameter_bytes)
    gathers, late, late_ns = _late(record, units)
    return ShardedRecord(
        stage="zero3" if units.regathers else "zero2",
        shards=shards,
        copies=max(job.world_size // max(shards, 1), 1),
        units=len(units.elements),
        least_bytes=int(size[0]),
        median_bytes=float(np.median(size)),
        most_bytes=int(size[-1]),
        ahead_forward=units.ahead[0],
        ahead_backward=units.ahead[1],
        gathers=gathers,
        late_gathers=late,
        late_ms=late_ns / 1e6,
    )


def _gathers_last(record: PlanRecord, units: Units) -> bool:
    """Whether passes gather after they have scattered their gradients."""
    arrival, count = record.tracks.arrival_ns, len(units.elements)
    return bool((arrival[units.parts[:, 0]] > arrival[units.parts[:, -count]]).all())


def _late(record: PlanRecord, units: Units) -> tuple[float, float, float]:
    """All-gathers of a step and rank, those of them that wait for the CPU, and how long these have no kernel beside
    them, ns.
    """
    gathers, is_late = _gathers(units), late_gathers(record, units)
    exposed = record.tracks.part_table.exposed_ns[gathers]
    passes = max(len(gathers), 1)
    return gathers.size / passes, float(is_late.sum()) / passes, float(exposed[is_late].sum()) / passes


def _gathers(units: Units) -> Ints:
    """The parts of the all-gathers, those of forward and then those of backward, shape (P, G)."""
    return units.parts[:, : units.parts.shape[1] - len(units.elements)]


def late_gathers(record: PlanRecord, units: Units) -> Flags:
    """Which all-gathers wait for the CPU to launch them, with the device idle; shape (P, G) as `_gathers` has them.

    P = passes, G = all-gathers of a pass.
    """
    tracks, parts, gathers = record.tracks, record.tracks.part_table, _gathers(units)
    row = np.full(len(parts.rank), -1)
    launching = np.flatnonzero(tracks.table.launches >= 0)
    row[tracks.table.launches[launching]] = launching
    launched = tracks.issued_ns[row[gathers]]
    is_late = (row[gathers] >= 0) & (tracks.arrival_ns[gathers] - launched <= _AT_ONCE_NS)
    is_late &= parts.exposed_ns[gathers] > 0
    # One that starts while a kernel runs waits for the CPU as well, but nothing waits for it yet.
    late: Flags = is_late & ~_beside_kernels(record, units, gathers)
    return late


def _beside_kernels(record: PlanRecord, units: Units, gathers: Ints) -> Flags:
    """Whether a kernel runs when each gather starts, as `gathers`, shape (P, G)."""
    tracks = record.tracks
    end = tracks.done_ns
    begin = end - np.maximum(tracks.table.device_ns, 0)
    beside = np.zeros(gathers.shape, np.bool_)
    for one, rank in enumerate(units.rank.tolist()):
        mine = slice(tracks.first[rank], tracks.first[rank + 1])
        works = tracks.table.device_ns[mine] > 0
        starts, ends = begin[mine][works], end[mine][works]
        at = tracks.arrival_ns[gathers[one]]
        before = np.searchsorted(starts, at, side="right") - 1
        beside[one] = (before >= 0) & (ends[np.maximum(before, 0)] > at)
    return beside
