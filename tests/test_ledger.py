"""One thing has one number in the JSON, the terminal, Markdown, what-if and comparisons.

Of the demo's jobs, of those that the rules' pages draw, and of random jobs with faults. `benchmarks/ledger.py` asks the
same of recorded ones, and test_tab_numbers.py of what the tab shows in several places.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from examples import EXAMPLES
from hypothesis import given, settings
from msgspec.structs import replace
from random_jobs import FaultyJob, faulty_jobs
from traces import job

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import Run, discover

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from ledger import compared_costs, contradictions, contradictions_of

DEMO = discover(Path(__file__).parent.parent / "demo_logs")


def diagnosed(run: Run) -> engine.Result:
    return engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))


@pytest.mark.parametrize("run", DEMO, ids=[run.name for run in DEMO])
def test_a_job_of_the_demo_has_one_number_for_one_thing(run: Run) -> None:
    result = diagnosed(run)
    assert not list(contradictions(result))
    assert not list(compared_costs(diagnosed(DEMO[0]), result))


@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_drawn_job_has_one_number_for_one_thing(rule: str) -> None:
    assert not list(contradictions_of(EXAMPLES[rule].diagnosed(faulty=True)))


@settings(max_examples=25, deadline=None)
@given(faulty_jobs())
def test_a_random_job_has_one_number_for_one_thing(drawn: FaultyJob) -> None:
    assert not list(contradictions_of(engine.examine(job(drawn.drawing))))


def test_two_numbers_for_one_thing_are_said() -> None:
    right = EXAMPLES["straggler"].diagnosed(faulty=True)
    first = right.findings[0]
    other = replace(first, cost_ms=first.cost_ms + 1, title="The GPUs idle 2.0 ms of every 9.0 ms.")
    said = " ".join(contradictions_of(replace(right, findings=(other, *right.findings[1:]))))
    assert "in the account" in said and "The headline says" in said and "a step of 9.0 ms is said" in said
    said = " ".join(contradictions_of(replace(right, step_ms=right.step_ms + 1)))
    assert "The budgets of ranks" in said and "The headline's step" in said


def test_evidence_of_an_idle_gpu_that_is_busy_is_said() -> None:
    result = diagnosed(next(run for run in DEMO if run.name == "straggler_cpu"))
    first = result.diagnosis.findings[0]
    seen = first.evidence[0]
    longer = replace(
        seen, what="GPU idle, CPU outside any op.", end_ns=seen.end_ns + (seen.end_ns - seen.start_ns) // 10
    )
    findings = (replace(first, evidence=(longer,)), *result.diagnosis.findings[1:])
    said = list(contradictions(replace(result, diagnosis=replace(result.diagnosis, findings=findings))))
    assert len(said) == 1 and "where its GPU is busy" in said[0], said
