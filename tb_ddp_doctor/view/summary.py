"""What the list of runs shows of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tb_ddp_doctor.findings import Diagnosis, MemoryRun
    from tb_ddp_doctor.stuck.model import StuckRun


def summary(diagnosis: Diagnosis | StuckRun | MemoryRun) -> dict[str, Any]:
    """What the list of runs shows of a diagnosis. Info findings cost nothing worth a fix, so they lose nothing."""
    from tb_ddp_doctor.findings import MemoryRun, Severity
    from tb_ddp_doctor.stuck.model import StuckRun

    if isinstance(diagnosis, StuckRun):
        return _without_steps(diagnosis, "dumps", diagnosis.traces, diagnosis.world_size, len(diagnosis.ranks))
    if isinstance(diagnosis, MemoryRun):
        return _without_steps(diagnosis, "memory", (), None, len(diagnosis.snapshots))
    unexplained = diagnosis.account.line("unexplained")
    severities = [Severity[finding.severity.upper()] for finding in diagnosis.findings]
    lost = sum(f.cost_ms for f, s in zip(diagnosis.findings, severities, strict=True) if s > Severity.INFO)
    if diagnosis.verdict == "unexplained":
        severities = [Severity.of_share(unexplained.share)]
    return {
        "world_size": diagnosis.world_size,
        "ranks": len(diagnosis.ranks),
        "incomplete": len(diagnosis.incomplete),
        "steps": len(diagnosis.steps),
        "step_ms": diagnosis.step_ms,
        "verdict": diagnosis.verdict,
        "headline": diagnosis.headline,
        "severity": max(severities).label if severities else None,
        "lost_ms": min(lost, diagnosis.step_ms),
        "unexplained_ms": unexplained.ms,
    }


def _without_steps(
    run: StuckRun | MemoryRun, kind: str, traces: tuple[str, ...], world_size: int | None, ranks: int
) -> dict[str, Any]:
    return {
        "kind": kind,
        "traces": traces,
        "world_size": world_size,
        "ranks": ranks,
        "incomplete": 0,
        "steps": None,
        "step_ms": None,
        "verdict": run.verdict,
        "headline": run.headline,
        "severity": "critical" if run.verdict in ("stuck", "out-of-memory") else None,
        "lost_ms": None,
    }
