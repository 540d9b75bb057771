"""Expert parallelism: what sending tokens to their experts and back takes of a step.

The kernels of DeepEP and its kin name no process group and no size, so their bandwidth is not known. How long they run
is, and how long ranks wait in them for the last one to arrive.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.names import COMBINE, DISPATCH

#: From this share of the step on it is said.
_SAID = 0.03


def sentence(job: Job) -> str | None:
    """What dispatch and combine take of a step, mean over ranks, as a sentence; None where they take next to nothing.

    Such as "DeepEP dispatch and combine (expert parallelism) take 57.0 of 107.0 ms, 12.9 ms of it waiting for the last
    rank to arrive (11.2 to 14.4 ms by rank)."
    """
    library = min({digest.contents.expert_library for digest in job.digests} - {""}, default="")
    chosen = job.calls.text("kind").where((DISPATCH, COMBINE).__contains__)
    if not library or not chosen.any():
        return None
    begin, end = (
        job.axis.place(job.calls.rank[chosen], job.calls.column(edge)[chosen]) for edge in ("arrival_ns", "end_ns")
    )
    takes = float(job.measure(Intervals.union(begin, end)).mean())
    if takes < _SAID * job.step_ns:
        return None
    said = f"{library} dispatch and combine (expert parallelism) take {takes / 1e6:.1f} of {job.step_ns / 1e6:.1f} ms"
    mine = np.array([kind in (DISPATCH, COMBINE) for kind in job.matched.kind], np.bool_)
    mine &= np.isin(job.matched.step, job.steps)
    wait = job.waiting.exposed_ns[mine].sum(axis=0) / len(job.steps)
    if not wait.any() or wait.mean() < _SAID * job.step_ns:
        return f"{said}."
    return (
        f"{said}, {wait.mean() / 1e6:.1f} ms of it waiting for the last rank to arrive "
        f"({wait.min() / 1e6:.1f} to {wait.max() / 1e6:.1f} ms by rank)."
    )
