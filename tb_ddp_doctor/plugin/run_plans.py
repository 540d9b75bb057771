"""Plans of the runs that are open: what answers questions about a run is made once and kept for the next ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tb_ddp_doctor import engine
    from tb_ddp_doctor.planning.model import MeasuredStep, PlanAnswer
    from tb_ddp_doctor.planning.predict import Planner

#: Runs whose planners are kept.
_KEPT = 4
#: What other buckets may cause.
_OF_BUCKETS = {"no-overlap", "small-collectives", "communication-bound"}


class RunPlans:
    """Answers questions about runs by name."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[engine.Result, Planner]] = {}
        self._lock = threading.Lock()

    def answer(
        self, name: str, result: engine.Result, others: Mapping[str, engine.Result | None], asked: Mapping[str, str]
    ) -> PlanAnswer:
        """What is asked of a run. Raises ValueError, with a sentence, for what makes no question."""
        from tb_ddp_doctor.planning.answer import BUCKET_MB, answer
        from tb_ddp_doctor.planning.model import PlanAnswer
        from tb_ddp_doctor.planning.words import FIELDS, question_of
        from tb_ddp_doctor.rules import is_name

        given = {field: asked[field] for field in FIELDS if asked.get(field)}
        fixed = tuple(filter(None, asked.get("fixed", "").split(",")))
        if unknown := [one for one in fixed if not is_name(one)]:
            raise ValueError(f"There is no rule {unknown[0]!r}.")
        flags = {flag: flag in asked for flag in ("graphs", "offload", "strong")}
        question = question_of(given, **flags, fixed=fixed)
        curves = {"bucket_mb": BUCKET_MB} if "curve" in asked else {}
        with self._lock:
            plan = answer(result.job, lambda: self._planner(name, result), question, curves)
        return PlanAnswer(plan=plan, measured=tuple(_measured(name, result, others)) if curves else ())

    def _planner(self, name: str, result: engine.Result) -> Planner:
        from tb_ddp_doctor.api import planner

        kept = self._kept.pop(name, None)
        made = kept[1] if kept and kept[0] is result else planner(result)
        self._kept[name] = result, made
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return made


def _measured(name: str, result: engine.Result, others: Mapping[str, engine.Result | None]) -> Iterator[MeasuredStep]:
    """The run, and those that send the same gradients and have no other fault than their buckets."""
    from tb_ddp_doctor.planning.buckets import bucket_mb_of
    from tb_ddp_doctor.planning.gradients import sent_gradients
    from tb_ddp_doctor.planning.model import MeasuredStep
    from tb_ddp_doctor.planning.refusal import CannotPlanError

    try:
        ours = sent_gradients(result.job)
    except CannotPlanError:
        return
    for run, other in {name: result, **others}.items():
        if other is None or other.job.world_size != result.job.world_size:
            continue
        if other is not result and not _differs_in_buckets(other):
            continue
        try:
            theirs = sent_gradients(other.job)
        except CannotPlanError:
            continue
        if theirs.recorded is not None and theirs.bytes.tolist() == ours.bytes.tolist():
            size = bucket_mb_of(theirs.bytes, theirs.recorded)
            yield MeasuredStep(run=run, bucket_mb=size, step_ms=other.job.step_ns / 1e6)


def _differs_in_buckets(result: engine.Result) -> bool:
    """Whether a run's alarms, if any, are of its buckets."""
    return {one.rule for one in result.diagnosis.findings if one.severity != "info"} <= _OF_BUCKETS
