"""Predicts how well a job scales to other numbers of ranks, and from which number on it scales badly."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tb_ddp_doctor.planning.model import Algorithm, Breaks, Question, Scaling
from tb_ddp_doctor.planning.ranks import links_of_ranks, transfers_ns
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Scaling is tried up to 2 to this power of ranks; it breaks if the efficiency is below the value that follows.
_MOST_POWER = 14
_EFFICIENCY = 0.8

#: Gives the predicted step for a question, ns; raises CannotPlanError.
Step = Callable[[Question], float]


def scaling(record: PlanRecord, step: Step, question: Question, ranks: int, step_ns: float) -> Scaling:
    """The scaling to `ranks` ranks, whose predicted step is `step_ns`. Raises CannotPlanError."""
    quickest = links_of_ranks(record, "likely", None).algorithms(ranks) if question.links_of is None else ()
    return Scaling(
        efficiency=_efficiency(_of_one(step, question), question, ranks, step_ns),
        algorithms=tuple(Algorithm(name=name, from_bytes=size) for name, size in quickest),
    )


def breaks(record: PlanRecord, step: Step, question: Question) -> Breaks:
    """From how many ranks on the job scales badly, with what a question changes. Raises CannotPlanError."""
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
    """The largest power p for which 2^p ranks can be predicted."""
    for most in range(_MOST_POWER, 0, -1):
        try:
            transfers_ns(record, 1 << most)
        except CannotPlanError:
            continue
        return most
    return 1


def _first(is_broken: Callable[[int], bool], most: int) -> int | None:
    """The least power of two from 2 to 2^most at which scaling breaks; None if there is none.

    Found by bisection: if scaling breaks at a number of ranks, it breaks at all larger ones.
    """
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        if is_broken(1 << middle):
            high = middle
        else:
            low = middle + 1
    return 1 << low if low <= most else None
