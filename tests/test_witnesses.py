"""Who waits, where the critical path lies and what the replay saves agree on who is slow, or what differs is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from msgspec.structs import replace
from traces import MS, finding, job, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.account.witnesses import Witnesses, contradictions, doubted
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.arrivals import arrivals
from tb_ddp_doctor.findings import Finding, RuleOutcome
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf

FAST = """
    rank# step |1
          host [fwd][ar][sync.....................]
          gpu   [fwd..]
          nccl         [ar........................]
"""
SLOW = """
    rank# step |1
          host [fwd]                    [ar][sync.]
          gpu   [fwd..]
          nccl                               [ar..]
"""
#: Ranks 0 to 2 wait for rank 3, which is outside any op for 20 ms.
TEXT = ranks(FAST, FAST, FAST, SLOW)


class Saves:
    """A replay that saves as much as is given, whatever is removed."""

    plays = True
    tracing_ns = 0.0

    def __init__(self, saved_ms: float, works_ms: Sequence[float] = (0, 0, 0)) -> None:
        drawn = job(TEXT)
        self.shape = drawn.budget.window_ns.shape
        self.recorded_ns = drawn.budget.window_ns
        self._saved_ns = round(saved_ms * 1e6)
        #: What each CPU works in each step.
        self._works_ns = np.array(works_ms) * 1e6

    def host_ns(self, kind: CpuTime) -> np.ndarray:
        works = self._works_ns if kind is CpuTime.WORK else np.zeros(3)
        return np.broadcast_to(works.astype(np.int64), self.shape)

    def step_ns(self, change: Change) -> np.ndarray:
        return self.recorded_ns - self._saved_ns


def witnesses(lateness: list[float], path: list[float]) -> Witnesses:
    """Ranks that have these shares; the first three wait 20 ms of each step, the last one does not."""
    return Witnesses(
        of_lateness=np.array(lateness),
        of_path=np.array(path),
        cpu_on_path_ns=np.outer(path, [25e6] * 3),
        wait_ns=np.array([20e6, 20e6, 20e6, 0]),
        others_wait_ns=np.array([0, 0, 0, 20e6]),
        is_noise=np.zeros(4, np.bool_),
    )


def said(seen: Witnesses, findings: list[Finding], saved_ms: float = 20, world_size: int = 4) -> list[str]:
    found = contradictions(seen, findings, cast(WhatIf, Saves(saved_ms)), job(TEXT, world_size=world_size))
    return [one.sentence for one in found]


def test_the_witnesses_of_a_straggler_agree() -> None:
    diagnosis = engine.examine(job(TEXT))
    assert diagnosis.verdict == "straggler" and not diagnosis.contradictions


def test_a_rank_that_all_others_wait_for_and_no_finding_names() -> None:
    late = witnesses([0, 0, 0, 1], [0, 0, 0, 1])
    assert "Rank 3 has 100 % of all lateness" in said(late, [])[0]
    assert not said(late, [finding("straggler", TEXT)])


def test_of_a_few_traced_ranks_the_last_to_arrive_may_wait_for_another_without_a_trace() -> None:
    late = witnesses([0, 0, 0, 1], [0, 0, 0, 1])
    assert said(late, [], world_size=8)
    assert not said(late, [], world_size=9)


def test_waits_for_a_rank_without_a_trace_are_for_no_rank_that_has_one() -> None:
    # Rank 0 arrives 1 ms late in the first AllReduce; in the second all wait 6 ms for rank 3, which has no trace.
    usual = """
        rank# step |1
              host [fwd]
              gpu  [fwd.............................]         [bwd.............................]
              nccl                                   [ar@8...]                                  [ar@8........]
    """
    late = usual.replace("[fwd.............................]         ", "[fwd..............................]        ")
    late = late.replace("                [ar@8...]", "                 [ar@8..]")
    found = job(ranks(late, usual, usual), world_size=4)
    assert found.budget.of("wait")[1].tolist() == [7e6] * 3
    assert Witnesses.of(found, Facts(found).get(arrivals), (), None).wait_ns.tolist() == [0, 1e6, 1e6]


def test_a_rank_that_is_late_by_chance_in_some_of_a_few_steps_is_no_contradiction() -> None:
    late = witnesses([0, 0, 0, 1], [0, 0, 0, 1])
    assert not said(replace(late, is_noise=np.array([False, False, False, True])), [])


def three_steps(rank: int, *compute_ms: int) -> str:
    """A rank that computes so long in each of three steps, and then waits for the others until 32 ms."""
    gpu = "".join(f"[fwd{'.' * (ms - 5)}]".ljust(36) for ms in compute_ms)
    nccl = "".join((" " * ms + f"[ar@8{'.' * (26 - ms)}]").ljust(36) for ms in compute_ms)
    lanes = {
        "step": "".join(f"|{step}".ljust(36) for step in (1, 2, 3)),
        "host": "[fwd]".ljust(36) * 3,
        "gpu": gpu,
        "nccl": nccl,
    }
    return f"rank{rank} " + "".join(f"{lane:>5} {drawing}\n" for lane, drawing in lanes.items())


@pytest.mark.parametrize(
    ("compute_ms", "noise"), [((20, 23, 20), True), ((22, 22, 22), False)], ids=["in one of three", "in all"]
)
def test_waits_that_differ_from_step_to_step_may_be_noise(compute_ms: tuple[int, ...], noise: bool) -> None:
    found = job(three_steps(0, 20, 20, 20) + three_steps(1, 20, 20, 20) + three_steps(2, *compute_ms))
    seen = Witnesses.of(found, Facts(found).get(arrivals), (), None)
    assert seen.others_wait_ns[2] == sum(compute_ms) / 3 * MS - 20 * MS
    assert seen.is_noise.tolist() == [False, False, noise]


def test_a_finding_too_small_to_be_an_alarm_names_its_ranks_if_it_costs_what_they_wait() -> None:
    late, small = witnesses([0, 0, 0, 1], [0, 0, 0, 1]), replace(finding("straggler", TEXT), severity="info")
    assert not said(late, [replace(small, cost_ms=15.0)])
    assert "but no finding names it" in said(late, [replace(small, cost_ms=5.0)])[0]


def test_a_finding_on_ranks_that_wait_and_are_not_on_the_path() -> None:
    innocent = replace(finding("straggler", TEXT), ranks=(1,))
    sentences = said(witnesses([0, 0, 0, 1], [0, 0, 0, 1]), [innocent])
    assert any("straggler names rank 1" in sentence for sentence in sentences)


def test_a_rank_on_the_path_whose_cpu_the_replay_saves_nothing_of() -> None:
    late = witnesses([0, 0, 0, 1], [0, 0, 0, 1])
    named = [replace(finding("straggler", TEXT), alone_ms=2.0)]
    assert not said(late, named, saved_ms=15)
    assert "the replay without its CPU's time saves 2.0 ms" in said(late, named, saved_ms=2)[0]


def test_no_rank_saves_more_of_its_wait_in_a_step_than_its_cpu_has_to_spare_there() -> None:
    """Others wait for rank 3 for 20 of 36 ms, and have 2 ms to spare in two steps and all of the third."""
    busy = cast(WhatIf, Saves(5, works_ms=(34, 34, 0)))
    late, named = witnesses([0, 0, 0, 1], [0, 0, 0, 1]), [replace(finding("straggler", TEXT), alone_ms=2.0)]
    assert not contradictions(late, named, busy, job(TEXT))
    # Nor in all steps: CPUs that work for 52 ms in each of the first two are behind in the third.
    behind = cast(WhatIf, Saves(1, works_ms=(52, 52, 0)))
    assert not contradictions(late, named, behind, job(TEXT))


def test_a_cpu_saves_nothing_in_steps_in_which_others_wait_for_the_ranks_gpu() -> None:
    late, named = witnesses([0, 0, 0, 1], [0, 0, 0, 1]), [replace(finding("straggler", TEXT), alone_ms=2.0)]
    in_one_step = replace(late, cpu_on_path_ns=np.outer([0, 0, 0, 1], [9e6, 0, 0]))
    assert said(late, named, saved_ms=2)
    assert not said(in_one_step, named, saved_ms=2)


def test_a_rank_on_the_path_whose_finding_the_replay_saves_most_of() -> None:
    """Without all of its CPU's time it saves no less, which need not be played."""
    named = [replace(finding("straggler", TEXT), alone_ms=15.0)]
    assert not said(witnesses([0, 0, 0, 1], [0, 0, 0, 1]), named, saved_ms=2)


def test_ranks_that_are_slow_in_turn_hide_each_other_from_the_replay_of_one() -> None:
    """Without rank 3 alone, rank 2 is waited for in its step; a fix of most ranks says nothing of rank 3."""
    late = witnesses([0, 0, 0.4, 0.6], [0, 0, 0.4, 0.6])
    both = replace(finding("straggler", TEXT), rule="load-imbalance", ranks=(2, 3), alone_ms=15.0)
    assert not said(late, [both], saved_ms=2)
    assert said(late, [replace(both, alone_ms=2.0)], saved_ms=2)
    assert said(late, [replace(both, ranks=(1, 2, 3))], saved_ms=2)


def test_a_contradiction_lowers_the_confidence_of_the_findings_that_it_is_about() -> None:
    innocent = replace(finding("straggler", TEXT), ranks=(1,), confidence="high")
    other = replace(innocent, id="straggler:2", ranks=(3,))
    found = contradictions(witnesses([0, 0, 0, 1], [0, 0, 0, 1]), [innocent, other], cast(WhatIf, Saves(20)), job(TEXT))
    assert [doubted(one, found).confidence for one in (innocent, other)] == ["medium", "high"]


def test_a_fix_that_saves_more_than_it_removes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WhatIf, "saves_more_than_it_removes", lambda self, change: True)
    diagnosis = engine.examine(job(TEXT))
    outcomes: dict[str, RuleOutcome] = {one.rule: one for one in diagnosis.outcomes}
    assert outcomes["straggler"].status == "error" and "impossible" in outcomes["straggler"].reason
    assert not any(one.rule == "straggler" for one in diagnosis.findings)


def test_what_a_fix_asks_for_beyond_what_there_is_cannot_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    whatif = WhatIf.of(job(TEXT))
    second = Change(device_ns=np.full(whatif.shape, 1000 * MS), transfer_ns=np.full(whatif.shape, 1000 * MS))
    assert not whatif.saves_more_than_it_removes(second)
    monkeypatch.setattr(WhatIf, "cost_ns", lambda self, change: 500 * MS)
    assert whatif.saves_more_than_it_removes(second)
