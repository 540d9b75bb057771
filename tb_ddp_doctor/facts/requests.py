"""When a server has no request: its GPUs idle, and nothing is at fault."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts.iterations import Iterations, iterations
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import Program, ServerWork

#: From as many iterations with work after them on, it is known what the server's CPU does between two of them.
_FEWEST = 3


def waits_for_requests(job: Job, whatif: WhatIf) -> Change:
    """The change that removes the time in which a server has no request.

    Two things tell that time:

    1. Python stacks: the server is blocked where it takes requests, or checks itself as it does without any. If one
       rank shows it, the others, which take their requests from that one, wait as well.
    2. Marks that count requests: all requests in decode have ended, and the next iteration reads prompts of new ones.
       Between the two the CPU works as long as between iterations with requests in decode, and waits for the rest.
    """
    if job_kind.program(job) is not Program.SERVING or not len(job.steps):
        return Change()
    spent = whatif.host_ns(CpuTime.STALL)
    shown = job.work(lambda work: work.serving).idle_ns[:, :, ServerWork.WAITING].max(axis=0)
    waited = np.minimum(np.broadcast_to(shown, spent.shape), spent)
    served = iterations(job)
    if served is not None:
        waited = np.maximum(waited, _between_requests(served, spent))
    return Change(shared={CpuTime.STALL: waited / np.maximum(spent, 1)}) if waited.any() else Change()


def _between_requests(served: Iterations, spent: Ints) -> Ints:
    """How long each rank's CPU waits for requests after each step by the numbers of requests, shape (R, S), ns.

    `spent` is its time outside any op.
    """
    if not served.counted or served.pending.sum() < _FEWEST:
        return np.zeros_like(spent)
    typical = np.median(spent[:, served.pending], axis=1, keepdims=True).astype(np.int64)
    return np.where(served.without_requests, np.maximum(spent - typical, 0), 0)
