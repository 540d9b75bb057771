"""One run of a log directory, and how far it is: its files, the progress of reading them, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tb_ddp_doctor.plugin.arrivals import Stamps
from tb_ddp_doctor.plugin.asking import RunFiles, Shown

if TYPE_CHECKING:
    from tb_ddp_doctor.plugin.runs import Run

State = Literal["queued", "reading", "ready", "failed"]

_UNREAD: dict[str, Any] = {
    "world_size": None,
    "ranks": None,
    "incomplete": None,
    "steps": None,
    "step_ms": None,
    "verdict": None,
    "headline": None,
    "severity": None,
    "lost_ms": None,
}


@dataclass(frozen=True, slots=True)
class Ready:
    """What a run was found to be."""

    shown: Shown
    #: What it was found from: to be asked about further.
    source: RunFiles


@dataclass(slots=True)
class Files:
    """The files of a run as the last search found them."""

    stamps: Stamps
    #: Those that changed too recently to be read, and those that were read and lack their end.
    changing: frozenset[str] = frozenset()
    unfinished: frozenset[str] = frozenset()
    #: How many are gone since.
    deleted: int = 0

    @property
    def modified_s(self) -> float | None:
        """When the newest of them was written, s since the epoch; None where no file can be asked."""
        newest = max((stamp.modified_ns for stamp in self.stamps.values()), default=-1)
        return newest / 1e9 if newest >= 0 else None

    @property
    def arriving(self) -> frozenset[str]:
        return self.changing | self.unfinished

    @property
    def some_unchanged(self) -> bool:
        """Whether there is something to read."""
        return not self.stamps or len(self.changing) < len(self.stamps)

    def lack_some_of(self, before: Stamps) -> bool:
        """Whether all that differs is that some are gone."""
        return len(self.stamps) < len(before) and self.stamps.items() <= before.items()


@dataclass(slots=True)
class Progress:
    """How far the reading of a run is."""

    done: int = 0
    total: int = 0
    #: The file read last.
    file: str = ""
    #: When reading began, on the monotonic clock, s; None while nothing is read, or nothing shows it.
    began: float | None = None

    def shown(self) -> dict[str, Any]:
        # Of what is read no more this is left out: the page draws an entry anew when it changes.
        elapsed = None if self.began is None else round(time.monotonic() - self.began, 1)
        return {"done": self.done, "total": self.total, "file": self.file, "elapsed_s": elapsed}


@dataclass(slots=True)
class Entry:
    """One run and how far it is; whoever calls a method holds the lock of the table that it is in."""

    run: Run
    files: Files
    #: Whether it is to be read, for the first time or again: `state` says what there is to show, not what is to do.
    due: bool = True
    #: Whether somebody asked for what is there of files that are still arriving, and whether they still wait for it.
    all_asked: bool = False
    awaited: bool = False
    progress: Progress = field(default_factory=Progress)
    ready: Ready | None = None
    error: str | None = None

    @property
    def shown(self) -> Ready | None:
        """What there is to show."""
        return None if self.awaited else self.ready

    @property
    def state(self) -> State:
        if self.shown:
            return "ready"
        if self.error is not None:
            return "failed"
        return "queued" if self.progress.began is None else "reading"

    @property
    def is_due(self) -> bool:
        """Whether it is to be read, and there is something to read."""
        return self.due and (self.all_asked or self.files.some_unchanged)

    def listed(self) -> dict[str, Any]:
        """As the answer to `runs` has it."""
        return {
            "name": self.run.name,
            "state": self.state,
            "progress": self.progress.shown(),
            "error": self.error,
            "arriving": len(self.files.arriving),
            "deleted": self.files.deleted,
            "modified_s": self.files.modified_s,
            **(self.ready.shown.summary if self.ready else _UNREAD),
        }

    def ask_for_all(self) -> None:
        """Have it read again with what is there of files that are still arriving."""
        self.all_asked = self.awaited = self.due = True
        self.error = None

    def changed(self, run: Run, files: Files) -> None:
        """Its files are others now, or can be read now."""
        self.run, self.files, self.due = run, files, True
        if not self.shown:
            self.error = None

    def begin(self) -> None:
        """It is read now."""
        self.due = False
        if not self.shown:
            self.error = None
            self.progress.began = time.monotonic()

    def read(self, done: int, total: int, file: str) -> None:
        """So many of its files have been read."""
        if not self.shown:  # else nothing shows it
            self.progress.done, self.progress.total, self.progress.file = done, total, file

    def put_off(self) -> None:
        """Read it again after another search."""
        self.due = True
        self.progress.began = None

    def succeed(self, ready: Ready) -> None:
        """It was read."""
        self.ready, self.error, self.awaited = ready, None, False
        self.files.unfinished = frozenset(ready.shown.unfinished)
        self.progress.began = None

    def fail(self, error: str, unfinished: Collection[str]) -> None:
        """Say why there is no result; while the rest of files may come, that is no failure."""
        self.files.unfinished = frozenset(unfinished)
        self.progress.began = None
        if not unfinished or self.shown:
            self.ready, self.error, self.awaited = None, error, False

    def delete(self) -> None:
        """Its directory is gone; the result stays."""
        self.files = Files(self.files.stamps, deleted=max(len(self.files.stamps), 1))
        self.due = False
