"""The one line in a training loop: counts steps, and records those that are due."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from tb_ddp_doctor.capture import arguments
from tb_ddp_doctor.capture.agent import Agent, Captured
from tb_ddp_doctor.capture.gpu import Gpu
from tb_ddp_doctor.capture.hang import HangWatch
from tb_ddp_doctor.capture.nvtx_ranges import NvtxRanges
from tb_ddp_doctor.capture.planned_windows import PlannedWindows
from tb_ddp_doctor.capture.samplers import Recorded
from tb_ddp_doctor.capture.scratch import new as new_scratch
from tb_ddp_doctor.capture.step_history import StepHistory
from tb_ddp_doctor.capture.task import Keep
from tb_ddp_doctor.capture.windows import CaptureSchedule, CaptureWindow
from tb_ddp_doctor.evidence.model import RankEvidence

if TYPE_CHECKING:
    from tb_ddp_doctor.capture.directory import CaptureVerdict
    from tb_ddp_doctor.capture.recorder import WindowRecorder
    from tb_ddp_doctor.capture.watch import Watched

T = TypeVar("T")
_NEVER = sys.maxsize
#: What `on_change=True` may ask for.
_CAPTURES_A_DAY = 4
_log = logging.getLogger(__name__)


class Doctor:
    """Captures the same steps on all ranks, while they train.

    `step()` counts; where a capture is due it starts torch's profiler and stops it again. All else happens on a thread
    and in a child process of low priority. Whatever goes wrong is logged once, and the doctor switches itself off.
    """

    #: The last step that ended.
    _step = -1
    #: How often a step came that is before the last one, as where a training goes on from a checkpoint.
    _rewinds = 0
    #: `step` has nothing to do but to count before the end of this step.
    _due = -1
    _rank = 0
    #: Of the window that begins next, or is being recorded.
    _recorder: WindowRecorder | None = None
    #: The window that was prepared or passed over, and is not tried again.
    _tried: CaptureWindow | None = None
    #: The thread that records.
    _thread = 0
    _agent: Agent | None = None
    _gpu: Gpu | None = None
    _watched: Watched | None = None
    #: Signals that asked for a capture.
    _signals = 0
    _is_off = False

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        every: int | None = None,
        steps: int = 3,
        *,
        keep: Keep = "digests",
        max_gb: float | None = None,
        stacks: bool = False,
        memory: bool = False,
        nvtx: bool = False,
        history: bool = False,
        on_change: bool | int = False,
        record: Sequence[Recorded] = (),
        stage: int | None = None,
        scratch: str | os.PathLike[str] | None = None,
        poll_s: float = 1.0,
        margin_s: float | None = None,
        patience_s: float = 300.0,
        on_hang_s: float | None = None,
        tokens_per_step: float | None = None,
        samples_per_step: float | None = None,
        model_flops_per_step: float | None = None,
        on_verdict: Callable[[CaptureVerdict], object] | None = None,
    ) -> None:
        """Make one on every rank, with the same arguments.

        `every` so many steps, `steps` are captured; None captures on request alone (`ddp-doctor capture LOGDIR`,
        SIGUSR2). `keep` says what stays beside digests of kilobytes: "digests" nothing, "traces" all traces, "accused"
        those of the ranks that findings name and of a typical one. Beyond `max_gb` the oldest captures are deleted.
        `stacks` and `memory` are torch.profiler's with_stack and profile_memory. With `nvtx` steps, optimizers and, of
        a model that is watched, forward, backward and modules are NVTX ranges, for recordings of Nsight Systems.

        With `history` the time of every step is kept as well, 8 bytes a step and rank, in `history/` in the log
        directory, for `ddp-doctor history LOGDIR`; with `max_gb`, in up to a tenth of that. `record` says what else it
        keeps, once a minute: "memory" (of the process, and allocated and reserved on the GPU), "gpu" (clock, power and
        temperature by NVML or amdsmi), "gpu_time" (of a step, by events that nobody waits for), and, whenever it takes
        a millisecond, "garbage" (Python's collections). With `on_change` rank 0 looks at the history of all ranks every
        five minutes, and asks for a capture when a rank, a node or all ranks became slower by 2 % of a step: four times
        a day at most, or as often as this number says. `stage` is this rank's stage of a pipeline, from 0 on, the one
        argument that differs between ranks: the history then says what the last stage costs. In Megatron's jobs it is
        found.

        `scratch` is a directory on a local disk (default: the system's for temporary files), where a trace is until
        it is digested. Requests are looked for every `poll_s`; a step is agreed on `margin_s` ahead (default: 3 s on
        local file systems, 75 s on others, whose caches may be a minute old). Ranks that do not report within
        `patience_s` are missing.

        Where no step has ended for `on_hang_s`, from here on, each rank writes where its threads are and its Flight
        Recorder's entries into `hang/` in the log directory; `ddp-doctor dump LOGDIR` asks for that at any time. It is
        longer than the longest pause of a healthy job: a checkpoint, an evaluation, the first batch.

        `tokens_per_step`, `samples_per_step` and `model_flops_per_step` are of a step of the whole job: diagnoses then
        also have tokens/s and samples/s per GPU, and the MFU by these FLOPs.

        `on_verdict` is called with each verdict, on the rank that made it: rank 0, unless it is missing. That happens
        on a thread of the doctor's, or in `close`; training does not wait for it. What it raises is logged.

        Raises ValueError for arguments that make no sense, and nothing afterwards.
        """
        arguments.check_flags(stacks=stacks, memory=memory, nvtx=nvtx, history=history)
        self._keep: Keep = arguments.check_choice("keep", keep, get_args(Keep))
        self._on_change = _captures_a_day(on_change)
        recorded = [arguments.check_choice("record", each, get_args(Recorded)) for each in record]
        self._max_gb = arguments.given_number("max_gb", max_gb)
        self._margin_s = arguments.given_number("margin_s", margin_s)
        self._patience_s = arguments.check_number("patience_s", patience_s)
        self._poll_s = arguments.check_number("poll_s", poll_s, above=True)
        on_hang_s = arguments.given_number("on_hang_s", on_hang_s, above=True)
        self._workload = arguments.given_numbers(
            tokens_per_step=tokens_per_step,
            samples_per_step=samples_per_step,
            model_flops_per_step=model_flops_per_step,
        )
        if on_verdict is not None and not callable(on_verdict):
            raise ValueError(f"on_verdict is a function that takes a verdict, not {on_verdict!r}.")
        self._on_verdict = on_verdict
        every = arguments.check_whole("every", every) if every is not None else None
        self._windows = PlannedWindows(CaptureSchedule(every, arguments.check_whole("steps", steps), stacks, memory))
        self._logdir, self._scratch = Path(logdir).absolute(), new_scratch(scratch)
        self._ranges = NvtxRanges() if nvtx else None
        if self._ranges is not None:
            self._ranges.watch_optimizers()
        stage = arguments.check_whole("stage", stage) if stage is not None else None
        self._history = StepHistory(recorded, stage) if history or recorded or self._on_change else None
        self._process = os.getpid()
        #: What was said once.
        self._said: set[str] = set()
        self._hang = HangWatch(self._logdir, on_hang_s, lambda: self._step)
        if on_hang_s is not None:
            self._hang.start()
        _say_somewhere()
        self._listen_to_signals()

    def step(self, n: int | None = None) -> None:
        """Say that a step has ended: the global step `n`, counted from 0; by default one more than the last.

        Give the global step wherever a job may resume, so that all ranks mean the same one.
        """
        if n is None:
            n = self._step + 1
        if self._ranges is not None:
            self._ranges.begin(n + 1)
        if self._history is not None:
            self._history.mark_gpu_step()
        if self._step < n < self._due:
            self._step = n
            if self._history is not None:
                self._history.end(n)
            return
        is_new = n != self._step
        is_timed = self._recorder is None
        try:
            self._act(n)
        except Exception as error:
            self._fail(error)
        if self._history is not None and is_new:
            # What a capture takes is no time of the training's.
            self._history.end(n, is_timed and self._recorder is None)

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Mark what runs within as no part of a step, such as a checkpoint: `with doctor.phase("checkpoint"):`."""
        return contextlib.nullcontext() if self._history is None else self._history.phase(str(name))

    def tokens(self, count: int) -> None:
        """Say how many tokens this rank's step has, or a part of it: the history then compares steps of any length."""
        if self._history is not None:
            self._history.tokens(count)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of a loader, `for batch in doctor.batches(loader):`, whose waiting times the history keeps."""
        return iter(loader) if self._history is None else self._history.batches(loader)

    def waits(self) -> None:
        """Say that this step waits for other ranks from here on: before its first collective.

        Without that, the times of steps are those of the slowest rank on all ranks. A model that is watched says it
        by itself, when its backward pass makes the first gradient.
        """
        if self._history is not None:
            self._history.waits()

    def watch(self, model: Any = None, loader: Any = None, depth: int = 2) -> None:
        """Also record which modules of a model run, to a depth, and how long a DataLoader's workers take for a batch.

        Call it before the first batch is taken from the loader.
        """
        try:
            from tb_ddp_doctor.capture.watch import Watched, watch_first_gradient

            self._watched = self._watched or Watched(self._scratch)
            if model is not None:
                self._watched.watch_model(model, depth)
                if self._history is not None:
                    watch_first_gradient(model, self.waits)
                if self._ranges is not None:
                    self._ranges.watch(model, self._watched.modules())
            if loader is not None:
                self._watched.watch_loader(loader)
        except Exception as error:
            _log.warning(
                "ddp-doctor: watch() marks no more modules, and captures go on without (%s: %s).",
                type(error).__name__,
                error,
            )

    def close(self, wait_s: float = 0.0) -> None:
        """End a capture that has begun, without its trace; wait so long for the digests of those that have ended."""
        if os.getpid() != self._process:
            return
        try:
            self._due = _NEVER
            self._hang.close()
            if self._history is not None:
                self._history.close()
            if self._ranges is not None:
                self._ranges.close()
            self._drop("the training ends")
            if self._watched is not None:
                self._watched.close()
            if self._agent is not None:
                self._agent.close(wait_s)
                self._agent = None
        except Exception as error:
            self._fail(error)

    # ------------------------------------------------------------------------------- what follows is rarely called

    def _act(self, n: int) -> None:
        """Do what is due at the end of step `n`, and find out when something is due next."""
        if self._due == _NEVER or n == self._step:
            return
        if self._recorder is not None and not self._is_of_this_thread(self._recorder):
            self._say_other_thread()
            return
        if self._is_off:
            self._due = _NEVER
            self._drop("the doctor is switched off")
            return
        agent = self._agent = self._agent or self._begin()
        if n < self._step:
            self._rewinds += 1
            self._tried = None
        self._step = n
        self._take_offers(n)
        self._advance(n + 1, agent)
        self._due = self._next_due(n)
        # An offer that came meanwhile has just been overwritten.
        if self._windows.has_offers():
            self._due = -1

    def _begin(self) -> Agent:
        from tb_ddp_doctor.capture.process import rank_and_world_size

        self._rank, world_size = rank_and_world_size()
        node = socket.gethostname()
        agent = Agent(
            logdir=self._logdir,
            scratch=self._scratch,
            schedule=self._windows.schedule,
            rank=self._rank,
            world_size=world_size,
            node=node,
            keep=self._keep,
            max_gb=self._max_gb,
            patience_s=self._patience_s,
            poll_s=self._poll_s,
            margin_s=self._margin_s,
            progress=lambda: self._step,
            signals=lambda: self._signals,
            offer=self._offer,
            withdraw=self._withdraw,
            switch_off=self._switch_off,
            on_verdict=self._on_verdict,
            on_change=self._on_change,
        )
        self._who = {"rank": self._rank, "world_size": world_size, "node": node}
        if self._history is not None:
            self._history.begin(self._logdir, self._rank, world_size, node, self._max_gb)
        atexit.register(self.close)
        agent.start()
        self._hang.start()
        return agent

    def _offer(self, window: CaptureWindow) -> None:
        """Called on the agent's thread."""
        self._windows.offer(window)
        self._due = -1

    def _withdraw(self, request: str) -> None:
        """Called on the agent's thread."""
        self._windows.withdraw(request)
        self._due = -1

    def _take_offers(self, n: int) -> None:
        withdrawn = self._windows.take(n, self._rank)
        if self._recorder is not None and self._recorder.window.request in withdrawn:
            self._drop("it was cancelled")

    def _advance(self, step: int, agent: Agent) -> None:
        """Do what must be done before `step` begins."""
        recorder = self._recorder
        if recorder is not None and recorder.gave_way:
            self._drop("another profiler began")
        elif recorder is not None and recorder.is_recording:
            self._record(step, recorder, agent)
        elif recorder is not None and step != recorder.window.first:
            self._drop(f"step {step} came instead")
        if self._recorder is None:
            window = self._windows.first_from(step, self._rank)
            if window is not None and window != self._tried and step >= window.first - 1:
                self._prepare(window, agent)
        recorder = self._recorder
        if recorder is not None and not recorder.is_recording and step == recorder.window.first:
            self._start(recorder, agent)

    def _record(self, step: int, recorder: WindowRecorder, agent: Agent) -> None:
        window = recorder.window
        if window.first < step <= window.last:
            recorder.next_step(step)
        elif step == window.last + 1:
            self._recorder = None
            recorder.stop()
            self._save(recorder, agent)
        else:
            self._drop(f"step {step} came instead")

    def _save(self, recorder: WindowRecorder, agent: Agent) -> None:
        window = recorder.window
        trace = self._scratch / f"step_{window.first}_{self._rewinds}" / "trace.json"
        try:
            recorder.save(trace)
        except OSError as error:
            agent.end()
            shutil.rmtree(trace.parent, ignore_errors=True)
            self._say_missing(
                window, f"its trace cannot be written to {self._scratch.parent} ({error.strerror or error})"
            )
            return
        evidence = RankEvidence(
            gpu=self._gpu.state() if self._gpu else None,
            gpu_looks=self._gpu.looks() if self._gpu else (),
            loading=self._watched.loading() if self._watched else None,
            core_wait_ms=recorder.core_wait_ms,
            core_run_ms=recorder.core_run_ms,
        )
        agent.take(Captured(window, trace, time.time_ns(), self._rewinds, evidence))

    def _prepare(self, window: CaptureWindow, agent: Agent) -> None:
        from tb_ddp_doctor.capture.recorder import BusyError, WindowRecorder

        self._tried = window
        self._windows.remove(window)
        if not agent.has_room():
            self._say_missing(window, "traces of earlier captures still wait to be digested")
            return
        recorder = WindowRecorder(window, self._who, self._watched, self._workload)
        try:
            recorder.prepare()
        except BusyError as error:
            self._say_missing(window, str(error))
        else:
            self._recorder = recorder

    def _start(self, recorder: WindowRecorder, agent: Agent) -> None:
        from tb_ddp_doctor.capture.recorder import BusyError

        try:
            recorder.start(recorder.window.first)
        except BusyError as error:
            self._recorder = None
            self._say_missing(recorder.window, str(error))
            return
        self._thread = threading.get_ident()
        self._gpu = Gpu.of_this_thread()
        agent.begin(self._gpu)

    def _say_missing(self, window: CaptureWindow, reason: str) -> None:
        # A full disk stays full: once is enough.
        if reason not in self._said:
            self._said.add(reason)
            _log.warning("ddp-doctor: rank %d is missing from the capture of %s: %s.", self._rank, window, reason)

    def _is_of_this_thread(self, recorder: WindowRecorder) -> bool:
        """Whether torch's profiler may be used here: it records, and ends, on the thread that began."""
        return not recorder.is_recording or threading.get_ident() == self._thread

    def _say_other_thread(self) -> None:
        if "threads" not in self._said:
            self._said.add("threads")
            _log.warning(
                "ddp-doctor: step() is called on two threads; while rank %d records, only the calls of the thread that "
                "began to record count.",
                self._rank,
            )

    def _drop(self, reason: str) -> None:
        """Give up a window that is prepared or being recorded; nothing where none is."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        is_mine = self._is_of_this_thread(recorder)
        if self._agent is not None:
            self._agent.end()
        _log.warning("ddp-doctor: rank %d gives up the capture of %s: %s.", self._rank, recorder.window, reason)
        if is_mine:
            recorder.stop()

    def _next_due(self, n: int) -> int:
        """The end of which step something must be done at, after step `n`."""
        if self._recorder is not None:
            return n + 1
        following = self._windows.first_from(n + 2, self._rank)
        # The step before a window is for preparing it: at the end of the one before that.
        return max(following.first - 2, n + 1) if following else _NEVER - 1

    def _fail(self, error: Exception) -> None:
        """Say it once, and never do anything again. Raises nothing."""
        recorder, self._recorder = self._recorder, None
        self._switch_off(f"{type(error).__name__}: {error}")
        self._due = _NEVER
        with contextlib.suppress(Exception):
            if recorder is not None:
                recorder.stop()

    def _switch_off(self, reason: str) -> None:
        """Say it once; also called on the agent's thread, which must not touch torch's profiler."""
        if not self._is_off:
            self._is_off = True
            _log.error("ddp-doctor: rank %d captures nothing more: %s", self._rank, reason)
        self._due = -1

    def _listen_to_signals(self) -> None:
        """SIGUSR2 asks for a capture, where nobody else listens to it."""
        number = getattr(signal, "SIGUSR2", None)
        with contextlib.suppress(ValueError):  # not the main thread
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._count_signal)

    def _count_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1


def _captures_a_day(on_change: object) -> int:
    """How many captures a change may ask for in a day; 0 for none. Raises ValueError."""
    if isinstance(on_change, bool):
        return _CAPTURES_A_DAY if on_change else 0
    return max(arguments.check_whole("on_change", on_change), 0)


def _say_somewhere() -> None:
    """What is said goes to the job's own log; to standard error in a job that has none."""
    logger = logging.getLogger("tb_ddp_doctor.capture")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.handlers:
        handler = logging.StreamHandler()
        # The job may set its log up later.
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        logger.addHandler(handler)
