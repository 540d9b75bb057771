"""What the allocator's history tells of blocks whose stacks do not: the optimizer, and what was done around a time."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from tb_ddp_doctor.flight.model import StackFrame
from tb_ddp_doctor.memory_snapshot.categories import category, is_update

#: Tensors of the size of a parameter that optimizers keep for it, by their files.
_STATES = {"adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "fused_adam": 2, "adagrad": 1, "lion": 1}
_FILE = re.compile(r"(?:\A|/)_?(\w{1,100})\.py\Z")
#: Events before and after a block that are looked at, and in all.
_AROUND, _MOST_LOOKED_AT = 64, 200_000
_STEP = ("activations", "gradients", "optimizer_states")
#: Of torch's optimizers: functions that work with a tensor as large as each parameter, all at one time.
_AT_ONCE = "_multi_tensor_"


class Updates(NamedTuple):
    """What the record's last update shows."""

    #: How many tensors the optimizer keeps for each parameter; 0 where that is not known.
    states: int = 0
    #: The sizes of parameters, bytes, and how many parameters have each; 0 where that is not known.
    sizes: Mapping[int, int] = {}
    #: Whether gradients stay from step to step: what backward allocates in these sizes is gone at the update.
    keeps_gradients: bool = False
    #: The sizes of what a backward pass leaves, the gradients of parameters, where no update shows the parameters.
    left: Mapping[int, int] = {}


class History:
    """The allocations of one device, by time."""

    def __init__(
        self, events: Iterable[Mapping[str, Any]], frames_of: Callable[[Mapping[str, Any]], list[StackFrame]]
    ) -> None:
        self._frames_of = frames_of
        self._all = sorted((event for event in events if event.get("time_us")), key=_time)
        self._events = [event for event in self._all if event.get("action") == "alloc"]
        self._times = [_time(event) for event in self._events]
        self._parts: dict[int, str] = {}

    def updates(self) -> Updates:
        """What the last update shows; if the record ends in it, the one before may show more."""
        last, before = self._update(len(self._events)), range(0)
        if last and last[-1] == len(self._events) - 1:
            before = self._update(last[0])
        update = max(last, before, key=len)
        if not update:
            return Updates(left=self._left_by_backward())
        of_line: defaultdict[StackFrame | None, Counter[int]] = defaultdict(Counter)
        kinds = set()
        for at in update:
            frames = self._frames_of(self._events[at])
            kinds.add(next((_STATES[kind] for kind in map(_kind, frames) if kind in _STATES), 0))
            of_line[category(frames)[1]][_size(self._events[at])] += 1
        line, counted = max(of_line.items(), key=lambda item: sum(size * count for size, count in item[1].items()))
        at_once = line is not None and line.function.startswith(_AT_ONCE)
        sizes = counted if at_once else dict.fromkeys(counted, 0)
        return Updates(kinds.pop() if len(kinds) == 1 else 0, sizes, self._keeps_gradients(update[0], sizes))

    def _update(self, end: int) -> range:
        """The last allocations before this one that one update makes, by their places."""
        places = range(end - 1, max(end - 1 - _MOST_LOOKED_AT, -1), -1)
        last = next((at for at in places if self._is_update(at)), -1)
        first = next((at for at in range(last, -1, -1) if not self._is_update(at)), -1)
        return range(first + 1, last + 1)

    def _is_update(self, at: int) -> bool:
        return is_update(self._frames_of(self._events[at]))

    def _keeps_gradients(self, update: int, sizes: Mapping[int, int]) -> bool:
        """Whether what the backward pass before an update allocated in these sizes is gone when it begins."""
        since = max(self._update(update), default=-1)
        of_backward = {
            _address(self._events[at]): self._times[at]
            for at in range(since + 1, update)
            if _size(self._events[at]) in sizes and self._part(at) == "gradients"
        }
        released = {
            _address(event): _time(event)
            for event in self._all
            if event.get("action") == "free_requested" and _time(event) <= self._times[update]
        }
        return bool(of_backward) and all(released.get(address, -1) >= time for address, time in of_backward.items())

    def _left_by_backward(self) -> Mapping[int, int]:
        """Sizes and numbers of the blocks that a backward pass allocates and does not release: those of the pass that
        leaves the most bytes, other than one in which the record ends.
        """
        released: defaultdict[int, list[int]] = defaultdict(list)
        for event in self._all:
            if event.get("action") == "free_requested":
                released[_address(event)].append(_time(event))
        places = range(max(len(self._events) - _MOST_LOOKED_AT, 0), len(self._events))
        left: list[Counter[int]] = [Counter()]
        for is_backward, run in groupby(places, self._is_backward):
            own = list(run)
            if not is_backward or own[-1] == places[-1]:
                continue
            left.append(Counter())
            for at in own:
                of_address = released[_address(self._events[at])]
                gone = bisect_right(of_address, self._times[at])
                if self._part(at) == "gradients" and (
                    gone == len(of_address) or of_address[gone] > self._times[own[-1]]
                ):
                    left[-1][_size(self._events[at])] += 1
        return max(left, key=lambda sizes: sum(size * number for size, number in sizes.items()))

    def _is_backward(self, at: int) -> bool:
        """Whether a backward pass allocates, or what it computes again."""
        return self._part(at) == "gradients" or any(
            category([frame])[0] == "gradients" for frame in self._frames_of(self._events[at])
        )

    def is_of_a_loss(self, time_us: int) -> bool:
        """Whether a block was allocated between a forward pass and its backward pass, and no update came since."""
        at = bisect_left(self._times, time_us)
        before = self._first(range(at - 1, max(at - 1 - _AROUND, -1), -1))
        after = self._first(range(at + 1, min(at + 1 + _AROUND, len(self._events))))
        return before == "activations" and after in ("activations", "gradients", "")

    def _first(self, places: Sequence[int]) -> str:
        return next((part for at in places if (part := self._part(at)) in _STEP), "")

    def _part(self, at: int) -> str:
        """What part of a step an event is of; backward where it has no stack: that runs in a thread without Python."""
        if at not in self._parts and len(self._parts) < _MOST_LOOKED_AT:
            frames = self._frames_of(self._events[at])
            self._parts[at] = ("optimizer_states" if is_update(frames) else category(frames)[0]) if frames else _STEP[1]
        return self._parts.get(at, "")


def _kind(frame: StackFrame) -> str:
    stem = _FILE.search(frame.file)
    return stem[1].lower() if stem else ""


def _size(event: Mapping[str, Any]) -> int:
    size = event.get("size")
    return size if isinstance(size, int) else 0


def _address(event: Mapping[str, Any]) -> int:
    address = event.get("addr")
    return address if isinstance(address, int) else 0


def _time(event: Mapping[str, Any]) -> int:
    time = event["time_us"]
    return time if isinstance(time, int) and 0 <= time < 1 << 62 else 0
