"""What the host does outside any op, as stacks and annotations show it: the same words and fixes in all rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import Doing
from tb_ddp_doctor.rules.support import naming
from tb_ddp_doctor.trace.names import Activity, Phase, activity, phase

_WORDS = {
    Activity.GARBAGE: "garbage collection",
    Activity.SLEEP: "sleeping",
    Activity.CHECKPOINT: "saving a checkpoint",
    Activity.LOGGING: "logging",
    Activity.INPUT_OUTPUT: "file or network I/O",
    Activity.PYTHON: "Python",
}


class Known(msgspec.Struct, frozen=True):
    """What most of some stalls are."""

    kind: Activity
    #: In words: "279 ms in Python, for example in read (data.py:7), called by step (train.py:4)".
    said: str
    #: The function or annotation alone: "read (data.py:7)".
    place: str

    @property
    def cause(self) -> str | None:
        """Its name as the cause of a finding; None where it has no fix of its own."""
        return self.kind.value if self.kind in _FIXES else None

    @property
    def subject(self) -> str:
        """What costs the time, to begin a headline: "Garbage collection"; "" where it has no fix of its own."""
        return wording.capital(_WORDS[self.kind]) if self.kind in _FIXES else ""

    @property
    def fix(self) -> str:
        """What to do about it."""
        return _FIXES.get(self.kind, _MOVE.format(place=self.place))


def most(doing: Sequence[Doing], least_ns: float, others: Sequence[Doing] = ()) -> Known | None:
    """The activity with most of the stalls, beyond what `others` do of it, if at least so much.

    None too where all that shows is the phase of training that Python is in, as "DistributedDataParallel.forward".
    """
    total: dict[Activity, float] = defaultdict(float)
    for one in doing:
        total[activity(one.what)] += one.mean_ns
    for one in others:
        total[activity(one.what)] -= one.mean_ns
    kind = max(total, key=lambda kind: total[kind], default=None)
    if kind is None or total[kind] < least_ns:
        return None
    first = next(one for one in doing if activity(one.what) is kind)
    place = naming.function(first.what)
    called = f", called by {naming.function(first.own)}" if first.own not in ("", first.what) else ""
    if kind is Activity.PYTHON and phase(first.own or first.what) in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        return None
    said = f"{wording.ms(total[kind])} in {_WORDS[kind]}, for example in {place}{called}"
    return Known(kind, said, naming.function(first.own) if first.own else place)


_FIXES = {
    Activity.GARBAGE: """\
Stop Python's garbage collector and collect by hand, rarely, and on all ranks in the same step.

import gc
gc.collect(); gc.freeze(); gc.disable()  # once, before training
if step % 500 == 0:
    gc.collect()""",
    Activity.CHECKPOINT: """\
Save rarely, and outside the training loop: copy to the host, and write from another thread or process.

import torch.distributed.checkpoint as dcp
saving = dcp.async_save(state, checkpoint_id=path)  # returns when the state is copied""",
    Activity.LOGGING: """\
Log every n-th step, from one rank, and write from another thread.

if step % 50 == 0 and rank == 0:
    logger.info(...)

queue = queue.SimpleQueue()
logging.basicConfig(handlers=[logging.handlers.QueueHandler(queue)])
logging.handlers.QueueListener(queue, logging.FileHandler("train.log")).start()""",
}

_MOVE = """\
Move {place} out of the training loop, do it less often, or run it in another thread or process."""


def idle(frame: Frame, doing: str) -> str:
    """What to see where nothing is computed, while the host does something: "is in ..."."""
    return f"GPU idle while the CPU {doing}." if frame.has_device else f"The CPU {doing}."
