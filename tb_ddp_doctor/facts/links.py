"""Process groups against their peers: how much longer the same collective takes in one than it usually does.

Peers have as many ranks, as far apart, on as many nodes: the tensor-parallel groups of a job, or its data-parallel
ones. Their collectives of one kind and one size are compared, transfer with transfer, so that neither waiting nor
latency nor the size of messages looks like a slow link.

`slow-link` finds faults with it. A rule that seeks the cause of another fault, such as a straggler, takes the input
`links` and asks which ranks have a slow one (`Link.is_slow`, `Link.traffic.ranks`), and how much of their own time it
explains (`excess_ns`).

R = ranks, S = steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Floats, Ints

#: A link is slow that takes so many times as long as its peers: groups that share a network card or the GPU differ by
#: less.
SLOW_TIMES = 1.5


class Link(msgspec.Struct, frozen=True, eq=False):
    """One kind of collective in one group that has peers; only sizes that a peer has too."""

    traffic: Traffic
    #: Groups that it is compared with.
    peers: int
    #: Transfer in this group and usually, shape (S,), ns; usually 0 in steps without one.
    transfer_ns: Floats
    peer_ns: Floats
    #: Transfer of each call of `traffic` in comparable groups, ns; its own where no peer has that size.
    peer_of_each_ns: Floats
    #: Its collectives in steps that the job leaves out, as rows of the job's matched collectives.
    left_out: Sequence[int] = ()

    @property
    def slowdown(self) -> float:
        """How many times as long as usual it takes, all steps together."""
        peers = float(self.peer_ns.sum())
        return float(self.transfer_ns.sum()) / peers if peers > 0 else 1.0

    @property
    def peer_bus_rate(self) -> float:
        """Its bus bandwidth if it were as fast as usual, bytes per second."""
        return self.traffic.bus_rate * self.slowdown

    def is_slow(self, min_slowdown: float, min_steps: float) -> bool:
        """Whether it takes so many times as long as usual, on the whole and in such a share of its steps."""
        steps = self.peer_ns > 0
        slow = self.transfer_ns[steps] >= min_slowdown * self.peer_ns[steps]
        return self.slowdown >= min_slowdown and bool(slow.mean() >= min_steps)


def links(job: Job, traffic: Sequence[Traffic]) -> tuple[Link, ...]:
    """Every kind and group of a job's traffic that has peers."""
    comparable: dict[object, list[Traffic]] = defaultdict(list)
    for one in traffic:
        if one.has_bytes and len(one.ranks) > 1:
            numbers = job.ranks[one.ranks]
            apart = tuple((numbers - numbers[0]).tolist())
            comparable[one.kind, one.size, apart, len({job.nodes[rank] for rank in one.ranks})].append(one)
    left_out = _left_out(job)
    return tuple(link for peers in comparable.values() if len(peers) > 1 for link in _compare(peers, left_out))


def _left_out(job: Job) -> dict[tuple[str, str, int], list[int]]:
    """The collectives in steps that the job leaves out, as rows of the matched ones, by kind, group and lowest rank."""
    matched, left_out = job.matched, defaultdict(list)
    rows = np.flatnonzero(~np.isin(matched.step, job.steps))
    segments, part = matched.segments.select(rows)
    kinds, groups = job.calls.text("kind"), job.calls.text("group")
    calls, lowest = matched.call[matched.segments.first[rows]], segments.min(matched.rank[part])
    for row, call, rank in zip(rows, calls, lowest, strict=True):
        left_out[kinds.words[kinds.code[call]], groups.words[groups.code[call]], int(rank)].append(int(row))
    return left_out


def _compare(peers: Sequence[Traffic], left_out: Mapping[tuple[str, str, int], list[int]]) -> Iterator[Link]:
    """Links of groups that are alike. Usual is the lower median, so that of two groups the faster one is."""
    sizes = np.unique(np.concatenate([one.bytes for one in peers]))
    means = np.full((len(peers), len(sizes)), np.inf)
    for i, one in enumerate(peers):
        which = np.searchsorted(sizes, one.bytes)
        calls = np.bincount(which, minlength=len(sizes))
        total = _sum(which, one.transfer_ns, len(sizes))
        means[i] = np.where(calls > 0, total / np.maximum(calls, 1), np.inf)
    having = np.isfinite(means).sum(axis=0)
    median = np.sort(means, axis=0)[np.maximum(having - 1, 0) // 2, np.arange(len(sizes))]
    for one in peers:
        which = np.searchsorted(sizes, one.bytes)
        shared = having[which] > 1
        if shared.any():
            steps = one.step[shared]
            yield Link(
                traffic=one,
                peers=len(peers) - 1,
                transfer_ns=_sum(steps, one.transfer_ns[shared], one.steps),
                peer_ns=_sum(steps, median[which[shared]], one.steps),
                peer_of_each_ns=np.where(shared, median[which], one.transfer_ns),
                left_out=left_out.get((one.kind, one.group, int(one.ranks[0])), []),
            )


def excess_ns(slow: Iterable[Link], ranks: int, steps: int) -> Ints:
    """Exposed transfer of each rank that its slow links cost beyond the usual, shape (R, S)."""
    excess = np.zeros((ranks, steps))
    for link in slow:
        exposed = _sum(link.traffic.step, link.traffic.exposed_ns, steps)
        lost_share = 1 - link.peer_ns / np.maximum(link.transfer_ns, 1)
        excess[link.traffic.ranks] += exposed * np.clip(lost_share, 0, 1)
    return np.rint(excess).astype(np.int64)


def at_median_rate(slow: Sequence[Link], whatif: WhatIf) -> Change:
    """The change that makes slow links as fast as those of comparable groups.

    With a replay, each of their transfers gets shorter, and the replay tells how much of that was hidden. Else what
    they expose beyond the usual is removed.
    """
    if not whatif.plays:
        return Change(transfer_ns=excess_ns(slow, *whatif.shape))
    share = excess_share(slow)
    return whatif.shorter_transfers(np.array([*share], np.int64), np.array([*share.values()]))


def excess_share(slow: Iterable[Link]) -> dict[int, float]:
    """The share of each transfer of slow links that is beyond the usual, 0 to 1, by row of the matched collectives."""
    shares: dict[int, float] = {}
    for link in slow:
        share = np.clip(1 - link.peer_of_each_ns / np.maximum(link.traffic.transfer_ns, 1), 0, 1)
        shares |= zip(link.traffic.row.tolist(), share.tolist(), strict=True)
        shares |= dict.fromkeys(link.left_out, max(1 - 1 / link.slowdown, 0.0))
    return shares


def _sum(index: Ints, values: Ints | Floats, size: int) -> Floats:
    """Sum of the values by index, shape (size,)."""
    return np.bincount(index, weights=values, minlength=size).astype(np.float64)
