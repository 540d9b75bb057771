"""torch's profiler around some steps, on the thread that trains."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler
from torch.profiler import profile, record_function, supported_activities

from tb_ddp_doctor.capture.core_wait import CoreTimes, core_times
from tb_ddp_doctor.capture.watch import Watched
from tb_ddp_doctor.capture.windows import CaptureWindow

#: Bytes that a disk with room takes.
_ROOM = 1 << 20


class BusyError(Exception):
    """Another profiler runs."""


class WindowRecorder:
    """Records the steps of one window: `prepare`, `start`, `next_step` for each further one, `stop`, `save`."""

    def __init__(
        self, window: CaptureWindow, who: Mapping[str, Any], watched: Watched | None, workload: Mapping[str, float]
    ) -> None:
        """`who` has the rank, the world_size and the node of this process; `told` is what the user says of a step."""
        self.window = window
        self._workload = workload
        self.is_recording = False
        #: Whether it ended because another profiler began: torch has room for one.
        self.gave_way = False
        #: How long the process's threads waited for a core while it recorded, and how long they ran, ms a step.
        self.core_wait_ms: float | None = None
        self.core_run_ms: float | None = None
        self._before: CoreTimes | None = None
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
        self._way = _GiveWay(self._give_way)

    def prepare(self) -> None:
        """Set up the profiler, so that what this takes is not in the steps. Raises BusyError."""
        if torch.autograd._profiler_enabled():
            raise BusyError("another profiler is running")
        self._way.watch()
        with self._way.mine():
            self._profile.prepare_trace()

    def start(self, step: int) -> None:
        """Begin to record, with this step."""
        if torch.autograd._profiler_enabled():
            self._way.end()
            raise BusyError("another profiler is running")
        with self._way.mine():
            self._profile.start_trace()
        self._profile.add_metadata_json("host_name", json.dumps(self._who["node"]))
        if self._workload:
            self._profile.add_metadata_json("ddp_doctor", json.dumps(self._workload))
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            known = {name: self._who[name] for name in ("rank", "world_size")}
            self._profile.add_metadata_json("distributedInfo", json.dumps(known))
        self.is_recording = True
        gc.callbacks.append(self._collections)
        if self._watched:
            self._watched.start()
        self._before = core_times()
        self._begin(step)

    def next_step(self, step: int) -> None:
        """Another step begins."""
        self._end()
        self._begin(step)

    def stop(self) -> None:
        """End the last step, and what is recorded."""
        if self.gave_way:
            return
        if not self.is_recording:
            # A profiler that is set up and never used goes on to slow the job.
            with self._way.mine():
                self._profile.start_trace()
                self._profile.stop_trace()
            self._way.end()
            return
        self._way.end()
        self.is_recording = False
        self._end()
        if self._before is not None and (now := core_times()) is not None:
            self.core_wait_ms = (now.waited_ns - self._before.waited_ns) / 1e6 / self.window.steps
            self.core_run_ms = (now.ran_ns - self._before.ran_ns) / 1e6 / self.window.steps
        if self._collections in gc.callbacks:
            gc.callbacks.remove(self._collections)
        if self._watched:
            self._watched.stop()
        self._profile.stop_trace()

    def _give_way(self) -> None:
        """Another profiler begins, and would fail beside this one."""
        self.stop()
        self.gave_way = True

    def save(self, path: Path) -> None:
        """Write the trace. torch holds Python's lock meanwhile, so this must not be a disk that may hang.

        Raises OSError where it cannot be written whole, which torch does not say.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(path))
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 8, 0))
            if file.read().rstrip().endswith(b"}"):
                return
        # torch cannot say why. A file of our own is refused for the same reason, or there is room again.
        path.unlink(missing_ok=True)
        with path.open("wb") as file:
            file.write(bytes(_ROOM))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _begin(self, step: int) -> None:
        self._step = record_function(f"ProfilerStep#{step}")
        self._step.__enter__()

    def _end(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


class _GiveWay:
    """Learns of another profiler that is about to begin, by taking the place of torch's own functions meanwhile.

    Without this, the training would end with "Profiler is already enabled on this thread", in the other one's call.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._kept: dict[str, Any] = {}
        self._is_mine = False

    def watch(self) -> None:
        """From now on, give way."""
        for name in ("_prepare_profiler", "_enable_profiler"):
            if (function := getattr(torch.autograd.profiler, name, None)) is not None:
                self._kept[name] = function
                setattr(torch.autograd.profiler, name, self._before(name, function))

    def end(self) -> None:
        """Torch has its functions back."""
        while self._kept:
            setattr(torch.autograd.profiler, *self._kept.popitem())

    @contextmanager
    def mine(self) -> Iterator[None]:
        """What begins here is the recorder's own."""
        self._is_mine = True
        try:
            yield
        finally:
            self._is_mine = False

    def _before(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def begin(configuration: Any, activities: Any, *rest: Any, **options: Any) -> Any:
            if not self._is_mine and self._kept:
                prepare = self._kept.get("_prepare_profiler")
                self._give_way()
                if name == "_enable_profiler" and prepare is not None:
                    # What the other one had prepared is gone since this one was.
                    prepare(configuration, activities)
            return function(configuration, activities, *rest, **options)

        return begin


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
