"""What the captures of one start agree on: the ranks that they name more often than noise does.

Noise, such as threads that wait for a core, makes captures name one rank after the other; a fault makes them name the
same. So captures that are each unsure can be sure together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

#: One healthy job of so many has a rank that noise alone makes the captures agree on.
_JOBS_PER_MISTAKE = 100


def agreed_ranks(named: Sequence[tuple[int, ...]], rank_count: int) -> tuple[int, ...]:
    """The ranks, sorted, that more captures name than noise explains.

    `named` are the ranks that each capture of a job of `rank_count` ranks names; captures that name none, or all, say
    nothing. Noise names each rank as often as another, so how often a rank is named is binomial. Any of the job's ranks
    may be the one that is named most: the probability is corrected for their number (Bonferroni).
    """
    significant = [set(ranks) for ranks in named if 0 < len(set(ranks)) < rank_count]
    if not significant:
        return ()
    by_noise = sum(map(len, significant)) / len(significant) / rank_count
    times = Counter(rank for ranks in significant for rank in ranks)
    least = 1 / (_JOBS_PER_MISTAKE * rank_count)
    return tuple(sorted(rank for rank, k in times.items() if _at_least(k, len(significant), by_noise) <= least))


def _at_least(k: int, n: int, p: float) -> float:
    """The probability of `k` or more successes in `n` tries that succeed with probability `p`, 0 to 1."""
    return sum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
