"""What a rank's time goes to, in one table: kinds of CPU time, what the GPU waits for meanwhile, the step's owners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tb_ddp_doctor.digest.model import CpuTime, LaunchDelay, RankOwner


class Spending(NamedTuple):
    """What goes with a kind of CPU time."""

    #: For people, such as "cudaMalloc and cudaFree".
    words: str
    #: The owner of the step's time meanwhile, one of `step_parts.OWNERS`.
    owner: str
    #: What keeps the GPU waiting for launches meanwhile; None where that is not told apart.
    delays: LaunchDelay | None = None


SPENDING: Mapping[CpuTime, Spending] = {
    CpuTime.ALLOC: Spending("cudaMalloc and cudaFree", "alloc", LaunchDelay.ALLOC),
    CpuTime.COPY: Spending("blocking copies", "sync", LaunchDelay.COPY),
    CpuTime.SYNC: Spending("synchronisation", "sync", LaunchDelay.SYNC),
    CpuTime.READ: Spending("waiting for what the CPU updates", "sync"),
    CpuTime.INPUT: Spending("DataLoader", "input"),
    CpuTime.STALL: Spending("outside any op", "host"),
    CpuTime.OP_STALL: Spending("stalls inside ops", "dispatch"),
    CpuTime.UPDATE: Spending("the optimizer's work on the CPU", "dispatch"),
    CpuTime.OVERHEAD: Spending("the profiler's stalls", "dispatch", LaunchDelay.OVERHEAD),
    CpuTime.RECORDING: Spending("recording of events", "dispatch", LaunchDelay.RECORDING),
    CpuTime.WORK: Spending("ops, launches and Python between them", "dispatch", LaunchDelay.LAUNCHES),
}


def step_owner(owner: RankOwner) -> str:
    """The step's owner that a rank's owner is of; "transfer" of communication, which only the job can split."""
    return "transfer" if owner is RankOwner.COMMUNICATION else owner.name.lower()
