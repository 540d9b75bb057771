"""Who took part, when, and how far the numbers can be trusted. R = ranks, S = steps."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.facts import Facts, fact, unrecognised
from tb_ddp_doctor.facts.transfers import exposed_alone, met_nobody
from tb_ddp_doctor.findings import Setting
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.lost_calls import lost_calls_ns
from tb_ddp_doctor.job.model import Budget, Job
from tb_ddp_doctor.job.rl_roles import roles, share_gpus
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.mesh.mesh import Mesh, mesh
from tb_ddp_doctor.storage.constant import joined
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.program_names import Program, Role


class Frame(msgspec.Struct, frozen=True, eq=False):
    """Who took part, when, and how far the numbers can be trusted."""

    #: Shape (R,) and (S,).
    ranks: Ints
    #: Shape (R,): node and process of each rank, "" where unknown.
    nodes: tuple[str, ...]
    pids: tuple[str, ...]
    steps: Ints
    #: Length of each rank's steps, shape (R, S), ns, and their mean.
    window_ns: Ints
    step_ns: float
    #: Spread of the ends of matched collectives after alignment, ns; 0 for one rank alone.
    residual_ns: float
    #: Which ranks' records are damaged: they serve for some of their steps; shape (R,).
    is_damaged: NDArray[np.bool_]
    #: What recording is estimated to cost each rank's host in a step, shape (R,), ns.
    recording_ns: np.ndarray[tuple[int], np.dtype[np.float64]]
    #: How long each rank's threads waited for a core in a step, shape (R,), ns; 0 where nobody counted.
    core_wait_ns: np.ndarray[tuple[int], np.dtype[np.float64]]
    #: How long each rank's threads ran in a step, shape (R,), ns; 0 where nobody counted.
    core_run_ns: np.ndarray[tuple[int], np.dtype[np.float64]]
    #: Whether the trace has ProfilerSteps.
    has_steps: bool
    #: Whether a device computes; else the CPU does.
    has_device: bool
    #: What the job is: hosts, backend, device, recorder.
    setting: Setting
    #: Ranks of the world without a trace: how long the others wait for them, transfers tell in part.
    missing_ranks: int
    #: The share of calls of collectives that found no match on another rank: their waits count as transfer.
    unmatched_share: float
    #: How much of what each rank's transfers take longer than the median rank's may be wait, shape (R, S), ns: they are
    #: calls that no other rank with a trace takes part in.
    unknown_wait_ns: Ints
    #: How long other ranks are in collectives that each rank's record lacks, mean over steps, shape (R,), ns.
    lost_calls_ns: np.ndarray[tuple[int], np.dtype[np.float64]]
    #: Whether there is a training loop, as far as the traces show; and what the job does, as the value of a
    #: `program_names.Program`.
    trains: bool
    program: str
    #: What each rank does most of the time in reinforcement learning, by a `program_names.Role`'s value, shape (R,); ""
    #: where nothing shows it.
    roles: tuple[str, ...]
    #: Whether all roles are on the same GPUs, one after the other; None where the traces do not tell.
    roles_share_gpus: bool | None
    #: Whether events were left out of the files, so that a stretch without any is no stall.
    is_sampled: bool
    #: Whether captured graphs are launched.
    launches_graphs: bool
    #: The dimensions of the job, and the ranks' places in them.
    mesh: Mesh

    def rank_numbers(self, indices: Ints) -> tuple[int, ...]:
        return tuple(int(rank) for rank in self.ranks[indices])

    def program_of(self, indices: Ints) -> str:
        """What these ranks do: of reinforcement learning those that only generate, or only score, serve requests."""
        of_ranks = {self.roles[rank] for rank in indices.tolist()}
        is_some = self.program == Program.RL.value and of_ranks < set(self.roles)
        serves = is_some and of_ranks <= {Role.ROLLOUT.value, Role.REWARD.value}
        return Program.SERVING.value if serves else self.program

    def runs(self, program: str) -> Flags:
        """Which ranks do this, as `program_of` has it, shape (R,)."""
        return np.array([self.program_of(np.array([rank])) == program for rank in range(len(self.ranks))], np.bool_)

    @property
    def of_each_role(self) -> list[Ints]:
        """The ranks (indices) of each role: of other jobs than reinforcement learning, one with all."""
        _, number = np.unique(self.roles, return_inverse=True)
        return [np.flatnonzero(number == role) for role in range(int(number.max()) + 1)]

    @property
    def all_ranks(self) -> tuple[int, ...]:
        return tuple(self.ranks.tolist())

    @property
    def all_steps(self) -> tuple[int, ...]:
        return tuple(self.steps.tolist())


class Quality(msgspec.Struct, frozen=True):
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
    #: Calls that block a CPU for long (syncs, copies, calls for memory), and how many of them are tied to the device
    #: work or the collective that they wait for.
    blocking_calls: int
    tied_calls: int


@fact
def frame(facts: Facts) -> Frame:
    """Who took part, when, and how far the numbers can be trusted."""
    job = facts.job
    of_ranks = [job.rank_evidence.get(rank, RankEvidence()) for rank in job.ranks.tolist()]
    return Frame(
        ranks=job.ranks,
        nodes=job.nodes,
        pids=tuple(digest.pid for digest in job.digests),
        steps=job.steps,
        window_ns=job.budget.window_ns,
        step_ns=job.step_ns,
        residual_ns=job.clock.residual_ns or 0.0,
        is_damaged=np.array([digest.file in job.damaged for digest in job.digests], np.bool_),
        recording_ns=job.work(lambda work: work.recording_ns).mean(axis=1),
        core_wait_ns=np.array([(known.core_wait_ms or 0.0) * 1e6 for known in of_ranks]),
        core_run_ns=np.array([(known.core_run_ms or 0.0) * 1e6 for known in of_ranks]),
        has_steps=all(digest.has_steps for digest in job.digests),
        has_device=job.has_device,
        setting=setting(job),
        missing_ranks=len(job.missing_ranks),
        unmatched_share=unrecognised.unmatched_share(job),
        unknown_wait_ns=_unknown_wait_ns(job),
        lost_calls_ns=lost_calls_ns(job),
        trains=job_kind.trains(job),
        program=job_kind.program(job).value,
        roles=tuple(roles(job)),
        roles_share_gpus=share_gpus(job),
        launches_graphs=any(digest.contents.graph_launches > 0 for digest in job.digests),
        mesh=mesh(job),
        is_sampled=any(digest.contents.calls_left_out > 0 for digest in job.digests),
    )


def _unknown_wait_ns(job: Job) -> Ints:
    alone = job.measure(exposed_alone(job, met_nobody(job)))
    transfer = job.budget.of("transfer")
    typical = np.sort(transfer, axis=0)[(len(transfer) - 1) // 2]
    unknown: Ints = np.minimum(alone, np.maximum(transfer - typical, 0))
    return unknown


@fact
def _quality(facts: Facts) -> Quality:
    job = facts.job
    unmatched_share = unrecognised.unmatched_share(job)
    blocked = joined([digest.track.blocked_by for digest in job.digests])
    ties = joined([digest.track.waits | digest.track.synced for digest in job.digests])
    blocking = (blocked >= 0) & (blocked < CpuTime.INPUT)
    return Quality(
        damaged=len({*job.damaged, *(warning.file for warning in job.warnings if warning.loses_events)}),
        has_shapes=all(digest.header.has_shapes for digest in job.digests),
        has_launches=all(digest.has_launches for digest in job.digests if digest.has_device),
        matched=len(job.matched),
        unmatched_share=unmatched_share,
        only_messages=not (len(job.matched) or unmatched_share) and any(len(digest.messages) for digest in job.digests),
        blocking_calls=int(blocking.sum()),
        tied_calls=int((blocking & ties).sum()),
    )


@fact
def _budget(facts: Facts) -> Budget:
    return facts.job.budget
