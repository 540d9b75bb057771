"""Plans of the runs that are open: what answers questions about a run is made once and kept for the next ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tb_ddp_doctor import engine
    from tb_ddp_doctor.planning.model import PlanAnswer
    from tb_ddp_doctor.planning.predict import Planner

#: Runs whose planners are kept.
_KEPT = 4


class RunPlans:
    """Answers questions about runs by name."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[engine.Result, Planner]] = {}
        self._lock = threading.Lock()

    def answer(
        self, name: str, result: engine.Result, others: Sequence[engine.Result], asked: Mapping[str, str]
    ) -> PlanAnswer:
        """What is asked of a run. Raises ValueError, with a sentence, for what makes no question."""
        from tb_ddp_doctor.api import jobs_of_sweep
        from tb_ddp_doctor.planning.answer import CURVES, answer, unanswerable
        from tb_ddp_doctor.planning.model import PlanAnswer
        from tb_ddp_doctor.planning.questions import FIELDS, question_of
        from tb_ddp_doctor.rules import is_name

        given = {field: asked[field] for field in FIELDS if asked.get(field)}
        fixed = tuple(filter(None, asked.get("fixed", "").split(",")))
        if unknown := [one for one in fixed if not is_name(one)]:
            raise ValueError(f"There is no rule {unknown[0]!r}.")
        flags = {flag: flag in asked for flag in ("gathers_in_time", "graphs", "offload", "strong")}
        question = question_of(given, **flags, fixed=fixed)
        over = asked.get("curve", "")
        if over and over not in CURVES:
            raise ValueError(f"There is no curve over {over!r}; there are: {', '.join(CURVES)}.")
        with self._lock:
            curves = {over: CURVES[over]} if over else {}
            jobs = jobs_of_sweep(result, others)
            plan = answer(result.job, lambda: self._planner(name, result), question, curves, jobs)
            refused = unanswerable(lambda: self._planner(name, result)) if "fields" in asked else ()
        return PlanAnswer(plan=plan, unanswerable=refused)

    def _planner(self, name: str, result: engine.Result) -> Planner:
        from tb_ddp_doctor.api import planner

        kept = self._kept.pop(name, None)
        made = kept[1] if kept and kept[0] is result else planner(result)
        self._kept[name] = result, made
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return made
