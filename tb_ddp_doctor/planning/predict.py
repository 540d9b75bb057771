"""Predicts the step for a question: the effects of all its fields are put together, and the steps are played once.

The steps are played with and without the change, both without tracing, as for the costs of findings. The prediction is
the recorded step minus the difference. Where findings are fixed too, both plays are without them, and the difference is
taken from the step that the account predicts with these fixes: the verdict and a plan say the same of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import get_args

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.findings import Prospect
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning import effects, owners
from tb_ddp_doctor.planning.basis import inputs
from tb_ddp_doctor.planning.buckets import BucketLimits, last_of_buckets
from tb_ddp_doctor.planning.costs.messages import Case
from tb_ddp_doctor.planning.effect import Effect
from tb_ddp_doctor.planning.mesh.effect import refuse_others
from tb_ddp_doctor.planning.model import Breaks, Prediction, Question, ShardedRecord
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.scaling import breaks, scaling
from tb_ddp_doctor.planning.shards.recorded import sharded_record
from tb_ddp_doctor.planning.shards.steps import Resharding, asks_of_sharding
from tb_ddp_doctor.planning.shards.units import units
from tb_ddp_doctor.planning.steps import Otherwise, PlayedSteps
from tb_ddp_doctor.replay.change import Change

#: The error of predictions besides that of their inputs: a share of the change, and one of the step. For the pairs of
#: runs of benchmarks/plan.py whose buckets differ, the error was 0.2 to 2 % of the step.
_OF_CHANGE, _OF_STEP = 0.05, 0.01

#: For findings by id or rule: the change that fixes them, and the step that the account predicts with it. Raises
#: CannotPlanError for unknown ones.
Fix = Callable[[Sequence[str]], tuple[Change, Prospect]]


class _Asked(msgspec.Struct, frozen=True, eq=False):
    """What is played for a question, and what that is compared with."""

    #: The steps with the collectives that the question asks for.
    steps: PlayedSteps
    #: The steps with which these are compared.
    compared: PlayedSteps
    #: The effect of the question, without tracing.
    effect: Effect
    #: The effect of removing only tracing.
    base: Effect
    #: The same and the fixes of findings, for the steps to compare with; `base` itself where none is fixed.
    fixed: Effect
    #: The step with these fixes, ns.
    start_ns: float
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
        fix: Fix | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        """`calibrations` are other links, by name."""
        self.record, self._fix, self._calibrations = record, fix, calibrations or {}
        self._before_ns: dict[float, float] = {}
        self._fixes: dict[Sequence[str], tuple[Change, Prospect]] = {}

    @property
    def now_ns(self) -> float:
        """The recorded step, mean over all ranks and steps, ns."""
        return self.record.job.step_ns

    @cached_property
    def sharded(self) -> ShardedRecord | None:
        """How the record shards its states; None where it does not, or where its collectives do not show it."""
        try:
            return sharded_record(self.record, units(self.record))
        except CannotPlanError:
            return None

    def predict(self, question: Question) -> Prediction:
        """The predicted step with its range. Raises CannotPlanError."""
        if question == Question():
            return _prediction(question, self.now_ns, self.now_ns, self.now_ns, self.now_ns)
        start_ns, start_low_ns, start_high_ns = self._start_ns(question)
        if question == Question(fixed=question.fixed):
            likely, low, high = start_ns, start_low_ns, start_high_ns
        else:
            likely, *others = (self._step_ns(question, case) for case in get_args(Case))
            margin = _OF_CHANGE * abs(likely - start_ns) + _OF_STEP * self.now_ns
            low = min(likely, *others) - margin - (start_ns - start_low_ns)
            high = max(likely, *others) + margin + (start_high_ns - start_ns)
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
        return max(asked.start_ns - self._compared_ns(asked) + step + asked.added_ns, 0.0)

    def _asked(self, question: Question, case: Case) -> _Asked:
        """What is played for a question in one case."""
        record = self.record
        tracing = record.whatif.tracing.of_ranks(record.ranks, record.job.row_calls)
        steps, compared, added_ns, resharded = self._steps(question, case)
        calibration = self._calibration(question.links_of)
        base = fixed = Effect(tracing)
        if question.fixed:
            fixed = Effect(tracing | self._fixed(question)[0].of_ranks(record.ranks, record.job.row_calls))
        effect = fixed | effects.of(record, question, case, calibration, resharded=resharded)
        every_ns = 0.0
        if question.workers is not None:
            loading, every_ns = effects.loading(record, question.workers, case)
            effect |= loading
        start_ns, _, _ = self._start_ns(question)
        slowdown = effects.slowdown(record, case)
        return _Asked(steps, compared, effect, base, fixed, start_ns, slowdown, added_ns, every_ns)

    def _compared_ns(self, asked: _Asked) -> float:
        """Mean of the steps to compare with, without tracing, ns; the one of the record is kept for later questions."""
        if asked.compared is not self.record.steps or asked.fixed is not asked.base:
            return _mean_ns(asked.compared, asked.fixed, asked.slowdown)
        if asked.slowdown not in self._before_ns:
            self._before_ns[asked.slowdown] = _mean_ns(asked.compared, asked.base, asked.slowdown)
        return self._before_ns[asked.slowdown]

    def _steps(self, question: Question, case: Case) -> tuple[PlayedSteps, PlayedSteps, float, bool]:
        """The steps to play, those to compare with, the time added to each step (ns), and whether they are resharded.

        Resharded steps already have the collectives that the question asks for.
        """
        record, added_ns = self.record, 0.0
        refuse_others(question)
        _refuse_training(record.job, question)
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

    def _fixed(self, question: Question) -> tuple[Change, Prospect]:
        """The change that fixes the findings of a question, and the step that the account predicts with it."""
        if self._fix is None:
            raise CannotPlanError(
                f"There is no finding {question.fixed[0]!r} to fix: ddp-doctor diagnose lists this run's."
            )
        if question.fixed not in self._fixes:
            self._fixes[question.fixed] = self._fix(question.fixed)
        return self._fixes[question.fixed]

    def _start_ns(self, question: Question) -> tuple[float, float, float]:
        """The step with the findings of a question fixed and nothing else changed, with its range, ns."""
        if not question.fixed:
            return self.now_ns, self.now_ns, self.now_ns
        _, prospect = self._fixed(question)
        low_ms, high_ms = prospect.range_ms
        return 1e6 * prospect.without_ms, 1e6 * low_ms, 1e6 * high_ms


def _refuse_training(job: Job, question: Question) -> None:
    """Raise CannotPlanError if a question is about gradients or what keeps them, of a program that does not train."""
    asked = (question.bucket_mb, question.dtype, question.accumulate)
    if (asks_of_sharding(question) or asked != (None, None, None)) and not job_kind.trains(job):
        raise CannotPlanError("It is about gradients, and this program does not train.")


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
