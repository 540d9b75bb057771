"""Formulas for the time of collectives by algorithm, from the time of one message between two ranks.

`step_ns` is the latency of a message from one rank to the next, a; `byte_ns` the time of a byte on a link, b; m the
bytes of the larger side of the collective, n the ranks. Reductions in memory are taken to cost nothing beside b.

- Ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; Thakur,
  Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005): ReduceScatter and
  AllGather take (n - 1) a + (n - 1)/n m b each, AllReduce both.
- Double binary tree (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
  2009; NCCL since 2.4): each half of the data is reduced up one tree and broadcast down it, so that AllReduce takes
  2 ceil(log2 n) a + 2 m b.
- Hierarchical, of g ranks on each of k nodes: ReduceScatter within nodes, AllReduce of an m/g part between them,
  AllGather within nodes.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec

#: How many times each kind goes round a ring.
_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
#: Kinds with a formula.
KINDS = frozenset(_ROUNDS)


class MessageLink(msgspec.Struct, frozen=True):
    """The time of a message from one rank to the next."""

    #: Latency, ns.
    step_ns: float
    #: Time of a byte, ns.
    byte_ns: float


def ring(kind: str, ranks: int, size: float, link: MessageLink) -> float:
    """Time of a collective of `size` bytes by a ring, ns. Raises ValueError for kinds without a formula."""
    if kind not in KINDS:
        raise ValueError(f"There is no formula for {kind}.")
    if ranks < 2:
        return 0.0
    once = (ranks - 1) * link.step_ns + (ranks - 1) / ranks * size * link.byte_ns
    return _ROUNDS[kind] * once


def tree(ranks: int, size: float, link: MessageLink) -> float:
    """Time of an all_reduce of `size` bytes by two binary trees, ns."""
    if ranks < 2:
        return 0.0
    return 2 * math.ceil(math.log2(ranks)) * link.step_ns + 2 * size * link.byte_ns


def hierarchical(ranks_a_node: int, nodes: int, size: float, within: MessageLink, between: MessageLink) -> float:
    """Time of an all_reduce of `size` bytes within nodes and between them, ns."""
    inside = ring("reduce_scatter", ranks_a_node, size, within) + ring("all_gather", ranks_a_node, size, within)
    part = size / max(ranks_a_node, 1)
    return inside + min(ring("all_reduce", nodes, part, between), tree(nodes, part, between))


def all_reduce(ranks: int, size: float, link: MessageLink) -> tuple[str, float]:
    """The quicker of ring and tree for `size` bytes, and its time, ns."""
    times = {"ring": ring("all_reduce", ranks, size, link), "tree": tree(ranks, size, link)}
    best = min(times, key=times.__getitem__)
    return best, times[best]


def link_of(kind: str, ranks: int, alpha_ns: float, beta_ns: float) -> MessageLink:
    """The link with which a ring's collectives take alpha + bytes * beta, ns. Raises ValueError for other kinds."""
    one = ring(kind, ranks, 0.0, MessageLink(1.0, 0.0))
    share = ring(kind, ranks, 1.0, MessageLink(0.0, 1.0))
    return MessageLink(alpha_ns / one if one else 0.0, beta_ns / share if share else 0.0)


def expected_largest(count: int) -> float:
    """How many standard deviations the largest of `count` normal values lies above their mean (Blom 1958)."""
    if count < 2:
        return 0.0
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
