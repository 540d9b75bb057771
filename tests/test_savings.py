"""What fixes save, and the account: numbers that stand in different places agree, whatever the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import reduce
from operator import or_

import numpy as np
import pytest
from examples import EXAMPLES
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from random_jobs import FaultyJob, Work, faulty_jobs
from random_traces import OF_JOBS, TRACES, joined
from traces import job as drawn
from traces import ranks

from tb_ddp_doctor import examination
from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import CpuTime, RankDigest
from tb_ddp_doctor.digest.spending import SPENDING
from tb_ddp_doctor.findings import OWNERS, Account
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import Fault, RuleFaults

#: Of the step: what some fixes may give back more than all together, in the replay.
_MISSED = 0.02
DIGESTS = TRACES.map(digest)


def test_a_slow_rank_beside_one_that_is_only_info_saves_what_it_saves_alone() -> None:
    steady, late = Work(29, 0, 10, 16), Work(29, 0, 14, 16)
    slow, others = (Work(37, 0, 10, 16),) * 3, (steady,) * 3
    drawing = FaultyJob(work=(slow, (steady, late, late), others, others), transfer=(4, 4, 4)).drawing
    _, savings = examination.examine(drawn(drawing), CATALOGUE.values(), {})
    severities = {one.id: one.severity for one in savings.findings if one.rule == "straggler"}
    assert severities == {"straggler:1": "minor", "straggler:2": "info"}
    prospect = savings.without(["straggler:1"])
    alone = next(one.alone_ms for one in savings.findings if one.id == "straggler:1")
    assert prospect.step_ms - prospect.without_ms == pytest.approx(alone, abs=1e-5)


def savings_of(ranks: list[RankDigest]) -> Savings:
    job = joined(ranks)
    assume(job is not None)
    assert job is not None
    return examination.examine(job, CATALOGUE.values(), {})[1]


def prefixed(account: Account) -> list[int]:
    return [line.total_ns for line in account.lines]


@settings(OF_JOBS, suppress_health_check=list(HealthCheck))
@given(st.lists(DIGESTS, min_size=1, max_size=4))
def test_costs_account_and_what_if_agree(ranks: list[RankDigest]) -> None:
    savings = savings_of(ranks)
    found, account = savings.findings, savings.account
    assert sum(prefixed(account)) == account.total_ns
    assert min(prefixed(account)) >= 0
    for finding in found:
        assert finding.range_ms[0] <= finding.cost_ms <= finding.range_ms[1]
        if finding.rule != "profiler-overhead":
            alone = savings.without([finding.id])
            assert alone.range_ms[0] <= alone.without_ms <= alone.range_ms[1]
    together = savings.without([finding.id for finding in found])
    costs = sum(finding.cost_ms for finding in found)
    everything = {name for each in savings.everything for name in [each.rule.id]}
    if everything == {finding.rule for finding in found}:
        assert together.step_ms - together.without_ms == pytest.approx(costs, abs=1e-5)


@settings(OF_JOBS, suppress_health_check=list(HealthCheck))
@given(st.lists(DIGESTS, min_size=1, max_size=3))
def test_one_finding_alone_is_what_it_says(ranks: list[RankDigest]) -> None:
    savings = savings_of(ranks)
    for finding in savings.findings:
        if finding.rule != "profiler-overhead":
            prospect = savings.without([finding.id])
            assert prospect.step_ms - prospect.without_ms == pytest.approx(finding.alone_ms, abs=1e-5)


@settings(OF_JOBS, suppress_health_check=list(HealthCheck))
@given(faulty_jobs(), st.data())
def test_numbers_of_a_faulty_job_agree(faulty: FaultyJob, data: st.DataObject) -> None:
    """Costs sum to what fixing all gives, each lies in its range, and what-if says what findings and account say."""
    diagnosis, savings = examination.examine(drawn(faulty.drawing), CATALOGUE.values(), {})
    found, account = diagnosis.findings, diagnosis.account
    lines = prefixed(account)
    assert sum(lines) == account.total_ns
    assert min(lines) >= 0
    traced = account.line("tracing").ms
    costs = {finding.id: finding.cost_ms for finding in found if finding.rule != "profiler-overhead"}
    explained = [line.ms for line in account.lines if line.kind == "finding"]
    assert sum(costs.values()) == pytest.approx(sum(explained), abs=1e-5)
    for finding in found:
        assert finding.range_ms[0] <= finding.cost_ms <= finding.range_ms[1]
        assert finding.cost_ms <= diagnosis.step_ms

    def saved(chosen: Collection[str]) -> float:
        prospect = savings.without(chosen)
        assert prospect.range_ms[0] <= prospect.without_ms <= prospect.range_ms[1]
        assert prospect.step_ms == pytest.approx(diagnosis.step_ms, abs=1e-5)
        return prospect.step_ms - prospect.without_ms

    assert saved(costs) == pytest.approx(sum(costs.values()), abs=1e-5)
    assert saved([]) == 0
    serious = [one.id for one in found if one.severity != "info"]
    assert saved(serious) == pytest.approx(sum(costs[one] for one in serious), abs=1e-5)
    chosen = data.draw(st.sets(st.sampled_from(sorted(costs) or ["none"])))
    some = saved(chosen)
    assert some == saved(sorted(chosen, reverse=True))
    assert 0 <= some <= diagnosis.step_ms - traced + 1e-5
    # The floor has nothing left that a fix gives back, whichever it is.
    assert some <= diagnosis.step_ms - traced - account.line("floor").ms + _MISSED * diagnosis.step_ms
    for finding in found:
        if finding.rule != "profiler-overhead":
            assert saved([finding.id]) == pytest.approx(finding.alone_ms, abs=1e-5)
    for finding in (one for one in found if one.severity != "info"):
        with_others = finding.together.findings if finding.together else ()
        gain = saved([finding.id, *with_others])
        assert gain >= 0.8 * finding.cost_ms - 1e-5
        assert finding.together is None or gain == pytest.approx(finding.together.saved_ms, abs=1e-5)


@st.composite
def jobs_of_one_fault(draw: st.DrawFn) -> FaultyJob:
    """Jobs in which one thing takes longer, on some ranks and in some steps."""
    ranks, steps = draw(st.integers(2, 4)), draw(st.integers(3, 5))
    kind, longer = draw(st.sampled_from(["load", "stall", "forward", "backward"])), draw(st.integers(1, 60))
    slow = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    when = draw(st.sets(st.integers(0, steps - 1), min_size=1) | st.just(set(range(steps))))
    usual = Work()
    faulty = dataclasses.replace(usual, **{kind: getattr(usual, kind) + longer})
    work = [[faulty if rank in slow and step in when else usual for step in range(steps)] for rank in range(ranks)]
    return FaultyJob(tuple(map(tuple, work)), (4,) * steps)


@settings(OF_JOBS, suppress_health_check=list(HealthCheck))
@given(jobs_of_one_fault())
def test_what_one_owner_phase_and_set_of_ranks_holds_is_never_unexplained(faulty: FaultyJob) -> None:
    """The verdict is a rule's wherever one place holds most of what the account would call unexplained."""
    diagnosis, savings = examination.examine(drawn(faulty.drawing), CATALOGUE.values(), {})
    assert diagnosis.verdict != "unexplained" or savings.share_of_named_owner < 0.5


def test_without_rules_one_owner_holds_what_one_fault_takes() -> None:
    slow = dataclasses.replace(Work(), forward=40)
    text = FaultyJob((((Work(),) * 3), ((slow,) * 3), ((Work(),) * 3)), (4, 4, 4)).drawing
    diagnosis, savings = examination.examine(drawn(text), [], {})
    assert diagnosis.verdict == "unexplained"
    assert diagnosis.account.unexplained and diagnosis.account.unexplained.ranks == (1,)
    assert 0.8 < savings.share_of_named_owner <= 1


def test_findings_that_hide_each_other_save_less_alone_than_they_are_charged_with() -> None:
    """Rank 1 loads for longer in one step, and rank 0 computes for longer in all."""
    usual, slow = Work(6, 0, 10, 16), Work(7, 0, 12, 16)
    faulty = FaultyJob(
        ((slow, slow, dataclasses.replace(slow, load=6)), (dataclasses.replace(usual, load=19), usual, usual)),
        (4, 4, 4),
    )
    savings = examination.examine(drawn(faulty.drawing), CATALOGUE.values(), {})[1]
    hiding = [each.rule.id for each in savings.everything if each.hides_with]
    found = [finding for finding in savings.findings if finding.rule in hiding]
    assert len(found) == 2 and all(finding.alone_ms < finding.cost_ms for finding in found)
    for finding in found:
        alone = savings.without([finding.id])
        assert alone.step_ms - alone.without_ms == pytest.approx(finding.alone_ms, abs=1e-5)
        assert finding.together and "binds first; together they save" in finding.together.sentence
        assert finding.together.sentence in finding.why


def test_what_a_rank_has_beyond_the_others_goes_beside_what_all_share() -> None:
    own = Change({CpuTime.INPUT: np.array([[0.6], [0.0]])})
    shared = Change(shared={CpuTime.INPUT: np.array([[0.4], [1.0]])})
    both = reduce(or_, [own, shared])
    assert both.of_host[CpuTime.INPUT].tolist() == [[1.0], [1.0]]
    assert own.of_host[CpuTime.INPUT].tolist() == [[0.6], [0.0]]
    assert (own | own).of_host[CpuTime.INPUT].tolist() == [[0.6], [0.0]]
    assert not shared.is_nothing


#: All load for 20 ms, and the device of one rank computes for as long.
EITHER_SIDE = """
    rank# step |1                      |2                      |3
          host [load..............][f.][load..............][f.][load..............][f.]
"""
OTHERS = """
          gpu                      [f.]                    [f.]                    [f.]
          nccl                         [ar................]    [ar................]    [ar................]
"""
SLOW = """
          gpu                      [f.................]    [f.................]    [f.................]
          nccl                                         [ar]                    [ar]                    [ar]
"""


def test_faults_that_hide_each_other_share_what_both_save_by_what_each_saves_last() -> None:
    job = drawn(
        "".join((EITHER_SIDE + lanes).replace("#", str(rank)) for rank, lanes in enumerate((OTHERS, OTHERS, SLOW)))
    )
    found = examination.examine(job, CATALOGUE.values(), {})[1].everything
    loader, slow = (next(each for each in found if each.rule.id == rule) for rule in ("dataloader-stall", "straggler"))
    hiding = [replace(loader, hides_with=("straggler",)), replace(slow, hides_with=("dataloader-stall",))]
    savings = Savings(hiding, WhatIf.of(job), job)
    costs = {finding.rule: finding.cost_ms for finding in savings.findings}
    both = savings.whatif.cost_ns(loader.change | slow.change) / 1e6
    last = {"dataloader-stall": both - savings.whatif.cost_ns(slow.change) / 1e6}
    last["straggler"] = both - savings.whatif.cost_ns(loader.change) / 1e6
    assert costs == pytest.approx({rule: both * part / sum(last.values()) for rule, part in last.items()})
    assert sum(prefixed(savings.account)) == savings.account.total_ns


def test_every_kind_of_cpu_time_has_words_and_an_owner_of_the_step() -> None:
    assert set(SPENDING) == set(CpuTime)
    assert {SPENDING[kind].owner for kind in CpuTime} <= set(OWNERS)


@pytest.mark.parametrize(
    ("rule", "owner"),
    [
        ("no-tensor-cores", "compute"),
        ("dataloader-stall", "input"),
        ("host-stall", "host"),
        ("launch-bound", "dispatch"),
        ("no-overlap", "transfer"),
        ("allocator-churn", "alloc"),
    ],
)
def test_time_that_a_fix_removes_says_whose_it_is(rule: str, owner: str) -> None:
    measurements = EXAMPLES[rule].found(rule).measurements
    removed = [one for one in measurements if "that the fix removes" in one.name]
    assert owner in [one.owner for one in removed]
    assert all((one.owner in OWNERS) if one in removed else one.owner is None for one in measurements)


#: Three GPUs take equally long: as long as one of them does, the fixes of the others save nothing.
EQUALLY_SLOW = ranks(
    *[
        """
    rank# step |1
          host [fwd][ar][sync.............]
          gpu      [fwd..............]
          nccl                        [ar.]
"""
    ]
    * 3
)


def _found(rule: str, rank: int, change: Change, job: Job) -> RuleFaults:
    """What a rule finds on one rank, in all steps."""
    fault = Fault(
        change=change,
        ranks=(rank,),
        steps=tuple(job.steps.tolist()),
        confidence="high",
        title="",
        why="",
        fix="",
        evidence=(),
    )
    return RuleFaults(CATALOGUE[rule], (fault,), change)


def test_a_fix_names_all_that_bind_first_also_what_costs_nothing_itself() -> None:
    job = drawn(EQUALLY_SLOW)
    whatif = WhatIf.of(job)
    assert whatif.plays

    rules = ("unfused-attention", "unfused-optimizer", "no-tensor-cores")
    less = np.zeros((3, *whatif.shape), np.int64)
    less[range(3), range(3)] = 10_000_000
    found = [_found(rule, rank, Change(device_ns=less[rank]), job) for rank, rule in enumerate(rules)]
    savings = Savings(found, whatif, job)
    (costly,) = (one for one in savings.findings if one.cost_ms > 1)
    assert costly.cost_ms == pytest.approx(10, rel=0.1) and costly.alone_ms < 0.1
    assert costly.together and set(costly.together.findings) == set(rules) - {costly.rule}
    assert costly.together.saved_ms == pytest.approx(costly.cost_ms)


def test_what_removes_nothing_does_not_bind_first() -> None:
    """Such as that operator shapes were not recorded."""
    whatif, less = WhatIf.of(job := drawn(EQUALLY_SLOW)), np.zeros((3, 3), np.int64)
    less[0] = 10_000_000
    found = [(rule, Change(device_ns=ns)) for rule, ns in (("unfused-attention", less), ("trace-quality", less * 0))]
    savings = Savings([_found(rule, 0, change, job) for rule, change in found], whatif, job)
    costly, quality = sorted(savings.findings, key=lambda one: one.rule != "unfused-attention")
    costly = replace(costly, severity="major", cost_ms=5.0, alone_ms=0.1)
    assert savings._together(costly, [costly, quality]) is None
