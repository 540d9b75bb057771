"""How ranks agree on the steps of a capture that somebody asks for while they train, through files.

Whoever asks writes a request. One rank, rank 0 unless it does not answer, answers with a plan: the first step, ahead of
all ranks by a margin in which each of them sees the file, whatever its file system caches. Nobody waits for anybody.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from tb_ddp_doctor.capture.directory import CONTROL_FOLDER, CaptureFolder, mark, read_json, write_json
from tb_ddp_doctor.capture.starts import JoinedStart
from tb_ddp_doctor.capture.windows import MOST_STEPS, CaptureWindow

#: Requests that nobody answered for so long are passed over, s.
_STALE_S = 3600.0
#: As many captures are placed before a request at most, else it waits for its answer; and as many files are read at a
#: look, whatever else lies there.
MOST_WAITING = 8
_MOST_READ = 32
_MOST_BYTES = 1 << 20
#: What `Mailbox.ask` names a request.
_NAME = re.compile(r"\d{1,20}-\d{1,10}-[0-9a-f]{8}", re.ASCII)
#: NFS clients may show a directory as it was so long ago (acdirmax), and then the next poll must come, s.
NETWORK_MARGIN_S = 75.0
LOCAL_MARGIN_S = 3.0
#: File systems that only the processes of one machine see.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "apfs", "hfs", "ntfs"})


class Request(msgspec.Struct, frozen=True):
    """What somebody asks for; None leaves it to the job."""

    asked_s: float
    by: str
    steps: int | None = None
    ranks: tuple[int, ...] | None = None
    stacks: bool = False
    memory: bool = False


class CapturePlan(msgspec.Struct, frozen=True):
    """The answer to a request."""

    #: The start that is to capture, and the folder of its captures within the log directory.
    start: str
    folder: str
    by_rank: int
    first: int
    steps: int
    ranks: tuple[int, ...] | None
    stacks: bool
    memory: bool


class Mailbox:
    """The requests and plans in a log directory."""

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._requests = logdir / CONTROL_FOLDER / "requests"
        self._plans = logdir / CONTROL_FOLDER / "plans"
        self._cancelled = logdir / CONTROL_FOLDER / "cancelled"
        #: What a listing showed, by folder.
        self._listed: dict[Path, _Listing] = {}

    def open(self) -> None:
        """Make the folders. Raises OSError."""
        for folder in (self._requests, self._plans, self._cancelled):
            folder.mkdir(parents=True, exist_ok=True)

    def is_open(self) -> bool:
        """Whether a job has ever listened here."""
        return self._plans.is_dir()

    def ask(self, request: Request) -> str:
        """Write a request; returns its name. Raises OSError."""
        name = f"{time.time_ns()}-{os.getpid()}-{os.urandom(4).hex()}"
        write_json(self._requests / name, request)
        return name

    def asked_for(self, by: str, since_s: float) -> int:
        """How many of the newest requests somebody of this name has made since then. Raises OSError."""
        names = [name for name in _newest(_names(self._requests)) if _time_ns(name) >= since_s * 1e9]
        return sum(request.by == by for request in map(self._request, names) if request is not None)

    def unanswered(self) -> dict[str, Request]:
        """The newest requests without a plan, in the order in which they were made. Raises OSError."""
        requests, plans = self._looked_at(self._requests), self._looked_at(self._plans)
        # Names begin with their time: those from another day hide none of today.
        now_ns = time.time_ns()
        fresh = {name for name in requests.names if abs(_time_ns(name) - now_ns) < _STALE_S * 1e9}
        waiting = _newest(fresh - plans.names - requests.passed_over)
        unanswered = {}
        for name in reversed(waiting):
            request = self._request(name)
            if request is None or not _is_fresh(request.asked_s) or self.is_cancelled(name):
                requests.passed_over.add(name)
            else:
                unanswered[name] = request
        return unanswered

    def answer(self, name: str, window: CaptureWindow, rank: int, joined: JoinedStart) -> bool:
        """Write the plan for a request; False if another rank was faster. Raises OSError."""
        fields = {key: value for key, value in asdict(window).items() if key != "request"}
        folder = str(joined.folder.relative_to(joined.logdir))
        # Written under another name first: nobody may see half of it, and only one may give it its name.
        draft = self._plans / f".{name}-{rank}"
        write_json(draft, CapturePlan(start=joined.listed.start.id, folder=folder, by_rank=rank, **fields))
        try:
            os.link(draft, self._plans / name)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    def plan(self, name: str) -> CapturePlan | None:
        """The answer to a request, if there is one that can be kept."""
        plan = read_json(self._plans / name, CapturePlan, _MOST_BYTES)
        return plan if plan and plan.first >= 0 and 1 <= plan.steps <= MOST_STEPS else None

    def new_plans(self, start: str) -> Iterator[CaptureWindow]:
        """The windows of a start's plans that were not handed out before. Raises OSError."""
        plans = self._looked_at(self._plans)
        for name in _newest(plans.names - plans.passed_over):
            plans.passed_over.add(name)
            plan = self.plan(name)
            if plan is not None and plan.start == start:
                yield CaptureWindow(plan.first, plan.steps, plan.ranks, plan.stacks, plan.memory, name)

    def cancel(self, starts: Collection[str]) -> list[str]:
        """Withdraw the requests that these starts have not captured yet; returns their names. Raises OSError."""
        pending = []
        for name in sorted(_names(self._requests) - _names(self._cancelled)):
            request, plan = self._request(name), self.plan(name)
            if plan is None:
                is_pending = request is not None and _is_fresh(request.asked_s)
            else:
                folder = CaptureFolder.of(self._logdir / plan.folder, plan.first)
                is_pending = plan.start in starts and not folder.verdict.exists()
            if is_pending:
                mark(self._cancelled / name)
                pending.append(name)
        return pending

    def is_cancelled(self, name: str) -> bool:
        """Whether a request was withdrawn."""
        return os.path.lexists(self._cancelled / name)

    def _request(self, name: str) -> Request | None:
        return read_json(self._requests / name, Request, _MOST_BYTES)

    def _looked_at(self, folder: Path) -> _Listing:
        """The names in a folder. Raises OSError."""
        listing = self._listed.setdefault(folder, _Listing())
        changed_ns = folder.stat().st_mtime_ns
        # A clock may stand still while two files are made: what has just changed is looked at once more.
        if changed_ns != listing.changed_ns or not listing.is_unchanged:
            listing.is_unchanged = changed_ns == listing.changed_ns
            listing.changed_ns = changed_ns
            listing.names = _names(folder)
            listing.passed_over &= listing.names
        return listing


class _Listing(msgspec.Struct):
    """What was found in a folder: at what time of its last change, and which names are of no more interest."""

    changed_ns: int = -1
    is_unchanged: bool = False
    names: set[str] = msgspec.field(default_factory=set)
    passed_over: set[str] = msgspec.field(default_factory=set)


def _newest(names: Collection[str]) -> list[str]:
    """As many of the newest requests as are read at a look; a name begins with its time."""
    return sorted(names, key=lambda name: (_time_ns(name), name), reverse=True)[:_MOST_READ]


def _time_ns(name: str) -> int:
    return int(name.partition("-")[0])


def _names(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if _NAME.fullmatch(name)}


def asked_by() -> str:
    """Who asks, for the job's log."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


def margin_s(directory: Path) -> float:
    """How long every rank may take to see a new file in a directory, by its file system."""
    import psutil

    try:
        real = os.path.realpath(directory)
        mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
        mounted = max((mount for mount in mounts if Path(real).is_relative_to(mount)), key=len)
    except (OSError, ValueError, RuntimeError):
        return NETWORK_MARGIN_S
    return LOCAL_MARGIN_S if mounts[mounted].lower() in _LOCAL else NETWORK_MARGIN_S


def _is_fresh(at_s: float) -> bool:
    return abs(time.time() - at_s) < _STALE_S
