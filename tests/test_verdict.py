"""Healthy is earned: what findings and nothing explain together stays below a share of the step."""

from __future__ import annotations

import msgspec
import pytest
from traces import finding, job, ranks

from tb_ddp_doctor.findings import Account, AccountLine, Finding, LineKind
from tb_ddp_doctor.rules.support.verdict import verdict

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


def judged(unexplained: float, cost: float, severity: str) -> str:
    """The verdict where a finding costs that share of the step, and that share is unexplained."""
    given = job(TEXT)
    step_ms = given.step_ns / 1e6
    found: Finding = msgspec.structs.replace(finding("straggler", TEXT), severity=severity, cost_ms=cost * step_ms)

    def line(kind: LineKind, share: float, name: str | None = None) -> AccountLine:
        return AccountLine(kind, name, round(share * 1e9), share * step_ms, share)

    lines = (
        line("floor", 1 - unexplained - cost),
        line("tracing", 0.0),
        line("finding", cost, found.id),
        line("unexplained", unexplained),
    )
    account = Account(method="replay", total_ns=10**9, lines=lines, unexplained=None, left_out=())
    return verdict(given, [found], account, (), unrecognised=None, lacking=()).name


@pytest.mark.parametrize(
    ("unexplained", "cost", "severity", "said"),
    [
        (0.05, 0.005, "info", "healthy"),
        (0.045, 0.02, "info", "unexplained"),
        (0.03, 0.029, "info", "healthy"),
        (0.02, 0.20, "critical", "straggler"),
        (0.07, 0.20, "critical", "straggler"),
        (0.20, 0.07, "minor", "unexplained"),
        (0.029, 0.0295, "info", "healthy"),
        (0.0299, 0.0302, "info", "straggler"),
    ],
)
def test_what_is_not_healthy_is_named_for_what_costs_most(
    unexplained: float, cost: float, severity: str, said: str
) -> None:
    assert judged(unexplained, cost, severity) == said
