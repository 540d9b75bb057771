"""GPU idle for which the CPU is the reason, for jobs whose steps cannot be replayed.

A replay shows which GPU idle goes if the CPU needs no time. Without one, the launches show it: a gap is the CPU's until
the kernel that ends it is launched, and the device's own from then on (`digest.late_launches`). So are gaps while the
CPU loads, is outside any op, or is stalled inside one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tb_ddp_doctor.digest.model import CpuTime, LaunchDelay
from tb_ddp_doctor.digest.spending import SPENDING
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.step_parts import IDLE
from tb_ddp_doctor.trace.model import Ints

#: What delays launches, by the kind of the CPU's time. What tracing delays is left out: it is no fault.
_DELAYS: Mapping[CpuTime, tuple[LaunchDelay, ...]] = {
    CpuTime.ALLOC: (LaunchDelay.ALLOC,),
    CpuTime.SYNC: (LaunchDelay.SYNC, LaunchDelay.COPY),
    CpuTime.INPUT: (),
    CpuTime.STALL: (),
    CpuTime.WORK: (LaunchDelay.LAUNCHES,),
}


def needless_idle(job: Job) -> dict[CpuTime, Ints]:
    """How long each device idles for its CPU, by the kind of the CPU's time, shape (R, S) each, ns.

    Of a rank without records of launches, whenever it idles. Empty on jobs of CPUs: a CPU that computes and needs no
    time would compute nothing.
    """
    if not job.has_device:
        return {}
    late = job.work(lambda work: work.late_launch_ns)
    has_launches = np.array([digest.has_launches for digest in job.digests])[:, None]
    needless = {}
    for kind, delays in _DELAYS.items():
        idle = job.budget.of(SPENDING[kind].owner)
        needless[kind] = np.where(has_launches, late[:, :, list(delays)].sum(axis=2), idle) if delays else idle
    needless[CpuTime.WORK] = needless[CpuTime.WORK] + np.where(has_launches, _stalled_in_ops(job), 0)
    # A gap after a sync may be outside any op, too.
    total = np.sum([*needless.values()], axis=0)
    share = np.minimum(np.sum([job.budget.of(owner) for owner in IDLE], axis=0) / np.maximum(total, 1), 1.0)
    return {kind: np.rint(share * idle).astype(np.int64) for kind, idle in needless.items()}


def _stalled_in_ops(job: Job) -> Ints:
    """GPU idle while the CPU is stalled inside an op, shape (R, S), ns."""
    stalled = np.zeros(job.budget.window_ns.shape, np.int64)
    for rank, (digest, index) in enumerate(zip(job.digests, job.step_index, strict=True)):
        by_step = np.bincount(digest.op_stalls.step, digest.op_stalls.idle_ns, len(digest.steps))
        stalled[rank] = np.rint(by_step[index])
    return stalled
