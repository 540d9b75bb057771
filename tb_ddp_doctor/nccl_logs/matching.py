"""Which of NCCL's communicators a process group of a trace is: the one that has its collectives, number by number.

NCCL numbers the calls of a communicator from 0 (`opCount`), torch the collectives of a process group (`Seq`). The two
differ by a constant as long as each collective is one call, so a group is the communicator of its process in which, at
one distance, most of its traced collectives have the same kind and size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: By how much the numbers may differ: torch and NCCL begin at 0 or 1, and a few calls may be counted by one of them.
_MOST_APART = 16
#: Calls that are kept, and of a group that are compared; the window of a trace has hundreds.
_MOST_KEPT, _MOST_COMPARED = 1 << 18, 1 << 10
#: Of the group's collectives must be found.
_LEAST_SHARE = 0.5

#: Kind, and bytes that one rank gives (of a reduce_scatter: gets).
Call: TypeAlias = tuple[str, int]


class NumberedCalls(NamedTuple):
    """The traced collectives of a process group in one process, by their number."""

    pid: str
    group: str
    calls: Mapping[int, Call]


class Matching:
    """Traced collectives, and the logged calls that may be theirs."""

    def __init__(self, traced: Collection[NumberedCalls]) -> None:
        self._traced = [
            one._replace(calls=dict(sorted(one.calls.items())[:_MOST_COMPARED])) for one in traced if one.calls
        ]
        #: By process and communicator.
        self._logged: defaultdict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
        self._kept = 0
        numbers = np.unique([number for one in self._traced for number in one.calls])
        near = (numbers[:, None] + np.arange(-_MOST_APART, _MOST_APART + 1)).ravel()
        #: Those that calls may have.
        self.numbers: NDArray[np.uint64] = np.unique(near[near >= 0]).astype(np.uint64)

    def add(self, pid: str, communicator: int, number: int, call: Call) -> None:
        """A call that was logged."""
        if self._kept < _MOST_KEPT:
            self._logged[pid, communicator][number] = call
            self._kept += 1

    def groups(self) -> dict[tuple[str, int], str]:
        """The process group of each communicator, by process and communicator, where one alone fits best."""
        group_of = {}
        for one in self._traced:
            scores = {key: _same(one.calls, logged) for key, logged in self._logged.items() if key[0] == one.pid}
            best = max(scores.values(), default=0)
            fits = [key for key, score in scores.items() if score == best]
            if len(fits) == 1 and best > _LEAST_SHARE * len(one.calls):
                group_of[fits[0]] = one.group
        return group_of


def _same(traced: Mapping[int, Call], logged: Mapping[int, Call]) -> int:
    """How many collectives have their call, at the distance at which most have."""
    return max(
        sum(logged.get(number + apart) == call for number, call in traced.items())
        for apart in range(-_MOST_APART, _MOST_APART + 1)
    )
