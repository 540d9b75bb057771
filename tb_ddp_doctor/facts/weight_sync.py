"""The weight sync of reinforcement learning: collectives that join ranks of different roles. R = ranks, S = steps."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.facts.transfers import exposed_alone
from tb_ddp_doctor.job.rl_roles import between_roles
from tb_ddp_doctor.trace.model import Ints


class WeightSync(msgspec.Struct, frozen=True, eq=False):
    """The weights that one role sends to another in collectives."""

    #: How long data moves with nothing beside it, without waiting, shape (R, S), ns.
    exposed_ns: Ints
    #: Bytes in a step, on the rank with most of them; 0 where sizes are not known.
    bytes_per_step: float


@fact
def _weight_sync(facts: Facts) -> WeightSync | None:
    """None where roles share no collective, and in other jobs."""
    job = facts.job
    calls = between_roles(job)
    if not calls.any():
        return None
    size = np.maximum(job.calls.column("bytes"), 0)
    return WeightSync(
        job.measure(exposed_alone(job, calls)),
        float(job.sum_by_step(np.flatnonzero(calls), size[calls]).mean(axis=1).max()),
    )
