"""What the step would be under a question: each field changes what the steps are played with, and all are played once.

A prediction is the recorded step less what the play with the change saves against the play without it, both without
tracing, as costs of findings are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import msgspec

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.planning import effects
from tb_ddp_doctor.planning.buckets import Limits, last_of_buckets
from tb_ddp_doctor.planning.effects import Case, Effect
from tb_ddp_doctor.planning.model import Prediction, Question
from tb_ddp_doctor.planning.record import Record
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.steps import Otherwise, Steps

#: What predictions miss by besides what they rest on: a share of the change, and of the step. The pairs of
#: benchmarks/plan.py whose buckets differ were missed by 0.2 to 2 % of the step.
_OF_CHANGE, _OF_STEP = 0.05, 0.01


class Planner:
    """Answers questions about one job; what several of them need is made once."""

    def __init__(
        self,
        record: Record,
        fix: Callable[[str], Change] | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        """`fix` gives what the fix of a finding takes out of the steps; `calibrations`, by name, other links."""
        self.record, self._fix, self._calibrations = record, fix, calibrations or {}
        self._before_ns: dict[float, float] = {}

    @property
    def now_ns(self) -> float:
        """The recorded step, mean over all ranks and steps, ns."""
        return self.record.job.step_ns

    def predict(self, question: Question) -> Prediction:
        """The step under a question. Raises CannotPlanError."""
        if question == Question():
            return _prediction(question, self.now_ns, self.now_ns, self.now_ns, self.now_ns)
        likely, *others = (self._step_ns(question, case) for case in get_args(Case))
        margin = _OF_CHANGE * abs(likely - self.now_ns) + _OF_STEP * self.now_ns
        low, high = min(likely, *others) - margin, max(likely, *others) + margin
        found = _prediction(question, likely, max(low, 0.0), high, self.now_ns)
        return _with_rests(found, self.record)

    def likely_ns(self, question: Question) -> float:
        """The step under a question without its range, ns. Raises CannotPlanError."""
        return self._step_ns(question, "likely")

    def _step_ns(self, question: Question, case: Case) -> float:
        record, slowdown = self.record, effects.slowdown(self.record, case)
        base = record.whatif.tracing.of_ranks(record.ranks)
        if slowdown not in self._before_ns:
            self._before_ns[slowdown] = _mean_ns(record.steps, Effect(base), slowdown)
        steps = self._steps(question, case)
        effect = Effect(base | self._fixed(question).of_ranks(record.ranks)) | effects.of(record, question, case)
        if question.links_of is not None:
            effect |= self._links_of(question.links_of, case)
        every_ns = 0.0
        if question.workers is not None:
            loading, every_ns = effects.loading(record, question.workers, case)
            effect |= loading
        step = max(_mean_ns(steps, effect, slowdown), every_ns)
        if question.accumulate is not None:
            alone = _mean_ns(steps, effect | effects.without_gradients(record), slowdown)
            step = effects.accumulated_ns(record, question.accumulate, step, alone)
        return max(self.now_ns - self._before_ns[slowdown] + step, 0.0)

    def _steps(self, question: Question, case: Case) -> Steps:
        record = self.record
        if question.bucket_mb is None:
            return record.steps
        if not 0 < question.bucket_mb < effects.MOST_BUCKET_MIB:
            raise CannotPlanError("bucket_cap_mb is some positive number of MiB.")
        lasts = last_of_buckets(record.gradients.bytes, Limits.of_cap(question.bucket_mb))
        return record.with_buckets(lasts, effects.messages(record, case))

    def _links_of(self, name: str, case: Case) -> Effect:
        if name not in self._calibrations:
            raise CannotPlanError(f"There is no calibration {name!r}.")
        return effects.calibrated(self.record, self._calibrations[name], case)

    def _fixed(self, question: Question) -> Change:
        change = Change()
        for name in question.fixed:
            if self._fix is None:
                raise CannotPlanError(f"There is no finding {name!r} to fix.")
            change = change | self._fix(name)
        return change


def _mean_ns(steps: Steps, effect: Effect, slowdown: float) -> float:
    """Mean step, ns."""
    windows = steps.windows_ns(Otherwise(effect.change, effect.transfer_ns, effect.device, slowdown, effect.pace))
    return float(windows.mean()) + effect.added_ns


def _prediction(question: Question, step_ns: float, low_ns: float, high_ns: float, now_ns: float) -> Prediction:
    return Prediction(
        question=question,
        step_ms=step_ns / 1e6,
        low_ms=low_ns / 1e6,
        high_ms=high_ns / 1e6,
        change_ms=(step_ns - now_ns) / 1e6,
        rests=(),
    )


def _with_rests(prediction: Prediction, record: Record) -> Prediction:
    return msgspec.structs.replace(prediction, rests=tuple(effects.rests(record, prediction.question)))
