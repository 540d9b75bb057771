"""Predictions for rules: the step with the fix that a rule advises, such as other bucket sizes."""

from __future__ import annotations

from functools import cached_property

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.planning.buckets import MIB
from tb_ddp_doctor.planning.model import Prediction, Question, ShardedRecord
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.questions import shown
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Bucket sizes that a fix may name, MiB. Of sizes that are as good as the best within the share below, it names the
#: largest.
_BUCKET_MB = (1.0, 2.0, 5.0, 10.0, 25.0)
_AS_GOOD = 0.01
_WORKERS = (4, 8, 16)
#: Larger units of FSDP are neighbours that together have at least this many times the median unit's parameters; a bit
#: less than two, so that two units of about one size are one.
_LARGER = 1.9


class Plans:
    """Predictions for one job, each computed when a rule asks for it."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def predict(self, question: Question) -> Prediction | None:
        """The predicted step for a question; None if the record cannot answer it."""
        if self._planner is None:
            return None
        try:
            return self._planner.predict(question)
        except CannotPlanError:
            return None

    def best_buckets(self) -> Prediction | None:
        """The predicted step with the largest buckets that are about as good as the best ones.

        None if the record cannot answer it, or if no size makes the step shorter.
        """
        if self._planner is None:
            return None
        try:
            steps = [self._planner.likely_ns(Question(bucket_mb=size)) for size in _BUCKET_MB]
        except CannotPlanError:
            return None
        good = [size for size, step in zip(_BUCKET_MB, steps, strict=True) if step <= (1 + _AS_GOOD) * min(steps)]
        best = self.predict(Question(bucket_mb=max(good)))
        return best if best and best.change_ms < 0 else None

    def fewest_workers(self) -> Prediction | None:
        """The predicted step with the fewest DataLoader workers that are as good as many; None if it is not known."""
        predictions = [self.predict(Question(workers=number)) for number in _WORKERS]
        known = [one for one in predictions if one is not None]
        least = min((one.step_ms for one in known), default=0.0)
        return next((one for one in known if one.step_ms <= (1 + _AS_GOOD) * least), None)

    @property
    def sharded(self) -> ShardedRecord | None:
        """How the record shards its states; None where it does not, or where that does not show."""
        return self._planner.sharded if self._planner is not None else None

    def larger_units(self) -> Prediction | None:
        """The predicted step with units of twice the median size; None if it is not known."""
        recorded = self.sharded
        if recorded is None:
            return None
        return self.predict(
            Question(sharding=recorded.stage, bucket_mb=round(_LARGER * recorded.median_bytes / MIB, 1))
        )

    def said(self, *predictions: Prediction | None) -> str:
        """A sentence on some predictions, after a space; "" if there are none."""
        parts = [
            f"{shown(one.question)}: {wording.decimals(one.step_ms, 1)} ms a step ({wording.decimals(one.low_ms, 1)} "
            f"to {wording.decimals(one.high_ms, 1)})"
            for one in predictions
            if one is not None and one.change_ms < 0
        ]
        return (
            f" Predicted: {'; '.join(parts)}; now {wording.decimals(self._facts.job.step_ns / 1e6, 1)}."
            if parts
            else ""
        )

    @cached_property
    def _planner(self) -> Planner | None:
        try:
            return Planner(PlanRecord(self._facts))
        except CannotPlanError:
            return None


@fact
def plans(facts: Facts) -> Plans:
    """The predictions for a job."""
    return Plans(facts)
