"""What rules ask of device memory, and what it is made of at its peak. R = ranks, S = steps."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tb_ddp_doctor import findings, record_again
from tb_ddp_doctor.digest.model import AllocatorMemory, MemoryCategory, RankDigest
from tb_ddp_doctor.facts import Facts, MissingFactError, fact, needs_device
from tb_ddp_doctor.facts.memory_savings import savings
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: A rank has more than its peers, if it has this share of the median more, and this many bytes.
_MORE, _MORE_BYTES = 0.05, 1 << 20
#: Growth is that of steps, not of a first one: it needs so many, and most of them grow.
_LEAST_STEPS, _MOST_GROW = 3, 0.75
#: Less than this share of what is allocated, and fewer bytes, may be a log or a cache.
_LEAST_GROWTH, _LEAST_GROWTH_BYTES = 1e-4, 1 << 16
#: Places at which a leak is shown.
_PLACES = 5
#: CUDA and NCCL need some of the GPU's memory themselves: this share can be allocated.
_USABLE = 0.9
#: What a larger batch has more of.
_OF_THE_BATCH = (MemoryCategory.ACTIVATION, MemoryCategory.TEMPORARY)


@fact
def memory(facts: Facts) -> findings.Memory | None:
    """What is told of a job's memory; None where no trace has memory events."""
    job = facts.job
    recorded = [(int(rank), digest) for rank, digest in zip(job.ranks, job.digests, strict=True) if _has_memory(digest)]
    if not recorded:
        return None
    ranks = _compared([_at_peak(rank, digest) for rank, digest in recorded])
    peak = max(ranks, key=lambda one: one.allocated)
    digest = next(digest for rank, digest in recorded if rank == peak.rank)
    seen = digest.memory
    capacity = digest.device_bytes or None
    return findings.Memory(
        on_cpu=seen.on_host,
        peak=peak,
        said=(),
        capacity=capacity,
        reserved_but_unallocated=peak.reserved - peak.allocated,
        unusable=int(seen.unusable.max(initial=0)),
        phases=_phases(seen),
        largest=_largest(digest),
        states=_states(seen),
        growth=_most_growth(recorded),
        largest_batch=largest_batch(peak, capacity),
        savings=savings(facts, peak, digest),
        ranks=ranks,
    )


def _has_memory(digest: RankDigest) -> bool:
    return bool((digest.memory.peak_allocated >= 0).any())


def _at_peak(rank: int, digest: RankDigest) -> findings.MemoryRank:
    seen = digest.memory
    step = int(seen.peak_allocated.argmax())
    return findings.MemoryRank(
        rank=rank,
        step=int(digest.steps.number[step]),
        phase=findings.PHASES[seen.peak_phase[step]],
        allocated=int(seen.peak_allocated[step]),
        reserved=int(seen.reserved_at_peak[step]),
        categories=dict(zip(findings.MEMORY, seen.categories[step].tolist(), strict=True)),
    )


def _compared(ranks: list[findings.MemoryRank]) -> tuple[findings.MemoryRank, ...]:
    """The ranks, and those with more memory than their peers by what they have more."""
    median = float(np.median([one.allocated for one in ranks]))
    of_median_rank = {name: float(np.median([one.categories[name] for one in ranks])) for name in findings.MEMORY}
    least = max(_MORE * median, _MORE_BYTES)
    return tuple(_with_excess(one, median, of_median_rank) if one.allocated - median > least else one for one in ranks)


def _with_excess(one: findings.MemoryRank, median: float, medians: Mapping[str, float]) -> findings.MemoryRank:
    most = max(findings.MEMORY, key=lambda name: one.categories[name] - medians[name])
    return msgspec.structs.replace(one, excess=int(one.allocated - median), excess_category=most)


def _phases(seen: AllocatorMemory) -> tuple[findings.MemoryPhase, ...]:
    known = seen.peak_allocated >= 0
    change = seen.phase_change[known].mean(axis=0)
    peak = seen.phase_peak[known].max(axis=0)
    return tuple(
        findings.MemoryPhase(name, round(float(change[i])), int(peak[i]) if peak[i] >= 0 else None)
        for i, name in enumerate(findings.PHASES)
    )


def _largest(digest: RankDigest) -> tuple[findings.MemoryBlock, ...]:
    table, text = digest.memory.largest, _texts(digest)
    return tuple(
        findings.MemoryBlock(
            bytes=int(table.bytes[i]),
            category=findings.MEMORY[table.category[i]],
            phase=findings.PHASES[table.phase[i]],
            op=text[table.op[i]],
            module=text[table.module[i]],
            source=_source(text[table.own[i]]),
        )
        for i in range(len(table))
    )


def _texts(digest: RankDigest) -> list[str]:
    """Its strings without half characters, which JSON does not hold."""
    return [text.encode("utf-8", "replace").decode() for text in digest.strings]


def _source(function: str) -> findings.Source | None:
    source = names.source(function)
    return findings.Source(*source) if source else None


def _states(seen: AllocatorMemory) -> findings.ModelStates:
    states = seen.states
    return findings.ModelStates(
        parameters=states.parameters if states.parameters >= 0 else None,
        gradients=states.gradients if states.gradients >= 0 else None,
        optimizer_states=states.optimizer if states.optimizer >= 0 else None,
        optimizer=states.optimizer_name,
    )


def _most_growth(recorded: list[tuple[int, RankDigest]]) -> findings.GrowingMemory | None:
    grown = [growth for rank, digest in recorded if (growth := _growth(rank, digest)) is not None]
    return max(grown, key=lambda growth: growth.bytes, default=None)


def _growth(rank: int, digest: RankDigest) -> findings.GrowingMemory | None:
    """How much more a rank has allocated at the end of each step than of the one before, and where it is allocated."""
    ends, kept, text = digest.memory.end_allocated, digest.memory.kept, _texts(digest)
    if len(ends) < _LEAST_STEPS:
        return None
    added = ends[1:].astype(np.float64) - ends[:-1]
    size = float(np.median(added))
    if (added > 0).mean() < _MOST_GROW or size < max(_LEAST_GROWTH * float(np.median(ends)), _LEAST_GROWTH_BYTES):
        return None
    turns = len(ends) - 1
    places = [
        findings.MemoryPlace(text[kept.op[i]], _source(text[kept.own[i]]), int(kept.bytes[i]) // turns)
        for i in range(len(kept))
        if 2 * kept.steps[i] >= turns
    ]
    return findings.GrowingMemory(rank, round(size), len(added), tuple(places[:_PLACES]))


def largest_batch(peak: findings.MemoryRank, capacity: int | None) -> float | None:
    """How many times the batch fits, if activations and what is temporary grow with it; None if it is not known.

    What is reserved but unallocated stays as it is: pieces do not fit larger tensors better.
    """
    scales = sum(peak.categories[findings.MEMORY[kind]] for kind in _OF_THE_BATCH)
    if not capacity or scales <= 0:
        return None
    return max((_USABLE * capacity - peak.reserved) / scales + 1, 0.0)


class MemoryUse(msgspec.Struct, frozen=True, eq=False):
    """Columns of `digest.Memory`, shape (R, S), bytes; 0 where a step does not show it."""

    peak_allocated: Ints
    reserved_at_peak: Ints
    peak_reserved: Ints
    scattered: Ints
    unusable: Ints
    released: Ints
    #: What each rank's device has, shape (R,); 0 where it is not known.
    capacity: Ints


@fact
def _memory(facts: Facts) -> MemoryUse:
    job = facts.job
    needs_device(job)
    if not any(len(digest.memory.time_ns) for digest in job.digests):
        raise MissingFactError(record_again.no_memory(setting(job)))

    def column(name: str) -> Ints:
        values = [
            getattr(digest.memory, name)[index] for digest, index in zip(job.digests, job.step_index, strict=True)
        ]
        known: Ints = np.maximum(np.stack(values), 0)
        return known

    return MemoryUse(
        **{name: column(name) for name in MemoryUse.__struct_fields__ if name != "capacity"},
        capacity=np.array([digest.device_bytes for digest in job.digests], np.int64),
    )
