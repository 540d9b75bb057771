"""Collectives of a rank with a device that its CPU carries out: a barrier of gloo, AllReduces of tensors on the CPU.

No kernel runs for them. The CPU enters one when it starts on gloo's thread, and a stretch that blocks the training
thread right up to its end waits for it:

    gloo's thread   [gloo:barrier...............]
    training thread [c10d::barrier]   (no event) [next op]
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import HostMeetings, Steps
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.trace import names


def host_meetings(host: HostCalls, steps: Steps, words: Vocabulary) -> HostMeetings:
    """The collectives of the CPU within the steps, by start."""
    rows = np.flatnonzero((host.is_operator | host.is_annotation) & host.named(names.is_host_collective))
    rows = rows[np.argsort(host.start_ns[rows], kind="stable")]
    if len(steps):
        start = host.start_ns[rows]
        rows = rows[(start >= steps.host_start_ns[0]) & (start < steps.host_end_ns[-1])]
    else:
        rows = rows[:0]
    start = host.start_ns[rows]
    kinds = [names.collective(host.trace.strings[name]) for name in host.name[rows].tolist()]
    return HostMeetings(
        step=step_of(start, steps.host_start_ns).astype(np.int32) if len(rows) else np.empty(0, np.int32),
        kind=words.indices(kinds),
        start_ns=start,
        end_ns=host.end_ns[rows],
    )
