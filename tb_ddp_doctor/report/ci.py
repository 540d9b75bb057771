"""Diagnoses as CI servers read them: JUnit XML, which all know, and the annotations of GitHub Actions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias
from xml.etree import ElementTree as ET

from tb_ddp_doctor import wording
from tb_ddp_doctor.findings import Diagnosis, Finding, MemoryFinding, MemoryRun, Severity
from tb_ddp_doctor.report.escape import printable_lines
from tb_ddp_doctor.report.shown import cost
from tb_ddp_doctor.stuck.model import StuckFinding, StuckRun

#: From this severity on a finding is a failed test where `--fail-on` names no other.
FAILS_FROM = Severity.MAJOR
#: What GitHub reads in a message, and beside it in a title.
_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_TITLE = {**_MESSAGE, ":": "%3A", ",": "%2C"}
#: Letters that XML 1.0 cannot hold.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: What failed in a test, in one line and whole.
_Failure: TypeAlias = tuple[str, str]


def junit(
    diagnoses: Sequence[Diagnosis],
    jobs: Sequence[StuckRun | MemoryRun],
    undone: Mapping[str, str],
    fails_from: Severity,
) -> bytes:
    """All runs as JUnit XML: a suite for each run, a test for its verdict and for each rule.

    A test fails where a finding is at least as severe as `fails_from`, and is skipped where the traces cannot tell.
    `undone` are runs that could not be diagnosed, with the reason.
    """
    suites = ET.Element("testsuites", name="ddp-doctor")
    for diagnosis in diagnoses:
        suite = _Suite(suites, diagnosis.name)
        for name, failures, skipped in _tests(diagnosis, fails_from):
            suite.add(name, failures, skipped)
    for job in jobs:
        suite = _Suite(suites, job.name)
        failures = [(one.title, _said(one)) for one in job.findings if Severity[one.severity.upper()] >= fails_from]
        suite.add(_fault(job), failures, job.headline if job.verdict == "unknown" and not failures else "")
    for name, reason in undone.items():
        _Suite(suites, name).add("verdict", [(reason, reason)], "", tag="error")
    ET.indent(suites)
    written: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def github(diagnoses: Sequence[Diagnosis], jobs: Sequence[StuckRun | MemoryRun]) -> str:
    """All faults as workflow commands of GitHub Actions, a line each: errors, warnings and notices by severity.

    GitHub shows ten of each kind. Opportunities would fill them: of a healthy run its headline names the largest.
    """
    lines = []
    for diagnosis in diagnoses:
        lines += [
            _command(one.severity, f"{diagnosis.name}: {_name(one)}", f"{one.title}\n{_costs(one, diagnosis)}{one.why}")
            for one in diagnosis.findings
        ]
        if diagnosis.verdict == "unexplained":
            lines.append(_command(_unexplained(diagnosis).label, diagnosis.name, diagnosis.headline))
        elif diagnosis.verdict == "unknown":
            lines.append(_command("minor", diagnosis.name, diagnosis.headline))
        elif diagnosis.verdict == "healthy":
            lines.append(_command("info", diagnosis.name, diagnosis.headline))
    for job in jobs:
        lines += [
            _command(one.severity, f"{job.name}: {_fault(job)}", f"{one.title}\n{one.why}") for one in job.findings
        ]
    return "".join(f"{line}\n" for line in lines)


class _Suite:
    """A run as a suite of tests, which counts them."""

    def __init__(self, suites: ET.Element, name: str) -> None:
        self._name = _text(name)
        counts: dict[str, str] = {"tests": "0", "failures": "0", "errors": "0", "skipped": "0"}
        self._element = ET.SubElement(suites, "testsuite", {"name": self._name, **counts})

    def add(self, name: str, failures: Sequence[_Failure], skipped: str, tag: str = "failure") -> None:
        """Add a test that failed, was skipped for a reason, or passed."""
        test = ET.SubElement(self._element, "testcase", classname=self._name, name=name)
        self._count("tests")
        if failures:
            title = " ".join(title for title, _ in failures)
            ET.SubElement(test, tag, message=_text(title)).text = _text("\n\n".join(t for _, t in failures))
            self._count(f"{tag}s")
        elif skipped:
            ET.SubElement(test, "skipped", message=_text(skipped))
            self._count("skipped")

    def _count(self, what: str) -> None:
        self._element.set(what, str(int(self._element.get(what, "0")) + 1))


def _tests(diagnosis: Diagnosis, fails_from: Severity) -> Iterator[tuple[str, list[_Failure], str]]:
    """The tests of a run: a name, what failed, and why it was skipped."""
    is_unexplained = diagnosis.verdict == "unexplained" and _unexplained(diagnosis) >= fails_from
    failed = [(diagnosis.headline, diagnosis.headline)] if is_unexplained else []
    yield "verdict", failed, diagnosis.headline if diagnosis.verdict == "unknown" else ""
    for outcome in diagnosis.outcomes:
        failures = [
            (one.title, f"{_costs(one, diagnosis)}{_said(one)}")
            for one in diagnosis.all_findings
            if one.rule == outcome.rule and Severity[one.severity.upper()] >= fails_from
        ]
        is_skipped = outcome.status in ("not-applicable", "error")
        yield outcome.rule, failures, outcome.reason if is_skipped else ""


def _unexplained(diagnosis: Diagnosis) -> Severity:
    return Severity.of_share(diagnosis.account.line("unexplained").share)


def _fault(job: StuckRun | MemoryRun) -> str:
    """What such a job can be found to be."""
    return "stuck" if isinstance(job, StuckRun) else "out-of-memory"


def _said(finding: Finding | StuckFinding | MemoryFinding) -> str:
    return f"{finding.why}\n\nFix: {finding.fix}"


def _costs(finding: Finding, diagnosis: Diagnosis) -> str:
    """What it costs, as a sentence with a space behind it; "" for nothing."""
    said = cost(finding, diagnosis.step_ms)
    verb = "Would save" if finding.severity == "opportunity" else "Costs"
    return f"{verb} {said}. " if said else ""


def _name(finding: Finding) -> str:
    """The rule, its cause, and the ranks."""
    cause = f" ({finding.cause.replace('_', ' ')})" if finding.cause else ""
    return f"{finding.rule}{cause}, {wording.ranks(finding.ranks)}" if finding.ranks else f"{finding.rule}{cause}"


def _command(severity: str, title: str, message: str) -> str:
    level = {"critical": "error", "major": "error", "minor": "warning"}.get(severity, "notice")
    return f"::{level} title={_escaped(title, _TITLE)}::{_escaped(message, _MESSAGE)}"


def _escaped(text: str, letters: Mapping[str, str]) -> str:
    return "".join(letters.get(letter, letter) for letter in printable_lines(text))


def _text(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", printable_lines(text))
