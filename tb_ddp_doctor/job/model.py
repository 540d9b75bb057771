"""A job: all ranks of a run on one clock, with every nanosecond of every step owned.

R = ranks, S = steps that all ranks have, M = matched collectives, P = their parts, O = `findings.OWNERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.compile_logs.model import CompileReason
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import RankDigest, StepWork
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.findings import OWNERS, DevicePeaks, FileWarning, LeftOutStep, Network, Workload
from tb_ddp_doctor.job.axis import Axis
from tb_ddp_doctor.job.calls import Calls
from tb_ddp_doctor.job.clock import ClockFit
from tb_ddp_doctor.job.collectives import Matched
from tb_ddp_doctor.job.row_calls import RowCalls
from tb_ddp_doctor.storage.constant import is_constant, joined
from tb_ddp_doctor.trace.model import Indices, Ints
from tb_ddp_doctor.trace.names import Phase

T = TypeVar("T")


class Budget(msgspec.Struct, frozen=True, eq=False):
    """Owners of every rank's steps, ns."""

    #: Shape (R, S, O); sums over O to `window_ns`.
    owner_ns: Ints
    #: Start and length of each rank's window of each step, shape (R, S); starts are on the rank's own clock.
    start_ns: Ints
    window_ns: Ints

    def of(self, owner: str) -> Ints:
        """Shape (R, S)."""
        return self.owner_ns[:, :, OWNERS.index(owner)]

    @property
    def busy_ns(self) -> Ints:
        """The step without the waiting for others, shape (R, S)."""
        return self.window_ns - self.of("wait")


class Waiting(msgspec.Struct, frozen=True, eq=False):
    """When ranks arrive at collectives, and what of the waiting for them is exposed."""

    #: Exposed wait in each part of `Job.matched`, shape (P,), ns.
    exposed_ns: Ints
    #: The part that arrived last, and its rank's index, shape (M,).
    last_part: Ints
    last: Indices
    #: Arrival on the common clock, shape (P,).
    arrival_ns: Ints
    #: The last of them, shape (M,).
    last_ns: Ints
    #: Exposed wait for ranks that have no trace, shape (R, S), ns.
    absent_ns: Ints
    #: When each of `Job.calls` has all its ranks that have a trace, and when all, on its own rank's clock. Never after
    #: its end: clocks agree only up to the residual.
    all_traced_arrived_ns: Ints
    all_arrived_ns: Ints
    #: Communication with no compute and no copy beside it, on `Job.axis`.
    exposed: Intervals


class Job(msgspec.Struct, frozen=True, eq=False, dict=True):
    """All ranks of a run."""

    name: str
    #: Shape (R,): rank numbers, ascending; node of each, "" where unknown.
    ranks: Ints
    nodes: tuple[str, ...]
    world_size: int
    digests: tuple[RankDigest, ...]
    #: Step numbers, shape (S,), and for each rank the index of each step in its digest, shape (R, S).
    steps: Ints
    step_index: Ints
    clock: ClockFit
    axis: Axis
    #: The collectives of all ranks, and the index of the job's step that each is of, -1 for none, shape (N,).
    calls: Calls
    call_step: Indices
    matched: Matched
    waiting: Waiting
    budget: Budget
    warnings: tuple[FileWarning, ...]
    #: Steps that all ranks have and that cannot stand for the others.
    left_out: tuple[LeftOutStep, ...] = ()
    #: What NCCL's logs say; None where there are none.
    network: Network | None = None
    #: What files beside the traces say of ranks, by rank number.
    rank_evidence: Mapping[int, RankEvidence] = msgspec.field(default_factory=dict)
    #: Why functions were compiled again and graphs were broken, by the logs of TORCH_TRACE.
    compile_reasons: tuple[CompileReason, ...] = ()
    #: What its ranks and links can do; None where nobody measured it.
    calibration: Calibration | None = None
    #: What the user says that a step does, and what a GPU costs.
    workload: Workload = Workload()
    #: What the user says that its GPUs can do at most, in place of the table.
    peaks: tuple[DevicePeaks, ...] = ()
    #: Files whose ranks are left out, or some of their steps, since their record is not as complete as others'.
    damaged: tuple[str, ...] = ()
    #: By how much longer a rank computes in a step than the median compared rank, ns, by rank. Only ranks that are left
    #: out because their records lack collectives, and nothing else.
    left_out_excess_ns: Mapping[int, float] = msgspec.field(default_factory=dict)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world that have no usable trace here."""
        have = set(self.ranks.tolist())
        return tuple(rank for rank in range(self.world_size) if rank not in have)

    @property
    def has_device(self) -> bool:
        """Whether the budget is a device's."""
        return any(digest.has_device for digest in self.digests)

    @property
    def device(self) -> str:
        """The devices' name, "" where no trace tells it."""
        return next((digest.device for digest in self.digests if digest.device), "")

    @cached_property
    def parts(self) -> Indices:
        """How many ranks each of `calls` met in its collective, itself included, shape (N,); 1 where it met none."""
        parts = np.ones(len(self.calls), np.int32)
        parts[self.matched.call] = self.matched.segments.each(self.matched.parts)
        return parts

    @cached_property
    def row_calls(self) -> RowCalls:
        """Which calls of operators the rows of the ranks' tracks have."""
        return RowCalls.of(self.digests)

    @cached_property
    def has_phases(self) -> bool:
        """Whether some rank's trace shows where the training loop is: annotations, or autograd's nodes."""
        phases = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
        return any(bool(digest.work.phases.host_ns[:, phases].any()) for digest in self.digests)

    @property
    def step_ns(self) -> float:
        """Mean step time over ranks and steps."""
        return float(self.budget.window_ns.mean())

    def moving(self, rank: int) -> Intervals:
        """When some collective of a rank (index) has all its ranks, on its own clock."""
        return Intervals.union(self.waiting.all_arrived_ns[self.calls.of(rank)], self.digests[rank].collectives.end_ns)

    def measure(self, on_axis: Intervals) -> Ints:
        """How much of each step's window a set of intervals on `axis` covers, shape (R, S), ns."""
        if not len(on_axis):
            return np.zeros(self.budget.start_ns.shape, np.int64)
        ranks, start = np.arange(len(self.ranks))[:, None], self.budget.start_ns
        begin, end = (self.axis.place(ranks, at).ravel() for at in (start, start + self.budget.window_ns))
        return on_axis.measure(begin, end).reshape(start.shape)

    def sum_by_step(self, chosen: Ints, values: NDArray[Any] | None = None) -> NDArray[Any]:
        """How many of the chosen of `calls` each step has, or the sum of a value of each of them; shape (R, S)."""
        ranks, steps = self.step_index.shape
        mine = chosen[self.call_step[chosen] >= 0]
        cell = self.calls.rank[mine].astype(np.int64) * steps + self.call_step[mine]
        weights = None if values is None else values[self.call_step[chosen] >= 0]
        return np.bincount(cell, weights, minlength=ranks * steps).reshape(ranks, steps)

    def work(self, part: Callable[[StepWork], T]) -> T:
        """A column of every rank's `StepWork`, or one of its tables, for the job's steps: columns have shape (R, S)."""
        return _stacked([part(digest.work) for digest in self.digests], self.step_index)


def _stacked(parts: Sequence[T], index: Ints) -> T:
    """Columns, or tables of columns, by step of each rank as such of shape (R, S): steps are `index`, shape (R, S)."""
    if isinstance(parts[0], np.ndarray):
        return of_steps(parts, index)  # type: ignore[arg-type, return-value]
    names = parts[0].__struct_fields__  # type: ignore[attr-defined]
    return type(parts[0])(*(_stacked([getattr(part, name) for part in parts], index) for name in names))


def of_steps(columns: Sequence[NDArray[Any]], index: Ints) -> NDArray[Any]:
    """A column of each rank's steps for those of the job, shape (R, S, ...): they are `index`, shape (R, S)."""
    every = joined(columns)
    shape = *index.shape, *every.shape[1:]
    if is_constant(every):
        value = every.flat[0]
        return np.full(shape, value, every.dtype) if value else np.zeros(shape, every.dtype)
    if len(every) == index.size and (index == np.arange(index.shape[1])).all():
        return every.reshape(shape)
    sizes = np.array([len(column) for column in columns])
    chosen: NDArray[Any] = every[(np.cumsum(sizes) - sizes)[:, None] + index]
    return chosen
