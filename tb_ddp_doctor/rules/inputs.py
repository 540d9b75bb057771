"""What rules may ask for, by parameter name: small views of a Job, or `MissingInputError` with what would be needed.

R = ranks, S = steps, M = matched collectives.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, cast

import numpy as np

from tb_ddp_doctor.digest.model import CodeOf, RankDigest, RankOwner, Starved, StepWork
from tb_ddp_doctor.digest.starvation import RECORDING_NS
from tb_ddp_doctor.findings import Evidence, Network, Source
from tb_ddp_doctor.job import whatif
from tb_ddp_doctor.job.budget import complete, seen
from tb_ddp_doctor.job.communication import Traffic, communication
from tb_ddp_doctor.job.links import Link, links
from tb_ddp_doctor.job.model import Budget, Job
from tb_ddp_doctor.job.peaks import peak, speedup
from tb_ddp_doctor.job.pipeline import Pipeline, pipeline
from tb_ddp_doctor.job.repeats import Repeats, repeats
from tb_ddp_doctor.job.sharding import Sharding, sharding
from tb_ddp_doctor.job.transfers import Transfers, transfers
from tb_ddp_doctor.job.unused import UnusedSearch, unused_search
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.losses import tells_of_lost_events
from tb_ddp_doctor.trace.model import Ints

Number = TypeVar("Number", int, float)

#: Up to three sizes; CUDA's largest has ten digits.
_GRID = re.compile(r"\s*\[\s*\d{1,10}\s*(,\s*\d{1,10}\s*){0,2}\]\s*", re.ASCII)


class MissingInputError(Exception):
    """An input that this job cannot give. Its text says what would be needed, for users."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Who took part, when, and how far the numbers can be trusted."""

    #: Shape (R,) and (S,).
    ranks: Ints
    #: Shape (R,): node and process of each rank, "" where unknown.
    nodes: tuple[str, ...]
    pids: tuple[str, ...]
    steps: Ints
    #: Mean step time, ns.
    step_ns: float
    #: Spread of the ends of matched collectives after alignment, ns; 0 for one rank alone.
    residual_ns: float
    #: What recording is estimated to cost each rank's host in a step, shape (R,), ns.
    recording_ns: np.ndarray[tuple[int], np.dtype[np.float64]]
    #: Whether the trace has ProfilerSteps.
    has_steps: bool
    #: Whether a device computes; else the CPU does.
    has_device: bool
    #: Ranks of the world without a trace: waiting for them cannot be told from transfer.
    missing_ranks: int

    def rank_numbers(self, indices: Ints) -> tuple[int, ...]:
        return tuple(int(rank) for rank in self.ranks[indices])

    @property
    def all_ranks(self) -> tuple[int, ...]:
        return tuple(self.ranks.tolist())

    @property
    def all_steps(self) -> tuple[int, ...]:
        return tuple(self.steps.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Who was late at which collective."""

    #: Shape (M,): step number, index of the rank that arrived last, kind.
    step: Ints
    last: Ints
    kind: tuple[str, ...]
    #: Exposed wait of the rank that waited longest, shape (M,), ns, and that rank's index.
    longest_wait_ns: Ints
    longest_waiter: Ints
    #: When that rank arrived and when the wait ended, on its own clock, shape (M,), ns.
    wait_start_ns: Ints
    wait_end_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """Waiting for ranks that have no trace."""

    #: Exposed, shape (R, S), ns.
    wait_ns: Ints
    #: The ranks without a trace.
    ranks: tuple[int, ...]
    #: The longest wait of the rank (index) that waits most, on its own clock, ns; and in what.
    waiter: int
    start_ns: int
    end_ns: int
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Columns of `digest.StepWork`, shape (R, S)."""

    kernels: Ints
    kernel_ns: Ints
    backward_compute_ns: Ints
    pageable_copies: Ints
    pageable_bytes: Ints
    pageable_exposed_ns: Ints
    pageable_blocked_ns: Ints
    unnamed_copies: Ints
    pinned_bytes: Ints
    pinned_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """What the training loop is at."""

    #: Whether the traces tell: without annotations and autograd's nodes all is other.
    told: bool
    #: Time of each phase without what only communicates, shape (R, S, len(PHASES)), ns.
    own_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """Products of matrices, convolutions and attention, on devices that have tensor cores."""

    #: Columns of `digest.StepWork`, shape (R, S).
    tensor_ns: Ints
    float32_products: Ints
    float32_ns: Ints
    misaligned_products: Ints
    misaligned_ns: Ints
    slow_product_start_ns: Ints
    slow_product_end_ns: Ints
    #: The kernels off the tensor cores that take most time, on all ranks, and the sizes of what the operators of the
    #: longest ones were given, "" where that is not told.
    slowest: tuple[tuple[str, str], ...]
    #: How much faster half precision is than float32 on every rank's device, at most; None if it is not known.
    fastest: float | None
    #: What every rank's device can do.
    has_tf32: bool
    has_bfloat16: bool


@dataclass(frozen=True, slots=True, eq=False)
class Optimizers:
    """What torch optimizers' steps do; columns of `digest.StepWork`, shape (R, S)."""

    optimizer_steps: Ints
    optimizer_kernels: Ints
    optimizer_ns: Ints
    optimizer_host_ns: Ints
    optimizer_start_ns: Ints
    optimizer_end_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Attentions:
    """Attention by separate operations; columns of `digest.StepWork`, shape (R, S)."""

    attention_fallbacks: Ints
    score_products_ns: Ints
    score_passes: Ints
    score_passes_ns: Ints
    score_pass_start_ns: Ints
    score_pass_end_ns: Ints


@dataclass(frozen=True, slots=True)
class KernelKind:
    """All launches of one kernel with one grid, on one rank; `blocks` are the grid's."""

    count: int
    total_ns: int
    blocks: int

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count


@dataclass(frozen=True, slots=True, eq=False)
class KernelTable:
    """Compute kernels of each rank."""

    _job: Job

    def launches(self) -> Ints:
        """Kernels that each rank launched, shape (R,)."""
        return np.array([digest.kernels.count.sum() for digest in self._job.digests], np.int64)

    def of(self, rank: int) -> dict[tuple[str, str], KernelKind]:
        """The kernels of a rank (index) by name and grid."""
        digest = self._job.digests[rank]
        kinds, text = digest.kernels, digest.strings
        return {
            (text[name], text[shape]): KernelKind(int(count), int(total), _blocks(text[shape]))
            for name, shape, count, total in zip(kinds.name, kinds.shape, kinds.count, kinds.total_ns, strict=True)
        }


@dataclass(frozen=True, slots=True, eq=False)
class Utilization:
    """What of the device's peak the model uses."""

    #: Operations of the model, and with those that are done again, shape (R, S).
    model_flops: Ints
    flops: Ints
    device: str
    #: Of most of the time in products.
    precision: str
    #: Operations per second of a rank's device, on average; None if it is not known.
    peak: float | None


@dataclass(frozen=True, slots=True, eq=False)
class LongKernel:
    """Kernels of one name on the rank that spends most time on them."""

    name: str
    #: 0 to 1, weighed by time.
    occupancy: float
    #: Mean of one, and all of a step, ns.
    mean_ns: float
    step_ns: float
    #: The rank (index), and its longest one on its own clock.
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class LongKernels:
    """Kernels that are no products of matrices, those that take most time first."""

    #: Whether the traces estimate occupancy.
    estimated: bool
    kinds: tuple[LongKernel, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Loaders:
    """DataLoaders as the traces show them."""

    #: "single_process" or "workers".
    kind: str
    #: Host time in `__next__`, shape (R, S), ns.
    loading_ns: Ints


#: Which code an owner's time is of; the host's where nothing stands here.
_CODE_OF = {
    RankOwner.COMPUTE: CodeOf.COMPUTE,
    RankOwner.COPY: CodeOf.COMPUTE,
    RankOwner.COMMUNICATION: CodeOf.COMMUNICATION,
}


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where in the traces an owner's time lies, and in the user's own code, if stacks tell."""

    _job: Job

    def longest(self, rank: int, step: int, owner: RankOwner, what: str) -> Evidence:
        """The longest piece of an owner in one step of one rank (indices), else that step's whole window."""
        pieces = self._job.digests[rank].pieces
        own_step = self._job.step_index[rank, step]
        rows = np.flatnonzero((pieces.step == own_step) & (pieces.owner == owner))
        if not len(rows):
            return self.window(rank, step, what)
        row = rows[(pieces.end_ns[rows] - pieces.start_ns[rows]).argmax()]
        return self._evidence(rank, step, int(pieces.start_ns[row]), int(pieces.end_ns[row]), owner, what)

    def window(self, rank: int, step: int, what: str) -> Evidence:
        """A rank's whole window of a step (indices)."""
        start = int(self._job.budget.start_ns[rank, step])
        return self._evidence(rank, step, start, start + int(self._job.budget.window_ns[rank, step]), None, what)

    def between(
        self, rank: int, start_ns: int, end_ns: int, owner: RankOwner, what: str, function: str = ""
    ) -> Evidence | None:
        """The part of a stretch that lies in the step of a rank (index) that has most of it; None if none has any.

        Collectives may run before the window of the step that launched them. `function` is the user's own one around
        it, if that is known already.
        """
        starts = self._job.budget.start_ns[rank]
        start = np.maximum(starts, start_ns)
        end = np.minimum(starts + self._job.budget.window_ns[rank], end_ns)
        step = int((end - start).argmax())
        if end[step] <= start[step]:
            return None
        return self._evidence(rank, step, int(start[step]), int(end[step]), owner, what, function)

    def _evidence(
        self,
        rank: int,
        step: int,
        start_ns: int,
        end_ns: int,
        owner: RankOwner | None,
        what: str,
        function: str = "",
    ) -> Evidence:
        if owner is not None and not function:
            function = self._function(rank, start_ns, end_ns, owner)
        found = names.source(function)
        source = Source(*found) if found else None
        return Evidence(int(self._job.ranks[rank]), int(self._job.steps[step]), start_ns, end_ns, what, source)

    def _function(self, rank: int, start_ns: int, end_ns: int, owner: RankOwner) -> str:
        """The user's own function that has most of a window of an owner's time, as stacks name it; "" if none has."""
        digest = self._job.digests[rank]
        code = digest.code
        of = _CODE_OF.get(owner, CodeOf.HOST) if digest.has_device else CodeOf.HOST
        overlap = np.minimum(code.end_ns, end_ns) - np.maximum(code.start_ns, start_ns)
        rows = np.flatnonzero((code.of == of) & (overlap > 0))
        if not len(rows):
            return ""
        total = np.bincount(code.function[rows], weights=overlap[rows])
        most = int(total.argmax())
        return digest.strings[most] if 2 * total[most] >= end_ns - start_ns else ""


@dataclass(frozen=True, slots=True)
class Doing:
    """One thing that the host does while host and device seem to do nothing, over some ranks."""

    #: The innermost Python function or annotation: "<built-in function collect>", "train.py(12): log".
    what: str
    #: The innermost of the user's own functions; "" if none.
    own: str
    #: Mean over these ranks and all steps, ns.
    mean_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class Stalls:
    """Stretches in which device and host both do nothing."""

    _job: Job
    #: Shape (R, S), ns, in stretches of at least `starvation.LONG_STALL_NS`.
    long_ns: Ints
    #: The same by the host's phase, shape (R, S, len(PHASES)).
    phase_ns: Ints

    def doing(self, ranks: Sequence[int]) -> tuple[Doing, ...]:
        """What the host of these ranks (indices) does in them, the most of it first.

        Empty where the traces have neither stacks nor annotations.
        """
        return _doing(self._job, ranks)


@dataclass(frozen=True, slots=True)
class HoldingCalls:
    """Calls of one name in one operator that hold the host, over all ranks."""

    call: str
    #: "" outside of all operators.
    op: str
    #: The user's own function around the one that starves longest: "train.py(41): step"; "" without stacks.
    own: str
    #: Calls, host time in them, ns, and starvation of the device charged to them, ns: mean over ranks and steps.
    count: float
    blocked_ns: float
    lost_ns: float
    #: The one that starves its device longest: index of its rank; ns on that rank's own clock.
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Starvation:
    """Device idle that an earlier launch would have shortened, by what delayed the launch."""

    _job: Job
    #: Shape (R, S, len(Starved)), ns.
    _starved_ns: Ints

    def of(self, cause: Starved) -> Ints:
        """Shape (R, S), ns."""
        picked: Ints = self._starved_ns[:, :, cause]
        return picked

    def calls(self, kind: Starved) -> list[HoldingCalls]:
        """The calls of a kind by name and operator, those that cost most first."""
        merged: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for rank, digest in enumerate(self._job.digests):
            table, text = digest.blocking, digest.strings
            for row in np.flatnonzero(table.kind == kind).tolist():
                merged.setdefault((text[table.call[row]], text[table.op[row]]), []).append((rank, row))
        found = [self._merge(call, op, rows) for (call, op), rows in merged.items()]
        return sorted(found, key=lambda calls: (-calls.lost_ns, -calls.blocked_ns, calls.call, calls.op))

    def _merge(self, call: str, op: str, rows: list[tuple[int, int]]) -> HoldingCalls:
        tables = [self._job.digests[rank].blocking for rank, _ in rows]
        per_step = [1 / (len(self._job.digests[rank].steps) * len(self._job.ranks)) for rank, _ in rows]

        def mean(column: str) -> float:
            return float(
                sum(
                    getattr(table, column)[row] * share
                    for (_, row), table, share in zip(rows, tables, per_step, strict=True)
                )
            )

        longest = max(
            range(len(rows)), key=lambda i: tables[i].worst_end_ns[rows[i][1]] - tables[i].worst_start_ns[rows[i][1]]
        )
        rank, row = rows[longest]
        table = tables[longest]
        return HoldingCalls(
            call,
            op,
            self._job.digests[rank].strings[table.own[row]],
            mean("count"),
            mean("blocked_ns"),
            mean("lost_ns"),
            rank,
            int(table.worst_start_ns[row]),
            int(table.worst_end_ns[row]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """Columns of `digest.Memory`, shape (R, S), bytes; 0 where a step does not show it."""

    peak_allocated: Ints
    reserved_at_peak: Ints
    peak_reserved: Ints
    scattered: Ints
    released: Ints
    #: What each rank's device has, shape (R,); 0 where it is not known.
    capacity: Ints


@dataclass(frozen=True, slots=True)
class Quality:
    """What the traces have, and what they lack."""

    #: Files that lack events which they should have.
    damaged: int
    has_shapes: bool
    has_launches: bool
    #: Collectives that were matched between ranks, and the share of calls that found no partner.
    matched: int
    unmatched_share: float
    #: Whether ranks only send to each other, so that there is nothing to match.
    only_messages: bool


def _frame(job: Job) -> Frame:
    return Frame(
        ranks=job.ranks,
        nodes=job.nodes,
        pids=tuple(digest.pid for digest in job.digests),
        steps=job.steps,
        step_ns=job.step_ns,
        residual_ns=job.clock.residual_ns or 0.0,
        recording_ns=job.work("host_events").mean(axis=1) * RECORDING_NS,
        has_steps=all(digest.has_steps for digest in job.digests),
        has_device=job.has_device,
        missing_ranks=len(job.missing_ranks),
    )


def _budget(job: Job) -> Budget:
    return job.budget


def _whatif(job: Job) -> whatif.WhatIf:
    return whatif.WhatIf.of(job)


def _arrivals(job: Job) -> Arrivals:
    if len(job.ranks) < 2:
        raise MissingInputError("It compares ranks, and only one rank's trace is here.")
    if not len(job.matched):
        raise MissingInputError("No collective could be matched between ranks, so nobody's waiting is known.")
    waiting, matched = job.waiting, job.matched
    waiter = waiting.exposed_ns.argmax(axis=1)
    each = np.arange(len(matched))
    start = np.where(matched.present, matched.arrival_ns, 0)[each, waiter]
    last = waiting.arrival_ns.max(axis=1)
    end = start + np.maximum(last - waiting.arrival_ns[each, waiter], 0)
    return Arrivals(
        step=matched.step,
        last=waiting.last,
        kind=matched.kind,
        longest_wait_ns=waiting.exposed_ns[each, waiter],
        longest_waiter=waiter,
        wait_start_ns=start,
        wait_end_ns=end,
    )


def _absent(job: Job) -> Absent:
    wait_ns = job.waiting.absent_ns
    waiter = int(wait_ns.sum(axis=1).argmax())
    if not wait_ns[waiter].any():
        return Absent(wait_ns, job.missing_ranks, waiter, 0, 0, "")
    digest = job.digests[waiter]
    last_ns = job.waiting.arrival_ns.max(axis=1, initial=np.iinfo(np.int64).min)
    start, end = (moment(digest, job.matched, waiter, last_ns, job.clock) for moment in (seen, complete))
    longest = int(np.where(np.isin(digest.collectives.step, job.step_index[waiter]), end - start, -1).argmax())
    kind = digest.strings[digest.collectives.kind[longest]]
    return Absent(wait_ns, job.missing_ranks, waiter, int(start[longest]), int(end[longest]), kind)


def _transfers(job: Job) -> Transfers:
    _needs_matches(job)
    return transfers(job)


def _links(job: Job) -> tuple[Link, ...]:
    """Empty where nothing can be compared: a rule that only asks for a cause is applicable all the same."""
    return links(job, communication(job))


def _repeats(job: Job) -> Repeats:
    return repeats(job)


def _communication(job: Job) -> tuple[Traffic, ...]:
    _needs_matches(job)
    return communication(job)


def _unused_search(job: Job) -> UnusedSearch:
    return unused_search(job)


def _network(job: Job) -> Network | None:
    return job.network


def _quality(job: Job) -> Quality:
    unmatched = sum(job.matched.unmatched)
    calls = unmatched + int(job.matched.present.sum())
    return Quality(
        damaged=len({warning.file for warning in job.warnings if tells_of_lost_events(warning.message)}),
        has_shapes=all(digest.header.has_shapes for digest in job.digests),
        has_launches=all(digest.has_launches for digest in job.digests if digest.has_device),
        matched=len(job.matched),
        unmatched_share=unmatched / calls if calls else 0.0,
        only_messages=not calls and any(len(digest.messages) for digest in job.digests),
    )


def _work(job: Job) -> Work:
    _needs_device(job)
    return Work(**{name: job.work(name) for name in Work.__slots__})


def _phases(job: Job) -> Phases:
    return Phases(job.tells_phases, job.work("phase_ns") - job.work("exposed_phase_ns"))


def _products(job: Job) -> Products:
    _needs_device(job)
    devices = [
        (digest.device, _of_device(digest, digest.header.capabilities)) for digest in job.digests if digest.has_device
    ]
    tensor_ns = job.work("tensor_ns")
    can = [names.has_tensor_cores(*device) for device in devices]
    if not tensor_ns.any() and not any(can):
        if any(known is None for known in can):
            raise MissingInputError("The traces do not say whether their devices have tensor cores.")
        raise MissingInputError(f"The devices have no tensor cores ({devices[0][0]}).")
    columns = (name for name in Products.__slots__ if name in StepWork.__slots__)
    return Products(
        **{name: job.work(name) for name in columns},
        slowest=_slowest_products(job),
        fastest=min((ratio for device, _ in devices if (ratio := speedup(device)) is not None), default=None),
        has_tf32=all(names.has_tf32(*device) for device in devices),
        has_bfloat16=all(names.has_bfloat16_cores(*device) for device in devices),
    )


def _optimizers(job: Job) -> Optimizers:
    _needs_device(job)
    if not job.work("optimizer_steps").any():
        raise MissingInputError("No optimizer's step appears in the traces (torch's optimizers annotate theirs).")
    return Optimizers(**{name: job.work(name) for name in Optimizers.__slots__})


def _attentions(job: Job) -> Attentions:
    _needs_device(job)
    if not any(digest.header.has_shapes for digest in job.digests):
        raise MissingInputError("The traces hold no shapes of operators: record with profile(record_shapes=True).")
    return Attentions(**{name: job.work(name) for name in Attentions.__slots__})


def _of_device(digest: RankDigest, told: Mapping[int, Number]) -> Number | None:
    """What the trace tells of the rank's device."""
    numbers = [number for number, name in digest.header.devices.items() if name == digest.device]
    return next((told.get(number) for number in numbers), None)


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


def _kernels(job: Job) -> KernelTable:
    return KernelTable(job)


def _utilization(job: Job) -> Utilization:
    _needs_device(job)
    if not any(digest.header.has_shapes for digest in job.digests):
        raise MissingInputError("The traces hold no shapes of operators: record with profile(record_shapes=True).")
    model = job.work("model_flops")
    if not model.any():
        raise MissingInputError("No matrix product, convolution or attention appears among the operators.")
    taken: Counter[names.Precision] = Counter()
    for digest in job.digests:
        for name, total in zip(digest.kernels.name.tolist(), digest.kernels.total_ns.tolist(), strict=True):
            if (precision := names.precision(digest.strings[name])) is not None:
                taken[precision] += total
    precision = taken.most_common(1)[0][0] if taken else names.Precision.FLOAT32
    devices = [(digest.device, _of_device(digest, digest.header.multiprocessors) or 0) for digest in job.digests]
    peaks = [peak(device, multiprocessors, precision) for device, multiprocessors in devices]
    known = [each for each in peaks if each is not None]
    return Utilization(
        model_flops=model,
        flops=model + job.work("repeated_flops"),
        device=devices[0][0],
        precision=precision.value,
        peak=sum(known) / len(known) if len(known) == len(peaks) else None,
    )


def _long_kernels(job: Job) -> LongKernels:
    _needs_device(job)
    most: dict[str, LongKernel] = {}
    for rank, digest in enumerate(job.digests):
        for kind in _by_name(rank, digest):
            if kind.name not in most or kind.step_ns > most[kind.name].step_ns:
                most[kind.name] = kind
    kinds = sorted(most.values(), key=lambda kind: (-kind.step_ns, kind.name))
    return LongKernels(any(digest.kernels.estimated_ns.any() for digest in job.digests), tuple(kinds))


def _by_name(rank: int, digest: RankDigest) -> Iterator[LongKernel]:
    """The rank's kernels whose occupancy is known and that multiply no matrices."""
    table = digest.kernels
    known = np.flatnonzero(table.estimated_ns)
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


def _loaders(job: Job) -> Loaders:
    kinds = sorted({digest.loader for digest in job.digests if digest.loader})
    if not kinds:
        raise MissingInputError("No DataLoader appears in the traces (torch's DataLoader annotates itself since 1.9).")
    return Loaders(kinds[0], job.work("loader_ns"))


def _stalls(job: Job) -> Stalls:
    phase_ns = job.work("stalled_phase_ns")
    return Stalls(job, phase_ns.sum(axis=2), phase_ns)


def _doing(job: Job, ranks: Sequence[int]) -> tuple[Doing, ...]:
    total: dict[tuple[str, str], float] = {}
    for digest in (job.digests[rank] for rank in ranks):
        table, text = digest.stalled, digest.strings
        for doing, own, ns in zip(table.doing.tolist(), table.own.tolist(), table.total_ns.tolist(), strict=True):
            key = text[doing], text[own]
            total[key] = total.get(key, 0.0) + ns / (len(digest.steps) * len(ranks))
    found = [Doing(what, own, mean) for (what, own), mean in total.items()]
    return tuple(sorted(found, key=lambda doing: (-doing.mean_ns, doing.what, doing.own)))


def _starvation(job: Job) -> Starvation:
    _needs_device(job)
    if not any(digest.has_launches for digest in job.digests):
        raise MissingInputError(
            "No kernel can be joined to its launch: record the host as well (activities=[CPU, CUDA])."
        )
    return Starvation(job, job.work("starved_ns"))


def _sharding(job: Job) -> Sharding | None:
    _needs_matches(job)
    scattering = [digest for digest in job.digests if "reduce_scatter" in digest.strings]
    if scattering and not any((digest.collectives.backward >= 0).any() for digest in scattering):
        raise MissingInputError(
            "There are reduce-scatters, but no backward pass that launches them: record the host as well "
            "(activities=[CPU, CUDA])."
        )
    return sharding(job)


def _pipeline(job: Job) -> Pipeline | None:
    found = pipeline(job)
    if not found and any({"send", "recv"} & {*digest.strings} or len(digest.messages) for digest in job.digests):
        raise MissingInputError(
            "Ranks send to each other, but the traces do not show a pipeline: torch tells who since 2.4, with "
            "activities=[CPU, CUDA] on every rank."
        )
    return found


def _memory(job: Job) -> MemoryUse:
    _needs_device(job)
    if not any(len(digest.memory.time_ns) for digest in job.digests):
        raise MissingInputError(
            "The traces do not tell what the allocator did: capture with profile(..., profile_memory=True)."
        )

    def column(name: str) -> Ints:
        values = [
            getattr(digest.memory, name)[index] for digest, index in zip(job.digests, job.step_index, strict=True)
        ]
        known: Ints = np.maximum(np.stack(values), 0)
        return known

    return MemoryUse(
        **{name: column(name) for name in MemoryUse.__slots__ if name != "capacity"},
        capacity=np.array([digest.device_bytes for digest in job.digests], np.int64),
    )


def _places(job: Job) -> Places:
    return Places(job)


def _needs_matches(job: Job) -> None:
    if not any(len(digest.collectives) for digest in job.digests):
        raise MissingInputError("No communication between ranks appears in the traces.")
    if not len(job.matched):
        raise MissingInputError("No collective could be matched between ranks, so transfer and waiting look alike.")


def _needs_device(job: Job) -> None:
    if not job.has_device:
        raise MissingInputError("It is about the device, and these traces hold none (CPU only).")


@lru_cache(1 << 16)
def _blocks(grid: str) -> int:
    """Thread blocks of a launch from its raw grid, "[183, 1, 1]"; 0 where there is none."""
    return math.prod(int(size) for size in re.findall(r"\d+", grid)) if _GRID.fullmatch(grid) else 0


PROVIDERS: dict[str, Callable[[Job], object]] = {
    "frame": _frame,
    "budget": _budget,
    "whatif": _whatif,
    "absent": _absent,
    "arrivals": _arrivals,
    "communication": _communication,
    "links": _links,
    "network": _network,
    "unused_search": _unused_search,
    "transfers": _transfers,
    "work": _work,
    "phases": _phases,
    "products": _products,
    "optimizers": _optimizers,
    "attentions": _attentions,
    "kernels": _kernels,
    "long_kernels": _long_kernels,
    "utilization": _utilization,
    "loaders": _loaders,
    "stalls": _stalls,
    "starvation": _starvation,
    "repeats": _repeats,
    "quality": _quality,
    "sharding": _sharding,
    "pipeline": _pipeline,
    "memory": _memory,
    "places": _places,
}


class Inputs:
    """The inputs of one job, each made when a rule first asks for it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._made: dict[str, object] = {}

    @property
    def whatif(self) -> whatif.WhatIf:
        """What the job's steps would take without something."""
        return cast(whatif.WhatIf, self["whatif"])

    def __getitem__(self, name: str) -> object:
        """The input that a parameter of this name takes. Raises MissingInputError."""
        if name not in self._made:
            self._made[name] = PROVIDERS[name](self.job)
        return self._made[name]
