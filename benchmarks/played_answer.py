"""A prediction of `ddp-doctor plan` beside what the job takes when it is played as asked."""

from __future__ import annotations

from dataclasses import dataclass

from tb_ddp_doctor.planning.model import Prediction


@dataclass(frozen=True)
class PlayedAnswer:
    """A prediction and the truth, of a step."""

    now_ms: float
    true_ms: float
    prediction: Prediction

    @property
    def error(self) -> float:
        """Of the prediction, in percent of the step as it is now."""
        return 100 * (self.prediction.step_ms - self.true_ms) / self.now_ms

    @property
    def change(self) -> float:
        """What the answer truly changes, in percent of the step as it is now."""
        return 100 * (self.true_ms - self.now_ms) / self.now_ms
