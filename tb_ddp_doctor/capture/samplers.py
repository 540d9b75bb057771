"""What a history records on request beside the time of steps: memory, the GPU's clock, Python's garbage, loading.

Memory and the GPU are looked at once a minute on the recorder's thread, and cost the training nothing.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from tb_ddp_doctor.capture.gpu import Gpu

T = TypeVar("T")
Recorded = Literal["memory", "gpu", "garbage", "gpu_time"]
#: Steps that the GPU may be behind: of more the oldest are not timed.
_MOST_EVENTS = 256
#: Shorter collections are not noted, ns.
_LEAST_NS = 1_000_000


def device_of_this_thread() -> int | None:
    """The GPU that the training's thread uses, as torch counts; None where it uses none. Other threads have another."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def memory(device: int | None) -> Mapping[str, float]:
    """Memory of this process now, and what torch's allocator has of a GPU, bytes."""
    import psutil

    sizes = {"process memory": float(psutil.Process().memory_info().rss)}
    if device is not None:
        torch = sys.modules["torch"]
        sizes["allocated memory"] = float(torch.cuda.memory_allocated(device))
        sizes["reserved memory"] = float(torch.cuda.memory_reserved(device))
    return sizes


def of_gpu(gpu: Gpu) -> Mapping[str, float]:
    """How the GPU runs now: MHz, W and degrees Celsius, of what its driver says."""
    state = gpu.now()
    values = {"SM clock": state.sm_mhz, "power": state.power_w, "temperature": state.temperature_c}
    return {name: value for name, value in values.items() if value is not None}


class _MeanSinceLook:
    """The mean of what the training adds, as the recorder's thread finds it: of what is new since it last looked."""

    def __init__(self) -> None:
        #: How many there are, and their sum: one tuple, so that both are of the same moment.
        self._added = (0, 0.0)
        self._looked_at = (0, 0.0)

    def add(self, value: float) -> None:
        count, total = self._added
        self._added = (count + 1, total + value)

    def look(self) -> float | None:
        """The mean; None where nothing is new."""
        now, before = self._added, self._looked_at
        self._looked_at = now
        count = now[0] - before[0]
        return (now[1] - before[1]) / count if count else None


class LoadingWatch:
    """Times how long the training waits for each batch."""

    def __init__(self) -> None:
        self._wait_ns = _MeanSinceLook()

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, each of them timed while it is awaited."""
        iterator = iter(batches)
        while True:
            begin_ns = time.monotonic_ns()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._wait_ns.add(time.monotonic_ns() - begin_ns)
            yield batch

    def sample(self) -> Mapping[str, float]:
        """The mean time of the batches since the last look, s; nothing where there were none."""
        mean_ns = self._wait_ns.look()
        return {} if mean_ns is None else {"loading time": mean_ns / 1e9}


class GpuStepWatch:
    """Times steps on the GPU by an event at the end of each; nobody waits for one."""

    def __init__(self) -> None:
        self._events: deque[Any] = deque(maxlen=_MOST_EVENTS)
        self._step_ms = _MeanSinceLook()

    def end(self) -> None:
        """A step has been launched; called by the training. Raises whatever torch raises."""
        event = sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        while len(self._events) > 1 and self._events[1].query():
            first = self._events.popleft()
            self._step_ms.add(first.elapsed_time(self._events[0]))

    def sample(self) -> Mapping[str, float]:
        """The mean time of the steps since the last look, s; nothing where there were none."""
        mean_ms = self._step_ms.look()
        return {} if mean_ms is None else {"GPU time of a step": mean_ms / 1000}


class GarbageWatch:
    """Notes when Python collects garbage, and how long that takes: a microsecond a collection."""

    def __init__(self, note: Callable[[str, float, int], None]) -> None:
        self._note = note
        self._begin_ns = 0

    def start(self) -> None:
        gc.callbacks.append(self._collects)

    def stop(self) -> None:
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _collects(self, phase: str, _: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._begin_ns = now_ns
        elif now_ns - self._begin_ns >= _LEAST_NS:
            self._note("garbage", (now_ns - self._begin_ns) / 1e9, self._begin_ns)
