"""Commands to be pasted into a shell: real ones, for faults that there are, and with nothing in them from a trace."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from msgspec.structs import replace
from traces import job

from tb_ddp_doctor.findings import Evidence, Finding
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.view import commands

JOB = job("rank0 gpu [a]\nrank1 gpu [a]")
HOSTILE = ["; rm -rf ~", "$(reboot)", "`reboot`", "1\nreboot", "1 && reboot", "\u0661\u0662", "-1", "", "9" * 11, "1e3"]


def with_pid(pid: str) -> Job:
    """A job of two ranks whose traces name this process."""
    digests = tuple(replace(digest, pid=pid) for digest in JOB.digests)
    return replace(JOB, digests=digests)


def a_finding(rule: str = "straggler", cause: str | None = "host", **changed: Any) -> Finding:
    evidence = (Evidence(0, 0, 0, 1, "Waits for rank 1."), Evidence(1, 0, 0, 1, "Is late."))
    cost = (1.0, 1.0, (1.0, 1.0))
    made = Finding(rule, rule, "major", *cost, (1,), (0,), cause, "high", "title", "headline", "why", "fix", evidence)
    return made if not changed else Finding(**{name: getattr(made, name) for name in made.__struct_fields__} | changed)


EACH = sorted(commands._BY_RULE, key=str)


@pytest.mark.parametrize(("rule", "cause"), EACH)
def test_each_is_of_a_rule_and_a_cause_that_there_are(rule: str, cause: str | None) -> None:
    assert rule in CATALOGUE
    if cause is not None:
        documented = type(CATALOGUE[rule]).__doc__ or ""
        assert f"`{cause}`" in documented


@pytest.mark.parametrize("pid", HOSTILE)
@pytest.mark.parametrize(("rule", "cause"), EACH)
def test_nothing_of_a_trace_gets_into_a_shell_but_digits(rule: str, cause: str | None, pid: str) -> None:
    usual = commands.commands(with_pid("427"), a_finding(rule, cause))
    hostile = commands.commands(with_pid(pid), a_finding(rule, cause))
    assert usual
    assert [line.replace("427", "PID") for line in usual] == hostile
    for line in usual:
        # One command of plain words: a shell finds nothing in it to expand, to chain or to redirect.
        assert re.fullmatch(r"[A-Za-z0-9 _=.,/-]+", line)
        assert line.split() == shlex.split(line)


def test_the_accused_rank_is_named_and_not_the_one_that_waits() -> None:
    lines = commands.commands(with_pid("427"), a_finding())
    assert "py-spy dump --pid 427" in lines
    assert any("--output rank1.svg" in line for line in lines)


def test_without_evidence_the_first_rank_is_looked_at() -> None:
    assert any("rank1.svg" in line for line in commands.commands(with_pid("427"), a_finding(evidence=())))
    assert commands.commands(with_pid("427"), a_finding(evidence=(), ranks=())) == []


def test_each_cause_has_its_tools() -> None:
    def tools(rule: str, cause: str | None = None) -> set[str]:
        return {re.sub(r"^(\w+=\S+ )+", "", line).split()[0] for line in commands.commands(JOB, a_finding(rule, cause))}

    assert tools("straggler", "slow_device") == {"nvidia-smi"}
    assert tools("straggler", "host") == {"py-spy", "nvidia-smi"}
    assert tools("straggler", "input") == tools("dataloader-stall") == {"py-spy"}
    assert {"all_reduce_perf", "torchrun", "nvidia-smi"} == tools("slow-link") == tools("straggler", "slow_link")
    assert tools("no-overlap") == {"torchrun"}


def test_what_no_tool_outside_of_the_trace_confirms_has_none() -> None:
    assert commands.commands(JOB, a_finding("trace-quality", None)) == []


def test_another_recording_is_asked_for_what_the_traces_lack() -> None:
    """On the finding's ranks and one to compare with; for longer where it was seen seldom."""
    told = commands.recording(JOB, a_finding())
    assert told and told.command == "ddp-doctor capture LOGDIR --ranks 0,1 --steps 20 --stacks"
    assert "Python stacks" in told.why and "1 of 1" in told.why
    of_memory = commands.recording(JOB, a_finding("allocator-churn", None))
    assert of_memory and of_memory.command.endswith("--steps 20 --memory")


def test_no_other_recording_where_it_would_tell_no_more() -> None:
    steps = "rank# step |1   |2   |3\n      host [a]  [a]  [a]\n      python [step........]\n      gpu [a]  [a]  [a]"
    long = job("\n".join(steps.replace("#", str(rank)) for rank in (0, 1)))
    every = tuple(long.steps.tolist())
    assert commands.recording(long, a_finding("slow-link", None, steps=every)) is None
    assert commands.recording(long, a_finding(steps=every)) is None
    seldom = commands.recording(long, a_finding("slow-link", None, steps=every[:1]))
    assert seldom and "1 of 3" in seldom.why


@pytest.mark.parametrize("rule", sorted(commands._OF_CODE | commands._OF_MEMORY))
def test_recordings_are_of_rules_that_there_are(rule: str) -> None:
    assert rule in CATALOGUE
