"""Which ranks of a node measure at the same time.

Ranks that share too few cores slow each other down by turns of the scheduler, so that a healthy rank looks slow in any
short time. They take turns instead, no more at once than there are cores for, each time beside other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Of a node with more ranks for each core, several share a core: a check is to end within its time.
MOST_TURNS = 4


def at_once(ranks: int, cores: float, threads: int) -> int:
    """How many ranks of a node compute at the same time, each with so many threads."""
    return min(max(int(cores / threads), math.ceil(ranks / MOST_TURNS), 1), ranks)


def turns(ranks: Sequence[int], together: int, number: int) -> list[list[int]]:
    """The ranks of a node in a round of this number, turn by turn; each in one turn."""
    placed = _rotated(ranks, number)
    count = math.ceil(len(placed) / together)
    return [placed[turn::count] for turn in range(count)]


def neighbours(ranks: Sequence[int], number: int) -> list[tuple[int, int]]:
    """Pairs of a round in which each rank meets another one, all others in as many rounds; of odd ranks one rests."""
    placed = _rotated([*ranks, *([-1] if len(ranks) % 2 else [])], number)
    half = len(placed) // 2
    return [(a, b) for a, b in zip(placed[:half], reversed(placed[half:]), strict=True) if a >= 0 and b >= 0]


def _rotated(members: Sequence[int], number: int) -> list[int]:
    """The circle method of tournaments: the first stays, the others move on by one each round."""
    rest = members[1:]
    shift = number % max(len(rest), 1)
    return [*members[:1], *rest[shift:], *rest[:shift]]
