"""What the host does outside any op, as stacks and annotations show it: the same words for all ranks and for one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tb_ddp_doctor.facts.host import Doing
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.trace.names import Activity, activity

_WORDS = {
    Activity.GARBAGE: "garbage collection",
    Activity.SLEEP: "sleeping",
    Activity.CHECKPOINT: "saving a checkpoint",
    Activity.LOGGING: "logging",
    Activity.INPUT_OUTPUT: "file or network I/O",
    Activity.PYTHON: "Python",
}


def most(doing: Sequence[Doing], least_ns: float) -> tuple[Activity, str] | None:
    """The activity with most of the stalls, if at least so much, in words: "279 ms in Python, for example in ..."."""
    total: dict[Activity, float] = defaultdict(float)
    for one in doing:
        total[activity(one.what)] += one.mean_ns
    kind = max(total, key=lambda kind: total[kind], default=None)
    if kind is None or total[kind] < least_ns:
        return None
    first = next(one for one in doing if activity(one.what) is kind)
    place = f", called by {text.function(first.own)}" if first.own not in ("", first.what) else ""
    return kind, f"{text.ms(total[kind])} in {_WORDS[kind]}, for example in {text.function(first.what)}{place}"
