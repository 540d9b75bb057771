"""Which operator of forward made each of autograd's nodes: they have the same sequence number."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.host_calls import HostCalls
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
