"""Parameters and gradients that no stack shows, inferred from the optimizer's states.

An optimizer allocates each kind of state at a line of its own, a tensor as large as each parameter:

    adam.py:174 exp_avg       4 MB  1 MB  1 MB      so there is one parameter of 4 MB and two of 1 MB
    adam.py:178 exp_avg_sq    4 MB  1 MB  1 MB
    no stack                  4 MB  1 MB  1 MB  7 MB      these three are the parameters; 7 MB are something else

Parameters and gradients may be half as large as the states, or twice: bfloat16 beside float32.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tb_ddp_doctor.flight.model import StackFrame

#: Sizes of parameters or gradients over those of states: 1, 1/2 and 2.
_RATIOS = ((1, 1), (1, 2), (2, 1))
#: Of the bytes that parameters, or gradients, are expected to have, this share has to be there.
_LEAST_SHARE = 0.5
#: Gradients may also lie in what reduce-scatter wrote.
_MAY_BE = {"parameters": ("parameters", ""), "gradients": ("gradients", "", "communication")}


class Allocation(msgspec.Struct, frozen=True):
    """A block that is allocated."""

    #: As it was asked for, bytes.
    size: int
    #: As its stack shows; "" if it does not.
    category: str
    #: When it was allocated, µs; 0 if that was before the record.
    time_us: int
    #: The innermost function.
    frame: StackFrame | None


def inferred(allocations: Sequence[Allocation]) -> dict[int, str]:
    """The categories that differ from what stacks show, by index.

    Where most of the gradients that the optimizer's states ask for are found, what else the backward pass allocated is
    temporary.
    """
    sizes = _parameter_sizes(allocations)
    category_of: dict[int, str] = {}
    for category in _MAY_BE:
        some = _most(sizes, category, allocations, category_of)
        if some and category == "gradients":
            rest = (i for i, one in enumerate(allocations) if one.category == category and i not in some)
            category_of.update(dict.fromkeys(rest, "temporary"))
        category_of.update(dict.fromkeys(some, category))
    return {i: category for i, category in category_of.items() if category != allocations[i].category}


def _parameter_sizes(allocations: Sequence[Allocation]) -> Counter[int]:
    """How many parameters there are of each size, by the kind of state that has the most bytes."""
    lines: defaultdict[StackFrame, Counter[int]] = defaultdict(Counter)
    for one in allocations:
        if one.category == "optimizer_states" and one.frame:
            lines[one.frame][one.size] += 1
    return max(lines.values(), key=_bytes, default=Counter())


def _most(sizes: Counter[int], category: str, allocations: Sequence[Allocation], taken: Mapping[int, str]) -> set[int]:
    """The allocations that fit the sizes of all parameters, at the ratio at which most do; none if too few do."""
    best: tuple[float, set[int]] = (0.0, set())
    for times, over in _RATIOS:
        wanted = Counter({size * times // over: number for size, number in sizes.items()})
        some = set(_fitting(wanted, category, allocations, taken))
        share = sum(allocations[i].size for i in some) / max(_bytes(wanted), 1)
        if share > best[0]:
            best = (share, some)
    return best[1] if best[0] >= _LEAST_SHARE else set()


def _fitting(
    wanted: Counter[int], category: str, allocations: Sequence[Allocation], taken: Mapping[int, str]
) -> Iterator[int]:
    """Of each size as many as are wanted: those that stacks show first, then the oldest."""
    remaining = Counter(wanted)
    order = _MAY_BE[category]
    candidates = [i for i, one in enumerate(allocations) if one.category in order and i not in taken]
    for i in sorted(candidates, key=lambda i: (order.index(allocations[i].category), allocations[i].time_us)):
        if remaining[allocations[i].size] > 0:
            remaining[allocations[i].size] -= 1
            yield i


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * number for size, number in sizes.items())
