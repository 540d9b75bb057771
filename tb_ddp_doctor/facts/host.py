"""What rules ask of what hosts do. R = ranks, S = steps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.compile_logs.model import CompileReason
from tb_ddp_doctor.digest.model import LaunchDelay, RankDigest, RankOwner
from tb_ddp_doctor.digest.owners import LONG_STALL_NS
from tb_ddp_doctor.facts import Facts, MissingFactError, fact, needs_device
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Flags, Floats, Ints
from tb_ddp_doctor.trace.program_names import Program


class Loaders(msgspec.Struct, frozen=True, eq=False):
    """DataLoaders as the traces show them."""

    #: "single_process" or "workers".
    kind: str
    #: Host time in `__next__`, shape (R, S), ns.
    loading_ns: Ints


class Doing(msgspec.Struct, frozen=True):
    """One thing that the host does while host and device seem to do nothing, over some ranks."""

    #: The innermost Python function or annotation: "<built-in function collect>", "train.py(12): log".
    what: str
    #: The innermost of the user's own functions; "" if none.
    own: str
    #: Mean over these ranks and all steps, ns.
    mean_ns: float


class HostStalls(msgspec.Struct, frozen=True, eq=False):
    """Stretches in which device and host both do nothing."""

    _job: Job
    #: Shape (R, S), ns, in stretches of at least `owners.LONG_STALL_NS`.
    long_ns: Ints
    #: The same by the host's phase, shape (R, S, len(PHASES)).
    phase_ns: Ints

    def doing(self, ranks: Sequence[int]) -> tuple[Doing, ...]:
        """What the host of these ranks (indices) does in them, the most of it first.

        Empty where the traces have neither stacks nor annotations.
        """
        return _doing(self._job, ranks)

    def launched_after(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """The kernel whose launch follows each of the longest stretches on these ranks (indices); "" for none."""
        launched = []
        for digest in (self._job.digests[rank] for rank in ranks):
            pieces, gaps = digest.pieces, digest.gap_ops
            long = (pieces.owner == RankOwner.HOST) & (pieces.end_ns - pieces.start_ns >= LONG_STALL_NS)
            kernels = gaps.kernel[np.isin(gaps.start_ns, pieces.start_ns[long])]
            launched += [digest.strings[kernel] for kernel in kernels.tolist()]
        return tuple(launched)


class StallInOp(msgspec.Struct, frozen=True):
    """A stall of the host inside one op or launch call."""

    #: Indices of its rank and its step.
    rank: int
    step: int
    #: The innermost op, and the runtime call in it; "" for none.
    op: str
    call: str
    #: The kernel that the call launches, or the next one that is launched; "" for none.
    kernel: str
    #: The path of the module that the host is in; "" outside of all.
    module: str
    is_first_use: bool
    #: On that rank's own clock, ns; and the GPU idle in it.
    start_ns: int
    end_ns: int
    idle_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


class StallsInOps(msgspec.Struct, frozen=True, eq=False):
    """All of them; empty on CPUs, whose ops are what they compute."""

    every: tuple[StallInOp, ...]

    def of(self, rank: int) -> tuple[StallInOp, ...]:
        """Those of one rank (index)."""
        return tuple(one for one in self.every if one.rank == rank)

    def spans(self, rank: int) -> list[tuple[int, int]]:
        """When those of one rank (index) are, on its own clock, ns."""
        return [(one.start_ns, one.end_ns) for one in self.of(rank)]


class BlockingCallsOfOp(msgspec.Struct, frozen=True):
    """Calls of one name in one operator that hold the host, over all ranks."""

    call: str
    #: "" outside of all operators.
    op: str
    #: The user's own function around the one that starves longest: "train.py(41): step"; "" without stacks.
    own: str
    #: The path of the module that makes that call; "" outside of all.
    module: str
    #: Calls, host time in them, ns, and GPU idle charged to them, ns: mean over ranks and steps.
    count: float
    blocked_ns: float
    lost_ns: float
    #: The one that starves its device longest: index of its rank; ns on that rank's own clock.
    rank: int
    start_ns: int
    end_ns: int


class LateLaunches(msgspec.Struct, frozen=True, eq=False):
    """Device idle that an earlier launch would have shortened, by what delayed the launch."""

    _job: Job
    #: Shape (R, S, len(LaunchDelay)), ns.
    _idle_ns: Ints
    #: Of each rank, the rows of its `Blocking` in which it reads tokens back that it generates. In the job's rounds
    #: of reinforcement learning these are no fault: no answer goes on without its last token.
    _reads_tokens: Sequence[Flags]

    def of(self, cause: LaunchDelay) -> Ints:
        """Shape (R, S), ns."""
        return self._idle_ns[:, :, cause]

    def share(self, kind: LaunchDelay) -> Floats:
        """How much of the time that calls of a kind block each CPU is of those in `calls`, shape (R, 1)."""
        shares = np.ones((len(self._reads_tokens), 1))
        for rank, (digest, reads) in enumerate(zip(self._job.digests, self._reads_tokens, strict=True)):
            blocked = digest.blocking.blocked_ns[digest.blocking.kind == kind].sum()
            of_tokens = digest.blocking.blocked_ns[(digest.blocking.kind == kind) & reads].sum()
            shares[rank] = 1 - of_tokens / max(blocked, 1)
        return shares

    def calls(self, kind: LaunchDelay) -> list[BlockingCallsOfOp]:
        """The calls of a kind by name and operator, without those that read tokens back; those that cost most first."""
        merged: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for rank, digest in enumerate(self._job.digests):
            table, text = digest.blocking, digest.strings
            if not len(table.kind):
                continue
            for row in np.flatnonzero((table.kind == kind) & ~self._reads_tokens[rank]).tolist():
                merged.setdefault((text[table.call[row]], text[table.op[row]]), []).append((rank, row))
        by_cost = [self._merge(call, op, rows) for (call, op), rows in merged.items()]
        return sorted(by_cost, key=lambda calls: (-calls.lost_ns, -calls.blocked_ns, calls.call, calls.op))

    def _merge(self, call: str, op: str, rows: list[tuple[int, int]]) -> BlockingCallsOfOp:
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
        return BlockingCallsOfOp(
            call,
            op,
            self._job.digests[rank].strings[table.own[row]],
            self._job.digests[rank].strings[table.module[row]],
            mean("count"),
            mean("blocked_ns"),
            mean("lost_ns"),
            rank,
            int(table.worst_start_ns[row]),
            int(table.worst_end_ns[row]),
        )


class HostOverheads(msgspec.Struct, frozen=True, eq=False):
    """What the CPU of a compiled model or a server does beside launching; zeros where the traces do not show it."""

    #: Looking up compiled code, with its guards, shape (R, S), ns.
    guard_ns: Ints
    #: Each of `ServerWork` while the GPU idles, shape (R, S, len(ServerWork)), ns.
    server_ns: Ints


class CompileReasons(msgspec.Struct, frozen=True):
    """What the logs of TORCH_TRACE say of a job's functions; empty without logs."""

    #: Of compilations within the recorded steps, where the logs have such; else of all.
    reasons: tuple[CompileReason, ...]
    #: Whether they are of the recorded steps.
    are_recorded: bool


@fact
def _loaders(facts: Facts) -> Loaders:
    job = facts.job
    kinds = sorted({digest.loader for digest in job.digests if digest.loader})
    if not kinds:
        raise MissingFactError("No DataLoader appears in the traces (torch's DataLoader annotates itself since 1.9).")
    return Loaders(kinds[0], job.work(lambda work: work.loader_ns))


@fact
def _op_stalls(facts: Facts) -> StallsInOps:
    job = facts.job
    stalls = []
    for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
        table, text = digest.op_stalls, digest.strings
        if not len(table):
            continue
        column = {step: i for i, step in enumerate(index.tolist())}
        stalls += [
            StallInOp(
                rank,
                column[int(table.step[row])],
                text[table.op[row]],
                text[table.call[row]],
                text[table.kernel[row]],
                text[table.module[row]],
                bool(table.is_first_use[row]),
                int(table.start_ns[row]),
                int(table.end_ns[row]),
                int(table.idle_ns[row]),
            )
            for row in range(len(table))
            if int(table.step[row]) in column
        ]
    return StallsInOps(tuple(stalls))


@fact
def _stalls(facts: Facts) -> HostStalls:
    job = facts.job
    phase_ns = job.work(lambda work: work.phases.stalled_ns)
    return HostStalls(job, phase_ns.sum(axis=2), phase_ns)


def _doing(job: Job, ranks: Sequence[int]) -> tuple[Doing, ...]:
    total: dict[tuple[str, str], float] = {}
    for digest in (job.digests[rank] for rank in ranks):
        table, text = digest.stalled, digest.strings
        for doing, own, ns in zip(table.doing.tolist(), table.own.tolist(), table.total_ns.tolist(), strict=True):
            key = text[doing], text[own]
            total[key] = total.get(key, 0.0) + ns / (len(digest.steps) * len(ranks))
    doings = [Doing(what, own, mean) for (what, own), mean in total.items()]
    return tuple(sorted(doings, key=lambda doing: (-doing.mean_ns, doing.what, doing.own)))


@fact
def _late_launches(facts: Facts) -> LateLaunches:
    job = facts.job
    needs_device(job)
    if not any(digest.has_launches for digest in job.digests):
        raise MissingFactError(
            "No kernel can be joined to its launch: record the CPU as well (activities=[CPU, CUDA])."
        )
    return LateLaunches(job, job.work(lambda work: work.late_launch_ns), _reads_tokens(job))


def _reads_tokens(job: Job) -> list[Flags]:
    """Of each rank, which rows of its `Blocking` are reads of tokens: on a rank that generates for reinforcement
    learning, copies to the host and calls outside any op.
    """
    learns = job_kind.program(job) is Program.RL
    return [
        _copies_to_host(digest) if learns and job_kind.generates(digest) else np.zeros(len(digest.blocking), np.bool_)
        for digest in job.digests
    ]


def _copies_to_host(digest: RankDigest) -> Flags:
    """Which rows of a `Blocking` are copies to the host, or calls outside any op."""
    table, text = digest.blocking, digest.strings
    copies = [not text[op] or names.moves_tensor(text[op]) for op in table.op.tolist()]
    of_tokens: Flags = np.array(copies, np.bool_) & (table.kind == LaunchDelay.SYNC)
    return of_tokens


@fact
def _host_overheads(facts: Facts) -> HostOverheads:
    job = facts.job
    return HostOverheads(job.work(lambda work: work.compiled).guard_ns, job.work(lambda work: work.serving).idle_ns)


@fact
def _compile_reasons(facts: Facts) -> CompileReasons:
    job = facts.job
    windows = {
        rank: (int(digest.steps.host_start_ns.min()), int(digest.steps.host_end_ns.max()))
        for rank, digest in zip(job.ranks.tolist(), job.digests, strict=True)
        if len(digest.steps)
    }
    recorded = tuple(
        one
        for one in job.compile_reasons
        if one.rank in windows and windows[one.rank][0] <= one.start_ns < windows[one.rank][1]
    )
    return CompileReasons(recorded or job.compile_reasons, bool(recorded))
