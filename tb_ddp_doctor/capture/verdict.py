"""The verdict of a capture, from its digests: a line for the job's log, numbers for TensorBoard, traces to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor import engine, wording
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.capture.agreement import agreed_ranks
from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, capture_folders, read_json
from tb_ddp_doctor.discover.runs import DiscoverError, only_run
from tb_ddp_doctor.findings import Diagnosis, Finding, Severity
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.report import markdown
from tb_ddp_doctor.rules import CATALOGUE

#: Of the ranks that findings name, those of the costliest keep their traces, and no more than this.
_MOST_TRACED = 8
#: Earlier captures that the verdict is compared with.
_MOST_EARLIER = 50
#: As many agree before another verdict is said to be theirs.
_LEAST_AGREEING = 3
#: Owners of idle time.
_IDLE = ("sync", "alloc", "dispatch", "host")


def of_capture(folder: CaptureFolder, missing: tuple[int, ...]) -> CaptureVerdict | str:
    """Diagnose a capture whose `missing` ranks did not report; a sentence if it cannot be."""
    try:
        run = only_run(str(folder.path))
        result = engine.diagnose(run, reading=engine.Reading(Cache(None)))
    except (DiscoverError, engine.RunError, ValueError) as error:
        return f"nothing can be diagnosed: {error}"
    diagnosis = result.diagnosis
    named, before = _named(diagnosis), earlier(folder)
    each = [*([named.ranks] if named else []), *(verdict.ranks for verdict in before)]
    agreed = agreed_ranks(each, len(diagnosis.ranks))
    level, sure = confidence(named, before, agreed)
    return CaptureVerdict(
        step=folder.step,
        line=f"step {folder.step}: {line(diagnosis)}{sure}{_without(missing)}",
        headline=diagnosis.headline,
        traced=to_trace(diagnosis, result.job),
        missing_ranks=missing,
        scalars=measured(diagnosis),
        rule=named.rule if named else "",
        ranks=named.ranks if named else (),
        confidence=level,
        agreed=agreed,
        began_s=float(result.job.digests[0].steps.start_ns[0]) / 1e9,
        text=markdown.document([result]),
    )


def line(diagnosis: Diagnosis) -> str:
    """The verdict in one line: who, what it costs, why; then what costs nothing and may end the job."""
    ends = [each.title for each in diagnosis.findings if CATALOGUE[each.rule].ends_jobs]
    return " ".join([_verdict(diagnosis), *ends])


def _verdict(diagnosis: Diagnosis) -> str:
    worst = _named(diagnosis)
    if worst is None:
        return f"{wording.decimals(diagnosis.step_ms, 0)} ms a step. {diagnosis.headline}"
    if not CATALOGUE[worst.rule].names_stragglers:
        return f"{worst.headline} {worst.title}"
    what = worst.why.split(". ")[0].rstrip(".")
    cause = (worst.cause or worst.rule).replace("_", " ")
    # "Seen once in 3 steps" says the cause "once".
    said = "" if f" {cause} " in worst.headline else f"{cause}, "
    return f"{worst.headline.rstrip('.')}: {said}{what[:1].lower()}{what[1:]}."


def _named(diagnosis: Diagnosis) -> Finding | None:
    """The finding that is the verdict."""
    worst = diagnosis.findings[0] if diagnosis.findings else None
    return worst if worst is not None and diagnosis.verdict == worst.rule else None


def earlier(folder: CaptureFolder) -> list[CaptureVerdict]:
    """The verdicts of the captures of the same start before this one, the newest first."""
    before = [other for other in capture_folders(folder.path.parent) if other.step < folder.step]
    verdicts = (read_json(other.verdict, CaptureVerdict) for other in before[: -_MOST_EARLIER - 1 : -1])
    return [verdict for verdict in verdicts if verdict is not None]


def confidence(named: Finding | None, before: Sequence[CaptureVerdict], agreed: Sequence[int]) -> tuple[str, str]:
    """How sure the verdict is, and a sentence on it and on what earlier captures say, which begins with a space.

    The same verdict is the same rule on the same ranks. One that names ranks which captures agree on is no longer of
    low confidence: what makes a single capture unsure, such as waiting for cores, names one rank after the other.
    """

    def is_noise(ranks: Sequence[int]) -> bool:
        return not ranks or not set(ranks) <= set(agreed)

    others = Counter((verdict.rule, verdict.ranks) for verdict in before if verdict.rule)
    count, level, said = len(before) + 1, "", ""
    if named is not None:
        same, level = others.pop((named.rule, named.ranks), 0), named.confidence
        if level == "low" and same and not is_noise(named.ranks):
            level = "medium"
            said = f" Confidence medium: {same + 1} of {count} captures say the same, more than noise explains."
        else:
            said = f" Confidence {level}{f', the same in {same + 1} of {count} captures' if before else ''}."
        if level == "low" and not same:
            said += " One capture with low confidence is no proof: ask for another (ddp-doctor capture)."
    for (rule, ranks), times in others.most_common(1):
        if times >= max(_LEAST_AGREEING, count / 2):
            said += f" In {times} of {count} captures the verdict was {rule} on {wording.ranks(ranks)}"
            said += "." if is_noise(ranks) else ", more than noise explains."
    return level, said


def _without(missing: tuple[int, ...]) -> str:
    return f" Without {wording.ranks(missing)}, which did not report." if missing else ""


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
