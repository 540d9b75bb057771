"""Whatever a job is like, no rule fails, and what a rule says is of that job."""

from __future__ import annotations

import dataclasses
import math
import re
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from random_traces import OF_JOBS, TRACES, joined, launched, trace
from test_catalogue import STALLED, drawn
from test_straggler import TAKING_TURNS
from traces import job, ranks

from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import Rule, configured, run
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.trace.times import MAX_NS

#: A time of a step's, as sentences have it.
OF_EVERY = re.compile(r"([\d.,]+) ms of (?:every )?([\d.,]+) ms")


def eager(rule: Rule) -> Rule:
    """The rule, with nothing too small for it; how often it must be seen stays."""
    least = [
        field.name for field in dataclasses.fields(rule) if field.name.startswith("min_") and field.name != "min_steps"
    ]
    return dataclasses.replace(rule, **dict.fromkeys(least, 0.0))


def examined(traces: list[RankTrace]) -> None:
    found = joined([digest(trace) for trace in traces])
    if not found:
        return
    facts = Facts(found)
    for rules in (CATALOGUE.values(), map(eager, CATALOGUE.values())):
        results = [result for rule in rules if (result := run(rule, facts)[1])]
        for finding in Savings(results, facts.get(whatif), found).findings:
            assert math.isfinite(finding.cost_ms) and finding.cost_ms >= 0
            assert set(finding.ranks) <= set(found.ranks.tolist())
            assert set(finding.steps) <= set(found.steps.tolist())
            assert all(is_of(found, window) for window in finding.evidence)
            said = f"{finding.title} {finding.headline} {finding.why}"
            assert all(float(some) <= float(every) for some, every in OF_EVERY.findall(said.replace(",", ""))), said


def is_of(job: Job, window: Evidence) -> bool:
    """Whether evidence lies in the step of the rank that it names."""
    rank, step = job.ranks.tolist().index(window.rank), job.steps.tolist().index(window.step)
    start = int(job.budget.start_ns[rank, step])
    return start <= window.start_ns <= window.end_ns <= start + int(job.budget.window_ns[rank, step])


@cache
def set_by_users(rule: Rule) -> st.SearchStrategy[Rule]:
    """The rule with some of its thresholds at values that a user may set, the ends of what is allowed among them."""
    values = {}
    for field in dataclasses.fields(rule):
        least, most = field.metadata["least"], min(field.metadata["most"], 1e300)
        ends = st.sampled_from([least, most])
        values[field.name] = st.just(getattr(rule, field.name)) | ends | st.floats(least, most)
    return st.fixed_dictionaries(values).map(partial(configured, rule))


#: Something for every rule to look at, and little for any.
JOBS = [Facts(given) for given in (drawn(), job(ranks(STALLED)), job("host [a]"), job(TAKING_TURNS))]


@pytest.mark.parametrize("rule", CATALOGUE.values(), ids=list(CATALOGUE))
@settings(max_examples=40)
@given(data=st.data())
def test_no_rule_fails_whatever_its_thresholds(rule: Rule, data: st.DataObject) -> None:
    chosen = data.draw(set_by_users(rule))
    for facts in JOBS:
        run(chosen, facts)


@OF_JOBS
@given(st.data(), st.lists(TRACES, min_size=1, max_size=4))
def test_no_rule_fails_on_any_job_whatever_its_thresholds(data: st.DataObject, traces: list[RankTrace]) -> None:
    found = joined([digest(trace) for trace in traces])
    if found:
        facts = Facts(found)
        for rule in CATALOGUE.values():
            run(data.draw(set_by_users(rule)), facts)


#: A GEMM of 1 ns in one of two steps: some time, and none that a rank has in the mean.
SHORT = launched([(8, 1, 0, 1, False), (8, 1, 0, 1, False), (8, 40, 0, 1, False), (19, 1, 0, 1, False)], [])


@OF_JOBS
@example([trace([], device=False), trace(SHORT, device=True)])
@given(st.lists(TRACES, min_size=1, max_size=4))
def test_no_rule_fails_on_any_job(traces: list[RankTrace]) -> None:
    examined(traces)


@OF_JOBS
@given(st.lists(TRACES, min_size=2, max_size=3), st.lists(st.integers(0, MAX_NS), min_size=3, max_size=3))
def test_no_rule_fails_whatever_the_clocks_say(traces: list[RankTrace], epochs: list[int]) -> None:
    examined(
        [
            replace(trace, events=replace(trace.events, start_ns=trace.events.start_ns + epoch))
            for trace, epoch in zip(traces, epochs, strict=False)
        ]
    )


@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3), st.integers(0, 16))
def test_no_rule_fails_on_times_as_long_as_they_can_be(traces: list[RankTrace], scale: int) -> None:
    factor = np.int64(MAX_NS // 100 // 10**scale)
    examined(
        [
            replace(
                trace,
                events=replace(
                    trace.events,
                    start_ns=trace.events.start_ns * factor,
                    duration_ns=trace.events.duration_ns * factor,
                ),
            )
            for trace in traces
        ]
    )
