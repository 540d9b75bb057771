"""What a Doctor keeps of every step: its time, and what it was asked to record beside that."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tb_ddp_doctor.capture import samplers
from tb_ddp_doctor.capture.gpu import Gpu
from tb_ddp_doctor.capture.process import pipeline_stage

if TYPE_CHECKING:
    from tb_ddp_doctor.history.write import StepRecorder

T = TypeVar("T")
#: What is kept at most, in all ranks' files, of the GB that a Doctor may have.
_SHARE = 0.1
_log = logging.getLogger(__name__)


class StepHistory:
    """Before `begin` nothing is recorded: until then the job may not know its ranks."""

    def __init__(self, recorded: Collection[samplers.Recorded], stage: int | None = None) -> None:
        self._recorded, self._stage = frozenset(recorded), stage
        self._loading = samplers.LoadingWatch()
        self._garbage: samplers.GarbageWatch | None = None
        self._gpu_steps: samplers.GpuStepWatch | None = None
        self.recorder: StepRecorder | None = None

    def begin(self, logdir: Path, rank: int, world_size: int, node: str, max_gb: float | None) -> None:
        """Record from now on; called on the thread that trains, whose GPU is looked at. Raises OSError."""
        from tb_ddp_doctor.history.write import StepRecorder

        max_bytes = None if max_gb is None else max_gb * 1e9 * _SHARE / max(world_size, 1)
        stage = pipeline_stage() if self._stage is None else self._stage
        self.recorder = StepRecorder(
            logdir, rank, world_size, node, stage=stage, max_bytes=max_bytes, samplers=list(self._samplers())
        )
        self.recorder.start()
        if "garbage" in self._recorded:
            self._garbage = samplers.GarbageWatch(self.recorder.sample)
            self._garbage.start()

    def _samplers(self) -> Iterator[Callable[[], Mapping[str, float]]]:
        yield self._loading.sample
        if "memory" in self._recorded:
            yield partial(samplers.memory, samplers.device_of_this_thread())
        if "gpu" in self._recorded and (gpu := Gpu.of_this_thread()):
            yield partial(samplers.of_gpu, gpu)
        if "gpu_time" in self._recorded and samplers.device_of_this_thread() is not None:
            self._gpu_steps = samplers.GpuStepWatch()
            yield self._gpu_steps.sample

    def mark_gpu_step(self) -> None:
        """A step has been launched; where that cannot be marked on the GPU, say so once."""
        if self._gpu_steps is None:
            return
        try:
            self._gpu_steps.end()
        except Exception as error:
            self._gpu_steps = None
            _log.warning("ddp-doctor: steps are not timed on the GPU (%s: %s).", type(error).__name__, error)

    def end(self, n: int, is_timed: bool = True) -> None:
        """Step `n` has ended now. One that a profiler slowed down is not timed."""
        if self.recorder is not None:
            self.recorder.end(n, is_timed)

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """What runs within is not part of a step."""
        return contextlib.nullcontext() if self.recorder is None else self.recorder.phase(name)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of a loader, each of them timed while it is awaited."""
        return self._loading.timed(loader)

    def waits(self) -> None:
        """From now on this step may wait for other ranks."""
        if self.recorder is not None:
            self.recorder.waits()

    def tokens(self, count: int) -> None:
        """So many more tokens are in this step."""
        if self.recorder is not None:
            self.recorder.tokens(count)

    def close(self) -> None:
        """Write what is left, and record nothing more."""
        if self._garbage is not None:
            self._garbage.stop()
        if self.recorder is not None:
            self.recorder.close()
