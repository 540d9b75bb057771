"""Steps as NVTX ranges, so that a recording of Nsight Systems shows where each begins."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger(__name__)


class StepRanges:
    """A range around each step, "step 17"; without NVTX none, which is said once."""

    def __init__(self, nvtx: Any = None) -> None:
        self._nvtx = nvtx
        self._is_open = False
        if nvtx is None:
            try:
                from torch.cuda import nvtx as of_torch

                self._nvtx = of_torch
            except ImportError as error:
                self._give_up(error)

    def begin(self, step: int) -> None:
        """A step begins, and the one before it ends."""
        self.end()
        if self._nvtx is not None:
            try:
                self._nvtx.range_push(f"step {step}")
                self._is_open = True
            except Exception as error:
                self._give_up(error)

    def end(self) -> None:
        """The step ends."""
        if self._is_open and self._nvtx is not None:
            try:
                self._nvtx.range_pop()
            except Exception as error:
                self._give_up(error)
        self._is_open = False

    def _give_up(self, error: Exception) -> None:
        self._nvtx = None
        _log.warning("ddp-doctor: steps are no NVTX ranges (%s: %s).", type(error).__name__, error)
