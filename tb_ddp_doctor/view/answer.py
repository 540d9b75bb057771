"""What tab and report get of a run: the diagnosis, where its evidence is seen, and the arrays that they draw."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import msgspec

from tb_ddp_doctor import findings
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import Level
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.slices import cut
from tb_ddp_doctor.view.commands import RecordingToMake, commands, recording
from tb_ddp_doctor.view.gaps import GapLengths, Gaps, gaps
from tb_ddp_doctor.view.source_line import SourceLine, source_line
from tb_ddp_doctor.view.views import Views, views

_log = logging.getLogger(__name__)


class Window(msgspec.Struct, frozen=True):
    """A slice with something around the evidence, as the route `slice` takes it.

    ns on the common clock, as text: JavaScript's numbers do not hold them.
    """

    ranks: tuple[int, ...]
    start: str
    end: str
    #: Start and end of the evidence itself.
    seen: tuple[str, str]


class Evidence(findings.Evidence, frozen=True, kw_only=True):
    """A piece of evidence, and the slice that shows it."""

    #: None where the traces are elsewhere.
    window: Window | None
    #: None without stacks, and where the file is not here.
    source_line: SourceLine | None


class Finding(findings.Finding, frozen=True, kw_only=True):
    """A finding, and what would confirm it."""

    evidence: tuple[Evidence, ...]
    #: Commands of other tools.
    commands: tuple[str, ...]
    #: What to record once more; None where that would tell no more.
    record: RecordingToMake | None
    #: How long the gaps of each owner are on its ranks and in its steps; {} where they are not known.
    gaps: dict[str, GapLengths]


class Diagnosis(findings.Diagnosis, frozen=True, kw_only=True):
    """A diagnosis with these findings."""

    findings: tuple[Finding, ...]
    opportunities: tuple[Finding, ...] = ()
    #: How the verdict is shown.
    level: Level


class RunAnswer(msgspec.Struct, frozen=True):
    """The answer to `run?run=NAME`."""

    diagnosis: Diagnosis
    #: None where they could not be made.
    views: Views | None
    state: Literal["ready"] = "ready"


def answer(result: Result, *, in_report: bool = False) -> RunAnswer:
    """What is shown of a run: without its pictures the page still says what is wrong.

    A report goes anywhere, and the traces do not go with it: there is nobody to ask for a slice.
    """
    job, diagnosis = result.job, result.diagnosis
    has_traces = not (result.from_digests or in_report)
    try:
        known = gaps(job)
        drawn = msgspec.structs.replace(views(result, known), from_digests=not has_traces)
        faults, possible = (
            tuple(_finding(finding, job, known, has_traces) for finding in some)
            for some in (diagnosis.findings, diagnosis.opportunities)
        )
    except Exception:
        _log.exception("The pictures of run %r could not be made", diagnosis.name)
        drawn = None
        faults, possible = (
            tuple(_finding(finding) for finding in some) for some in (diagnosis.findings, diagnosis.opportunities)
        )
    changed = {"findings": faults, "opportunities": possible, "level": diagnosis.level}
    return RunAnswer(Diagnosis(**_fields(diagnosis) | changed), drawn)


def _finding(
    finding: findings.Finding, job: Job | None = None, known: Gaps | None = None, has_traces: bool = False
) -> Finding:
    evidence = tuple(
        Evidence(
            **_fields(piece),
            window=_window(job, finding, piece) if job and has_traces else None,
            source_line=source_line(piece.source, Path()) if piece.source else None,
        )
        for piece in finding.evidence
    )
    return Finding(
        **_fields(finding) | {"evidence": evidence},
        commands=tuple(commands(job, finding)) if job else (),
        record=recording(job, finding) if job else None,
        gaps=known.lengths(finding.ranks, finding.steps) if known else {},
    )


def _window(job: Job, finding: findings.Finding, evidence: findings.Evidence) -> Window:
    seen = cut.window(job, finding, evidence)
    shown = cut.with_margin(seen)
    return Window(seen.ranks, str(shown.start_ns), str(shown.end_ns), (str(seen.start_ns), str(seen.end_ns)))


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(struct)
