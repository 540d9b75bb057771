"""How ranks agree on the steps of a capture that somebody asks for while they train, through files.

Whoever asks writes a request. One rank, rank 0 unless it does not answer, answers with a plan: the first step, ahead of
all ranks by a margin in which each of them sees the file, whatever its file system caches. Nobody waits for anybody.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from tb_ddp_doctor.capture.directory import CONTROL_FOLDER, read_json, write_json
from tb_ddp_doctor.capture.windows import Window

#: Requests and plans of earlier jobs in this directory are passed over, s.
_STALE_S = 3600.0
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


class Plan(msgspec.Struct, frozen=True):
    """The answer to a request."""

    made_s: float
    by_rank: int
    first: int
    steps: int
    ranks: tuple[int, ...] | None
    stacks: bool
    memory: bool


class Mailbox:
    """The requests and plans in a log directory."""

    def __init__(self, logdir: Path) -> None:
        self._requests = logdir / CONTROL_FOLDER / "requests"
        self._plans = logdir / CONTROL_FOLDER / "plans"

    def open(self) -> None:
        """Make the folders. Raises OSError."""
        for folder in (self._requests, self._plans):
            folder.mkdir(parents=True, exist_ok=True)

    def is_open(self) -> bool:
        """Whether a job has ever listened here."""
        return self._plans.is_dir()

    def ask(self, request: Request) -> str:
        """Write a request; returns its name. Raises OSError."""
        name = f"{time.time_ns()}-{os.getpid()}-{os.urandom(4).hex()}"
        write_json(self._requests / name, request)
        return name

    def unanswered(self) -> dict[str, Request]:
        """The requests without a plan, oldest first. Raises OSError."""
        answered = set(os.listdir(self._plans))
        waiting = sorted(name for name in set(os.listdir(self._requests)) - answered if not name.startswith("."))
        named = ((name, read_json(self._requests / name, Request)) for name in waiting)
        return {name: request for name, request in named if request is not None and _is_fresh(request.asked_s)}

    def answer(self, name: str, window: Window, rank: int) -> bool:
        """Write the plan for a request; False if another rank was faster. Raises OSError."""
        fields = {key: value for key, value in asdict(window).items() if key != "request"}
        # Written under another name first: nobody may see half of it, and only one may give it its name.
        draft = self._plans / f".{name}-{rank}"
        write_json(draft, Plan(made_s=time.time(), by_rank=rank, **fields))
        try:
            os.link(draft, self._plans / name)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    def plan(self, name: str) -> Plan | None:
        """The answer to a request, if there is one."""
        return read_json(self._plans / name, Plan)

    def new_plans(self, seen: set[str]) -> Iterator[Window]:
        """The windows of the plans that are not in `seen`, which takes them up. Raises OSError."""
        for name in sorted(os.listdir(self._plans)):
            if name in seen or name.startswith("."):
                continue
            plan = self.plan(name)
            if plan is None:
                continue
            seen.add(name)
            if _is_fresh(plan.made_s):
                yield Window(plan.first, plan.steps, plan.ranks, plan.stacks, plan.memory, name)

    def clean(self) -> None:
        """Remove the requests and plans of earlier jobs."""
        with contextlib.suppress(OSError):
            for path in self._requests.iterdir():
                if (request := read_json(path, Request)) and not _is_fresh(request.asked_s):
                    path.unlink(missing_ok=True)
            for path in self._plans.iterdir():
                if (plan := read_json(path, Plan)) and not _is_fresh(plan.made_s):
                    path.unlink(missing_ok=True)


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
