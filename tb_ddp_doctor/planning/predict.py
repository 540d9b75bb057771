"""Predicts the step for a question: the effects of all its fields are put together, and the steps are played once.

The steps are played with and without the change, both without tracing, as for the costs of findings. The prediction is
the recorded step minus the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.planning import effects, owners
from tb_ddp_doctor.planning.basis import inputs
from tb_ddp_doctor.planning.buckets import BucketLimits, last_of_buckets
from tb_ddp_doctor.planning.costs.messages import Case
from tb_ddp_doctor.planning.effect import Effect
from tb_ddp_doctor.planning.model import Breaks, Prediction, Question
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.scaling import breaks, scaling
from tb_ddp_doctor.planning.shards.steps import Resharding, asks_of_sharding
from tb_ddp_doctor.planning.steps import Otherwise, PlayedSteps
from tb_ddp_doctor.replay.change import Change

#: The error of predictions besides that of their inputs: a share of the change, and one of the step. For the pairs of
#: runs of benchmarks/plan.py whose buckets differ, the error was 0.2 to 2 % of the step.
_OF_CHANGE, _OF_STEP = 0.05, 0.01


class _Asked(msgspec.Struct, frozen=True, eq=False):
    """What is played for a question, and what that is compared with."""

    #: The steps with the collectives that the question asks for.
    steps: PlayedSteps
    #: The steps with which these are compared.
    compared: PlayedSteps
    #: The effect of the question, without tracing.
    effect: Effect
    #: The effect of removing only tracing, for the steps to compare with.
    base: Effect
    #: The share by which kernels take longer beside communication.
    slowdown: float
    #: Time that is added to each step, ns.
    added_ns: float
    #: The time from batch to batch, ns: no step is shorter.
    every_ns: float


class Planner:
    """Answers questions about one job; what several answers need is computed once."""

    def __init__(
        self,
        record: PlanRecord,
        fix: Callable[[str], Change] | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        """`fix` gives the what-if change of a finding, by id; `calibrations` are other links, by name."""
        self.record, self._fix, self._calibrations = record, fix, calibrations or {}
        self._before_ns: dict[float, float] = {}

    @property
    def now_ns(self) -> float:
        """The recorded step, mean over all ranks and steps, ns."""
        return self.record.job.step_ns

    def predict(self, question: Question) -> Prediction:
        """The predicted step with its range. Raises CannotPlanError."""
        if question == Question():
            return _prediction(question, self.now_ns, self.now_ns, self.now_ns, self.now_ns)
        likely, *others = (self._step_ns(question, case) for case in get_args(Case))
        margin = _OF_CHANGE * abs(likely - self.now_ns) + _OF_STEP * self.now_ns
        low, high = min(likely, *others) - margin, max(likely, *others) + margin
        prediction = _prediction(question, likely, max(low, 0.0), high, self.now_ns)
        rests_on = [*inputs(self.record, question, self._calibration(question.links_of))]
        if question.ranks is not None:
            prediction = replace(
                prediction, scaling=scaling(self.record, self.likely_ns, question, question.ranks, likely)
            )
        if asks_of_sharding(question):
            resharding = self.resharding(question)
            rests_on += resharding.rests()
            prediction = replace(prediction, rank_bytes=resharding.rank_bytes()[1])
        return replace(prediction, rests=tuple(rests_on))

    def likely_ns(self, question: Question) -> float:
        """The predicted step without its range, ns. Raises CannotPlanError."""
        return self._step_ns(question, "likely")

    def owners_ms(self, question: Question, step_ms: float) -> dict[str, float]:
        """A predicted step by owner, mean over ranks and steps, ms; `step_ms` is its prediction."""
        recorded = owners.recorded_ms(self.record.job)
        if question == Question():
            return recorded
        asked = self._asked(question, "likely")
        now, then = (
            steps.split_ns(_otherwise(effect, asked.slowdown))
            for steps, effect in ((asked.compared, asked.base), (asked.steps, asked.effect))
        )
        return owners.predicted_ms(recorded, now, then, question, step_ms)

    def _step_ns(self, question: Question, case: Case) -> float:
        """The predicted step in one case, ns."""
        asked = self._asked(question, case)
        step = max(_mean_ns(asked.steps, asked.effect, asked.slowdown), asked.every_ns)
        if question.accumulate is not None:
            without = asked.effect | effects.without_gradients(self.record)
            alone = _mean_ns(asked.steps, without, asked.slowdown)
            step = effects.accumulated_ns(self.record, question.accumulate, step, alone)
        return max(self.now_ns - self._compared_ns(asked) + step + asked.added_ns, 0.0)

    def _asked(self, question: Question, case: Case) -> _Asked:
        """What is played for a question in one case."""
        record = self.record
        base = record.whatif.tracing.of_ranks(record.ranks)
        steps, compared, added_ns, resharded = self._steps(question, case)
        calibration = self._calibration(question.links_of)
        effect = Effect(base | self._fixed(question).of_ranks(record.ranks))
        effect |= effects.of(record, question, case, calibration, resharded=resharded)
        every_ns = 0.0
        if question.workers is not None:
            loading, every_ns = effects.loading(record, question.workers, case)
            effect |= loading
        return _Asked(steps, compared, effect, Effect(base), effects.slowdown(record, case), added_ns, every_ns)

    def _compared_ns(self, asked: _Asked) -> float:
        """Mean of the steps to compare with, without tracing, ns; the one of the record is kept for later questions."""
        if asked.compared is not self.record.steps:
            return _mean_ns(asked.compared, asked.base, asked.slowdown)
        if asked.slowdown not in self._before_ns:
            self._before_ns[asked.slowdown] = _mean_ns(asked.compared, asked.base, asked.slowdown)
        return self._before_ns[asked.slowdown]

    def _steps(self, question: Question, case: Case) -> tuple[PlayedSteps, PlayedSteps, float, bool]:
        """The steps to play, those to compare with, the time added to each step (ns), and whether they are resharded.

        Resharded steps already have the collectives that the question asks for.
        """
        record, added_ns = self.record, 0.0
        if asks_of_sharding(question):
            resharding = self.resharding(question)
            added_ns = resharding.added_ns(case)
            if resharding.changes_collectives:
                return *resharding.steps(case), added_ns, True
        if question.bucket_mb is None:
            return record.steps, record.steps, added_ns, False
        if not 0 < question.bucket_mb < effects.MOST_BUCKET_MIB:
            raise CannotPlanError("bucket_cap_mb is some positive number of MiB.")
        lasts = last_of_buckets(record.gradients.bytes, BucketLimits.of_cap(question.bucket_mb))
        return record.with_buckets(lasts, effects.messages(record, case)), record.steps, added_ns, False

    def resharding(self, question: Question) -> Resharding:
        """The job with its states sharded as the question asks. Raises CannotPlanError."""
        return Resharding(self.record, question, self._calibration(question.links_of))

    def breaks(self, question: Question) -> Breaks:
        """Where scaling to other numbers of ranks breaks. Raises CannotPlanError."""
        return breaks(self.record, self.likely_ns, question)

    def _calibration(self, name: str | None) -> Calibration | None:
        """The calibration of a name; None for None. Raises CannotPlanError for an unknown name."""
        if name is None:
            return None
        if name not in self._calibrations:
            raise CannotPlanError(f"There is no calibration {name!r}.")
        return self._calibrations[name]

    def _fixed(self, question: Question) -> Change:
        """The change that fixes the findings of a question."""
        change = Change()
        for name in question.fixed:
            if self._fix is None:
                raise CannotPlanError(f"There is no finding {name!r} to fix: ddp-doctor diagnose lists this run's.")
            change = change | self._fix(name)
        return change


def _otherwise(effect: Effect, slowdown: float) -> Otherwise:
    return Otherwise(effect.change, effect.transfer_ns, effect.device, slowdown, effect.pace)


def _mean_ns(steps: PlayedSteps, effect: Effect, slowdown: float) -> float:
    """The mean step with an effect, ns."""
    return float(steps.windows_ns(_otherwise(effect, slowdown)).mean()) + effect.added_ns


def _prediction(question: Question, step_ns: float, low_ns: float, high_ns: float, now_ns: float) -> Prediction:
    return Prediction(
        question=question,
        step_ms=step_ns / 1e6,
        low_ms=low_ns / 1e6,
        high_ms=high_ns / 1e6,
        change_ms=(step_ns - now_ns) / 1e6,
        rests=(),
    )
