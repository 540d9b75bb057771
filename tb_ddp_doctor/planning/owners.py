"""Divides a predicted step among the owners of the Budget.

The replay knows device work, waits, transfers and idle time. Their changes against the replay of the record are added
to the recorded budget; idle time is divided among its owners as in the record. So the owners sum to the predicted step.
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
    """The recorded step by owner, mean over ranks and steps, ms."""
    return {name: float(job.budget.of(name).mean()) / 1e6 for name in OWNERS}


def predicted_ms(
    recorded: Mapping[str, float], now: Split, then: Split, question: Question, step_ms: float
) -> dict[str, float]:
    """The predicted step by owner, ms.

    `recorded` is the recorded step by owner; `now` and `then` are what the replay splits the recorded step and the
    predicted one into.
    """
    owners_ms = dict(recorded)
    _add(owners_ms, _BUSY, (then.compute_ns - now.compute_ns) / 1e6)
    _add(owners_ms, ("wait",), (then.wait_ns - now.wait_ns) / 1e6)
    _add(owners_ms, ("transfer",), (then.transfer_ns - now.transfer_ns) / 1e6)
    _add(owners_ms, _IDLE, (then.idle_ns - now.idle_ns) / 1e6)
    # Time that is added to the played steps, or saved on top of them.
    _add(owners_ms, _on_top(question), step_ms - sum(owners_ms.values()))
    _add(owners_ms, tuple(OWNERS), step_ms - sum(owners_ms.values()))
    return owners_ms


def _on_top(question: Question) -> tuple[str, ...]:
    """The owners of time that a question adds to the played steps."""
    if question.workers is not None:
        return ("input",)
    return ("wait",) if question.ranks is not None or question.mesh is not None else ("transfer",)


def _add(owners_ms: dict[str, float], owners: tuple[str, ...], change: float) -> None:
    """Divide a change among owners in proportion to their times, all to the first if these are 0; none gets below 0."""
    total = sum(owners_ms[name] for name in owners)
    if total <= 0:
        owners_ms[owners[0]] = max(change, 0.0)
        return
    times = max(1 + change / total, 0.0)
    for name in owners:
        owners_ms[name] *= times
