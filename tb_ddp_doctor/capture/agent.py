"""The thread beside the training: looks for requests, answers them, and starts the children that digest traces."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.capture import scratch
from tb_ddp_doctor.capture.directory import TOLD_NAME, CaptureVerdict, read_json, write_json
from tb_ddp_doctor.capture.gpu import Gpu
from tb_ddp_doctor.capture.process import start
from tb_ddp_doctor.capture.requests import MOST_WAITING, Mailbox, Request, margin_s
from tb_ddp_doctor.capture.starts import JoinedStart, join
from tb_ddp_doctor.capture.task import Keep, Task
from tb_ddp_doctor.capture.windows import MOST_STEPS, CaptureSchedule, CaptureWindow, placed, steps_ahead
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.version import PACKAGE

if TYPE_CHECKING:
    from tb_ddp_doctor.capture.changes import ChangeWatch

#: Another rank answers a request that rank 0 leaves unanswered for so long, s.
_TAKEOVER_S = 30.0
#: Between two looks at the GPU while it is recorded, s.
_GPU_S = 0.2
#: Children of one rank at a time; further traces wait in the scratch directory.
_MOST_CHILDREN = 2
#: Traces that wait for a child; while there are so many, no more are recorded.
_MOST_FINISHED = 4
#: Planned windows that are kept, the next ones: plans of steps that never come may be forged without end.
_MOST_PLANNED = 4 * MOST_WAITING
#: Lines of one child for the log.
_MOST_LINES = 100
_NUMBERS = re.compile(r"\d+")
_log = logging.getLogger(__name__)


class Captured(msgspec.Struct, frozen=True):
    """A trace that has just been written."""

    window: CaptureWindow
    trace: Path
    captured_ns: int
    #: How often the training had gone back to earlier steps before.
    rewinds: int
    evidence: RankEvidence


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
    schedule: CaptureSchedule
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
    offer: Callable[[CaptureWindow], None]
    #: Give up what this request asked for.
    withdraw: Callable[[str], None]
    switch_off: Callable[[str], None]
    #: Told each verdict that a child of this rank makes.
    on_verdict: Callable[[CaptureVerdict], object] | None = None
    #: How many captures a day changes in the step times may ask for.
    on_change: int = 0
    _changes: ChangeWatch | None = None
    _finished: deque[Captured] = msgspec.field(default_factory=deque)
    _children: list[tuple[subprocess.Popen[bytes], tuple[Captured, ...]]] = msgspec.field(default_factory=list)
    _woken: threading.Event = msgspec.field(default_factory=threading.Event)
    #: One thread at a time starts children and says what they said.
    _turn: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _ended: bool = False
    _recording: bool = False
    _gpu: Gpu | None = None
    _said: set[str] = msgspec.field(default_factory=set)
    #: Where captures go, by how often the training had gone back: those of a step that is trained again are apart.
    _joined: dict[int, JoinedStart] = msgspec.field(default_factory=dict)
    #: Windows that are planned, and when requests were first seen without a plan.
    _planned: list[CaptureWindow] = msgspec.field(default_factory=list)
    _unanswered_since: dict[str, float] = msgspec.field(default_factory=dict)
    _signals_done: int = 0
    #: Held as long as this process lives.
    _alive: BinaryIO | None = None

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

    def has_room(self) -> bool:
        """Whether another trace can be taken: children may be slower than the training makes traces."""
        return len(self._finished) < _MOST_FINISHED

    def take(self, captured: Captured) -> None:
        """Digest a trace."""
        self._recording = False
        self._finished.append(captured)
        self._woken.set()

    def close(self, wait_s: float) -> None:
        """Start a child for all that is left, and wait so long for all children."""
        with self._turn:
            self._start_child(len(self._finished))
        # Not before: the thread ends when there are no children.
        self._ended = True
        self._woken.set()
        with self._turn:
            if self._changes is not None:
                self._changes.close()
        if self.rank == 0:
            with contextlib.suppress(OSError):
                for joined in self._joined.values():
                    joined.end()
        until = time.monotonic() + wait_s
        for child, _ in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(until - time.monotonic(), 0))
        with self._turn:
            self._hear_children()
        # What a child that still runs needs lies below.
        scratch.leave(self.scratch)

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
                    for _ in range(_MOST_CHILDREN - len(self._children)):
                        self._start_child(1)
                if not self._ended:
                    self._look_for_requests(mailbox, margin, pace)
                with self._turn:
                    if self._changes is not None and not self._ended:
                        self._changes.look(mailbox)
            except OSError as error:
                # A directory that does not answer now may do so later.
                self._say_once(f"{self.logdir} cannot be used ({error.strerror or error}); it is tried again.")
            except Exception as error:
                self.switch_off(f"{type(error).__name__}: {error}")
                return
        scratch.leave(self.scratch)
        if self._alive is not None:
            self._alive.close()

    def _open(self) -> tuple[Mailbox, float]:
        with contextlib.suppress(OSError):
            scratch.sweep(self.scratch.parent)
            self._alive = scratch.use(self.scratch)
        mailbox = Mailbox(self.logdir)
        mailbox.open()
        if self.on_change and self.rank == 0:
            from tb_ddp_doctor.capture.changes import ChangeWatch

            kept = self.scratch / "changes"
            self._changes = ChangeWatch(self.logdir, kept, self.on_change, _child_environment())
        with self._turn:
            joined = self._join(0)
        if self.rank == 0 and joined.number > 1:
            _log.info(
                "ddp-doctor: %s has captures of an earlier start; those of this one go to %s.",
                self.logdir,
                joined.folder,
            )
        return mailbox, margin_s(self.logdir) if self.margin_s is None else self.margin_s

    # ------------------------------------------------------------------------------------------------- requests

    def _look_for_requests(self, mailbox: Mailbox, margin_s: float, pace: _Pace) -> None:
        if self.signals() > self._signals_done:
            self._signals_done = self.signals()
            mailbox.ask(Request(time.time(), f"SIGUSR2 to rank {self.rank}"))
        self._take_plans(mailbox)
        self._planned = [window for window in self._planned if window.last >= self.progress()]
        for window in [one for one in self._planned if mailbox.is_cancelled(one.request)]:
            self._planned.remove(window)
            self.withdraw(window.request)
        self._planned.sort(key=lambda window: window.first)
        for window in self._planned[_MOST_PLANNED:]:
            self.withdraw(window.request)
        del self._planned[_MOST_PLANNED:]
        if pace.step_s is None:
            return
        for name, request in mailbox.unanswered().items():
            if self._may_answer(name):
                self._answer(mailbox, name, request, steps_ahead(margin_s, pace.step_s))
                self._take_plans(mailbox)

    def _take_plans(self, mailbox: Mailbox) -> None:
        for window in mailbox.new_plans(self._joined[0].listed.start.id):
            self._planned.append(window)
            self.offer(window)

    def _may_answer(self, name: str) -> bool:
        """Rank 0 at once, the others if it does not."""
        since = self._unanswered_since.setdefault(name, time.monotonic())
        return self.rank == 0 or time.monotonic() - since > _TAKEOVER_S

    def _answer(self, mailbox: Mailbox, name: str, request: Request, ahead: int) -> None:
        step = self.progress()
        steps = min(max(request.steps or self.schedule.steps, 1), MOST_STEPS)
        ranks = request.ranks and tuple(sorted({rank for rank in request.ranks if 0 <= rank < self.world_size}))
        wanted = CaptureWindow(step + ahead, steps, ranks, request.stacks, request.memory, name)
        window = replace(wanted, first=placed(wanted, self.schedule, self._planned))
        # Those behind it, which may never come, hold up nobody.
        if sum(other.first < window.first for other in self._planned) >= MOST_WAITING:
            return
        if mailbox.answer(name, window, self.rank, self._joined[0]):
            _log.info("ddp-doctor: %s will be captured, as %s asked.", window, printable(request.by))

    def _join(self, rewinds: int) -> JoinedStart:
        """Where captures go after the training has gone back so often. Raises OSError."""
        if rewinds not in self._joined:
            if not rewinds:
                self._joined[0] = join(self.logdir, start(self.world_size), self.rank)
            else:
                first = self._join(0)
                again = replace(first.listed.start, id=f"{first.listed.start.id} again {rewinds}", job=first.listed.job)
                self._joined[rewinds] = join(self.logdir, again, self.rank, first.number)
        return self._joined[rewinds]

    # ------------------------------------------------------------------------------------------------- children

    def _start_child(self, most: int) -> None:
        """Start a child for the oldest traces that wait."""
        taken = tuple(self._finished.popleft() for _ in range(min(most, len(self._finished))))
        if not taken:
            return
        try:
            self._children.append((self._child(taken), taken))
        except OSError as error:
            for captured in taken:
                _log.warning(
                    "ddp-doctor: rank %d is missing from the capture of %s: the process that digests its trace cannot "
                    "be started (%s).",
                    self.rank,
                    captured.window,
                    error,
                )
                shutil.rmtree(captured.trace.parent, ignore_errors=True)

    def _child(self, taken: tuple[Captured, ...]) -> subprocess.Popen[bytes]:
        tasks = [self._task(captured) for captured in taken]
        folder = taken[0].trace.parent
        with (folder / "said").open("wb") as said, (folder / "complained").open("wb") as complained:
            # In a session of its own, without our pipes: who ends the job or awaits its output does not wait for it.
            return subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "tb_ddp_doctor.capture.child", *map(str, tasks)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complained,
                env=_child_environment(),
                cwd=folder,
                start_new_session=True,
            )

    def _task(self, captured: Captured) -> Path:
        """The file that says what to do with a trace. Raises OSError."""
        window, folder = captured.window, captured.trace.parent
        joined = self._join(captured.rewinds)
        task = Task(
            trace=str(captured.trace),
            logdir=str(joined.folder),
            whole_logdir=str(self.logdir),
            job=joined.listed.job,
            start=joined.listed.start.id,
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
            leaves_verdict=self.on_verdict is not None,
            evidence=captured.evidence,
        )
        write_json(folder / "task", task)
        return folder / "task"

    def _hear_children(self) -> None:
        """Say what children said that have ended."""
        running = []
        for child, taken in self._children:
            if child.poll() is None:
                running.append((child, taken))
                continue
            complained = _lines(taken[0].trace.parent / "complained")
            for line in complained:
                self._say_once(line)
            for line in _lines(taken[0].trace.parent / "said"):
                _log.info("ddp-doctor: %s", line)
            for captured in taken:
                self._tell(captured)
                if child.returncode and not complained:
                    self._say_once(
                        f"rank {self.rank} is missing from the capture of {captured.window}: the process that digests "
                        f"its trace {_ended(child.returncode)}."
                    )
                shutil.rmtree(captured.trace.parent, ignore_errors=True)
        self._children = running

    def _tell(self, captured: Captured) -> None:
        """Hand the job the verdict that the child of this capture made, if it made one."""
        verdict = read_json(captured.trace.with_name(TOLD_NAME), CaptureVerdict) if self.on_verdict else None
        if self.on_verdict is None or verdict is None:
            return
        try:
            self.on_verdict(verdict)
        except Exception as error:
            why = f"{type(error).__name__}: {printable(str(error))}"
            self._say_once(f"on_verdict fails at step {verdict.step} ({why}).")

    def _say_once(self, sentence: str) -> None:
        """Warn, unless only the steps differ from what was said before."""
        kind = _NUMBERS.sub("#", sentence)
        if kind not in self._said:
            self._said.add(kind)
            _log.warning("ddp-doctor: %s", sentence)


def _ended(status: int) -> str:
    """How a child ended that said nothing, in words."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by signal {-status}{', perhaps for want of memory' if status == -signal.SIGKILL else ''}"


def _lines(path: Path) -> list[str]:
    """What a child wrote, as a terminal may show it."""
    with contextlib.suppress(OSError):
        return [printable(line) for line in path.read_text(errors="replace").splitlines()[:_MOST_LINES]]
    return []


def _child_environment() -> dict[str, str]:
    """The child finds what this process found, sees no GPU, and computes on one core."""
    package = str(PACKAGE.parent)
    path = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    one_core = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        **os.environ,
        **one_core,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONSAFEPATH": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
