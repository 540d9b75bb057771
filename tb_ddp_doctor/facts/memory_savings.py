"""What would save memory at the peak, how much, and what a step would take longer.

Bytes are those that the recording shows on the rank with the highest peak. Costs are of what is measured too: of the
AllReduces, the pinned copies and the forward pass of this job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import MemoryCategory, RankDigest
from tb_ddp_doctor.facts import Facts, MissingFactError
from tb_ddp_doctor.facts.arrivals import traffic
from tb_ddp_doctor.facts.sharding import sharding
from tb_ddp_doctor.findings import MemoryRank, MemorySaving
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.names import Phase

#: Copies from and to pinned memory where the trace has none to measure: PCIe 4.0 x16, bytes per second.
_PCIE = 25e9
#: A saving is shown from this share of the peak on, and from so many bytes on.
_LEAST_SHARE, _LEAST_BYTES = 0.01, 1 << 20
#: Classes of modules whose checkpointing is shown, those that save most.
_MODULES = 2
#: A process may reserve this much more than it has allocated at most, for rounding and pieces.
_HEADROOM = 1.1


class _Job(msgspec.Struct, frozen=True):
    """What the savings are computed from; bytes, ns, bytes per second."""

    peak: MemoryRank
    digest: RankDigest
    #: Ranks that hold the same parameters, at most.
    ranks: int
    is_sharded: bool
    #: Time of an AllReduce for each byte; None where none is measured.
    reduce_ns_per_byte: float | None
    copy_rate: float
    is_copy_measured: bool
    forward_ns: float

    def of(self, category: str) -> int:
        """What a category has at the peak; on the CPU, which does not count from before, what its states take."""
        states = self.digest.memory.states
        uncounted = {
            "parameters": states.parameters,
            "gradients": states.gradients,
            "optimizer_states": states.optimizer,
        }
        known = self.peak.categories[category]
        return max(known, uncounted.get(category, 0)) if self.digest.memory.on_host else known

    def gather_ms(self) -> float | None:
        """An all-gather of the parameters: half of what an AllReduce of as many bytes takes."""
        rate = self.reduce_ns_per_byte
        return None if rate is None else rate * self.of("parameters") / 2 / 1e6

    def copy_ms(self, size: float) -> float:
        return size / self.copy_rate * 1e3

    @property
    def copied_at(self) -> str:
        rate = wording.gigabytes_per_second(self.copy_rate)
        return f"{rate}, as the pinned copies of this job" if self.is_copy_measured else f"{rate}, as PCIe 4.0 x16 has"


def savings(facts: Facts, peak: MemoryRank, digest: RankDigest) -> tuple[MemorySaving, ...]:
    """What would save memory on the rank with the highest peak, by bytes."""
    job = _job(facts, peak, digest)
    every = [*_sharding(job), *_offloading(job), *_checkpointing(job), *_states(job), *_allocator(job)]
    least = max(_LEAST_SHARE * peak.allocated, _LEAST_BYTES)
    return tuple(sorted((one for one in every if one.bytes >= least), key=lambda one: -one.bytes))


def _job(facts: Facts, peak: MemoryRank, digest: RankDigest) -> _Job:
    job = facts.job
    ranks, per_byte = job.world_size, None
    try:
        reduces = [one for one in facts.get(traffic) if one.kind == "all_reduce" and one.algorithm_rate > 0]
    except MissingFactError:
        reduces = []
    if reduces:
        largest = max(reduces, key=lambda one: one.bytes_per_step)
        ranks, per_byte = largest.size, 1e9 / largest.algorithm_rate
    rate, is_measured = copy_rate(job)
    forward = digest.work.phases.device_ns[:, Phase.FORWARD]
    return _Job(
        peak=peak,
        digest=digest,
        ranks=ranks,
        is_sharded=sharding(job) is not None,
        reduce_ns_per_byte=per_byte,
        copy_rate=rate,
        is_copy_measured=is_measured,
        # A trace without marked steps is one step.
        forward_ns=float(np.mean(forward)) / (1 if digest.has_steps else len(digest.memory.end_allocated) + 1),
    )


def copy_rate(job: Job) -> tuple[float, bool]:
    """Bytes per second of copies from and to pinned memory, and whether the job's own ones tell it."""
    copied = sum(int(each.work.copies.pinned_bytes.sum()) for each in job.digests)
    copying = sum(int(each.work.copies.pinned_ns.sum()) for each in job.digests)
    is_measured = copied >= _LEAST_BYTES and copying > 0
    return (copied / copying * 1e9 if is_measured else _PCIE), is_measured


def _sharding(job: _Job) -> Iterator[MemorySaving]:
    """ZeRO (Rajbhandari et al., 2020, section 5): stage by stage, each rank keeps one of N parts."""
    if job.ranks < 2 or job.is_sharded:
        return
    share = 1 - 1 / job.ranks
    saved = 0.0
    cost = job.gather_ms()
    stages = (
        ("optimizer_states", "the optimizer's states", _ZERO_1),
        ("gradients", "gradients too", _ZERO_2),
        ("parameters", "parameters too", _ZERO_3),
    )
    for stage, (category, what, fix) in enumerate(stages, 1):
        saved += share * job.of(category)
        gathers = "once more in backward" if stage == 3 else "after the optimizer's step"
        yield MemorySaving(
            name=f"zero_{stage}",
            title=f"ZeRO stage {stage}: shard {what}",
            bytes=int(saved),
            cost_ms=cost,
            why=f"Each of {job.ranks} ranks keeps 1/{job.ranks}. Parameters are all-gathered {gathers}: half of an "
            "AllReduce of their size, as measured, if compute hides none of it.",
            fix=fix,
        )


def _offloading(job: _Job) -> Iterator[MemorySaving]:
    if job.digest.memory.on_host:
        return
    moved = job.of("gradients") + job.of("parameters")
    yield MemorySaving(
        name="offload_optimizer",
        title="Offload the optimizer's states to the CPU",
        bytes=job.of("optimizer_states"),
        cost_ms=job.copy_ms(moved),
        why=f"Gradients go to the CPU and parameters come back, at {job.copied_at}; the CPU's own update comes on top.",
        fix=_OFFLOAD_OPTIMIZER,
    )
    activations = job.of("activations")
    yield MemorySaving(
        name="offload_activations",
        title="Offload activations to the CPU",
        bytes=activations,
        cost_ms=job.copy_ms(2 * activations),
        why=f"All of them go to the CPU and come back, at {job.copied_at}, if compute hides none of it.",
        fix=_OFFLOAD_ACTIVATIONS,
    )


def _checkpointing(job: _Job) -> Iterator[MemorySaving]:
    """Of modules that repeat, each is recomputed alone; else of segments, the square root of as many as there are.

    Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4.
    """
    activations, table = job.of("activations"), job.digest.memory.modules
    outermost = int(table.forward_ns.max(initial=0))
    saving = table.bytes - table.output_bytes - table.largest_bytes
    repeated = np.flatnonzero((table.count > 1) & (saving > 0))
    for i in repeated[np.argsort(-saving[repeated], kind="stable")[:_MODULES]].tolist():
        name = job.digest.strings[table.module[i]]
        yield MemorySaving(
            name=f"checkpoint_{name}",
            title=f"Activation checkpointing of each {name}",
            bytes=int(saving[i]),
            cost_ms=job.forward_ns * int(table.forward_ns[i]) / max(outermost, 1) / 1e6,
            why=f"{int(table.count[i])} modules: what each hands on is kept, and the rest of one at a time. "
            "Their share of the forward pass runs once more.",
            fix=_CHECKPOINT.format(module=name),
        )
    blocks = job.digest.memory.largest
    pieces = blocks.bytes[blocks.category == MemoryCategory.ACTIVATION]
    if activations and len(pieces):
        # As many equal ones as there may be of the largest.
        segments = math.sqrt(activations / int(pieces[0]))
        yield MemorySaving(
            name="checkpoint_forward",
            title="Activation checkpointing of the whole forward pass",
            bytes=max(int(activations * (1 - 2 / segments)), 0) if segments > 2 else 0,
            cost_ms=job.forward_ns / 1e6,
            why=f"In {wording.decimals(segments, 0)} segments: their inputs are kept, and one segment's activations at "
            "a time. The forward pass runs once more.",
            fix=_CHECKPOINT.format(module="segment"),
        )


def _states(job: _Job) -> Iterator[MemorySaving]:
    if job.digest.memory.states.element == 4:
        yield MemorySaving(
            name="bf16_states",
            title="Optimizer states in bf16",
            bytes=job.of("optimizer_states") // 2,
            cost_ms=0.0,
            why="They are float32, as the gradients are: half of the bytes. The update reads and writes less.",
            fix=_BF16,
        )


def _allocator(job: _Job) -> Iterator[MemorySaving]:
    seen = job.digest.memory
    if seen.on_host:
        return
    unallocated = job.peak.reserved - job.peak.allocated
    yield MemorySaving(
        name="expandable_segments",
        title="Expandable segments",
        bytes=unallocated,
        cost_ms=0.0,
        why="So much is reserved but unallocated at the peak. In segments that grow, free pieces join: at most all "
        "of it.",
        fix=_EXPANDABLE,
    )
    most = int(seen.peak_reserved.max(initial=0))
    excess = most - int(_HEADROOM * job.peak.allocated)
    steady = not seen.scattered.any() and not seen.released.any()
    if steady:
        yield MemorySaving(
            name="empty_cache",
            title="torch.cuda.empty_cache() after validation",
            bytes=excess,
            cost_ms=0.0,
            why="The steps reserve nothing, so what is reserved beyond their peak and a tenth was needed before them. "
            "It is given back once; steps take no longer.",
            fix=_EMPTY_CACHE,
        )
    if capacity := job.digest.device_bytes:
        fraction = min(_HEADROOM * job.peak.allocated / capacity, 1.0)
        yield MemorySaving(
            name="memory_fraction",
            title=f"Limit the process to {fraction:.0%} of the GPU",
            bytes=excess,
            cost_ms=None,
            why="A limit of the peak and a tenth: the allocator gives free segments back before it takes more. What it "
            "gives back it may have to take again.",
            fix=_FRACTION.format(fraction=wording.decimals(fraction, 2)),
        )


_ZERO_1 = """\
Wrap the optimizer: each rank updates a part of the parameters.

from torch.distributed.optim import ZeroRedundancyOptimizer
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)"""
_ZERO_2 = """\
FSDP that keeps parameters gathered after forward.

from torch.distributed.fsdp import fully_shard
for block in model.blocks:
    fully_shard(block, reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)"""
_ZERO_3 = """\
FSDP that gathers parameters block by block.

from torch.distributed.fsdp import fully_shard
for block in model.blocks:
    fully_shard(block)
fully_shard(model)"""
_OFFLOAD_OPTIMIZER = """\
FSDP keeps parameters, gradients and states on the CPU.

from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
fully_shard(model, offload_policy=CPUOffloadPolicy())"""
_OFFLOAD_ACTIVATIONS = """\
Keep what backward needs in pinned memory of the CPU.

with torch.autograd.graph.save_on_cpu(pin_memory=True):
    loss = model(batch)"""
_CHECKPOINT = """\
Keep the inputs, and compute the rest again in backward.

from torch.utils.checkpoint import checkpoint
x = checkpoint({module}, x, use_reentrant=False)"""
_BF16 = """\
Use an optimizer that keeps its states in 16 or 8 bits, and watch the loss.

from torchao.optim import AdamW8bit   # 8 bits: a quarter"""
_EXPANDABLE = """\
Use expandable segments, so that free pieces join.

PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ..."""
_EMPTY_CACHE = """\
Give back what validation reserved.

validate(model)
torch.cuda.empty_cache()"""
_FRACTION = """\
Set it before the first allocation.

torch.cuda.set_per_process_memory_fraction({fraction})"""
