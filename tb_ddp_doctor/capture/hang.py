"""What a rank that hangs leaves: where its threads are in Python, and what torch's Flight Recorder has.

    hang/rank_3.stacks.txt       all threads, as `py-spy dump` prints them
    hang/gloo_trace_rank_3       the Flight Recorder's entries, where torch records this backend; nccl_... on GPUs

Written by a thread of the rank, so not while C code keeps the GIL: then `py-spy dump --pid` shows more. `diagnose`
reads both. The folder holds the last hang alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import msgspec

from tb_ddp_doctor.capture.directory import CONTROL_FOLDER, read_json, refuse_link, write_json
from tb_ddp_doctor.capture.process import rank_and_world_size
from tb_ddp_doctor.storage.plain_file import open_plain
from tb_ddp_doctor.storage.whole_file import written_whole

HANG_FOLDER = "hang"
STACKS_SUFFIX = ".stacks.txt"
_REQUEST_NAME = "dump.json"
#: What `ask` calls a request, and the first line of an answer; bytes of that, and of a request.
_ID = re.compile(r"[0-9a-f]{12}")
_ANSWER = re.compile(r"# ddp-doctor: rank (\d{1,6}) of (\d{1,6}) on .*")
_LONGEST_HEAD = 4096
#: No job has more.
_MOST_RANKS = 1 << 17
#: Between two looks at the step and for a request, s.
_POLL_S = 2.0
#: A request that was made so long before the job began is an earlier job's, s; clocks of hosts differ.
_EARLIER_S = 300.0
#: Deeper stacks are cut.
_MOST_FRAMES = 200
_log = logging.getLogger(__name__)


class DumpRequest(msgspec.Struct, frozen=True):
    """Somebody asks all ranks for their stacks and dumps, now."""

    #: Distinguishes requests, and is in each answer.
    id: str
    asked_s: float


def ask(logdir: Path) -> DumpRequest:
    """Ask all ranks of the job that has a `Doctor` at this log directory. Raises OSError."""
    request = DumpRequest(os.urandom(6).hex(), time.time())
    write_json(logdir / CONTROL_FOLDER / _REQUEST_NAME, request)
    return request


def answers(logdir: Path, request: DumpRequest) -> tuple[set[int], int | None]:
    """The ranks that have answered a request, and how many there are in all; None until one has."""
    ranks: set[int] = set()
    world_size = None
    for path in (logdir / HANG_FOLDER).glob(f"rank_*{STACKS_SUFFIX}"):
        with contextlib.suppress(OSError):
            with open_plain(path) as file:
                head = _ANSWER.match(file.readline(_LONGEST_HEAD).decode(errors="replace"))
            if head and request.id in head[0].split() and int(head[1]) < int(head[2]) <= _MOST_RANKS:
                ranks.add(int(head[1]))
                world_size = int(head[2])
    return ranks, world_size


def dump(logdir: Path, why: str) -> Path:
    """Write this rank's stacks and dump, for a reason in a few words; the file of the stacks. Raises OSError."""
    rank, world_size = rank_and_world_size()
    path = logdir / HANG_FOLDER / f"rank_{rank}{STACKS_SUFFIX}"
    refuse_link(path.parent)
    head = f"# ddp-doctor: rank {rank} of {world_size} on {socket.gethostname()}, {why}"
    text = "\n".join((head, f"Process {os.getpid()}: {' '.join(sys.argv[:1])}", *_stacks(), ""))
    with written_whole(path) as file:
        file.write(text.encode("utf-8", errors="replace"))
    for backend, recorded in _recorded():
        with written_whole(path.with_name(f"{backend}_trace_rank_{rank}")) as file:
            file.write(recorded)
    return path


def _stacks() -> Iterator[str]:
    """Where each thread of this process is, as py-spy prints it, the main thread first."""
    yield f"Python v{platform.python_version()}"
    main, names = threading.main_thread().ident, {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        yield ""
        yield f'Thread 0x{ident:X} (active): "{"MainThread" if ident == main else names.get(ident, "?")}"'
        at: FrameType | None = frame
        for _ in range(_MOST_FRAMES):
            if at is None:
                break
            yield f"    {at.f_code.co_name} ({at.f_code.co_filename}:{at.f_lineno})"
            at = at.f_back


def _recorded() -> Iterator[tuple[str, bytes]]:
    """What the Flight Recorder has, by backend, where this torch has one and it holds anything."""
    torch = sys.modules.get("torch._C._distributed_c10d")
    for backend, name in (("nccl", "_dump_nccl_trace"), ("gloo", "_dump_fr_trace")):
        dumps = getattr(torch, name, None)
        if dumps is None:
            continue
        with contextlib.suppress(Exception):  # whatever a torch that hangs raises: the stacks are there
            recorded = dumps()
            if isinstance(recorded, bytes) and b"profiling_name" in recorded:
                yield backend, recorded


class HangWatch:
    """A thread that dumps when no step has ended for `on_hang_s` (None: never), and when somebody asks.

    `progress` gives the step that ended last.
    """

    def __init__(self, logdir: Path, on_hang_s: float | None, progress: Callable[[], int]) -> None:
        self._logdir, self._on_hang_s, self._progress = logdir, on_hang_s, progress
        self._began_s = time.time()
        self._ended = threading.Event()
        self._answered = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; nothing where it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ddp-doctor hang", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """The training has ended: nothing hangs any more."""
        self._ended.set()

    def _run(self) -> None:
        step, since, has_dumped = self._progress(), time.monotonic(), False
        while not self._ended.wait(_POLL_S):
            if self._progress() != step:
                step, since, has_dumped = self._progress(), time.monotonic(), False
            waited_s = time.monotonic() - since
            try:
                if self._is_asked():
                    self._dump(f"asked for by ddp-doctor dump {self._answered}")
                elif self._on_hang_s is not None and waited_s > self._on_hang_s and not has_dumped:
                    has_dumped = True
                    self._dump(f"no step has ended for {round(waited_s)} s after step {step}")
            except OSError as error:
                _log.warning("ddp-doctor: what this rank hangs in cannot be written (%s).", error.strerror or error)

    def _is_asked(self) -> bool:
        request = read_json(self._logdir / CONTROL_FOLDER / _REQUEST_NAME, DumpRequest, _LONGEST_HEAD)
        # It is said in the job's log.
        if request is None or not _ID.fullmatch(request.id):
            return False
        if request.id == self._answered or request.asked_s < self._began_s - _EARLIER_S:
            return False
        self._answered = request.id
        return True

    def _dump(self, why: str) -> None:
        path = dump(self._logdir, why)
        _log.warning("ddp-doctor: %s. Where it is: %s; ddp-doctor diagnose %s says more.", why, path, path.parent)
