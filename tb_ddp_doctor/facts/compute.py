"""What rules ask of what devices compute. R = ranks, S = steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import record_again
from tb_ddp_doctor.digest import model
from tb_ddp_doctor.digest.kernels import blocks
from tb_ddp_doctor.facts import Facts, MissingFactError, fact, needs_device
from tb_ddp_doctor.facts.peaks import given, peak, speedup
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Floats, Ints

Number = TypeVar("Number", int, float)


class Copied(msgspec.Struct, frozen=True, eq=False):
    """What each rank copies between host and device in a step, shape (R,); 0 without a device."""

    total_bytes: Floats
    total_ns: Floats

    def bytes_per_second(self, rank: int) -> float:
        """How fast a rank (index) copies; 0 where it copies nothing."""
        return float(self.total_bytes[rank]) * 1e9 / max(float(self.total_ns[rank]), 1.0)


class Phases(msgspec.Struct, frozen=True, eq=False):
    """What the training loop is at."""

    #: Whether the traces show them: without annotations and autograd's nodes all is other.
    known: bool
    #: Time of each phase without what only communicates, shape (R, S, len(PHASES)), ns.
    busy_ns: Ints


class Gemms(msgspec.Struct, frozen=True, eq=False):
    """Products of matrices, convolutions and attention, on devices that have tensor cores."""

    #: Columns have shape (R, S).
    work: model.GemmWork
    #: The kernels off the tensor cores that take most time, on all ranks, and the sizes of what the operators of the
    #: longest ones were given, "" where that is not told.
    slowest: tuple[tuple[str, str], ...]
    #: How much faster half precision is than float32 on every rank's device, at most; None if it is not known.
    fastest: float | None
    #: What every rank's device can do.
    has_tf32: bool
    has_bfloat16: bool


class KernelKind(msgspec.Struct, frozen=True):
    """Launches of one kernel with one grid in a step, the mean over a rank's steps; `blocks` are the grid's."""

    count: float
    total_ns: float
    blocks: float

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count


class KernelTable(msgspec.Struct, frozen=True, eq=False):
    """Compute kernels of each rank, in a step: records may have other numbers of steps."""

    _job: Job

    def launches(self) -> Floats:
        """Kernels that each rank launches in a step, shape (R,)."""
        return np.array([digest.kernels.count.sum() / max(len(digest.steps), 1) for digest in self._job.digests])

    def of(self, rank: int) -> dict[tuple[str, str], KernelKind]:
        """The kernels of a rank (index) by name and grid."""
        digest = self._job.digests[rank]
        kinds, text, steps = digest.kernels, digest.strings, max(len(digest.steps), 1)
        return {
            (text[name], text[shape]): KernelKind(count / steps, total / steps, blocks(text[shape]))
            for name, shape, count, total in zip(kinds.name, kinds.shape, kinds.count, kinds.total_ns, strict=True)
        }


class Utilization(msgspec.Struct, frozen=True, eq=False):
    """What of the device's peak the model uses."""

    #: Operations of the model, and with those that are done again, shape (R, S).
    model_flops: Ints
    flops: Ints
    device: str
    #: Of most of the time in products.
    precision: str
    #: Operations per second of a rank's device, on average; None if it is not known.
    peak: float | None


class BatchWork(msgspec.Struct, frozen=True, eq=False):
    """How much the batches give each rank to compute, by the shapes of its operators."""

    #: Operations of GEMMs, convolutions and attention, with those that are done again, shape (R, S).
    flops: Ints


class LongKernel(msgspec.Struct, frozen=True, eq=False):
    """Kernels of one name on one rank."""

    name: str
    #: 0 to 1, weighed by time.
    occupancy: float
    #: Mean of one, and all of a step on its rank, ns.
    mean_ns: float
    step_ns: float
    #: The rank (index), and its longest one on its own clock.
    rank: int
    start_ns: int
    end_ns: int


class LongKernels(msgspec.Struct, frozen=True, eq=False):
    """Kernels that are no products of matrices, those that take most time first."""

    #: Whether the traces estimate occupancy.
    estimated: bool
    kinds: tuple[LongKernel, ...]
    #: Mean length of a step over all that each rank's record has, shape (R,), ns: kernels are known for these together.
    record_step_ns: NDArray[np.float64]


@fact
def _computed(facts: Facts) -> model.KernelWork:
    needs_device(facts.job)
    return facts.job.work(lambda work: work.kernels)


@fact
def _copies(facts: Facts) -> model.CopyWork:
    needs_device(facts.job)
    return facts.job.work(lambda work: work.copies)


@fact
def _copied(facts: Facts) -> Copied:
    work = facts.job.work(lambda work: work.copies)
    return Copied(
        (work.pinned_bytes + work.pageable_bytes).mean(axis=1), (work.pinned_ns + work.pageable_ns).mean(axis=1)
    )


@fact
def _phases(facts: Facts) -> Phases:
    job = facts.job
    times = job.work(lambda work: work.phases)
    return Phases(job.has_phases, times.device_ns - times.exposed_ns)


@fact
def _products(facts: Facts) -> Gemms:
    job = facts.job
    needs_device(job)
    devices = [
        (digest.device, _of_device(digest, digest.header.capabilities)) for digest in job.digests if digest.has_device
    ]
    work = job.work(lambda work: work.gemms)
    can = [names.has_tensor_cores(*device) for device in devices]
    if not work.tensor_ns.any() and not any(can):
        if any(known is None for known in can):
            raise MissingFactError("The traces do not show whether the GPUs have tensor cores.")
        raise MissingFactError(f"The GPUs have no tensor cores ({devices[0][0]}).")
    return Gemms(
        work=work,
        slowest=_slowest_products(job),
        fastest=min((ratio for device, _ in devices if (ratio := speedup(device)) is not None), default=None),
        has_tf32=all(names.has_tf32(*device) for device in devices),
        has_bfloat16=all(names.has_bfloat16_cores(*device) for device in devices),
    )


@fact
def _optimizers(facts: Facts) -> model.OptimizerWork:
    job = facts.job
    needs_device(job)
    optimizer = job.work(lambda work: work.optimizer)
    if not optimizer.optimizer_steps.any():
        raise MissingFactError("No optimizer's step appears in the traces (torch's optimizers annotate theirs).")
    return optimizer


@fact
def _attentions(facts: Facts) -> model.AttentionWork:
    job = facts.job
    needs_device(job)
    if not any(digest.header.has_shapes for digest in job.digests):
        raise MissingFactError(record_again.no_shapes(setting(job)))
    return job.work(lambda work: work.attention)


@fact
def _compiled(facts: Facts) -> model.CompiledWork:
    return facts.job.work(lambda work: work.compiled)


@fact
def _redundant(facts: Facts) -> model.RedundantWork:
    job = facts.job
    needs_device(job)
    if not all(digest.has_launches for digest in job.digests):
        raise MissingFactError("It needs launch records, to tell which operator a kernel is of.")
    return job.work(lambda work: work.redundant)


def _of_device(digest: model.RankDigest, measured: Mapping[int, Number]) -> Number | None:
    """What the trace tells of the rank's device."""
    numbers = [number for number, name in digest.header.devices.items() if name == digest.device]
    return next((measured.get(number) for number in numbers), None)


def _slowest_products(job: Job) -> tuple[tuple[str, str], ...]:
    taken: Counter[str] = Counter()
    longest: dict[str, tuple[int, str]] = {}
    for digest in job.digests:
        table, text = digest.kernels, digest.strings
        lengths = table.longest_end_ns - table.longest_start_ns
        columns = (table.name, table.inputs, table.total_ns, lengths)
        for name, inputs, total, length in zip(*(column.tolist() for column in columns), strict=True):
            kernel = text[name]
            if names.product(kernel) in (names.Product.FLOAT32, names.Product.MISALIGNED):
                taken[kernel] += total
                longest[kernel] = max(longest.get(kernel, (0, "")), (length, text[inputs]))
    return tuple((kernel, longest[kernel][1]) for kernel, _ in taken.most_common(2))


@fact
def _kernels(facts: Facts) -> KernelTable:
    return KernelTable(facts.job)


@fact
def utilization(facts: Facts) -> Utilization:
    """What of the device's peak the job's model uses."""
    job = facts.job
    needs_device(job)
    if not any(digest.header.has_shapes for digest in job.digests):
        raise MissingFactError(record_again.no_shapes(setting(job)))
    work = job.work(lambda work: work.flops)
    if not work.model_flops.any():
        raise MissingFactError("No GEMM, convolution or attention appears among the operators.")
    taken: Counter[names.Precision] = Counter()
    for digest in job.digests:
        for name, total in zip(digest.kernels.name.tolist(), digest.kernels.total_ns.tolist(), strict=True):
            if (precision := names.precision(digest.strings[name])) is not None:
                taken[precision] += total
    precision = taken.most_common(1)[0][0] if taken else names.Precision.FLOAT32
    devices = [(digest.device, _of_device(digest, digest.header.multiprocessors) or 0) for digest in job.digests]
    peaks = [
        _given(job, device, precision) or peak(device, multiprocessors, precision)
        for device, multiprocessors in devices
    ]
    known = [each for each in peaks if each is not None]
    return Utilization(
        model_flops=work.model_flops,
        flops=work.model_flops + work.repeated_flops,
        device=devices[0][0],
        precision=precision.value,
        peak=sum(known) / len(known) if len(known) == len(peaks) else None,
    )


@fact
def batch_work(facts: Facts) -> BatchWork | None:
    """How much each rank computes in each step; None where the shapes of some rank do not tell."""
    work = facts.job.work(lambda work: work.flops)
    return BatchWork(work.model_flops + work.repeated_flops) if work.model_flops.all() else None


def _given(job: Job, device: str, precision: names.Precision) -> float | None:
    """Operations per second of a device as the user says; None where the user does not."""
    said = given(job.peaks, device)
    rate: float | None = getattr(said, precision.name.lower()) if said else None
    return None if rate is None else rate * 1e12


@fact
def _long_kernels(facts: Facts) -> LongKernels:
    job = facts.job
    needs_device(job)
    by_name = (kind for rank, digest in enumerate(job.digests) for kind in _by_name(rank, digest))
    return LongKernels(
        estimated=any(digest.kernels.estimated_ns.any() for digest in job.digests),
        kinds=tuple(sorted(by_name, key=lambda kind: (-kind.step_ns, kind.name, kind.rank))),
        record_step_ns=np.array([(digest.steps.end_ns - digest.steps.start_ns).mean() for digest in job.digests]),
    )


def _by_name(rank: int, digest: model.RankDigest) -> Iterator[LongKernel]:
    """The rank's kernels whose occupancy is known and that multiply no matrices."""
    table = digest.kernels
    known = np.flatnonzero(table.estimated_ns)
    if not len(known):
        return
    distinct, which = np.unique(table.name[known], return_inverse=True)
    estimated, occupied, total, count = (
        np.bincount(which, weights=column[known], minlength=len(distinct))
        for column in (table.estimated_ns, table.occupied_ns, table.total_ns, table.count)
    )
    length = table.longest_end_ns - table.longest_start_ns
    for i, name in enumerate(distinct.tolist()):
        if names.product(digest.strings[name]) is not names.Product.NONE:
            continue
        rows = known[which == i]
        longest = rows[length[rows].argmax()]
        yield LongKernel(
            name=digest.strings[name],
            occupancy=float(occupied[i] / max(estimated[i], 1)),
            mean_ns=float(total[i] / max(count[i], 1)),
            step_ns=float(total[i] / max(len(digest.steps), 1)),
            rank=rank,
            start_ns=int(table.longest_start_ns[longest]),
            end_ns=int(table.longest_end_ns[longest]),
        )
