"""What torch.compile's own log says of the reasons, in sentences."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.host import CompileReasons

#: Reasons that are told apart by numbers alone ("expected 4, actual 6") are one, of which the last is shown.
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MOST_SHOWN = 3
_VERBS = {"recompile": "compiled again", "graph-break": "broken"}


def reasons(log: CompileReasons, kind: Literal["recompile", "graph-break"], ranks: tuple[int, ...]) -> str:
    """Why functions were compiled again or broken on some ranks, sentences and a space; "" where no log says.

    The reasons that came most often are first, each with its function, its line, and how often it came on these ranks.
    """
    times: Counter[tuple[str, str, str]] = Counter()
    last: dict[tuple[str, str, str], str] = {}
    for one in log.reasons:
        if one.kind == kind and one.rank in ranks:
            same = (one.function, one.place, _NUMBER.sub("N", one.reason))
            times[same] += 1
            last[same] = f"{one.reason.rstrip('.')}. {one.hint}".strip()
    if not times:
        return ""
    shown = [
        f"{_what(function, place)} was {_VERBS[kind]} {_often(many)} ({last[function, place, reason].rstrip('.')})"
        for (function, place, reason), many in times.most_common(_MOST_SHOWN)
    ]
    if (more := len(times) - _MOST_SHOWN) > 0:
        shown.append(f"{more} other{'s'[: more > 1]} too")
    when = "" if log.are_recorded else ", outside of the recorded steps"
    return f"By the log of TORCH_TRACE{when}, {wording.listing(shown)}. "


def without_log(fix: str, said: str) -> str:
    """The fix without the line that asks for the log of TORCH_TRACE, where that log `said` the reasons."""
    return re.sub(r"^(export )?TORCH_TRACE=.*\n", "", fix, flags=re.MULTILINE) if said else fix


def _often(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def _what(function: str, place: str) -> str:
    return " at ".join(part for part in (function, place) if part) or "a function"
