"""What the doctor says of five real jobs. Renew with `python tests/generate.py`, and read the difference."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis

REPOSITORY = Path(__file__).parents[1]
DEMO = REPOSITORY / "demo_logs"
GOLDEN = Path(__file__).parent / "golden" / "demo_logs.json"


@cache
def diagnose(name: str) -> Diagnosis:
    (run,) = discover(DEMO / name)
    return engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).diagnosis


def essence(diagnosis: Diagnosis) -> dict[str, Any]:
    """What must not change unnoticed, rounded so that it does not depend on the machine."""
    return {
        "verdict": diagnosis.verdict,
        "ranks": list(diagnosis.ranks),
        "steps": list(diagnosis.steps),
        "step_ms": round(diagnosis.step_ms, 1),
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "cause": finding.cause,
                "ranks": list(finding.ranks),
                "steps": list(finding.steps),
                "cost_ms": round(finding.cost_ms, 1),
                "confidence": finding.confidence,
                "title": finding.title,
            }
            for finding in diagnosis.findings
        ],
        "outcomes": {outcome.rule: outcome.status for outcome in diagnosis.outcomes},
        "warnings": [warning.message for warning in diagnosis.warnings],
    }


def names() -> list[str]:
    return sorted(path.name for path in DEMO.iterdir() if any(path.glob("*.pt.trace.json.gz")))


@pytest.mark.parametrize("name", names())
def test_a_demo_job_is_diagnosed_as_before(name: str) -> None:
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    assert essence(diagnose(name)) == golden.get(name), (
        "if it is better now, run: python tests/generate.py, and look at the difference"
    )


def test_the_golden_findings_are_of_the_demo_jobs() -> None:
    assert sorted(json.loads(GOLDEN.read_text())) == names()
