"""What a rank gets of a core that it shares with another rank of its node, as a share of what both get.

The scheduler of a core gives tasks of one priority equal time, to some milliseconds, whatever else runs there: a rank
that gets less has a lower priority (nice), belongs to a control group of less weight, or waits for another thread of
its own process. On a machine of few cores, or one that others use, rates alone do not show that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from tb_ddp_doctor.calibration.model import MeasureKind
from tb_ddp_doctor.check.cores import pinned
from tb_ddp_doctor.check.repeats import ROUNDS, LocalRanks, sleep_until
from tb_ddp_doctor.check.turns import neighbours

KIND = MeasureKind("share of a core", "%", True)
#: Pairs that have to share one core each get less of a window; of more than this they are not measured longer.
_MOST_WINDOWS = 4
#: Of a window, so much must both together have got: a time slice or two tell nothing.
_LEAST_OF_WINDOW = 0.1


def shares(node: LocalRanks, cpus: Mapping[int, Sequence[int]], first: int) -> list[float]:
    """The share of this rank, %, in each of the rounds from a number on; NaN where it met no rank.

    `cpus` are those that each rank of the node may run on.
    """
    length = node.window_s * min(math.ceil(len(node.ranks) / 2 / max(min(map(len, cpus.values())), 1)), _MOST_WINDOWS)
    start = node.begin()
    met, spent = [], []
    for number in range(first, first + ROUNDS):
        begin = start + (number - first) * (length + 0.02)
        other, cpu = _meeting(node, cpus, number)
        met.append(other)
        spent.append(math.nan if cpu is None else _spent(cpu, begin, begin + length))
        sleep_until(begin + length)
    everyone = node.gather(spent)
    percentages = []
    for column, other in enumerate(met):
        own, both = spent[column], spent[column] + (everyone[other, column] if other is not None else math.nan)
        percentages.append(100 * own / both if both > _LEAST_OF_WINDOW * length else math.nan)
    return percentages


def _meeting(node: LocalRanks, cpus: Mapping[int, Sequence[int]], number: int) -> tuple[int | None, int | None]:
    """Whom this rank meets in a round, and on which CPU; None where it meets nobody."""
    for place, pair in enumerate(neighbours(node.ranks, number)):
        if node.rank in pair:
            common = sorted(set(cpus[pair[0]]) & set(cpus[pair[1]]))
            other = sum(pair) - node.rank
            return (other, common[(place + number) % len(common)]) if common else (None, None)
    return None, None


def _spent(cpu: int, begin: float, end: float) -> float:
    """Seconds of CPU time of a loop that runs on this CPU from begin to end; NaN where the system refuses."""
    try:
        with pinned(cpu):
            sleep_until(begin)
            before, until = time.thread_time(), time.perf_counter() + min(end - time.time(), end - begin)
            while time.perf_counter() < until:
                pass
            return time.thread_time() - before
    except OSError:
        return math.nan
