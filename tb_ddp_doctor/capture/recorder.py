"""torch's profiler around some steps, on the thread that trains."""

from __future__ import annotations

import errno
import gc
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function, supported_activities

from tb_ddp_doctor.capture.watch import Watched
from tb_ddp_doctor.capture.windows import Window


class BusyError(Exception):
    """Another profiler runs."""


class Recorder:
    """Records the steps of one window: `prepare`, `start`, `next_step` for each further one, `stop`, `save`."""

    def __init__(self, window: Window, who: Mapping[str, Any], watched: Watched | None) -> None:
        """`who` has the rank, the world_size and the node of this process."""
        self.window = window
        self.is_recording = False
        self._who = who
        self._watched = watched
        self._profile = profile(
            activities=supported_activities(),
            record_shapes=True,
            profile_memory=window.memory,
            with_stack=window.stacks,
        )
        self._step: Any = None
        self._collections = _Collections()

    def prepare(self) -> None:
        """Set up the profiler, so that what this takes is not in the steps. Raises BusyError."""
        if torch.autograd._profiler_enabled():
            raise BusyError("another profiler is running")
        self._profile.prepare_trace()

    def start(self, step: int) -> None:
        """Begin to record, with this step."""
        if torch.autograd._profiler_enabled():
            raise BusyError("another profiler is running")
        self._profile.start_trace()
        self._profile.add_metadata_json("host_name", json.dumps(self._who["node"]))
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            known = {name: self._who[name] for name in ("rank", "world_size")}
            self._profile.add_metadata_json("distributedInfo", json.dumps(known))
        self.is_recording = True
        gc.callbacks.append(self._collections)
        if self._watched:
            self._watched.start()
        self._begin(step)

    def next_step(self, step: int) -> None:
        """Another step begins."""
        self._end()
        self._begin(step)

    def stop(self) -> None:
        """End the last step, and what is recorded."""
        if not self.is_recording:
            # A profiler that is set up and never used goes on to slow the job.
            self._profile.start_trace()
            self._profile.stop_trace()
            return
        self.is_recording = False
        if self._collections in gc.callbacks:
            gc.callbacks.remove(self._collections)
        if self._watched:
            self._watched.stop()
        self._end()
        self._profile.stop_trace()

    def save(self, path: Path) -> None:
        """Write the trace. torch holds Python's lock meanwhile, so this must not be a disk that may hang.

        Raises OSError where it cannot be written whole, which torch does not say.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(path))
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 8, 0))
            if not file.read().rstrip().endswith(b"}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _begin(self, step: int) -> None:
        self._step = record_function(f"ProfilerStep#{step}")
        self._step.__enter__()

    def _end(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


class _Collections:
    """Marks Python's garbage collections in the trace, where rules see them as what the CPU does."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            marked = record_function(f"garbage collection (generation {info['generation']})")
            marked.__enter__()
            self._open.append(marked)
        elif self._open:
            self._open.pop().__exit__(None, None, None)
