"""Which pauses of a role's ranks end together: what a single rank stalls is its own, and no wait for another role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

#: The share of a role's ranks that pause at once.
_OF_ROLE = 0.5
#: Ranks of one role get samples or weights one after the other: pauses that end within so much of each other, or within
#: this share of the pause, end together.
_TOGETHER_NS, _TOGETHER = 2_000_000, 0.1
#: A role waits for others about as long in each round: pauses shorter than this share of its longest are its own.
SHORTER = 0.25
#: A pause is as long as another one if it takes this share of it.
_AS_LONG = 0.8


class Pause(msgspec.Struct, frozen=True):
    """A stretch in which a rank does nothing, ns."""

    begin_ns: int
    end_ns: int
    rank: int
    #: The row of the rank's track that ends with it, where it is of one.
    row: int = -1

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


def together(pauses: Iterable[Pause], peers: int, shorter: float = SHORTER) -> list[list[Pause]]:
    """The pauses of a role of so many ranks that end together, by time: on at least half of its ranks, and on more than
    one if there are more. Those that are shorter than this share of the longest are the role's own. So are those of a
    rank that pauses as long more often alone: it stalls in each iteration, or waits for its tools.
    """
    ordered = sorted(pauses, key=lambda one: one.end_ns)
    groups = _groups(ordered, peers, shorter)
    often = Counter(one.rank for group in groups for one in group)
    # Short ones that all ranks of the role end together are no stalls of one rank either.
    in_any = {(one.rank, one.end_ns) for group in _groups(ordered, peers, 0) for one in group}
    alone: dict[int, list[int]] = {}
    for one in ordered:
        if (one.rank, one.end_ns) not in in_any:
            alone.setdefault(one.rank, []).append(one.length_ns)
    own = {
        (one.rank, one.end_ns)
        for group in groups
        for one in group
        if sum(ns >= _AS_LONG * one.length_ns for ns in alone.get(one.rank, ())) >= 2 * often[one.rank]
    }
    return _groups([one for one in ordered if (one.rank, one.end_ns) not in own], peers, shorter) if own else groups


def _groups(ordered: Iterable[Pause], peers: int, shorter: float) -> list[list[Pause]]:
    """As `together`, of pauses by end, whoever else pauses as long alone."""
    groups: list[list[Pause]] = []
    until = 0
    for pause in ordered:
        if not groups or pause.end_ns > until:
            until = pause.end_ns + max(_TOGETHER_NS, round(_TOGETHER * pause.length_ns))
            groups.append([])
        groups[-1].append(pause)
    groups = [one for group in groups for one in _once_a_rank(group)]
    least = max(_OF_ROLE * peers, min(peers, 2))
    groups = [group for group in groups if len({one.rank for one in group}) >= least]
    longest = [max(one.length_ns for one in group) for group in groups]
    return [group for group, ns in zip(groups, longest, strict=True) if ns >= shorter * max(longest)]


def _once_a_rank(group: list[Pause]) -> Iterator[list[Pause]]:
    """Parts of a group, by end, in which no rank pauses twice, cut where ends are farthest apart: a rank that pauses
    again waits for something else.
    """
    left = [group]
    while left:
        group = left.pop()
        if len({one.rank for one in group}) == len(group):
            yield group
            continue
        apart = [after.end_ns - before.end_ns for before, after in pairwise(group)]
        cut = apart.index(max(apart)) + 1
        left += [group[cut:], group[:cut]]
