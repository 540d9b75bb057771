"""Which windows a rank is to capture: those of the schedule, and those that were asked for."""

from __future__ import annotations

import logging
from collections import deque

from tb_ddp_doctor.capture.windows import CaptureSchedule, CaptureWindow

_log = logging.getLogger(__name__)


class PlannedWindows:
    """`offer` and `withdraw` may be called on any thread, all else on the one that trains."""

    def __init__(self, schedule: CaptureSchedule) -> None:
        self.schedule = schedule
        #: In order of arrival: windows, and names of requests that were withdrawn.
        self._offered: deque[CaptureWindow | str] = deque()
        self._planned: list[CaptureWindow] = []

    def offer(self, window: CaptureWindow) -> None:
        """A window was asked for; it is planned by the next `take`."""
        self._offered.append(window)

    def withdraw(self, request: str) -> None:
        """The windows of a request are no longer wanted; they go by the next `take`."""
        self._offered.append(request)

    def has_offers(self) -> bool:
        return bool(self._offered)

    def take(self, n: int, rank: int) -> list[str]:
        """Plan what was offered for later steps than `n` and this rank; the requests that were withdrawn."""
        withdrawn = []
        while self._offered:
            window = self._offered.popleft()
            if isinstance(window, str):
                withdrawn.append(window)
                self._planned = [planned for planned in self._planned if planned.request != window]
            elif window.ranks is None or rank in window.ranks:
                if window.first <= n:
                    _say_late(window, rank)
                else:
                    self._planned.append(window)
        return withdrawn

    def first_from(self, step: int, rank: int) -> CaptureWindow | None:
        """The next window that begins at `step` or later; those before it are given up."""
        for window in self._planned:
            if window.first < step:
                _say_late(window, rank)
        self._planned = [window for window in self._planned if window.first >= step]
        scheduled = self.schedule.first_from(step)
        windows = [*self._planned, *([scheduled] if scheduled else [])]
        return min(windows, key=lambda window: window.first, default=None)

    def remove(self, window: CaptureWindow) -> None:
        """Its turn has come."""
        self._planned = [other for other in self._planned if other != window]


def _say_late(window: CaptureWindow, rank: int) -> None:
    _log.warning(
        "ddp-doctor: rank %d is missing from the capture of %s: it learned of it too late. Doctor's margin_s sets "
        "how many seconds ahead captures are placed.",
        rank,
        window,
    )
