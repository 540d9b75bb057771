"""Which messages a rank sends and receives in each step, as the host enqueues them, and which kernel carries them out.

They are counted on the host: NCCL moves all messages of one `batch_isend_irecv` in a single kernel, which is launched
when the `record_param_comms` of each have ended, and so carries no metadata of any. So a message belongs to the first
send or receive kernel that its thread launches from then on:

    thread  [send to 2][recv from 0][launch 7]  [send to 2 [launch 8]]
    kernel 7: sends to 2, receives from 0       kernel 8: sends to 2
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.collectives import MOST_ELEMENTS, metadata, ranks_in
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls, one_of
from tb_ddp_doctor.digest.model import MessageEnds, PointToPoint, Steps
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
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
    return PointToPoint(
        step=different[:, 0].astype(np.int32),
        sent=different[:, 1].astype(np.int32),
        peer=different[:, 2],
        count=count.astype(np.int64),
        bytes=np.where(known, summed(which, size[inside], len(different)), -1),
    )


def message_ends(host: HostCalls, device: DeviceEvents, words: Vocabulary) -> MessageEnds:
    """Which messages each communication kernel of the device carries out."""
    trace, comms = host.trace, host.trace.comms
    kernels = np.flatnonzero(device.communicates)
    # In the order of `Collectives`.
    kernels = kernels[np.argsort(device.start_ns[kernels], kind="stable")]
    about = metadata(host, device, kernels)
    rows, kind = _messages(trace, np.flatnonzero(comms.collective >= 0), comms.collective, names.collective)
    on_host = trace.events.category[comms.event[rows]] == Category.OP
    is_message, is_named = np.zeros((2, len(comms) + 1), np.bool_)
    is_message[rows] = True
    is_named[:-1] = _kinds(trace, comms.collective, names.collective) != ""
    is_sent = is_message[about]
    # What is known to be a collective, as an all-to-all, sends no messages of these.
    carries = is_sent | (~is_named[about] & device.names.among(device.name[kernels], _sends_or_receives))
    call, message = _carried(host, device, kernels, carries, rows[on_host])
    alone = is_sent.copy()
    alone[call] = False
    call = np.concatenate((call, np.flatnonzero(alone)))
    message = np.concatenate((message, about[alone]))
    sends = np.zeros(len(comms) + 1, np.bool_)
    sends[rows[kind == "send"]] = True
    return MessageEnds(
        call=call.astype(np.int32),
        sent=sends[message].astype(np.int32),
        peer=_peers(trace, message),
        group=np.array(
            [words.index(trace.strings[i] if i >= 0 else "") for i in comms.group[message].tolist()], np.int32
        ),
    )


def _sends_or_receives(kernel: str) -> bool:
    return names.collective(kernel) in ("send_recv", "send", "recv")


def _carried(host: HostCalls, device: DeviceEvents, kernels: Ints, carries: Mask, rows: Ints) -> tuple[Ints, Ints]:
    """Which of the kernels carries out each message of some rows of `comms`, and the message."""
    launched = np.flatnonzero(carries & (device.launch[kernels] >= 0))
    launch, instant = device.launch[kernels[launched]], device.launch_ns[kernels[launched]]
    message = host.index[host.trace.comms.event[rows]]
    carriers, which = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for thread in np.unique(host.thread[launch]).tolist():
        mine = np.flatnonzero(host.thread[launch] == thread)
        mine = mine[np.argsort(instant[mine], kind="stable")]
        own = np.flatnonzero(host.thread[message] == thread)
        own = own[np.argsort(host.start_ns[message[own]], kind="stable")]
        place = searchsorted(instant[mine], host.start_ns[message[own]])
        inside = place < len(mine)
        carriers.append(launched[mine[place[inside]]])
        which.append(rows[own[inside]])
    return np.concatenate(carriers), np.concatenate(which)


def _peers(trace: RankTrace, rows: Ints) -> Ints:
    """The other rank of the messages in these rows of `comms`: as told, or the other one of a group of two."""
    comms = trace.comms
    peer: Ints = comms.peer[rows].copy()
    for i in np.flatnonzero((peer < 0) & (comms.group_ranks[rows] >= 0)).tolist():
        ranks = ranks_in(trace.strings[comms.group_ranks[rows[i]]])
        others = [rank for rank in ranks if rank != trace.header.rank]
        if len(ranks) == 2 and len(others) == 1:
            peer[i] = others[0]
    return peer


def _kinds(trace: RankTrace, name: Indices, classify: Callable[[str], str]) -> NDArray[np.object_]:
    """What some names are, by what classifies them; "" for a missing name."""
    used, which = np.unique(name, return_inverse=True)
    kinds = [classify(trace.strings[index]) if index >= 0 else "" for index in used.tolist()]
    return np.array([*kinds, ""], object)[which]


def _messages(
    trace: RankTrace, rows: Ints, name: Indices, classify: Callable[[str], str]
) -> tuple[Ints, NDArray[np.object_]]:
    """Those of some rows that are messages by what classifies their names, and what they are."""
    kind = _kinds(trace, name[rows], classify)
    chosen = (kind == "send") | (kind == "recv")
    return rows[chosen], kind[chosen]


def _of_cpu(annotation: str) -> str:
    return names.collective(annotation) if names.is_host_collective(annotation) else ""


def _bytes(trace: RankTrace, rows: Ints) -> Ints:
    """Size of the messages in these rows of `comms`; -1 if unknown."""
    comms = trace.comms
    elements = np.maximum(comms.elements_in[rows], comms.elements_out[rows])
    each = np.array([names.element_bytes(text) for text in (*trace.strings, "")], np.int64)[comms.dtype[rows]]
    known = (elements >= 0) & (elements <= MOST_ELEMENTS) & (each > 0)
    return np.where(known, elements, -1) * np.where(known, each, 1)
