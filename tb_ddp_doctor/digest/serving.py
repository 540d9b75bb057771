"""What a server's iterations work on, from their marks."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.model import ServingWork, Steps
from tb_ddp_doctor.digest.steps import iterations, within
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.trace.model import RankTrace


def serving_work(trace: RankTrace, steps: Steps) -> ServingWork:
    """The requests of each step's iterations; zeros for a program that marks none."""
    start, _, marks = iterations(trace)
    step, every, size = within(start, steps), np.ones(len(start), np.bool_), len(steps)
    prefills, decodes = (
        np.array([getattr(mark, kind) for mark in marks], np.int64) for kind in ("prefills", "decodes")
    )
    return ServingWork(
        iterations=count(step, every, size),
        prefills=total(step, every, prefills, size),
        decodes=total(step, every, decodes, size),
    )
