"""Jobs whose steps cannot be replayed: why, and that they are healthy only if their GPUs are busy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from traces import job, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay import playable
from tb_ddp_doctor.replay.order import CircularWaitError
from tb_ddp_doctor.replay.replay import Replay

#: Its kernels are launched outside of the one operator that is recorded.
BUSY = """
    rank# step |1
          host [ddp]
          gpu  [fwd.........][bwd..............]
          nccl                                  [ar]
"""
#: The operators launch nothing, and each kernel is launched when one of them is over.
LATE = """
    rank# step |1
          host [ops..] [ops..] [ops..] [ops..] [ops..]
          gpu         [k....] [k....] [k....] [k....] [k....]
          nccl                                               [ar]
"""
#: The one is late for the first AllReduce, the other for the second: both are busy for as long.
IN_TURN = [
    """
    rank# step |1
          host [ddp]
          gpu  [fwd...........]    [bwd.....]
          nccl                 [ar]          [ar.....]
    """,
    """
    rank# step |1
          host [ddp]
          gpu  [fwd.....]          [bwd...........]
          nccl           [ar......]                [ar]
    """,
]
PLAYED = """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd......][bwd.......]
          nccl                        [ar]
"""
OUTSIDE = "The steps cannot be replayed: the traces have no operators that launch most of the kernels that compute."


def examined(text: str, **options: Any) -> Diagnosis:
    return engine.examine(job(text, **options))


def shares(diagnosis: Diagnosis) -> dict[str, float]:
    return {line.kind: line.share for line in diagnosis.account.lines}


def test_gpus_that_are_busy_for_the_whole_step_are_healthy_without_a_replay() -> None:
    found = examined(ranks(BUSY, BUSY))
    assert (found.verdict, found.account.method) == ("healthy", "busy_time")
    assert shares(found)["unexplained"] < 0.01


@pytest.mark.parametrize("size", [1, 2])
def test_gpu_idle_that_no_rule_explains_is_unexplained(size: int) -> None:
    """In a replay `launch-bound` would have found it."""
    found = examined(ranks(*[LATE] * size), world_size=size)
    assert found.verdict == "unexplained"
    assert shares(found)["unexplained"] == pytest.approx(0.22, abs=0.02)
    where = found.account.unexplained
    assert where and (where.owner, where.ranks, where.steps) == ("dispatch", tuple(range(size)), (1, 2, 3))
    assert "(22 %) is unexplained: mostly GPU idle, launch-bound (CPU overhead), on" in found.headline
    assert f". {OUTSIDE} To learn more, capture with profile(..., with_stack=True)." in found.headline


def test_gpu_idle_before_what_was_launched_long_ago_is_floor() -> None:
    """It is the device's own: no CPU could shorten it."""
    text = BUSY.replace("[ddp]", "[ddp][work.....................]").replace("[bwd.....", "     [bwd")
    found = examined(ranks(text, text))
    assert found.budget_ms["0"]["dispatch"] > 3
    assert found.verdict == "healthy" and shares(found)["unexplained"] < 0.01


def test_straggler_wait_that_no_busy_time_explains_is_unexplained() -> None:
    first, second = IN_TURN
    found = examined(ranks(first, second, first, second))
    assert found.verdict == "unexplained"
    # Each waits 6 of 39 ms in every step.
    assert shares(found)["unexplained"] == pytest.approx(0.16, abs=0.03)
    assert "mostly straggler wait, on all ranks, in every step" in found.headline


def test_a_job_on_cpus_works_while_it_has_no_gpu_to_keep_busy() -> None:
    found = examined(ranks("rank# step |1\n host [fwd......][bwd.....] "), world_size=1)
    assert found.verdict == "healthy"
    assert found.account.no_replay == (
        "The steps cannot be replayed: that needs the events of GPUs, and the traces have none."
    )


@pytest.mark.parametrize(
    ("second", "said"),
    [("[?a...][?b...]", "the traces have"), ("[a...][b...]", "the trace of rank 0 has")],
)
def test_traces_without_launches_say_so_and_what_to_record(second: str, said: str) -> None:
    account = examined(f"rank0 gpu [?a...][?b...]\nrank1 gpu {second}").account
    how = "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
    assert account.no_replay == f"The steps cannot be replayed: {said} no records of kernel launches. {how}"
    (note,) = (line.note for line in account.floor_lines if line.note)
    assert note == f"{account.no_replay} So the floor is not opened."


def test_a_replay_that_misses_the_record_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = job(ranks(PLAYED, PLAYED))
    assert isinstance(playable.replay_of(drawn), Replay)
    assert engine.examine(drawn).account.no_replay == ""
    longer = SimpleNamespace(recorded_ns=drawn.budget.window_ns * 1.034)
    monkeypatch.setattr(playable, "Replay", lambda _: longer)
    assert playable.replay_of(drawn) == (
        "The steps cannot be replayed: played without a change, they differ from the recorded ones by 3.4 %."
    )


def test_waits_in_a_circle_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def circular(*_: object, **__: object) -> Job:
        raise CircularWaitError

    monkeypatch.setattr(playable, "schedule", circular)
    said = playable.replay_of(job(ranks(PLAYED, PLAYED)))
    assert said == (
        "The steps cannot be replayed: ranks would wait for each other in a circle, so some collectives are matched "
        "wrongly."
    )
