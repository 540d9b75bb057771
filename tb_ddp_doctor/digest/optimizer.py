"""What the optimizer's step does on the device."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.launches import enclosing
from tb_ddp_doctor.digest.model import OptimizerWork, Steps
from tb_ddp_doctor.digest.owners import by_name
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace


def optimizer(trace: RankTrace, rows: Ints, launch: Ints, step: Ints, steps: Steps) -> OptimizerWork:
    """The optimizer of the steps, from compute kernels `rows`, the row of each one's launch and its step (or -1)."""
    events, size = trace.events, len(steps)
    start, length = events.start_ns[rows], events.duration_ns[rows]
    annotations = np.flatnonzero(events.category == Category.ANNOTATION)
    updates = annotations[by_name(trace, annotations, names.is_optimizer_step) > 0]
    update_start, update_end = events.start_ns[updates], events.start_ns[updates] + events.duration_ns[updates]
    launched = launch >= 0
    inside = np.zeros(len(rows), np.bool_)
    inside[launched] = (
        enclosing(
            update_start,
            update_end,
            events.thread[updates],
            events.start_ns[launch[launched]],
            events.thread[launch[launched]],
        )
        >= 0
    )
    alone = inside & (step >= 0)
    # Products of matrices, as of optimizers that orthogonalise, are no loop of small operations.
    alone[alone] = by_name(trace, rows[alone], _takes_many) == 0
    first, last = steps.end_ns.copy(), steps.start_ns.copy()
    np.minimum.at(first, step[alone], start[alone])
    np.maximum.at(last, step[alone], start[alone] + length[alone])
    # Of steps without such kernels an empty stretch stays; kernels may begin before the window of their step.
    first, last = np.minimum(np.maximum(first, steps.start_ns), last), np.maximum(last, steps.start_ns)
    return OptimizerWork(
        optimizer_steps=count(within(update_start, steps), np.ones(len(updates), np.bool_), size),
        # One optimizer may call another: ZeRO's, or one for each group of parameters.
        optimizer_host_ns=Intervals.union(update_start, update_end).measure(steps.host_start_ns, steps.host_end_ns),
        optimizer_kernels=count(step, alone, size),
        optimizer_ns=total(step, alone, length, size),
        optimizer_start_ns=first,
        optimizer_end_ns=last,
    )


def _takes_many(kernel: str) -> bool:
    return names.updates_many_tensors(kernel) or names.product(kernel) is not names.Product.NONE
