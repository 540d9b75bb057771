"""`ddp-doctor capture`: asks a job that trains for a capture, and says what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tb_ddp_doctor.capture.directory import CaptureFolder, Verdict, read_json
from tb_ddp_doctor.capture.requests import NETWORK_MARGIN_S, Mailbox, Plan, Request
from tb_ddp_doctor.capture.windows import Window

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
    mailbox = Mailbox(logdir)
    if not mailbox.is_open():
        raise CaptureError(
            f"No job listens at {logdir}: it must train with tb_ddp_doctor.capture.Doctor({str(logdir)!r}), and have "
            "ended its first step."
        )
    name = mailbox.ask(request)
    plan = _awaited(lambda: mailbox.plan(name), _ANSWERED_S)
    if plan is None:
        raise CaptureError(f"No rank answered within {_ANSWERED_S:.0f} s: no job with this log directory is training.")
    say(f"{_planned(plan)} will be captured.")
    if not wait_s:
        return
    folder = CaptureFolder.of(logdir, plan.first)
    verdict = _awaited(lambda: _written_since(folder, request.asked_s), wait_s)
    if verdict is None:
        raise CaptureError(f"No verdict came within {wait_s:.0f} s; what is there of it is in {folder.path}.")
    say(verdict.line)


def _planned(plan: Plan) -> str:
    window = str(Window(plan.first, plan.steps))
    return f"{window[:1].upper()}{window[1:]}"


def _written_since(folder: CaptureFolder, asked_s: float) -> Verdict | None:
    """The verdict, unless an earlier job left it."""
    try:
        is_new = folder.verdict.stat().st_mtime >= asked_s
    except OSError:
        return None
    return read_json(folder.verdict, Verdict) if is_new else None


def _awaited(look: Callable[[], T | None], wait_s: float) -> T | None:
    until = time.monotonic() + wait_s
    while (found := look()) is None and time.monotonic() < until:
        time.sleep(_POLL_S)
    return found
