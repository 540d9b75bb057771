"""Which of many calls are the few that another rank has of them, by when they end."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.trace.model import Ints

#: Cells of the table by which calls are realigned, 4 bytes each, and calls too many that are looked for, 20 µs each.
_MOST_CELLS, _MOST_LOST = 1 << 24, 1 << 14


def can_realign(few: int, many: int) -> bool:
    """Whether so few of so many calls are found in a second, and tens of megabytes."""
    lost = many - few
    return lost <= _MOST_LOST and few * (lost + 1) <= _MOST_CELLS


def places(few_ns: Ints, many_ns: Ints) -> Ints:
    """Which of many calls the few are, in order, so that their ends agree best: an index for each of the few."""
    lost = len(many_ns) - len(few_ns)
    places = np.arange(len(few_ns))
    if not lost:
        return places
    offset = _offset(few_ns, many_ns)
    # best[j] is the least disagreement so far, with j of the many passed over; came[i][j] how many before call i.
    best = np.zeros(lost + 1)
    came = np.empty((len(few_ns), lost + 1), np.int32)
    for i, end in enumerate(few_ns):
        least = np.minimum.accumulate(best)
        came[i] = np.maximum.accumulate(np.where(best == least, np.arange(lost + 1), 0))
        best = least + np.abs(many_ns[i : i + lost + 1] - end - offset)
    passed = int(best.argmin())
    for i in reversed(places):
        places[i] += passed
        passed = int(came[i, passed])
    return places


def _offset(few_ns: Ints, many_ns: Ints) -> float:
    """By how much the clock of the many is ahead of the clock of the few.

    Ends that agree differ by a constant. Of shifts that agree alike the smallest difference wins, since clocks that
    are kept by NTP differ by less than a step.
    """
    scores = []
    for shift in range(len(many_ns) - len(few_ns) + 1):
        difference = many_ns[shift : shift + len(few_ns)] - few_ns
        middle = float(np.median(difference))
        scores.append((float(np.abs(difference - middle).mean()) + abs(middle), middle))
    return min(scores)[1]
