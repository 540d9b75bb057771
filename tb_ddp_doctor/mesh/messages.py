"""Who sends to whom, and the dimensions that this shows: the stages of a pipeline and the rings of context parallelism.

Two ranks that send to each other are stages if one of them first receives, and a ring of two if both send at once:

    rank 0  [send to 1][recv from 1]        rank 0  [send to 1, recv from 1]
    rank 1  [recv from 0][send to 0]        rank 1  [send to 0, recv from 0]
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.groups import ranks_of_groups


class Sends(msgspec.Struct, frozen=True):
    """Who sends to whom: pairs of rank numbers, sender and receiver, of which one or both are traced."""

    pairs: frozenset[tuple[int, int]]
    #: Pairs of a rank and another one that both send in the first kernel in which they meet, in most steps.
    swaps: frozenset[tuple[int, int]]


def sends(job: Job, described: Mapping[tuple[int, ...], tuple[str, ...]]) -> Sends:
    """Who sends to whom, without messages in groups that are described as of a dimension other than the pipeline's."""
    pairs: set[tuple[int, int]] = set()
    first: dict[tuple[int, int], bool] = {}
    for rank, digest in zip(job.ranks.tolist(), job.digests, strict=True):
        for peer, sent in _directions(digest, described):
            if peer >= 0 and peer != rank:
                pairs.add((rank, peer) if sent else (peer, rank))
        first |= {(rank, peer): sends for peer, sends in _sends_first(digest).items()}
    swaps = {pair for pair, sends in first.items() if sends and first.get(pair[::-1])}
    return Sends(frozenset(pairs), frozenset(swaps))


def _directions(digest: RankDigest, described: Mapping[tuple[int, ...], tuple[str, ...]]) -> set[tuple[int, bool]]:
    """With whom a rank exchanges messages that may be a pipeline's or a ring's, and whether it sends them."""
    ends, table = digest.message_ends, digest.messages
    if not len(ends):
        return set(zip(table.peer.tolist(), (table.sent == 1).tolist(), strict=True))
    ranks_of, text = ranks_of_groups(digest), digest.strings
    groups = np.unique(ends.group).tolist()
    names = {code: "+".join(described.get(ranks_of.get(text[code], ()), ("pp",))) for code in groups}
    chosen = np.isin(ends.group, [code for code, name in names.items() if "pp" in name.split("+")])
    return set(zip(ends.peer[chosen].tolist(), (ends.sent[chosen] == 1).tolist(), strict=True))


def _sends_first(digest: RankDigest) -> dict[int, bool]:
    """For each other rank, whether the first kernel of a step that meets it sends to it, in most steps."""
    ends = digest.message_ends
    if not len(ends):
        return {}
    step = digest.collectives.step[ends.call]
    known = np.flatnonzero((step >= 0) & (ends.peer >= 0))
    sends_first: dict[int, bool] = {}
    for peer in np.unique(ends.peer[known]).tolist():
        mine = known[ends.peer[known] == peer]
        start = digest.collectives.arrival_ns[ends.call[mine]]
        order = np.argsort(start, kind="stable")
        mine, of_step = mine[order], step[mine[order]]
        _, place = np.unique(of_step, return_index=True)
        sends = [bool((ends.sent[mine[ends.call[mine] == ends.call[mine[at]]]] == 1).any()) for at in place.tolist()]
        sends_first[peer] = 2 * sum(sends) > len(sends)
    return sends_first


def stages(sends: Sends) -> list[tuple[int, ...]]:
    """Chains of ranks that send to and receive from the next one, as the stages of a pipeline do."""
    pairs = sends.pairs
    both = sorted({(min(pair), max(pair)) for pair in pairs if pair[::-1] in pairs} - sends.swaps)
    after: dict[int, int] = {}
    for low, high in both:
        after.setdefault(low, high)
    starts = [low for low in after if low not in set(after.values())]
    chains = []
    for start in starts:
        chain = [start]
        while chain[-1] in after and len(chain) <= len(after):
            chain.append(after[chain[-1]])
        chains.append(tuple(chain))
    return chains if len({len(chain) for chain in chains}) == 1 else []


def rings(sends: Sends) -> list[tuple[int, ...]]:
    """Rings of ranks, each from its lowest rank on, that send one way, or two that send to each other at once, as ring
    attention does.

    In a pipeline that trains, gradients come back the other way. There are no rings at all if a rank sends one way to
    several ranks, if a sender is in no ring, or if rings differ in size.
    """
    pairs = sends.pairs
    one_way = sorted(pair for pair in pairs if pair[::-1] not in pairs or {pair, pair[::-1]} <= sends.swaps)
    after = dict(one_way)
    left = set(after)
    paths = []
    for start in after:
        if start not in left:
            continue
        ring = [start]
        while (following := after.get(ring[-1], start)) != start and following in left and len(ring) <= len(left):
            ring.append(following)
        left -= set(ring)
        paths.append(tuple(ring))
    closed = all(len(ring) > 1 and after.get(ring[-1]) == ring[0] for ring in paths)
    return paths if closed and len(after) == len(one_way) and len(set(map(len, paths))) == 1 else []
