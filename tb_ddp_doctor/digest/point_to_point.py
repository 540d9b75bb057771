"""Which messages a rank sends and receives in each step, as the host enqueues them.

They are counted on the host: NCCL moves all messages of one `batch_isend_irecv` in a single kernel, which is launched
when the `record_param_comms` of each have ended, and so carries no metadata of any.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.model import PointToPoint, Steps
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, RankTrace


def messages(trace: RankTrace, steps: Steps) -> PointToPoint:
    """The messages of each step, from what names them on the host; gloo's names do not say the other rank."""
    events, comms = trace.events, trace.comms
    kinds = np.array([names.collective(text) for text in trace.strings], object)
    on_host = (events.category[comms.event] == Category.OP) & (comms.collective >= 0)
    rows = np.flatnonzero(on_host & np.isin(kinds[comms.collective], ("send", "recv")))
    kind, peer, start = kinds[comms.collective[rows]], comms.peer[rows], events.start_ns[comms.event[rows]]
    if not len(rows):
        by_cpu = np.array([names.is_host_collective(text) for text in trace.strings], np.bool_)
        chosen = by_cpu & np.isin(kinds, ("send", "recv"))
        rows = np.flatnonzero(chosen[events.name] & (events.category == Category.ANNOTATION))
        kind, peer, start = kinds[events.name[rows]], np.full(len(rows), -1), events.start_ns[rows]
    step = np.searchsorted(steps.host_start_ns, start, side="right") - 1
    inside = step >= 0
    inside[inside] = start[inside] < steps.host_end_ns[step[inside]]
    table = np.stack([step, kind == "send", peer], axis=1)[inside].astype(np.int64)
    different, count = np.unique(table, axis=0, return_counts=True)
    return PointToPoint(
        step=different[:, 0].astype(np.int32),
        sent=different[:, 1].astype(np.int32),
        peer=different[:, 2],
        count=count.astype(np.int64),
    )
