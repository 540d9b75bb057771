"""Process groups against their peers: how much longer the same collective takes in one than it usually does.

Peers have as many ranks, as far apart, on as many nodes: the tensor-parallel groups of a job, or its data-parallel
ones. Their collectives of one kind and one size are compared, transfer with transfer, so that neither waiting nor
latency nor the size of messages looks like a slow link.

Sends and receives are compared between pairs of ranks, each direction by itself where a kernel only sends. All links
between nodes are peers. Within a node two GPUs may be further apart than two others by design (another socket, fewer
NVLinks), so that the same two places of other nodes are peers:

    node a  0 -> 1 -> 2 -> 3 -> 4     0 -> 1 and 4 -> 5 are peers, and so are 1 -> 2 and 5 -> 6
    node b  4 -> 5 -> 6 -> 7 -> 0     3 -> 4 and 7 -> 0 are peers

`slow-link` finds faults with it. A rule that seeks the cause of another fault, such as a straggler, takes the input
`links` and asks which ranks have a slow one (`Link.is_slow`, `Link.traffic.ranks`), and how much of their own time it
explains (`excess_ns`).

R = ranks, S = steps.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.segments import Segments
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.names import is_point_to_point

#: A link is slow that takes so many times as long as its peers: groups that share a network card or the GPU differ by
#: less.
SLOW_TIMES = 1.5
#: The kind of a link's messages.
_MESSAGE = "send_recv"


class Link(msgspec.Struct, frozen=True, eq=False):
    """One kind of collective in one group that has peers, or the messages between two ranks; only sizes that a peer has
    too.
    """

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

    @property
    def is_of_messages(self) -> bool:
        """Whether it is of sends and receives between two ranks, and not of collectives."""
        return self.traffic.kind == _MESSAGE

    def is_slow(self, min_slowdown: float, min_steps: float) -> bool:
        """Whether it takes so many times as long as usual, on the whole and in such a share of its steps."""
        if self.slowdown < min_slowdown:
            return False
        steps = self.peer_ns > 0
        slow = self.transfer_ns[steps] >= min_slowdown * self.peer_ns[steps]
        return bool(slow.mean() >= min_steps)


def links(job: Job, traffic: Sequence[Traffic]) -> tuple[Link, ...]:
    """Every kind and group of a job's traffic that has peers, and every pair of ranks that has some."""
    comparable: dict[object, list[tuple[Traffic, list[int]]]] = defaultdict(list)
    left_out = _left_out(job)
    for one in traffic:
        if one.has_bytes and len(one.ranks) > 1 and not is_point_to_point(one.kind):
            numbers = job.ranks[one.ranks]
            apart = tuple((numbers - numbers[0]).tolist())
            nodes = len({job.nodes[rank] for rank in one.ranks})
            before = left_out.get((one.kind, one.group, int(one.ranks[0])), [])
            comparable[one.kind, one.size, apart, nodes].append((one, before))
    messages = [one for one in traffic if one.kind == _MESSAGE or is_point_to_point(one.kind)]
    for common, pair, before in _pairs(job, messages):
        comparable[common].append((pair, before))
    return tuple(link for peers in comparable.values() if len(peers) > 1 for link in _compare(peers))


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


def _pairs(job: Job, messages: Sequence[Traffic]) -> Iterator[tuple[object, Traffic, list[int]]]:
    """Each pair of ranks and direction of some sends and receives: what it has in common with its peers, its transfers,
    and those in steps that the job leaves out, as rows of the matched collectives.

    Kernels of more than two ranks that all meet each other are of no link alone.
    """
    matched, sizes, place = job.matched, _message_sizes(job), _places(job)
    rows = np.flatnonzero((matched.parts == 2) & matched.is_of([one.kind for one in messages]))
    if not len(rows):
        return
    first = matched.segments.first[rows]
    low, high = matched.rank[first], matched.rank[first + 1]
    # 1 where only the lower rank sends, -1 where only the higher one does, 0 where a kernel does both.
    way = matched.sends[first].astype(np.int64) - matched.sends[first + 1]
    measured = _joined(messages)
    place_of = np.full(len(matched), -1)
    place_of[measured.row] = np.arange(len(measured.row))
    of_pair, order = Segments.grouped(numbered(low, high, way))
    for begin, end in itertools.pairwise(of_pair.first.tolist()):
        mine = order[begin:end]
        ranks, one_way = (int(low[mine[0]]), int(high[mine[0]])), int(way[mine[0]])
        # Bytes of a message from the lower rank to the higher one, and back.
        sent = (sizes.get(ranks, 0) if one_way >= 0 else 0, sizes.get(ranks[::-1], 0) if one_way <= 0 else 0)
        which = place_of[rows[mine]]
        if max(sent) > 0 and min(sent) >= 0 and (which >= 0).any():
            same_node = job.nodes[ranks[0]] == job.nodes[ranks[1]]
            common = (place[ranks[0]], place[ranks[1]], *sent) if same_node else ("", *sorted(sent))
            of_two = _of_two(measured, which[which >= 0], ranks, max(sent))
            yield (_MESSAGE, *common, one_way != 0), of_two, rows[mine[which < 0]].tolist()


def _joined(messages: Sequence[Traffic]) -> Traffic:
    """Sends and receives of several kinds and groups, as those of one."""
    columns = ("row", "step", "among", "bytes", "transfer_ns", "exposed_ns", "wait_ns")
    return replace(messages[0], **{name: np.concatenate([getattr(one, name) for one in messages]) for name in columns})


def _of_two(messages: Traffic, which: Ints, ranks: tuple[int, int], size: int) -> Traffic:
    """Some sends and receives, `which` of them, that are all between two ranks and of `size` bytes."""
    return replace(
        messages,
        kind=_MESSAGE,
        ranks=np.array(ranks),
        size=2,
        row=messages.row[which],
        step=messages.step[which],
        among=messages.among[which],
        bytes=np.full(len(which), size),
        transfer_ns=messages.transfer_ns[which],
        exposed_ns=messages.exposed_ns[which],
        wait_ns=messages.wait_ns[which],
        line=None,
    )


def _message_sizes(job: Job) -> dict[tuple[int, int], int]:
    """Mean bytes of a message from one rank to another, both as indices; -1 if unknown."""
    index = {number: rank for rank, number in enumerate(job.ranks.tolist())}
    sizes: dict[tuple[int, int], int] = {}
    for rank, digest in enumerate(job.digests):
        sent = digest.messages
        for peer in np.unique(sent.peer[sent.sent == 1]).tolist():
            mine = (sent.sent == 1) & (sent.peer == peer)
            known = (sent.bytes[mine] >= 0).all()
            mean = round(float(sent.bytes[mine].sum()) / float(sent.count[mine].sum())) if known else -1
            sizes[rank, index.get(peer, -1)] = mean
    return sizes


def _places(job: Job) -> list[int]:
    """The place of each rank on its node: how many ranks of lower numbers are there."""
    places: dict[str, Iterator[int]] = defaultdict(itertools.count)
    return [next(places[node]) for node in job.nodes]


def _compare(peers: Sequence[tuple[Traffic, Sequence[int]]]) -> Iterator[Link]:
    """Links of groups that are peers. Usual is the lower median, so that of two groups the faster one is.

    `peers` are the groups, each with its collectives in steps that the job leaves out.
    """
    sizes = np.unique(np.concatenate([one.bytes for one, _ in peers]))
    means = np.full((len(peers), len(sizes)), np.inf)
    for i, (one, _) in enumerate(peers):
        which = np.searchsorted(sizes, one.bytes)
        calls = np.bincount(which, minlength=len(sizes))
        total = _sum(which, one.transfer_ns, len(sizes))
        means[i] = np.where(calls > 0, total / np.maximum(calls, 1), np.inf)
    having = np.isfinite(means).sum(axis=0)
    median = np.sort(means, axis=0)[np.maximum(having - 1, 0) // 2, np.arange(len(sizes))]
    for one, left_out in peers:
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
                left_out=left_out,
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
