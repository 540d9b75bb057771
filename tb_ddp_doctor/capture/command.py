"""`ddp-doctor capture`: asks a job that trains for a capture, and says what became of it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, read_json
from tb_ddp_doctor.capture.requests import NETWORK_MARGIN_S, CapturePlan, Mailbox, Request
from tb_ddp_doctor.capture.starts import JoinedStart, starts
from tb_ddp_doctor.capture.windows import MOST_STEPS, CaptureWindow

T = TypeVar("T")
_POLL_S = 0.2
#: Rank 0 answers at its next look; a rank that takes over for it waits first; a directory may be seen late.
_ANSWERED_S = 45.0 + NETWORK_MARGIN_S


class CaptureError(Exception):
    """A request that came to nothing. Its text is a sentence for users."""


def capture(logdir: Path, request: Request, wait_s: float, say: Callable[[str], None]) -> None:
    """Ask for a capture; wait so long for its verdict, 0: only until the step is agreed on.

    Raises CaptureError, and OSError where the directory cannot be written to.
    """
    until = time.monotonic() + wait_s
    mailbox = _listening(logdir)
    size = max(joined.listed.start.world_size for joined in _running(logdir))
    if request.ranks and request.ranks[-1] >= size:
        raise CaptureError(f"--ranks: there is no rank {request.ranks[-1]}. The job has ranks 0 to {size - 1}.")
    if request.steps is not None and request.steps > MOST_STEPS:
        raise CaptureError(f"--steps: a capture has {MOST_STEPS:,} steps at most, not {request.steps:,}.")
    name = mailbox.ask(request)
    answered_s = min(_ANSWERED_S, wait_s or _ANSWERED_S)
    plan = _awaited(lambda: mailbox.plan(name) or _ended(logdir), answered_s)
    if not isinstance(plan, CapturePlan):
        if plan is not None:
            raise CaptureError(f"{plan} Nothing will be captured.")
        why = f"No rank answered within {answered_s:g} s: the job was stopped, hangs, or takes longer for a step."
        raise CaptureError(
            f"{why} A rank that goes on will still capture; ddp-doctor capture {shlex.quote(str(logdir))} --cancel "
            "withdraws the request."
        )
    say(f"{_planned(plan)} will be captured.")
    if not wait_s:
        return
    folder = CaptureFolder.of(logdir / plan.folder, plan.first)
    verdict = _awaited(lambda: read_json(folder.verdict, CaptureVerdict), until - time.monotonic())
    if verdict is None:
        why = _ended(logdir) or f"No verdict came within {wait_s:g} s."
        raise CaptureError(f"{why} What the ranks have written so far is in {folder.path}.")
    say(verdict.line)


def cancel(logdir: Path, say: Callable[[str], None]) -> None:
    """Withdraw what was asked for and is not captured yet. Raises CaptureError, and OSError."""
    mailbox = _listening(logdir)
    names = mailbox.cancel({joined.listed.start.id for joined in _running(logdir)})
    if not names:
        raise CaptureError(f"There is no request to withdraw at {logdir}: none was made, or all of them are captured.")
    say(f"{len(names)} {'request is' if len(names) == 1 else 'requests are'} withdrawn.")


def _listening(logdir: Path) -> Mailbox:
    """The mailbox of a job that may be training. Raises CaptureError."""
    if not logdir.is_dir():
        raise CaptureError(f"There is no folder {logdir}: name the one that the job gave its Doctor.")
    mailbox = Mailbox(logdir)
    if not mailbox.is_open() or not list(starts(logdir)):
        raise CaptureError(
            f"No job listens at {logdir}. A job listens if it has a tb_ddp_doctor.capture.Doctor({str(logdir)!r}), "
            "from the end of its first step on. Give the folder that the job gave its Doctor, or wait until the first "
            "step has ended."
        )
    if why := _ended(logdir):
        raise CaptureError(f"{why} Nothing can be captured.")
    return mailbox


def _running(logdir: Path) -> list[JoinedStart]:
    """The starts that have not said that they have ended."""
    return [joined for joined in starts(logdir) if not joined.has_ended]


def _ended(logdir: Path) -> str | None:
    """A sentence where no job trains any more."""
    return None if _running(logdir) else f"The job at {logdir} has ended."


def _planned(plan: CapturePlan) -> str:
    window = str(CaptureWindow(plan.first, plan.steps))
    return f"{window[:1].upper()}{window[1:]}"


def _awaited(look: Callable[[], T | None], wait_s: float) -> T | None:
    until = time.monotonic() + wait_s
    while (seen := look()) is None and time.monotonic() < until:
        time.sleep(_POLL_S)
    return seen
