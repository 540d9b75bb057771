"""Which blocks without stacks are parameters, and which an optimizer's states: by how many there are, and their order.

Adam keeps two tensors of the size of each parameter. Two things show it where stacks do not:

1. Of blocks that were there before the record, three are of each size, or six, nine ... (`by_count`). Where all are
   more than that, the model may have as many layers: then it is not known.
2. States are allocated in the first update, two by two, in the order in which the parameters were (`by_order`):

        16 MB  4 MB  4 MB  12 MB   9 MB 3 MB ...   16 MB  16 MB  4 MB  4 MB  4 MB  4 MB  12 MB  12 MB   ...
        parameters                 else            their states, and behind them what the last step has allocated

Optimizers with one state are not inferred: a model has many sizes twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import gcd

#: A parameter and its states.
_OF_EACH = 3
#: Other sizes have at most this share of the bytes, and buckets differ as much from all parameters.
_MOST_ELSE = 0.001
#: Parameters of which the order is known.
_LEAST_IN_ORDER = 6
#: Where the states may begin.
_MOST_TRIED = 8
#: Blocks that an optimizer may have for its counters.
_COUNTER = 512
#: Sums this close are the same but for padding.
_CLOSE = 0.05
#: DDP's buckets, bytes.
_BUCKET = 25 << 20


def by_count(sizes: Mapping[int, int]) -> dict[int, str]:
    """The categories of blocks that were there before the record, by their number; none where it is not known.

    `sizes` are the bytes of each block by its number.
    """
    of_size: defaultdict[int, list[int]] = defaultdict(list)
    for number, size in sizes.items():
        of_size[size].append(number)
    known = {size: same for size, same in of_size.items() if len(same) % _OF_EACH == 0}
    if gcd(*map(len, known.values())) != _OF_EACH:
        return {}
    category_of = {}
    for same in known.values():
        count = len(same) // _OF_EACH
        category_of.update(dict.fromkeys(same[:count], "parameters") | dict.fromkeys(same[count:], "optimizer_states"))
    total = sum(size * len(same) for size, same in known.items())
    others = [number for number in sizes if number not in category_of]
    rest = sum(sizes[number] for number in others)
    if abs(rest - total // _OF_EACH) <= _CLOSE * total // _OF_EACH:
        return category_of | dict.fromkeys(others, "communication")  # DDP's buckets.
    return category_of if rest <= _MOST_ELSE * total else {}


def by_order(sizes: Sequence[int]) -> dict[int, str]:
    """The categories of blocks in the order of their allocation, by their place; none where no states are found.

    `sizes` are their bytes. What is allocated after the states is of the last step: in the sizes of parameters, and
    enough for most of them, gradients, else activations. DDP's buckets come right before the states or after them.
    """
    places = [place for place, size in enumerate(sizes) if size > _COUNTER]
    first, pairs = _pairs([sizes[place] for place in places])
    # Neighbours of the states may be as large as each other, too.
    tried = []
    for begin in range(first, first + 2 * min(pairs, _MOST_TRIED), 2):
        owned = [sizes[place] for place in places[begin : first + 2 * pairs : 2]]
        tried.append((begin, list(_in_order(sizes, owned, places[:begin]))))
    first, parameters = max(tried, key=lambda one: len(one[1]), default=(0, []))
    number = len(parameters)
    if number < _LEAST_IN_ORDER:
        return {}
    states = places[first : first + 2 * number]
    owned = [sizes[place] for place in parameters]
    category_of = dict.fromkeys(parameters, "parameters") | dict.fromkeys(states, "optimizer_states")
    between = [place for place in places[:first] if place > parameters[0] and place not in category_of]
    copy = list(_in_order(sizes, owned, between))
    if len(copy) == number:  # In the order of the parameters: gradients come in reverse.
        category_of.update(dict.fromkeys(copy, "other"))
        between = [place for place in between if place not in category_of]
    last = places[first + 2 * number :]
    buckets = _buckets(sizes, between, owned) or _buckets(sizes, last, owned)
    category_of.update(dict.fromkeys(buckets, "communication"))
    last = [place for place in last if place not in category_of]
    gradients = list(_of_sizes(sizes, Counter(owned), last))
    if 2 * sum(sizes[place] for place in gradients) < sum(owned):
        gradients = []
    return category_of | dict.fromkeys(last, "activations") | dict.fromkeys(gradients, "gradients")


def _pairs(sizes: Sequence[int]) -> tuple[int, int]:
    """Where the most pairs of equal sizes follow each other, and how many."""
    following = [0] * (len(sizes) + 2)
    for i in reversed(range(len(sizes) - 1)):
        if sizes[i] == sizes[i + 1]:
            following[i] = following[i + 2] + 1
    first = max(range(len(following)), key=following.__getitem__)
    return first, following[first]


def _in_order(sizes: Sequence[int], wanted: Sequence[int], places: Sequence[int]) -> Iterator[int]:
    """The first places that have the wanted sizes in their order."""
    remaining = iter(places)
    for size in wanted:
        place = next((place for place in remaining if sizes[place] == size), None)
        if place is None:
            return
        yield place


def _buckets(sizes: Sequence[int], places: Sequence[int], owned: Sequence[int]) -> Sequence[int]:
    """DDP's buckets: the first places that together have as many bytes as all parameters, few and large.

    In the sizes of the parameters they are a copy of these: averages, or gradients that are kept.
    """
    until, total = 0, sum(owned)
    for number, place in enumerate(places[: 1 + total // _BUCKET], 1):
        until += sizes[place]
        if abs(until - total) <= _MOST_ELSE * total:
            buckets = places[:number]
            return () if sorted(sizes[one] for one in buckets) == sorted(owned) else buckets
    return ()


def _of_sizes(sizes: Sequence[int], wanted: Counter[int], places: Sequence[int]) -> Iterator[int]:
    """Places that have wanted sizes, of each as many as are wanted."""
    for place in places:
        if wanted[sizes[place]] > 0:
            wanted[sizes[place]] -= 1
            yield place
