"""An engine of asynchronous reinforcement learning with a slow GPU: as busy as the others, with fewer answers."""

from __future__ import annotations

import pytest
from traces import boxes, job, outcome, ranks

from tb_ddp_doctor import engine as doctor

RULE = "straggler"


SYNC = [(80, 84, "bc"), (84, 88, "sync")]


def engine(answer: int) -> str:
    """Generates for 80 ms, an answer in so many, and stops for the weights."""
    answers = range(0, 80, answer)
    calls = [box for at in answers for box in ((at, at + 3, "a"), (at + 3, at + answer, "sync"))]
    return f"""
    rank# step   |1
          host   {boxes((0, 88, "own_generate_sequences"))}
          within {boxes(*calls, *SYNC)}
          gpu    {boxes(*[(at + 1, at + answer, "a") for at in answers])}
          nccl   {boxes((81, 88, "bc/sync"))}
"""


def trainer(pause: int) -> str:
    """Waits so long for samples, and trains until the weights are sent."""
    return f"""
    rank# step   |1
          host   {boxes((pause, 88, "own_update_actor"))}
          within {boxes((pause, pause + 5, "fwd"), (pause + 5, 80, "sync"), *SYNC)}
          gpu    {boxes((pause + 1, 80, "fwd"))}
          nccl   {boxes((81, 88, "bc/sync"))}
"""


def test_an_engine_that_answers_less_in_the_same_time_has_a_slow_gpu() -> None:
    """Three engines have 2.5 times as many answers together as one, and would have three times as many."""
    text = ranks(engine(10), engine(20), engine(10), trainer(41), trainer(41), steps=8)
    found = next(one for one in doctor.examine(job(text)).findings if one.rule == RULE)
    assert (found.cause, found.ranks) == ("slow_device", (1,))
    assert "2.1 times as long as on other engines" in found.title
    # Kernels of 9 and 19 ms.
    assert found.cost_ms == pytest.approx(80 * 0.95 * (1 - (2 + 9 / 19) / 3), rel=0.1)


def test_engines_that_take_as_long_for_their_kernels_are_clear() -> None:
    text = ranks(engine(10), engine(10), engine(10), trainer(41), trainer(41), steps=8)
    assert outcome(RULE, text).status == "clear"


def test_nobody_waits_for_a_slow_engine_while_engines_generate_ahead() -> None:
    text = ranks(engine(10), engine(20), engine(10), trainer(3), trainer(3), steps=8)
    assert outcome(RULE, text).status == "clear"
