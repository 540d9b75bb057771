"""What the doctor says of five real jobs. Renew with `python tests/generate.py`, and read the difference."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import golden_digests
import msgspec
import numpy as np
import pytest

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.digest.model import MEANING, RankDigest
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


@pytest.fixture(scope="module")
def columns() -> dict[str, str]:
    return golden_digests.columns()


def test_a_digest_means_what_its_number_says(columns: dict[str, str]) -> None:
    others = golden_digests.changed(columns)
    assert not others, golden_digests.CHANGED.format(", ".join(others))


def test_the_recorded_digests_are_of_todays_columns_and_meaning(columns: dict[str, str]) -> None:
    meaning, before = golden_digests.recorded()
    assert (meaning, set(before)) == (MEANING, set(columns)), golden_digests.STALE


def test_golden_traces_have_something_in_every_table(columns: dict[str, str]) -> None:
    """A table that is empty in all golden traces could change unnoticed."""
    empty = {
        name
        for name in RankDigest.__struct_fields__
        if all(_is_empty(getattr(digest, name)) for digest in golden_digests.digests())
    }
    assert empty == {"source"}


def _is_empty(value: Any) -> bool:
    if isinstance(value, msgspec.Struct):
        return all(_is_empty(getattr(value, name)) for name in value.__struct_fields__)
    return not np.any(value) if isinstance(value, np.ndarray) else not value
