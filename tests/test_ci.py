"""What CI servers read: JUnit XML and annotations of GitHub Actions."""

from __future__ import annotations

import os
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from traces import ranks, write

from tb_ddp_doctor.cli import main

HEALTHY = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar................]
"""
SLOW = """
    rank# step |1
          gpu  [fwd....................][bwd.]
          nccl                                [ar]
"""
QUIET = """
    rank# step |1
          gpu  [fwd..................][bwd.................]
          nccl                                              [ar]
"""
QUICK_TWICE = """
    rank# step |1                             |2
          gpu  [fwd..............][bwd.]      [fwd..............][bwd.]
          nccl                          [ar..]                         [ar..]
"""
SLOW_TWICE = """
    rank# step |1                             |2
          gpu  [fwd................][bwd.]    [fwd................][bwd.]
          nccl                            [ar]                           [ar]
"""
STUCK = Path(__file__).parent / "flight_recorder" / "gpu_error_1st"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_DOCTOR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write(tmp_path / "logs" / "slow", ranks(HEALTHY, SLOW, HEALTHY))
    write(tmp_path / "logs" / "healthy", ranks(QUIET, QUIET))
    return tmp_path / "logs"


def junit(logs: Path, *arguments: str) -> dict[str, ET.Element]:
    """The suites that are written, by run."""
    path = logs.parent / "junit.xml"
    main(["diagnose", str(logs), "--junit", str(path), *arguments])
    return {suite.attrib["name"]: suite for suite in ET.parse(path).getroot()}


def failed(suite: ET.Element, tag: str = "failure") -> list[str]:
    return [test.attrib["name"] for test in suite if test.find(tag) is not None]


def test_a_rule_that_found_a_fault_is_a_failed_test(logs: Path) -> None:
    suites = junit(logs)
    assert (failed(suites["slow"]), failed(suites["healthy"])) == (["straggler"], [])
    (failure,) = suites["slow"].iter("failure")
    assert "Rank 1 is the straggler" in failure.attrib["message"]
    assert "Costs" in str(failure.text) and "Fix: " in str(failure.text)


def test_tests_are_counted_as_they_are(logs: Path) -> None:
    for suite in junit(logs).values():
        counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "skipped", "errors")}
        assert counts == {
            "tests": len(suite),
            "failures": len(failed(suite)),
            "skipped": len(failed(suite, "skipped")),
            "errors": 0,
        }
        assert 0 < counts["skipped"] < counts["tests"]


@pytest.mark.parametrize(("options", "expected"), [([], []), (["--fail-on", "minor"], ["straggler"])])
def test_what_fails_is_what_fail_on_fails_on(logs: Path, options: list[str], expected: list[str]) -> None:
    write(logs / "minor", ranks(QUICK_TWICE, SLOW_TWICE, QUICK_TWICE))
    assert failed(junit(logs, *options)["minor"]) == expected


def test_a_run_that_cannot_be_diagnosed_is_an_error(logs: Path) -> None:
    (logs / "broken").mkdir()
    (logs / "broken" / "rank0.pt.trace.json").write_text('{"traceEvents": []}')
    suite = junit(logs)["broken"]
    assert failed(suite, "error") == ["verdict"]
    assert next(suite.iter("error")).attrib["message"].startswith("broken: ")


def test_a_job_that_hangs_is_a_failed_test(logs: Path) -> None:
    shutil.copytree(STUCK, logs / "hung")
    assert failed(junit(logs)["hung"]) == ["stuck"]


def test_names_that_xml_cannot_hold_are_written_all_the_same(tmp_path: Path) -> None:
    name = "a\x01<b>&\x1b\ufffe"
    write(tmp_path / "logs" / name, ranks(HEALTHY, SLOW, HEALTHY))
    write(tmp_path / "logs" / "other", ranks(QUIET, QUIET))
    assert any("<b>&" in found for found in junit(tmp_path / "logs"))


def annotated(logs: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["diagnose", str(logs), "--github"]) == 0
    return capsys.readouterr().out.splitlines()


def test_findings_are_annotations_by_severity(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(STUCK, logs / "hung")
    lines = annotated(logs, capsys)
    assert any(line.startswith("::error title=slow%3A straggler") and "%0ACosts" in line for line in lines)
    assert any(line.startswith("::notice title=healthy::Healthy") for line in lines)
    assert any(line.startswith("::error title=hung%3A stuck::") for line in lines)


def test_nothing_in_a_trace_becomes_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\n::set-output name=x::1,b%"
    write(tmp_path / "logs" / name, ranks(HEALTHY, SLOW, HEALTHY))
    write(tmp_path / "logs" / "other", ranks(QUIET, QUIET))
    for line in annotated(tmp_path / "logs", capsys):
        assert re.fullmatch(r"::(error|warning|notice) title=[^:,\r\n]*::[^\r\n]*", line)


def test_a_folder_that_is_not_there_is_told_before_the_work(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(logs), "--junit", os.fspath(logs / "none" / "junit.xml")]) == 2
    assert "there is no folder" in capsys.readouterr().err
