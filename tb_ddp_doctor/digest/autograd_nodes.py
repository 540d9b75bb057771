"""Which operator of forward made each of autograd's nodes: they have the same sequence number."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.nesting import enclosing
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints


def nodes(host: HostCalls) -> tuple[Ints, Ints]:
    """The calls that run autograd's nodes, the outermost ones, and the operator that made each; shape (nodes,) both.

    Nodes that accumulate gradients have no number, and run right after the one that hands them the gradient: they count
    as its. Operators are those of the thread that trains, since each thread counts for itself: what a reentrant
    checkpoint computes again has numbers of another thread, and lies within a node of this one. -1 for nodes of
    operators that were not recorded.
    """
    sequence = host.trace.events.sequence[host.row]
    numbered = host.is_operator & (sequence >= 0)
    if not numbered.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    backward = host.is_operator & host.named(names.is_backward)
    made = np.flatnonzero(numbered & ~backward & (host.thread == host.training_thread))
    node = np.flatnonzero(backward)
    node = node[host.around(node, backward) < 0]
    number, operator = sequence[node], makers(host, made, node)
    # What has no number is of the last one before it that has.
    last = np.maximum.accumulate(np.where(number >= 0, np.arange(len(node)), -1))
    known = (last >= 0) & (host.thread[node[last]] == host.thread[node])
    return node, np.where(known, operator[last], -1)


def nodes_within(host: HostCalls) -> tuple[Ints, Ints]:
    """The nodes that run within others, and the operator within the same one that made each; shape (nodes,) both.

    A reentrant checkpoint computes forward again in its node, and runs backward of that there. -1 for nodes of
    operators that were not recorded.
    """
    sequence = host.trace.events.sequence[host.row]
    backward = host.is_operator & host.named(names.is_backward)
    node = np.flatnonzero(backward)
    around = host.around(node, backward)
    inner = around >= 0
    # What a node calls has its number, or none.
    if not (inner & (sequence[node] >= 0) & (sequence[node] != sequence[around])).any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    outermost, node = node[~inner], node[inner]
    outer = _outer(host, outermost, node)
    operator = np.full(len(node), -1, np.int64)
    made = np.flatnonzero(host.is_operator & ~backward & (sequence >= 0))
    for thread in np.unique(host.thread[node]).tolist():
        here = np.flatnonzero(host.thread[node] == thread)
        operator[here] = makers(host, made[host.thread[made] == thread], node[here])
    known = np.flatnonzero(operator >= 0)
    operator[known[_outer(host, outermost, operator[known]) != outer[known]]] = -1
    # As of the others: what has no number is of the last one before it that has.
    last = np.maximum.accumulate(np.where(sequence[node] >= 0, np.arange(len(node)), -1))
    return node, np.where((last >= 0) & (outer[last] == outer), operator[last], -1)


def _outer(host: HostCalls, outermost: Ints, call: Ints) -> Ints:
    """Which of the outermost nodes each call is in; -1 for none."""
    start, end = host.start_ns[outermost], host.end_ns[outermost]
    return enclosing(start, end, host.thread[outermost], host.start_ns[call], host.thread[call])


def makers(host: HostCalls, made: Ints, node: Ints) -> Ints:
    """Which of some calls made each node: the last with its sequence number, if that starts before it; shape (nodes,).

    `made` are in order of time. -1 where there is none.
    """
    sequence = host.trace.events.sequence[host.row]
    made = made[np.argsort(sequence[made], kind="stable")]
    number = sequence[node]
    operator = np.append(made, -1)[np.searchsorted(sequence[made], number, side="right") - 1]
    matches = (operator >= 0) & (number >= 0)
    matches &= (sequence[operator] == number) & (host.start_ns[operator] < host.start_ns[node])
    return np.where(matches, operator, -1)


def follows(host: HostCalls, node: Ints) -> Mask:
    """Which of some nodes run right after the one before them, with no other call between; shape (nodes,)."""
    after = np.zeros(len(node), np.bool_)
    same = host.thread[node[1:]] == host.thread[node[:-1]]
    after[1:] = same & (host.start_ns[node[1:] - 1] < host.end_ns[node[:-1]])
    return after
