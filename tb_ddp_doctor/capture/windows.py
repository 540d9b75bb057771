"""Which steps are captured: by schedule, and on request. Steps are the training's global steps.

Every rank computes the same windows from the same schedule and the same plans, so nobody has to agree while it trains.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import msgspec

#: Steps between two windows: the profiler of the later one is prepared in the step before it.
_APART = 2
#: Of one window: a trace of more takes longer to write than anybody wants to wait for.
MOST_STEPS = 1000


class CaptureWindow(msgspec.Struct, frozen=True):
    """Consecutive steps to capture."""

    first: int
    steps: int
    #: None for all.
    ranks: tuple[int, ...] | None = None
    stacks: bool = False
    memory: bool = False
    #: The request that asked for it; "" if it was scheduled.
    request: str = ""

    @property
    def last(self) -> int:
        return self.first + self.steps - 1

    def __str__(self) -> str:
        return f"step {self.first}" if self.steps == 1 else f"steps {self.first} to {self.last}"

    def is_clear_of(self, other: CaptureWindow) -> bool:
        """Whether both can be captured, one after the other."""
        return self.first >= other.last + _APART or other.first >= self.last + _APART


class CaptureSchedule(msgspec.Struct, frozen=True):
    """A window at each multiple of `every`; None at no step."""

    every: int | None
    steps: int
    stacks: bool = False
    memory: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}.")
        if self.every is not None and self.every < self.steps + _APART:
            raise ValueError(f"every must be at least {self.steps + _APART} (steps + {_APART}), not {self.every}.")
        if self.steps > MOST_STEPS:
            raise ValueError(f"steps must be at most {MOST_STEPS:,}, not {self.steps:,}.")

    def first_from(self, step: int) -> CaptureWindow | None:
        """The first window that begins at `step` or later; never at step 0, which is not like the others."""
        if self.every is None:
            return None
        return CaptureWindow(max(-(-step // self.every), 1) * self.every, self.steps, None, self.stacks, self.memory)

    def near(self, window: CaptureWindow) -> Iterable[CaptureWindow]:
        """The windows next to one, on both sides."""
        if self.every is not None:
            for step in (window.first - self.every, window.first):
                if neighbour := self.first_from(max(step, 1)):
                    yield neighbour


def steps_ahead(margin_s: float, step_s: float) -> int:
    """How many steps from now on a window may begin so that every rank learns of it in `margin_s`."""
    return math.ceil(margin_s / step_s) + _APART


def placed(window: CaptureWindow, schedule: CaptureSchedule, planned: Collection[CaptureWindow]) -> int:
    """The first step, from `window.first` on, at which a window keeps clear of the schedule and of what is planned.

    One that is too long for the time between two scheduled windows takes their place: it begins between two of them.
    """
    fits = schedule.every is None or window.steps + _APART <= schedule.every - schedule.steps
    first = window.first
    while True:
        here = CaptureWindow(first, window.steps)
        scheduled = [other for other in schedule.near(here) if fits or other.first < first]
        taken = [other for other in (*scheduled, *planned) if not here.is_clear_of(other)]
        if taken:
            first = max(other.last for other in taken) + _APART
        elif not fits and schedule.every and (here.last + 1) % schedule.every == 0:
            # The one behind it has no step to be prepared in.
            first += 1
        else:
            return first


def parse_ranks(text: str) -> tuple[int, ...]:
    """Rank numbers of "0,5-7", ascending. Raises ValueError for what is none."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--ranks takes numbers of ranks, such as 0,5-7, not {text!r}.")
        chosen = range(int(first), int(last or first) + 1)
        if not chosen or len(chosen) > 1 << 17:
            raise ValueError(f"--ranks takes numbers of ranks, such as 0,5-7, not {text!r}.")
        ranks.update(chosen)
    return tuple(sorted(ranks))
