"""What of a diagnosis is shown where there is little room, and where in a trace to look."""

from __future__ import annotations

from tb_ddp_doctor.findings import Diagnosis, Evidence
from tb_ddp_doctor.job.model import Job


def longest_own_time(diagnosis: Diagnosis, most: int) -> list[str]:
    """The keys of the ranks with the longest own time, at most so many, in the order of ranks."""
    budgets = diagnosis.budget_ms
    by_own_time = sorted(budgets, key=lambda rank: sum(budgets[rank].values()) - budgets[rank]["wait"], reverse=True)
    chosen = set(by_own_time[:most])
    return [rank for rank in budgets if rank in chosen]


def where(evidence: Evidence, job: Job) -> str:
    """Where a piece of evidence is, in the step of its rank."""
    rank = job.ranks.tolist().index(evidence.rank)
    step = job.steps.tolist().index(evidence.step)
    origin = int(job.budget.start_ns[rank, step])
    start, end = (evidence.start_ns - origin) / 1e6, (evidence.end_ns - origin) / 1e6
    place = f"rank {evidence.rank}, step {evidence.step}, {start:.1f} to {end:.1f} ms of it"
    return f"{place}: {evidence.what}{_code(evidence)}"


def _code(evidence: Evidence) -> str:
    """Where in the user's own code that is, after a space; "" where stacks do not tell."""
    source = evidence.source
    return f" In {source.function} ({source.file}:{source.line})." if source else ""
