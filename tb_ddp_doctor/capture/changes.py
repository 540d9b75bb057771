"""Watches the step times of all ranks, and asks for a capture when a rank, a node or the whole job slows down.

Rank 0's agent starts a child of low priority every few minutes, which summarises what all ranks have flushed:

    python -m tb_ddp_doctor.capture.changes LOGDIR FOLDER

The parts of the history that do not change any more are kept in FOLDER, and the answer is written there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.capture.directory import read_json, write_json
from tb_ddp_doctor.capture.requests import Mailbox, Request
from tb_ddp_doctor.history.read import history_files
from tb_ddp_doctor.history.sentences import what
from tb_ddp_doctor.history.summary import summarise
from tb_ddp_doctor.history.windows import read_job
from tb_ddp_doctor.report.escape import printable

#: Between two looks at the history, s. A look of a job of thousands of ranks takes a minute of one core.
_LOOK_S = 300.0
#: Changes that add less of a step are only in `ddp-doctor history`.
LEAST_SHARE = 0.02
_BY = "a change in the step times"
_DAY_S = 86_400.0
_ANSWER = "answer"
_log = logging.getLogger(__name__)


class SlowerSteps(msgspec.Struct, frozen=True):
    """Steps that became longer and still are."""

    #: When that began, s since 1970.
    begin_s: float
    sentence: str


class _Answer(msgspec.Struct, frozen=True):
    changes: tuple[SlowerSteps, ...]


class ChangeWatch:
    """Asks for captures on rank 0; `look` returns at once, whatever the history takes."""

    def __init__(self, logdir: Path, folder: Path, most_a_day: int, environment: Mapping[str, str]) -> None:
        """What is kept between looks lies in `folder`, on a local disk."""
        self._logdir, self._folder = logdir, folder
        self._most_a_day = most_a_day
        self._environment = dict(environment)
        #: What began before is no news: at first the start of this process, then the last request.
        self._known_until_s = time.time()
        self._next_look_s = time.monotonic() + _LOOK_S
        self._child: subprocess.Popen[bytes] | None = None

    def look(self, mailbox: Mailbox) -> None:
        """Start a child where one is due; ask for a capture where the last one found something new. Raises OSError."""
        if self._child is None:
            if time.monotonic() >= self._next_look_s:
                self._start()
        elif self._child.poll() is not None:
            self._child = None
            self._next_look_s = time.monotonic() + _LOOK_S
            answer = read_json(self._folder / _ANSWER, _Answer)
            if answer is not None:
                self.ask(mailbox, answer.changes)

    def ask(self, mailbox: Mailbox, changes: tuple[SlowerSteps, ...]) -> None:
        """Ask for a capture if a change is new, and fewer than a day may have were asked for. Raises OSError."""
        now_s = time.time()
        new = [change for change in changes if change.begin_s > self._known_until_s]
        if not new or mailbox.asked_for(_BY, now_s - _DAY_S) >= self._most_a_day:
            return
        # Estimates of when these began may still move, but not beyond now.
        self._known_until_s = now_s
        mailbox.ask(Request(now_s, _BY))
        _log.info("ddp-doctor: %s: a capture is asked for.", printable(new[0].sentence))

    def close(self) -> None:
        """End the child, and remove what was kept."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / _ANSWER).unlink(missing_ok=True)
        self._child = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "tb_ddp_doctor.capture.changes", str(self._logdir), str(self._folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,
        )


def changes(logdir: Path, keep: Cache) -> tuple[SlowerSteps, ...]:
    """The changes of a job's steps that made them longer and have no end yet."""
    job, _ = read_job(history_files(logdir), keep)
    if job is None:
        return ()
    summary = summarise(job)
    return tuple(
        SlowerSteps(event.begin_s, what(event, summary))
        for event in summary.events
        if event.kind == "change" and event.added_share >= LEAST_SHARE and event.last_step >= summary.last_step
    )


def main(arguments: list[str]) -> int:
    """Write the answer; returns the exit status."""
    logdir, folder = map(Path, arguments)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    write_json(folder / _ANSWER, _Answer(changes(logdir, Cache(folder / "kept"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
