"""Limits that several rules compare with, each here alone: the value, its unit, and the reason or source for it."""

from __future__ import annotations

from typing import TypeAlias

from tb_ddp_doctor.facts.links import SLOW_TIMES

#: What `threshold` takes.
Limit: TypeAlias = tuple[float, str, str]

ACHIEVABLE_OVERLAP: Limit = (
    0.65,
    "of what could hide",
    "What DDP with five buckets was measured to hide (healthy jobs, 0.6 to 0.7).",
)
SLOW_RANK: Limit = (
    0.03,
    "of the step",
    "Healthy jobs of 4 and 8 ranks stay under 2 %; less is not worth a warning.",
)
SLOW_RANK_STEPS: Limit = (0.75, "of the steps", "A rank that is slow now and then is load-imbalance.")
SLOW_LINK: Limit = (SLOW_TIMES, "times as long", "Groups that share a network card or the GPU differ by less.")
MISSING_STRAGGLER: Limit = (
    0.07,
    "of the step",
    "With one trace of equal ranks removed, the other ranks seem to wait for 5 %.",
)
LAUNCHES: Limit = (0.03, "of the step", "Healthy jobs lose up to 2 % of the untraced step to launches.")
WORTH_A_LINE: Limit = (0.005, "of the step", "Below this it is not worth a line.")
ALIGNED: Limit = (
    2.0,
    "times as fast",
    "NVIDIA's guide to matrix multiplication: odd dimensions halve the speed, or worse.",
)
