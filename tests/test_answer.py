"""What tab and report get of a run (`view.answer`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.view import answer

DEMO = Path(__file__).parents[1] / "demo_logs"


@pytest.fixture(scope="module")
def result() -> engine.Result:
    (run,) = discover(DEMO / "straggler_cpu")
    return engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))


def test_evidence_has_the_slice_that_shows_it_and_a_finding_its_commands(result: engine.Result) -> None:
    (straggler, *_) = answer.answer(result).diagnosis.findings
    assert any("py-spy dump" in command for command in straggler.commands)
    for evidence in straggler.evidence:
        assert evidence.window
        start, end = map(int, evidence.window.seen)
        assert int(evidence.window.start) < start < end < int(evidence.window.end)
        assert end - start == evidence.end_ns - evidence.start_ns
        assert evidence.rank in evidence.window.ranks


def test_a_report_has_no_slices_but_the_commands(result: engine.Result) -> None:
    shown = answer.answer(result, in_report=True)
    assert shown.views and shown.views.from_digests
    assert all(evidence.window is None for finding in shown.diagnosis.findings for evidence in finding.evidence)
    assert shown.diagnosis.findings[0].commands


def test_without_its_pictures_a_run_still_has_its_diagnosis(
    result: engine.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "views", lambda result, gaps: result["no such key"])
    shown = answer.answer(result)
    assert shown.views is None
    same = msgspec.convert(msgspec.to_builtins(shown.diagnosis), type(result.diagnosis))
    assert same == result.diagnosis


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({}, "critical"),
        ({"verdict": "unknown"}, "info"),
        ({"verdict": "unexplained"}, "info"),
        ({"verdict": "healthy"}, "healthy"),
        ({"verdict": "healthy", "missing_ranks": (3,)}, "info"),
    ],
)
def test_how_the_verdict_is_shown(result: engine.Result, changed: dict[str, Any], level: str) -> None:
    diagnosis = msgspec.structs.replace(result.diagnosis, **changed)
    assert answer.answer(replace(result, diagnosis=diagnosis)).diagnosis.level == level
