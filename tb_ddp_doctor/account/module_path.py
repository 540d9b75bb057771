"""How much of the critical path across ranks lies in each of the model's modules, and in each of their kernels.

The path is a chain of stretches, each on one rank and of one row of its track. Of a stretch of

- device work, each kernel has its share of the kernels' and copies' time in that segment of a step on that rank,
- a collective's transfer, the share of communication,
- the host, the share of the idle time before it, or where there is none, of kernels' time.

Where a rank's digest does not have a segment, shares are those of all its steps. Shares are whole nanoseconds, so that
a module's kernels and the modules within it sum to it, and all to the path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.digest.model import ModuleTime, RankDigest
from tb_ddp_doctor.digest.module_segments import row_segments
from tb_ddp_doctor.facts.modules import ModuleKernelTable, ModuleTree, with_children
from tb_ddp_doctor.replay.bindings import Bindings, EventKind
from tb_ddp_doctor.replay.critical_path import stretches
from tb_ddp_doctor.trace.model import Floats, Indices, Ints

#: Which times of a segment say whose a stretch is: the first of these of which there is any.
_DEVICE = ((ModuleTime.COMPUTE, ModuleTime.COPY),)
_HOST = ((ModuleTime.IDLE,), *_DEVICE)
_TRANSFER = ((ModuleTime.COMMUNICATION,),)


class ModulePathTimes(msgspec.Struct, frozen=True, eq=False):
    """The critical path's time in the kernels of modules on each rank that it passes; shape (cells,).

    Means over steps are sums of these by `steps`.

        rank  row       ns
           1    7  2000000    2 ms of all steps lie in row 7 of the table of kernels, on the second rank
           1   -1    30000    and 0.03 ms in no kernel, as before the first one's launch
    """

    #: Index of the rank.
    rank: Ints
    #: Row of `ModuleKernelTable`; -1 for time in no kernel of any module.
    row: Ints
    #: In all steps of the path.
    ns: Ints
    #: How many steps the path has.
    steps: int

    @property
    def outside_ns(self) -> float:
        """Of a step, what lies in no kernel, ns."""
        return float(self.ns[self.row < 0].sum()) / self.steps

    def of_kernels(self, table: ModuleKernelTable) -> Floats:
        """Of a step, what lies in each row of the table, on all ranks together, ns, shape (K,)."""
        inside = self.row >= 0
        return _sums(self.row[inside], self.ns[inside], len(table.kernel)) / self.steps

    def of_ranks(self, table: ModuleKernelTable) -> Floats:
        """Of a step, what lies in each row of the table and, in the last column, in none, ns, shape (R, K + 1)."""
        shape = (len(table.step_ns), len(table.kernel) + 1)
        cell = self.rank * shape[1] + np.where(self.row < 0, shape[1] - 1, self.row)
        return _sums(cell, self.ns, shape[0] * shape[1]).reshape(shape) / self.steps

    def of_modules(self, tree: ModuleTree, table: ModuleKernelTable) -> Floats:
        """Of a step, what lies in each module with all modules within it, ns, shape (M,); of the first it is all."""
        module = np.where(self.row < 0, 0, np.append(table.module, 0)[self.row])
        return with_children(tree, _sums(module, self.ns, len(tree.path))) / self.steps


def _sums(index: Ints, ns: Ints, size: int) -> Floats:
    """Sums of times by an index: whole numbers of ns, which floats hold exactly."""
    return np.bincount(index, ns, size).astype(np.float64)


def path_times(table: ModuleKernelTable, digests: Sequence[RankDigest], bindings: Bindings) -> ModulePathTimes:
    """How much of the critical path lies in each row of the table of kernels on each rank."""
    begin, end = int(bindings.start_ns[0]), int(bindings.end_ns[-1])
    spent: defaultdict[tuple[int, int, tuple[tuple[ModuleTime, ...], ...]], int] = defaultdict(int)
    ranks: dict[int, _Rank] = {}
    outside: defaultdict[int, int] = defaultdict(int)
    for rank, event, row, start, until, _ in stretches(bindings):
        length = min(until, end) - max(start, begin)
        if length <= 0:
            continue
        if rank not in ranks:
            ranks[rank] = _Rank(digests[rank])
        of_collective = event in (EventKind.ARRIVED, EventKind.COMPLETED)
        at = row if not of_collective else int(ranks[rank].launching[row]) if row >= 0 else -1
        if event is None or at < 0:
            outside[rank] += length
            continue
        of = _DEVICE if event in (EventKind.DONE, EventKind.ARRIVED) else _TRANSFER if of_collective else _HOST
        spent[rank, int(ranks[rank].segment[at]), of] += length
    cells = [(rank, np.full(1, -1), np.full(1, length)) for rank, length in outside.items()]
    for (rank, segment, kinds), length in spent.items():
        rows, ns = ranks[rank].shares(segment, kinds, length)
        cells.append((rank, np.append(table.row_of[rank], -1)[rows], ns))
    return ModulePathTimes(
        rank=np.repeat([rank for rank, _, _ in cells], [len(rows) for _, rows, _ in cells]),
        row=np.concatenate([rows for _, rows, _ in cells] or [np.empty(0, np.int64)]),
        ns=np.concatenate([ns for _, _, ns in cells] or [np.empty(0, np.int64)]),
        steps=len(bindings.end_ns),
    )


def path_of(savings: Savings, table: ModuleKernelTable) -> ModulePathTimes | None:
    """How much of a diagnosed job's critical path lies in each row of the table; None without a path."""
    bindings = savings.whatif.bindings
    return path_times(table, savings.job.digests, bindings) if bindings else None


class _Rank:
    """Says whose a stretch of the path on one rank is."""

    def __init__(self, digest: RankDigest) -> None:
        self._digest = digest
        self._kernels = digest.modules.kernels
        self._kind = digest.modules.times.kind[self._kernels.of]
        #: The segment of each row of the track.
        self.segment = row_segments(digest.track)

    @cached_property
    def launching(self) -> Ints:
        """The row of the track that launches each collective, -1 if none does."""
        launches = self._digest.track.launches
        rows = np.flatnonzero((launches >= 0) & (launches < len(self._digest.collectives)))
        launching = np.full(len(self._digest.collectives), -1)
        launching[launches[rows]] = rows
        return launching

    def shares(self, segment: int, kinds: tuple[tuple[ModuleTime, ...], ...], length: int) -> tuple[Ints, Ints]:
        """How a length of the path is shared among rows of `ModuleKernels`: which, and the ns of each; -1 for none."""
        in_segment = self._in_segment(segment)
        for wanted in kinds:
            chosen: NDArray[np.bool_] = _is_one_of(self._kind, wanted)
            for ns in (in_segment, self._kernels.total_ns):
                rows = np.flatnonzero(chosen & (ns > 0))
                if len(rows):
                    return rows, _shared(length, ns[rows])
        return np.full(1, -1), np.full(1, length)

    def _in_segment(self, segment: int) -> Floats:
        """The time of each row of `ModuleKernels` in a segment of a step, all steps, ns, shape (rows,)."""
        table, kernels = self._digest.modules.segments, self._kernels
        here = table.segment == segment
        of, ns = table.of[here], table.total_ns[here]
        is_kernel = of < len(kernels)
        if is_kernel.all():
            return np.bincount(of, ns, len(kernels)).astype(np.float64)
        in_segment = np.bincount(of[is_kernel], ns[is_kernel], len(kernels)).astype(np.float64)
        # What is of no kernel is of all of its module that have no time here of their own, as much as they have.
        rest = np.bincount(of[~is_kernel] - len(kernels), ns[~is_kernel], len(self._digest.modules.times))
        weight = np.where(in_segment > 0, 0.0, kernels.total_ns)
        whole = np.bincount(kernels.of, weight, len(rest))
        return in_segment + weight * (rest / np.maximum(whole, 1.0))[kernels.of]


def _is_one_of(kinds: Indices, wanted: tuple[ModuleTime, ...]) -> NDArray[np.bool_]:
    """Which are some kind of time, by a table: a tenth of the time of `np.isin`."""
    flags = np.zeros(len(ModuleTime), np.bool_)
    flags[list(wanted)] = True
    chosen: NDArray[np.bool_] = flags[kinds]
    return chosen


def _shared(length: int, weights: Ints | Floats) -> Ints:
    """A length in parts in proportion to weights: whole numbers that sum to it."""
    until = np.cumsum(weights, dtype=np.float64)
    shared: Ints = np.diff(np.rint(until / until[-1] * length).astype(np.int64), prepend=0)
    return shared
