"""The process groups of a job: their ranks, what describes them, and what runs in them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.model import Job

#: A rank's list of groups and a group's list of ranks may be any length; longer ones than these name no dimension.
_MOST_GROUPS = 4096
_MOST_RANKS = 1 << 20
#: What a list ends with that torch cut short.
_CUT = ", ...]"
#: The counts of so many different columns are kept.
_MOST_KEPT = 16


class Uses(msgspec.Struct, frozen=True):
    """How many collectives of one kind run in a group, summed over its traced ranks, and who launches them."""

    calls: int
    #: How many of them the backward pass launches; the others come from forward, the optimizer or elsewhere.
    from_backward: int


class Group(msgspec.Struct, frozen=True):
    """Ranks that communicate with each other, whatever the names of the process groups that they have in common."""

    #: Rank numbers, ascending; two or more.
    ranks: tuple[int, ...]
    #: Descriptions that its process groups have, as "TENSOR_MODEL_PARALLEL_GROUP", without those that say nothing.
    descriptions: tuple[str, ...] = ()
    #: Of each process group that communicates, by kind of collective, as "all_reduce".
    uses: tuple[dict[str, Uses], ...] = ()
    #: The descriptions of the process groups that communicate, "" for none.
    used: tuple[str, ...] = ()


def stride(ranks: Sequence[int]) -> int:
    """What each of some ranks is above the one before it; 0 where that differs."""
    steps = set(np.diff(ranks).tolist())
    return int(steps.pop()) if len(steps) == 1 else 0


def groups(job: Job) -> tuple[Group, ...]:
    """The groups of two ranks or more that the traces name, by their ranks."""
    # By number: to hash the ranks of a large group takes as long as all else that is done for one of them.
    numbers: dict[tuple[int, ...], int] = {}
    descriptions: defaultdict[int, set[str]] = defaultdict(set)
    uses: defaultdict[int, defaultdict[str, dict[str, Uses]]] = defaultdict(lambda: defaultdict(dict))
    used: defaultdict[int, set[str]] = defaultdict(set)
    for digest in job.digests:
        said = digest.header.group_descriptions
        number_of = {name: numbers.setdefault(ranks, len(numbers)) for name, ranks in ranks_of_groups(digest).items()}
        for name, number in number_of.items():
            descriptions[number].update(filter(None, [said.get(name, "")]))
        for name, (kind, its) in _uses(digest):
            if name in number_of:
                number = number_of[name]
                known = uses[number][name]
                before = known.get(kind, Uses(0, 0))
                known[kind] = Uses(before.calls + its.calls, before.from_backward + its.from_backward)
                used[number].add(said.get(name, ""))
    return tuple(
        Group(ranks, tuple(sorted(descriptions[number])), tuple(uses[number].values()), tuple(sorted(used[number])))
        for ranks, number in sorted(numbers.items())
    )


def name_their_groups(job: Job) -> bool:
    """Whether all collectives and messages of a job, of which there are some, name their process group."""
    groups = [(digest, np.unique(digest.collectives.group).tolist()) for digest in job.digests]
    return any(codes for _, codes in groups) and all(digest.strings[code] for digest, codes in groups for code in codes)


def ranks_of_groups(digest: RankDigest) -> dict[str, tuple[int, ...]]:
    """The ranks of each process group of two ranks or more, by its name: of the header, else of its calls."""
    table, text = digest.collectives, digest.strings
    rows = _counted(_packed(table.group), _packed(table.group_ranks), _packed(table.group_size))
    named = {(text[group], text[ranks], size) for group, ranks, size in rows}
    listed_ranks = {group: _listed(ranks, size) for group, ranks, size in sorted(named)[:_MOST_GROUPS]}
    listed_ranks |= dict(list(digest.header.groups.items())[:_MOST_GROUPS])
    return {name: ranks for name, listed in listed_ranks.items() if len(ranks := _ascending(listed)) > 1}


def _uses(digest: RankDigest) -> list[tuple[str, tuple[str, Uses]]]:
    """The kinds of collectives of each process group, by its name."""
    table, text = digest.collectives, digest.strings
    calls = _counted(*map(_packed, (table.group, table.kind, table.backward >= 0)))
    return [
        (text[group], (text[kind], Uses(calls[group, kind, 0] + calls[group, kind, 1], calls[group, kind, 1])))
        for group, kind in dict.fromkeys((group, kind) for group, kind, _ in calls)
    ]


def _packed(column: NDArray[Any]) -> bytes:
    """A column as bytes: most ranks of a job have the same ones, which are counted once."""
    return column.astype(np.int32).tobytes()


@lru_cache(maxsize=_MOST_KEPT)
def _counted(*columns: bytes) -> Counter[tuple[int, ...]]:
    """How often each combination of values of some packed columns occurs."""
    return Counter(zip(*(np.frombuffer(column, np.int32).tolist() for column in columns), strict=True))


@lru_cache(maxsize=_MOST_GROUPS)
def _ascending(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The different ones of some ranks, ascending; () where some cannot be."""
    return tuple(sorted(set(ranks))) if ranks and max(ranks) < _MOST_RANKS else ()


@lru_cache(maxsize=_MOST_GROUPS)
def _listed(text: str, size: int) -> tuple[int, ...]:
    """Ranks of a text such as "[0, 1, 2]"; () where it makes no sense.

    torch cuts lists of more than 30 short, "[0, 8, 16, ..., 232, ...]" without the last ones: if those that are there
    are in steps of one stride, so are the others of a group of this size.
    """
    is_cut = text.endswith(_CUT)
    try:
        ranks = json.loads(text.removesuffix(_CUT) + "]" if is_cut else text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(ranks, list) or not all(type(rank) is int and rank >= 0 for rank in ranks):
        return ()
    if not is_cut:
        return tuple(ranks)
    step = stride(ranks)
    return tuple(range(ranks[0], ranks[0] + size * step, step)) if step > 0 and len(ranks) < size < _MOST_RANKS else ()
