"""How well a job scales to other numbers of ranks, and where that breaks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tb_ddp_doctor.planning.model import Algorithm, Breaks, Question, Scaling
from tb_ddp_doctor.planning.ranks import links_of_ranks, transfers_ns
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Scaling is looked at up to so many ranks, a power of two; an efficiency below this one is where it breaks.
_MOST_POWER = 14
_EFFICIENCY = 0.8

#: The step under a question, ns; raises CannotPlanError.
Step = Callable[[Question], float]


def scaling(record: PlanRecord, step: Step, question: Question, ranks: int, step_ns: float) -> Scaling:
    """Of so many ranks, whose step under the question takes so long. Raises CannotPlanError."""
    found = links_of_ranks(record, "likely", None).algorithms(ranks) if question.links_of is None else ()
    return Scaling(
        efficiency=_efficiency(_of_one(step, question), question, ranks, step_ns),
        algorithms=tuple(Algorithm(name=name, from_bytes=size) for name, size in found),
    )


def breaks(record: PlanRecord, step: Step, question: Question) -> Breaks:
    """Where scaling under a question breaks. Raises CannotPlanError."""
    one = _of_one(step, question)
    compute = float(record.job.work(lambda work: work.kernels).backward_compute_ns.mean())

    def is_inefficient(ranks: int) -> bool:
        step_ns = step(msgspec.structs.replace(question, ranks=ranks))
        return _efficiency(one, question, ranks, step_ns) < _EFFICIENCY

    def is_exposed(ranks: int) -> bool:
        share = record.job.world_size / ranks if question.strong else 1.0
        return transfers_ns(record, ranks) > compute * share

    most = _most(record)
    return Breaks(
        efficiency=_EFFICIENCY,
        inefficient_from=_first(is_inefficient, most),
        exposed_from=_first(is_exposed, most),
        searched_to=1 << most,
    )


def _of_one(step: Step, question: Question) -> float:
    return step(msgspec.structs.replace(question, ranks=1))


def _efficiency(one_ns: float, question: Question, ranks: int, step_ns: float) -> float:
    work = ranks if question.strong else 1
    return one_ns / (work * step_ns) if step_ns > 0 else 1.0


def _most(record: PlanRecord) -> int:
    """The largest power of two of ranks that can be predicted."""
    for most in range(_MOST_POWER, 0, -1):
        try:
            transfers_ns(record, 1 << most)
        except CannotPlanError:
            continue
        return most
    return 1


def _first(is_broken: Callable[[int], bool], most: int) -> int | None:
    """The least power of two from 2 to 2^most that is broken, as all above it then are; None where none is."""
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        if is_broken(1 << middle):
            high = middle
        else:
            low = middle + 1
    return 1 << low if low <= most else None
