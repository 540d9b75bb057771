"""Which ranks send to each other in which round: every rank is in some pair of each kind after log2 rounds.

In round k of n members, member i sends to member i + 2^k (i an even multiple of 2^k), as in recursive doubling. All
pairs of a round send at once. 64 nodes take 6 rounds; all their 2,016 pairs, each node in one pair at a time, take 63.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

Pairs: TypeAlias = list[tuple[int, int]]


def rounds(members: int) -> list[Pairs]:
    """The pairs of each round, members numbered from 0; nobody is in two pairs of a round."""
    of_distance = []
    distance = 1
    while distance < members:
        of_distance.append(
            [(i, i + distance) for i in range(members) if not i // distance % 2 and i + distance < members]
        )
        distance *= 2
    return of_distance


def schedule(nodes: Sequence[str]) -> list[Pairs]:
    """The rounds of a job whose ranks are on these nodes: first within each node, then between nodes.

    Between nodes, ranks with the same place on their nodes are paired, so that all network cards are used.
    """
    ranks_of: defaultdict[str, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        ranks_of[node].append(rank)
    places = [*ranks_of.values()]
    scheduled: list[Pairs] = []
    for inside in [rounds(len(ranks)) for ranks in places]:
        scheduled.extend([] for _ in range(len(inside) - len(scheduled)))
    for ranks in places:
        for k, pairs in enumerate(rounds(len(ranks))):
            scheduled[k] += [(ranks[a], ranks[b]) for a, b in pairs]
    for pairs in rounds(len(places)):
        between = [pair for a, b in pairs for pair in zip(places[a], places[b], strict=False)]
        scheduled.append(sorted((min(pair), max(pair)) for pair in between))
    return [pairs for pairs in scheduled if pairs]
