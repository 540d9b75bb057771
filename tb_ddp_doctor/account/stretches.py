"""Counts the stretches of time of which a finding's evidence shows one."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.model import Pieces, RankOwner
from tb_ddp_doctor.digest.owners import KEPT_SHARE
from tb_ddp_doctor.digest.spending import step_owner
from tb_ddp_doctor.findings import Evidence, Measurement
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules.support.base import Fault
from tb_ddp_doctor.step_parts import OWNERS


def stretches(fault: Fault, job: Job) -> Measurement | None:
    """How many stretches with the owner of the evidence the fault's ranks have in its steps, and their sum.

    None if no window of the evidence is exactly one stretch, for example if it is a whole step.
    """
    index = {int(rank): i for i, rank in enumerate(job.ranks)}
    ranks = [rank for rank in fault.ranks if rank in index]
    owner = next((known for window in fault.evidence if (known := _owner(window, job, index)) is not None), None)
    if owner is None or not ranks:
        return None
    count, total_ns = 0, 0
    chosen = np.isin(job.steps, fault.steps)
    for rank in ranks:
        pieces = job.digests[index[rank]].pieces
        rows = (pieces.owner == owner) & np.isin(pieces.step, job.step_index[index[rank], chosen])
        count += int(rows.sum())
        total_ns += int((pieces.end_ns[rows] - pieces.start_ns[rows]).sum())
    return Measurement(f"stretches of {_title(owner, job)}", total_ns / 1e6, "ms", fault.ranks, fault.steps, count)


def _owner(window: Evidence, job: Job, index: dict[int, int]) -> RankOwner | None:
    """The owner of a window of time; None unless the window is exactly one stretch."""
    if window.rank not in index:
        return None
    pieces: Pieces = job.digests[index[window.rank]].pieces
    same = np.flatnonzero((pieces.start_ns == window.start_ns) & (pieces.end_ns == window.end_ns))
    return RankOwner(int(pieces.owner[same[0]])) if len(same) else None


def _title(owner: RankOwner, job: Job) -> str:
    """What stretches with an owner are called."""
    if owner is RankOwner.COMMUNICATION:
        # The digest of one rank cannot split communication into wait and transfer.
        return f"{OWNERS['wait'].title} or {OWNERS['transfer'].title}"
    known = OWNERS[step_owner(owner)]
    title = f"GPU idle, {known.title}" if known.cpu and job.has_device else known.title
    return f"{title} (each over {100 * KEPT_SHARE:g} % of its step)"
