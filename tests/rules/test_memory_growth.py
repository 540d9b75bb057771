"""Allocated memory that grows is a finding, whether anybody asks for the memory or not."""

from __future__ import annotations

import pytest
from traces import finding, job, lies_in_its_step, outcome

from tb_ddp_doctor import engine
from tb_ddp_doctor.capture.verdict import line

RULE = "memory-growth"


def growing(steps: int, *, by: int = 1) -> str:
    """A rank whose GPU is busy, and whose forward pass leaves so many GB more in each step."""
    host = "".join(f"|{i + 1}".ljust(40) for i in range(steps))
    work = "".join("[fwd........]           [update...]".ljust(40) for _ in range(steps))
    device = "".join("[fwd.........................][update..]".ljust(40) for _ in range(steps))
    backward = "".join("             [bwd.....]".ljust(40) for _ in range(steps))
    allocated = "".join(f" [{10 + by * i}of90]".ljust(40) for i in range(steps))
    return f"""
        rank0 step     {host}
              host     {work}
              autograd {backward}
              gpu      {device}
              memory   {allocated}
    """


FAULTY = growing(5)
HEALTHY = growing(5, by=0)


def test_memory_that_grows_is_a_finding_with_its_op() -> None:
    found = finding(RULE, FAULTY, allocated_gb=9)
    assert (found.severity, found.cost_ms, found.ranks, found.confidence) == ("info", 0.0, (0,), "high")
    assert found.title == "Rank 0 has 1.0 GB more GPU memory allocated after each step: a leak, if it goes on."
    assert (
        "Seen in 4 steps, each against the one before. Allocated in most steps and not released: aten::fwd (1.0 GB)."
        in (found.why)
    )
    (window,) = found.evidence
    assert window.step == 5 and lies_in_its_step(window, FAULTY, allocated_gb=9)


def test_it_stands_among_the_findings_of_a_diagnosis() -> None:
    diagnosis = engine.examine(job(FAULTY, allocated_gb=9))
    assert RULE in [found.rule for found in diagnosis.findings]


def test_the_line_of_a_capture_says_it_beside_healthy() -> None:
    said = line(engine.examine(job(FAULTY, allocated_gb=9)))
    assert "Healthy" in said and said.endswith("after each step: a leak, if it goes on.")
    assert "leak" not in line(engine.examine(job(HEALTHY, allocated_gb=9)))


def test_when_the_device_is_full_is_said_where_its_size_is_known() -> None:
    assert "the GPU's 190.0 GB are full in about 100 steps" in finding(RULE, FAULTY, allocated_gb=9, device_gb=190).why
    assert "full in" not in finding(RULE, FAULTY, allocated_gb=9).why


def test_few_steps_lower_the_confidence() -> None:
    assert finding(RULE, growing(3), allocated_gb=9).confidence == "medium"


def test_steady_memory_is_clear() -> None:
    assert outcome(RULE, HEALTHY, allocated_gb=9).status == "clear"


@pytest.mark.parametrize("steps", [1, 2])
def test_too_few_steps_do_not_show_growth(steps: int) -> None:
    assert outcome(RULE, growing(steps), allocated_gb=9).status == "clear"


def test_without_the_allocators_events_it_is_not_applicable() -> None:
    text = "\n".join(line for line in FAULTY.splitlines() if "memory" not in line)
    result = outcome(RULE, text)
    assert result.status == "not-applicable" and "profile_memory=True" in result.reason
