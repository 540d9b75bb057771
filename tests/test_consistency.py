"""No diagnosis contradicts itself: witnesses agree, no fix saves what it does not remove, no headline says too much,
no floor is shorter than its work.

Of the demo's jobs, of the jobs that the rules' pages draw, and of random jobs with faults; `benchmarks/consistency.py`
asks the same of recorded and simulated ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from examples import EXAMPLES
from hypothesis import example, given
from msgspec.structs import replace
from random_jobs import FaultyJob, Work, faulty_jobs
from random_traces import OF_JOBS
from traces import job

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import Run, discover
from tb_ddp_doctor.findings import RuleOutcome
from tb_ddp_doctor.replay.whatif import WhatIf

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from consistency import HEADLINE_SAVES, broken, floor_is_below_its_work, played_share

DEMO = discover(Path(__file__).parent.parent / "demo_logs")


@pytest.mark.parametrize("run", DEMO, ids=[run.name for run in DEMO])
def test_a_diagnosis_of_the_demo_agrees_with_itself(run: Run) -> None:
    result = engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
    assert not list(broken(result.diagnosis))
    share = played_share(result)
    assert share is None or share >= HEADLINE_SAVES
    assert not floor_is_below_its_work(result)


@pytest.mark.parametrize("faulty", [False, True], ids=["healthy", "faulty"])
@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_diagnosis_of_a_drawn_job_agrees_with_itself(rule: str, faulty: bool) -> None:
    assert not list(broken(EXAMPLES[rule].diagnosed(faulty=faulty)))


#: In one step the other rank waits 11 ms, for this one's GPU; its CPU is on the critical path in all.
LONGER_ONCE = (Work(load=6, stall=0, forward=21, backward=16), *[Work(load=6, stall=0, forward=10, backward=16)] * 2)
USUAL = (Work(load=6, stall=1, forward=10, backward=16),) * 3


@OF_JOBS
@given(faulty_jobs())
@example(FaultyJob(work=(USUAL, LONGER_ONCE), transfer=(30, 4, 4)))
def test_a_diagnosis_of_a_random_job_agrees_with_itself(drawn: FaultyJob) -> None:
    assert not list(broken(engine.examine(job(drawn.drawing))))


def test_what_a_diagnosis_breaks_is_said() -> None:
    right = EXAMPLES["straggler"].diagnosed(faulty=True)
    assert right.verdict == "straggler" and not list(broken(right))
    first = right.findings[0]
    dear = replace(right, findings=(replace(first, alone_ms=0.7 * first.cost_ms, together=None), *right.findings[1:]))
    assert "save 70% of what it says" in next(broken(dear))
    failed = RuleOutcome("straggler", "error", "It fails.")
    assert list(broken(replace(right, outcomes=(failed,), contradictions=("They disagree.",)))) == [
        "They disagree.",
        "straggler failed: It fails.",
    ]


def test_a_floor_below_its_work_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = engine.diagnose(DEMO[0], reading=engine.Reading(cache=Cache(None)))
    monkeypatch.setattr(WhatIf, "step_ns", lambda self, change: self.recorded_ns // 100)
    assert floor_is_below_its_work(result)
