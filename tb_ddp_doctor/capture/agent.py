"""The thread beside the training: looks for requests, answers them, and starts the children that digest traces."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

import tb_ddp_doctor
from tb_ddp_doctor.capture.directory import CaptureFolder, write_json
from tb_ddp_doctor.capture.gpu import Gpu
from tb_ddp_doctor.capture.requests import Mailbox, Request, margin_s
from tb_ddp_doctor.capture.task import Keep, Task
from tb_ddp_doctor.capture.windows import Schedule, Window, placed, steps_ahead
from tb_ddp_doctor.evidence.model import GpuState, Loading, RankEvidence

#: Another rank answers a request that rank 0 leaves unanswered for so long, s.
_TAKEOVER_S = 30.0
#: Between two looks at the GPU while it is recorded, s.
_GPU_S = 0.2
#: Children of one rank at a time; further traces wait in the scratch directory.
_MOST_CHILDREN = 2
#: Of one request: a trace of more takes longer to write than anybody wants to wait for.
_MOST_STEPS = 1000
_log = logging.getLogger(__name__)


class Captured(msgspec.Struct, frozen=True):
    """A trace that has just been written."""

    window: Window
    trace: Path
    captured_ns: int
    gpu: GpuState | None
    loading: Loading | None


class _Pace:
    """How fast the training is."""

    def __init__(self) -> None:
        self._seen: tuple[int, float] | None = None
        #: Of late; the shortest counts, since a pause says nothing about the steps to come.
        self._step_s: deque[float] = deque(maxlen=16)

    @property
    def step_s(self) -> float | None:
        """A step's time; None until it is known."""
        return min(self._step_s, default=None)

    def look(self, step: int) -> None:
        now = time.monotonic()
        if self._seen is not None and step > self._seen[0]:
            self._step_s.append((now - self._seen[1]) / (step - self._seen[0]))
        if self._seen is None or step != self._seen[0]:
            self._seen = (step, now)


class Agent(msgspec.Struct, eq=False):
    """What a Doctor does outside of the training's thread."""

    logdir: Path
    scratch: Path
    schedule: Schedule
    rank: int
    world_size: int
    node: str
    keep: Keep
    max_gb: float | None
    patience_s: float
    poll_s: float
    margin_s: float | None
    #: The step that ended last, and how often somebody sent SIGUSR2.
    progress: Callable[[], int]
    signals: Callable[[], int]
    offer: Callable[[Window], None]
    switch_off: Callable[[str], None]
    _finished: deque[Captured] = msgspec.field(default_factory=deque)
    _children: list[tuple[subprocess.Popen[bytes], Captured]] = msgspec.field(default_factory=list)
    _woken: threading.Event = msgspec.field(default_factory=threading.Event)
    #: One thread at a time starts children and says what they said.
    _turn: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _ended: bool = False
    _recording: bool = False
    _gpu: Gpu | None = None
    _said: set[str] = msgspec.field(default_factory=set)
    #: Plans that were taken up, windows that are planned, and when requests were first seen without a plan.
    _seen: set[str] = msgspec.field(default_factory=set)
    _planned: list[Window] = msgspec.field(default_factory=list)
    _unanswered_since: dict[str, float] = msgspec.field(default_factory=dict)
    _signals_done: int = 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="ddp-doctor", daemon=True).start()

    def begin(self, gpu: Gpu | None) -> None:
        """Recording has begun, on this GPU."""
        self._gpu = gpu
        self._recording = True
        self._woken.set()

    def end(self) -> None:
        """Recording has ended."""
        self._recording = False

    def take(self, captured: Captured) -> None:
        """Digest a trace."""
        self._recording = False
        self._finished.append(captured)
        self._woken.set()

    def close(self, wait_s: float) -> None:
        """Start the children that are due, and wait so long for all of them."""
        with self._turn:
            self._start_children(len(self._finished))
        # Not before: the thread ends when there are no children.
        self._ended = True
        self._woken.set()
        until = time.monotonic() + wait_s
        for child, _ in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(until - time.monotonic(), 0))
        with self._turn:
            self._hear_children()
        # What a child that still runs needs lies below.
        with contextlib.suppress(OSError):
            self.scratch.rmdir()

    def _run(self) -> None:
        try:
            mailbox, margin = self._open()
        except OSError as error:
            self.switch_off(f"{self.logdir} cannot be written to ({error.strerror or error}).")
            return
        pace = _Pace()
        # Once the training has ended, what children say is waited for as long as the process lives.
        while not self._ended or self._children:
            self._woken.wait(_GPU_S if self._recording and self._gpu else self.poll_s)
            self._woken.clear()
            try:
                if self._recording and self._gpu:
                    self._gpu.look()
                pace.look(self.progress())
                with self._turn:
                    self._hear_children()
                    self._start_children(_MOST_CHILDREN - len(self._children))
                if not self._ended:
                    self._look_for_requests(mailbox, margin, pace)
            except OSError as error:
                # A directory that does not answer now may do so later.
                self._say_once(f"{self.logdir} cannot be used ({error.strerror or error}); it is tried again.")
            except Exception as error:
                self.switch_off(f"{type(error).__name__}: {error}")
                return
        with contextlib.suppress(OSError):
            self.scratch.rmdir()

    def _open(self) -> tuple[Mailbox, float]:
        mailbox = Mailbox(self.logdir)
        mailbox.open()
        if self.rank == 0:
            mailbox.clean()
        return mailbox, margin_s(self.logdir) if self.margin_s is None else self.margin_s

    # ------------------------------------------------------------------------------------------------- requests

    def _look_for_requests(self, mailbox: Mailbox, margin_s: float, pace: _Pace) -> None:
        if self.signals() > self._signals_done:
            self._signals_done = self.signals()
            mailbox.ask(Request(time.time(), f"SIGUSR2 to rank {self.rank}"))
        self._take_plans(mailbox)
        if pace.step_s is None:
            return
        for name, request in mailbox.unanswered().items():
            if self._may_answer(name):
                self._answer(mailbox, name, request, steps_ahead(margin_s, pace.step_s))
                self._take_plans(mailbox)

    def _take_plans(self, mailbox: Mailbox) -> None:
        for window in mailbox.new_plans(self._seen):
            self._planned.append(window)
            self.offer(window)

    def _may_answer(self, name: str) -> bool:
        """Rank 0 at once, the others if it does not."""
        since = self._unanswered_since.setdefault(name, time.monotonic())
        return self.rank == 0 or time.monotonic() - since > _TAKEOVER_S

    def _answer(self, mailbox: Mailbox, name: str, request: Request, ahead: int) -> None:
        step = self.progress()
        steps = min(max(request.steps or self.schedule.steps, 1), _MOST_STEPS)
        wanted = Window(step + ahead, steps, request.ranks, request.stacks, request.memory, name)
        planned = [window for window in self._planned if window.last >= step]
        window = replace(wanted, first=placed(wanted, self.schedule, planned))
        if mailbox.answer(name, window, self.rank):
            _log.info("ddp-doctor: %s will be captured, as %s asked.", window, request.by)

    # ------------------------------------------------------------------------------------------------- children

    def _start_children(self, most: int) -> None:
        for _ in range(min(most, len(self._finished))):
            captured = self._finished.popleft()
            try:
                self._children.append((self._child(captured), captured))
            except OSError as error:
                _log.warning("ddp-doctor: the trace of %s cannot be digested (%s).", captured.window, error)
                shutil.rmtree(captured.trace.parent, ignore_errors=True)

    def _child(self, captured: Captured) -> subprocess.Popen[bytes]:
        window, folder = captured.window, captured.trace.parent
        task = Task(
            trace=str(captured.trace),
            logdir=str(self.logdir),
            keep=self.keep,
            max_gb=self.max_gb,
            patience_s=self.patience_s,
            rank=self.rank,
            world_size=self.world_size,
            node=self.node,
            pid=os.getpid(),
            step=window.first,
            steps=window.steps,
            ranks=window.ranks,
            captured_ns=captured.captured_ns,
            evidence=RankEvidence(gpu=captured.gpu, loading=captured.loading),
        )
        write_json(folder / "task", task)
        with (folder / "said").open("wb") as said:
            # In a session of its own, without our pipes: who ends the job or awaits its output does not wait for it.
            return subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "tb_ddp_doctor.capture.child", str(folder / "task")],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=_child_environment(),
                cwd=folder,
                start_new_session=True,
            )

    def _hear_children(self) -> None:
        """Say what children said that have ended."""
        running = []
        for child, captured in self._children:
            if child.poll() is None:
                running.append((child, captured))
                continue
            folder = captured.trace.parent
            said = ""
            with contextlib.suppress(OSError):
                said = (folder / "said").read_text(errors="replace")
            for line in said.splitlines():
                _log.info("ddp-doctor: %s", line)
            if child.returncode:
                place = CaptureFolder.of(self.logdir, captured.window.first).path
                _log.warning(
                    "ddp-doctor: rank %d's trace of %s did not reach %s (exit %d).",
                    self.rank,
                    captured.window,
                    place,
                    child.returncode,
                )
            shutil.rmtree(folder, ignore_errors=True)
        self._children = running

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            _log.warning("ddp-doctor: %s", sentence)


def _child_environment() -> dict[str, str]:
    """The child finds what this process found, sees no GPU, and computes on one core."""
    package = str(Path(tb_ddp_doctor.__file__).parents[1])
    path = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    one_core = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        **os.environ,
        **one_core,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONSAFEPATH": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
