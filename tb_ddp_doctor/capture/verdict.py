"""The verdict of a capture, from its digests: a line for the job's log, numbers for TensorBoard, traces to keep."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.capture.directory import CaptureFolder, Verdict
from tb_ddp_doctor.discover.runs import DiscoverError, only_run
from tb_ddp_doctor.findings import Diagnosis, Severity
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support import text

#: Of the ranks that findings name, those of the costliest keep their traces, and no more than this.
_MOST_TRACED = 8
#: Owners of idle time.
_IDLE = ("sync", "alloc", "dispatch", "host")


def of_capture(folder: CaptureFolder, missing: tuple[int, ...]) -> tuple[Verdict, engine.Result] | str:
    """Diagnose a capture whose `missing` ranks did not report; a sentence if it cannot be."""
    try:
        run = only_run(str(folder.path))
        result = engine.diagnose(run, reading=engine.Reading(Cache(None)))
    except (DiscoverError, engine.RunError, ValueError) as error:
        return f"nothing can be diagnosed: {error}"
    diagnosis = result.diagnosis
    told = Verdict(
        step=folder.step,
        line=f"step {folder.step}: {line(diagnosis)}{_without(missing)}",
        headline=diagnosis.headline,
        traced=to_trace(diagnosis, result.job),
        missing_ranks=missing,
        scalars=measured(diagnosis),
    )
    return told, result


def line(diagnosis: Diagnosis) -> str:
    """The verdict in one line: who, what it costs, why."""
    worst = diagnosis.findings[0] if diagnosis.findings else None
    if worst is None or diagnosis.verdict != worst.rule:
        return f"{diagnosis.step_ms:.0f} ms a step. {diagnosis.headline}"
    if not CATALOGUE[worst.rule].names_stragglers:
        return f"{worst.headline} {worst.title}"
    what = worst.why.split(". ")[0].rstrip(".")
    return f"{worst.headline.rstrip('.')}: {worst.cause or worst.rule}, {what[:1].lower()}{what[1:]}."


def _without(missing: tuple[int, ...]) -> str:
    return f" Without {text.ranks(missing)}, which did not report." if missing else ""


def to_trace(diagnosis: Diagnosis, job: Job) -> tuple[int, ...]:
    """The ranks that the findings of some cost name, and one with a typical step."""
    numbers: list[int] = job.ranks.tolist()
    named = dict.fromkeys(
        rank
        for finding in diagnosis.findings
        if Severity[finding.severity.upper()] >= Severity.MINOR and len(finding.ranks) < len(numbers)
        for rank in finding.ranks
    )
    affected = list(named)[:_MOST_TRACED]
    others = [rank for rank in numbers if rank not in named] or numbers
    busy = job.budget.busy_ns.mean(axis=1)
    near = np.abs(busy - np.median(busy))
    typical = min(others, key=lambda rank: float(near[numbers.index(rank)]))
    return tuple(sorted({*affected, typical}))


def measured(diagnosis: Diagnosis) -> dict[str, float]:
    """What TensorBoard shows over time, ms a step, mean over ranks."""

    def mean(*owners: str) -> float:
        ranks = diagnosis.budget_ms.values()
        return sum(budget[owner] for budget in ranks for owner in owners) / max(len(ranks), 1)

    return {
        "step_ms": diagnosis.step_ms,
        "straggler_wait_ms": mean("wait"),
        "exposed_communication_ms": mean("transfer"),
        "input_ms": mean("input"),
        "idle_ms": mean(*_IDLE),
        "unexplained_ms": diagnosis.account.line("unexplained").ms,
    }
