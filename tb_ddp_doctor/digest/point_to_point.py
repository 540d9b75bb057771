"""Which messages a rank sends and receives in each step, as the host enqueues them.

They are counted on the host: NCCL moves all messages of one `batch_isend_irecv` in a single kernel, which is launched
when the `record_param_comms` of each have ended, and so carries no metadata of any.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.collectives import MOST_ELEMENTS
from tb_ddp_doctor.digest.host_calls import one_of
from tb_ddp_doctor.digest.model import PointToPoint, Steps
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Indices, Ints, RankTrace


def messages(trace: RankTrace, steps: Steps) -> PointToPoint:
    """The messages of each step, from what names them on the host; gloo's names do not say the other rank."""
    events, comms = trace.events, trace.comms
    named = (events.category[comms.event] == Category.OP) & (comms.collective >= 0)
    rows, kind = _messages(trace, np.flatnonzero(named), comms.collective, names.collective)
    peer, start, size = comms.peer[rows], events.start_ns[comms.event[rows]], _bytes(trace, rows)
    if not len(rows):
        notes = np.flatnonzero(one_of(events.category, (Category.ANNOTATION,)))
        rows, kind = _messages(trace, notes, events.name, _of_cpu)
        peer, start, size = np.full(len(rows), -1), events.start_ns[rows], np.full(len(rows), -1)
    step = np.searchsorted(steps.host_start_ns, start, side="right") - 1
    inside = step >= 0
    inside[inside] = start[inside] < steps.host_end_ns[step[inside]]
    table = np.stack([step, kind == "send", peer], axis=1)[inside].astype(np.int64)
    different, which, count = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    known = np.ones(len(different), np.bool_)
    which = which.ravel()  # numpy 2.0 gives it a second axis
    known[which[size[inside] < 0]] = False
    total = np.zeros(len(different), np.int64)
    np.add.at(total, which, size[inside])
    return PointToPoint(
        step=different[:, 0].astype(np.int32),
        sent=different[:, 1].astype(np.int32),
        peer=different[:, 2],
        count=count.astype(np.int64),
        bytes=np.where(known, total, -1),
    )


def _messages(
    trace: RankTrace, rows: Ints, name: Indices, classify: Callable[[str], str]
) -> tuple[Ints, NDArray[np.object_]]:
    """Those of some rows that are messages by what classifies their names, and what they are."""
    used, which = np.unique(name[rows], return_inverse=True)
    kind = np.array([classify(trace.strings[index]) for index in used.tolist()], object)[which]
    chosen = (kind == "send") | (kind == "recv")
    return rows[chosen], kind[chosen]


def _of_cpu(annotation: str) -> str:
    return names.collective(annotation) if names.is_host_collective(annotation) else ""


def _bytes(trace: RankTrace, rows: Ints) -> Ints:
    """Size of the messages in these rows of `comms`; -1 if unknown."""
    comms = trace.comms
    elements = np.maximum(comms.elements_in[rows], comms.elements_out[rows])
    each = np.array([names.ELEMENT_BYTES.get(text, -1) for text in (*trace.strings, "")], np.int64)[comms.dtype[rows]]
    known = (elements >= 0) & (elements <= MOST_ELEMENTS) & (each > 0)
    return np.where(known, elements, -1) * np.where(known, each, 1)
