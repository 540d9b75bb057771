"""What the predicted step goes to, by the owners of the Budget.

The replay knows device work, waits, transfers and idle time. What these gain or lose against the record is added to the
record's budget; idle time is shared among its owners as in the record. So the owners sum to the predicted step.
"""

from __future__ import annotations

from collections.abc import Mapping

from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.steps import Split
from tb_ddp_doctor.step_parts import OWNERS

_BUSY = ("compute", "copy")
_IDLE = tuple(name for name, owner in OWNERS.items() if owner.cpu)


def recorded_ms(job: Job) -> dict[str, float]:
    """Mean over ranks and steps."""
    return {name: float(job.budget.of(name).mean()) / 1e6 for name in OWNERS}


def predicted_ms(
    recorded: Mapping[str, float], now: Split, then: Split, question: Question, step_ms: float
) -> dict[str, float]:
    """From the record's, and what the replay splits the step into as recorded and as asked."""
    found = dict(recorded)
    _add(found, _BUSY, (then.compute_ns - now.compute_ns) / 1e6)
    _add(found, ("wait",), (then.wait_ns - now.wait_ns) / 1e6)
    _add(found, ("transfer",), (then.transfer_ns - now.transfer_ns) / 1e6)
    _add(found, _IDLE, (then.idle_ns - now.idle_ns) / 1e6)
    # What comes on top of the played steps, or is saved beside them.
    _add(found, _on_top(question), step_ms - sum(found.values()))
    _add(found, tuple(OWNERS), step_ms - sum(found.values()))
    return found


def _on_top(question: Question) -> tuple[str, ...]:
    if question.workers is not None:
        return ("input",)
    return ("wait",) if question.ranks is not None else ("transfer",)


def _add(found: dict[str, float], owners: tuple[str, ...], change: float) -> None:
    """Add to owners by what they have, the first where none has any; none gets below 0."""
    total = sum(found[name] for name in owners)
    if total <= 0:
        found[owners[0]] = max(change, 0.0)
        return
    times = max(1 + change / total, 0.0)
    for name in owners:
        found[name] *= times
