"""Which roles of reinforcement learning set how long a round takes.

Pure: a job and its schedule in, ranks out.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import between_roles
from tb_ddp_doctor.replay.model import Schedule
from tb_ddp_doctor.replay.tied_tracks import HAND_OVER
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import Program

#: A role whose CPUs are outside any op, with idle GPUs, for a smaller share of the step hardly idles.
_HARDLY = 0.1


def bound_roles(job: Job, schedule: Schedule) -> tuple[Ints, ...]:
    """The ranks (indices) of each role of reinforcement learning that takes as long for a round as the other roles.

    That are roles that wait for others, in collectives or pauses; and, where some do, those for which they may wait:
    they hardly idle. Of a role that idles and waits for none nothing is known. One that generates ahead takes as long
    as the others. Empty where no role waits.
    """
    if job_kind.program(job) is not Program.RL:
        return ()
    _, of_rank = np.unique([job_kind.role(digest) for digest in job.digests], return_inverse=True)
    rows, parts = schedule.rows, schedule.parts
    waits = np.zeros(int(of_rank.max()) + 1, np.bool_)
    waits[of_rank[rows.rank[parts.row[rows.queue_part] == HAND_OVER]]] = True
    waits[of_rank[job.calls.rank[between_roles(job)]]] = True
    ahead = schedule.frame.ahead
    if len(waits) < 2 or not (waits.any() or ahead.any()):
        return ()
    idle, window = job.budget.of("host").sum(axis=1), job.budget.window_ns.sum(axis=1)
    every = [np.flatnonzero(of_rank == one) for one in range(len(waits))]
    return tuple(
        ranks
        for ranks, waiting in zip(every, waits.tolist(), strict=True)
        if not ahead[ranks].any() and (waiting or idle[ranks].sum() < _HARDLY * window[ranks].sum())
    )
