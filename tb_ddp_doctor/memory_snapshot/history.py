"""What the allocator's history tells of blocks whose stacks do not: the optimizer, and what was done around a time."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tb_ddp_doctor.flight.model import StackFrame
from tb_ddp_doctor.memory_snapshot.categories import category, is_update

#: Tensors of the size of a parameter that optimizers keep for it, by their files.
_STATES = {"adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "fused_adam": 2, "adagrad": 1, "lion": 1}
_FILE = re.compile(r"(?:\A|/)_?(\w{1,100})\.py\Z")
#: Events before and after a block that are looked at, and in all.
_AROUND, _MOST_LOOKED_AT = 64, 200_000
_STEP = ("activations", "gradients", "optimizer_states")


class History:
    """The allocations of one device, by time."""

    def __init__(
        self, events: Iterable[Mapping[str, Any]], frames_of: Callable[[Mapping[str, Any]], list[StackFrame]]
    ) -> None:
        self._frames_of = frames_of
        allocations = [event for event in events if event.get("action") == "alloc" and event.get("time_us")]
        self._events = sorted(allocations, key=_time)
        self._times = [_time(event) for event in self._events]
        self._parts: dict[int, str] = {}

    def states(self) -> int:
        """How many tensors the optimizer keeps for each parameter: 0 where that is not known."""
        kinds = set()
        for event in self._events[-_MOST_LOOKED_AT:]:
            frames = self._frames_of(event)
            if is_update(frames):
                kinds.add(next((_STATES[kind] for kind in map(_kind, frames) if kind in _STATES), 0))
        return kinds.pop() if len(kinds) == 1 else 0

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


def _time(event: Mapping[str, Any]) -> int:
    time = event["time_us"]
    return time if isinstance(time, int) and 0 <= time < 1 << 62 else 0
