"""The pipelines of a job: which ranks are stages of one, how many micro-batches run through it, and what it waits.

Stages send activations to the next one and receive gradients from it, so that messages go both ways between
neighbours: a ring that only passes on (context parallelism) is no pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from tb_ddp_doctor.facts.transfers import messages_alone
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Ints


class Pipeline(msgspec.Struct, frozen=True, eq=False):
    """A job whose ranks are stages."""

    stages: int
    #: Messages from one stage to the next in a step: its micro-batches, once for each chunk of layers that a rank has.
    micro_batches: int
    #: Sends and receives with nothing beside them, waiting and transfer alike, shape (R, S), ns.
    exposed_ns: Ints

    def bubble_ns(self, compute_ns: float) -> float:
        """How long a stage waits for other stages in each step though all are equal, ns, if it computes for
        `compute_ns`: of m micro-batches on p stages, (p - 1) / m of that.
        """
        return compute_ns * (self.stages - 1) / self.micro_batches


def pipeline(job: Job) -> Pipeline | None:
    """The pipeline that the messages of a job show; None where they show none."""
    has_messages = any(len(digest.messages) for digest in job.digests)
    found = (_from_peers(job) or _from_counts(job)) if has_messages else None
    if not found:
        return None
    return Pipeline(*found, messages_alone(job))


def _from_peers(job: Job) -> tuple[int, int] | None:
    """Stages and micro-batches where messages name both ends: the longest chain (or ring) of neighbours."""
    sent: dict[tuple[int, int], float] = {}
    for rank, digest in zip(job.ranks.tolist(), job.digests, strict=True):
        table, steps = digest.messages, max(len(digest.steps), 1)
        known = table.peer >= 0
        peers, which = np.unique(table.peer[known], return_inverse=True)
        there, back = (
            np.bincount(which, table.count[known] * (table.sent[known] == way), len(peers)) / steps for way in (1, 0)
        )
        for peer, number, returned in zip(peers.tolist(), there.tolist(), back.tolist(), strict=True):
            sent[rank, peer] = number
            sent.setdefault((peer, rank), returned)
    neighbours: defaultdict[int, set[int]] = defaultdict(set)
    for (rank, peer), number in sent.items():
        if number > 0 and sent.get((peer, rank), 0) > 0:
            neighbours[rank].add(peer)
    stages = max(map(len, _chains(neighbours)), default=0)
    if stages < 2 or any(len(others) > 2 for others in neighbours.values()):
        return None
    numbers = [sent[rank, peer] for rank, others in neighbours.items() for peer in others]
    return stages, max(round(float(np.median(numbers))), 1)


def _chains(neighbours: Mapping[int, set[int]]) -> Iterator[set[int]]:
    """The ranks of each chain (or ring) of neighbours."""
    seen: set[int] = set()
    for rank in neighbours:
        if rank in seen:
            continue
        chain, left = {rank}, [rank]
        while left:
            new = neighbours[left.pop()] - chain
            chain |= new
            left += new
        seen |= chain
        yield chain


def _from_counts(job: Job) -> tuple[int, int] | None:
    """Stages and micro-batches where nothing names the other end: the ends send half as much as those between."""
    sends = np.array(
        [_per_step(digest.messages.count[digest.messages.sent == 1], len(digest.steps)) for digest in job.digests]
    )
    receives = np.array(
        [_per_step(digest.messages.count[digest.messages.sent == 0], len(digest.steps)) for digest in job.digests]
    )
    least = round(float(sends.min()))
    ends, between = np.round(sends) == least, np.round(sends) == 2 * least
    both_ways = np.array_equal(np.round(sends), np.round(receives))
    known = any((digest.messages.peer >= 0).any() for digest in job.digests)
    if known or least < 1 or not both_ways or ends.sum() != 2 or not (ends | between).all() or len(job.missing_ranks):
        return None
    return len(job.ranks), least


def _per_step(counts: Ints, steps: int) -> float:
    return float(counts.sum()) / max(steps, 1)
