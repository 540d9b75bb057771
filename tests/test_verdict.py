"""Healthy is earned: what findings and nothing explain together stays below a share of the step."""

from __future__ import annotations

import msgspec
import pytest
from traces import finding, job, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.account.headline import headline
from tb_ddp_doctor.account.verdict import Verdict, verdict
from tb_ddp_doctor.findings import Account, AccountLine, Finding, LineKind, Together
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import Fault

FAST = """
    rank# step |1
          host [fwd]
          gpu  [fwd....]
          nccl          [ar..............]
"""
SLOW = """
    rank# step |1
          host [fwd]
          gpu  [fwd..............]
          nccl                    [ar....]
"""
TEXT = ranks(FAST, FAST, SLOW)


def judged(unexplained: float, cost: float, severity: str, tracing: float = 0.0, cause: str = "host") -> Verdict:
    """The verdict where a finding, the unexplained rest and tracing take these shares of the step."""
    given = job(TEXT)
    step_ms = given.step_ns / 1e6
    found: Finding = msgspec.structs.replace(
        finding("straggler", TEXT), severity=severity, cost_ms=cost * step_ms, cause=cause
    )

    def line(kind: LineKind, share: float, name: str | None = None) -> AccountLine:
        return AccountLine(kind, name, round(share * 1e9), share * step_ms, share)

    lines = (
        line("floor", 1 - unexplained - cost - tracing),
        line("tracing", tracing),
        line("finding", cost, found.id),
        line("unexplained", unexplained),
    )
    account = Account(method="replay", total_ns=10**9, lines=lines, unexplained=None, left_out=())
    return verdict(given, [found], account, (), unrecognised=None, lacking=())


@pytest.mark.parametrize(
    ("unexplained", "cost", "severity", "said"),
    [
        (0.05, 0.005, "info", "healthy"),
        (0.047, 0.02, "info", "unexplained"),
        (0.03, 0.029, "info", "healthy"),
        (0.02, 0.20, "critical", "straggler"),
        (0.07, 0.20, "critical", "straggler"),
        (0.20, 0.07, "minor", "unexplained"),
        (0.029, 0.0295, "info", "healthy"),
        (0.0329, 0.0332, "info", "straggler"),
        (0.0605, 0.0, "info", "healthy"),  # within the error of a replay
    ],
)
def test_what_is_not_healthy_is_named_for_what_costs_most(
    unexplained: float, cost: float, severity: str, said: str
) -> None:
    assert judged(unexplained, cost, severity).name == said


def test_what_slow_ranks_without_a_cause_take_is_unexplained() -> None:
    said = judged(0.01, 0.20, "info", cause="unknown")
    assert said.name == "unexplained"
    assert "(21 %) is unexplained: rank 2 is slower than the median rank in the replay. To learn more" in said.headline
    assert judged(0.01, 0.02, "info", cause="unknown").name == "healthy"


def test_the_verdict_is_what_binds_first_where_the_costliest_fix_alone_saves_nothing() -> None:
    given, found = job(TEXT), finding("straggler", TEXT)
    step_ms = given.step_ns / 1e6
    first = msgspec.structs.replace(found, cost_ms=0.1 * step_ms, alone_ms=0.1 * step_ms)
    hidden = msgspec.structs.replace(
        found, id="no-tensor-cores", rule="no-tensor-cores", cost_ms=0.3 * step_ms, alone_ms=0.0, headline="GEMMs"
    )
    lines = (*(AccountLine(kind, None, 0, 0.0, 0.0) for kind in ("floor", "tracing", "unexplained")),)
    account = Account(method="replay", total_ns=10**9, lines=lines, unexplained=None, left_out=())

    def judge(*together: str, alone: float = 0.0, first: Finding = first) -> Verdict:
        together_with = Together(together, 0.4 * step_ms, "Together.") if together else None
        worst = msgspec.structs.replace(hidden, together=together_with, alone_ms=alone * step_ms)
        return verdict(given, [worst, first], account, (), unrecognised=None, lacking=())

    binding = judge("straggler")
    assert binding.name == "straggler" and " Behind it, no-tensor-cores costs " in binding.rest
    small = msgspec.structs.replace(first, alone_ms=0.05 * step_ms)
    for other in (judge("straggler", alone=0.05), judge("straggler", first=small), judge("another"), judge()):
        assert other.name == "no-tensor-cores" and "Behind" not in other.headline


def test_a_finding_that_names_no_ranks_has_a_headline() -> None:
    """Recording is an estimate of the whole job: no rank need lose time to it."""
    fault = Fault(Change(), "high", "", "", "", (), ranks=(), steps=(1,))
    said = headline(CATALOGUE["profiler-overhead"], fault, 1e6, job(TEXT))
    assert said and said.sentence.startswith("Tracing costs 1.0 ms of ")


def test_healthy_says_how_much_of_the_step_is_floor() -> None:
    step_ms = job(TEXT).step_ns / 1e6
    assert judged(0.01, 0.01, "info").headline == f"Healthy: {0.98 * step_ms:.1f} of {step_ms:.1f} ms is floor."
    said = judged(0.01, 0.01, "info", tracing=0.25).headline
    assert said == f"Healthy: {0.73 * step_ms:.1f} of {step_ms:.1f} ms is floor, {0.25 * step_ms:.1f} ms are tracing."


def test_a_job_is_not_healthy_where_all_wait_for_a_rank_that_no_finding_names() -> None:
    # Each rank sums another number of elements, so no rank can be compared with its like, and none is a straggler.
    given = job(ranks(*(drawn.replace("[ar..", f"[ar@{size}") for size, drawn in enumerate((FAST, FAST, SLOW), 1))))

    diagnosis = engine.examine(given)

    assert diagnosis.contradictions and diagnosis.contradictions[0] in diagnosis.headline
    assert (diagnosis.verdict, diagnosis.headline[:8]) == ("unknown", "No fault")


KINDS = ("ar", "ag", "rs", "a2a")
#: Four ranks, each on a node of its own, the last one slow: none has the calls of another; the slow one has others;
#: its calls are lost.
NOT_COMPARABLE = {
    "each has other calls": [
        drawn.replace("[ar", f"[{kind}") for kind, drawn in zip(KINDS, (FAST, FAST, FAST, SLOW), strict=True)
    ],
    "the slow one has other calls": [FAST, FAST, FAST, SLOW.replace("[ar", "[ag")],
    "the slow one's calls are lost": [FAST, FAST, FAST, SLOW[: SLOW.index("nccl")].rstrip() + "\n"],
}


@pytest.mark.parametrize("drawn", NOT_COMPARABLE.values(), ids=NOT_COMPARABLE)
def test_where_ranks_cannot_be_compared_none_is_accused_for_sure_and_the_job_is_not_healthy(drawn: list[str]) -> None:
    diagnosis = engine.examine(job(ranks(*drawn, steps=3)))
    assert diagnosis.verdict != "healthy"
    loud = [one for one in diagnosis.findings if one.severity != "info" and one.rule != "missing-straggler"]
    assert {one.confidence for one in loud} <= {"low"}


def test_what_is_said_beside_a_verdict_is_its_rest() -> None:
    """A heading is one sentence: what roles of reinforcement learning wait for stands below it, of healthy jobs too."""
    rollout = """
        rank# host   [own_generate_sequences...........]
              within [attend][sync..............] [sync]
              gpu      [attend..................]
              nccl                               [bc...]
    """
    update = rollout.replace("generate_sequences", "update_actor......").replace("attend", "fwd...")
    healthy = engine.examine(job(ranks(rollout, rollout, update, update)))
    assert healthy.verdict == "healthy" and healthy.headline.endswith(healthy.headline_rest)
    assert healthy.headline_rest.startswith(" This job does reinforcement learning. Roles: rollout on ranks 0 and 1 (")
    text = "rank0 host [own_context_0_generation_8.....]\n      within  [fwd]\n      gpu     [fwd.........]"
    server = engine.examine(job(text, world_size=1))
    assert server.headline == f"This program serves requests and does not train.{server.headline_rest}"
    assert server.headline_rest.startswith(" In one iteration of ")
