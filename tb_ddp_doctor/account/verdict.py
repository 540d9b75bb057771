"""The verdict on a job: the costliest finding, "unexplained", or a "healthy" that the account of the step proves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Sized

import msgspec

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.account.interval import interval
from tb_ddp_doctor.facts.unrecognised import may_have_waited
from tb_ddp_doctor.findings import MOST_UNEXPLAINED, Account, Finding, Headline, RuleOutcome, Severity, Unexplained
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.step_parts import IDLE, OWNERS, PHASES

#: What binds first is the verdict if its fix alone saves this share of what it hides.
_SIZABLE = 0.25


class Verdict(msgspec.Struct, frozen=True):
    """The verdict, in a word and in a sentence."""

    #: A rule's id, "healthy", "unexplained" or "unknown".
    name: str
    headline: str
    #: The parts that the headline begins with; None if it has no cost.
    parts: Headline | None = None
    #: What the headline says after these parts, or after its first sentence.
    rest: str = ""


def verdict(
    job: Job,
    findings: Sequence[Finding],
    account: Account,
    outcomes: Sequence[RuleOutcome],
    opportunities: Sequence[Finding] = (),
    *,
    unrecognised: str | None,
    notes: Sequence[str] = (),
    contradictions: Sequence[str] = (),
    lacking: Sequence[str],
) -> Verdict:
    """Judge a job, given its findings, costliest first.

    `opportunities`, largest first, do not change the verdict: the headline of a healthy job names the largest one.

    `unrecognised` says why the traces cannot tell whether the job is healthy, if they cannot; `notes` are sentences
    that must stand beside what was found; `contradictions` say where the witnesses of slow ranks disagree, which keeps
    a job from being healthy; `lacking` says what of the job's files is not in the traces, such as "2 files are
    unreadable".
    """
    serious = [finding for finding in findings if finding.severity != Severity.INFO.label]
    worst = _first_to_fix(serious, job.step_ns)
    unexplained = account.line("unexplained")
    but = f" {wording.listing(lacking)}." if lacking else ""
    idle = _without_requests(account, job)
    if worst is None and unrecognised:
        return _with_rest("unknown", *(" ".join([unrecognised, *idle]) + but).split(". ", 1))
    # Slow ranks of unknown cause are info at any cost if only the replay shows them: their time counts as unexplained.
    causeless = [
        finding
        for finding in findings
        if finding.severity == Severity.INFO.label
        and finding.cause == "unknown"
        and finding.cost_ms * 1e6 >= Severity.MINOR.least_share * job.step_ns
    ]
    ids = {finding.id for finding in causeless}
    of_findings = [line for line in account.lines if line.kind == "finding"]
    charged = sorted((line for line in of_findings if line.finding not in ids), key=lambda line: -line.ms)
    lost = unexplained.share + (0.0 if worst else sum(line.share for line in of_findings))
    # A replay gives the share to about half a percent of the step.
    if interval(lost, 0.0, 1.0)[0] >= MOST_UNEXPLAINED:
        lost_ms = unexplained.ms + (0.0 if worst else sum(finding.cost_ms for finding in causeless))
        if not charged or lost_ms > charged[0].ms:
            return Verdict("unexplained", _unexplained(lost_ms, job, account, causeless) + but)
        worst = worst or next(finding for finding in findings if finding.id == charged[0].finding)
    if worst:
        behind = [
            f"Behind it, {one.rule} costs {wording.ms(one.cost_ms * 1e6)}." for one in serious[:1] if one != worst
        ]
        further = [*behind, *([worst.together.sentence] if worst.together else []), *notes, *idle]
        rest = but + "".join(f" {sentence}" for sentence in further)
        return Verdict(worst.rule, worst.headline + rest, worst.headline_parts, rest if worst.headline_parts else "")
    if contradictions:
        doubt = "No fault shows in these traces, but the job is not known to be healthy."
        return Verdict("unknown", f"{doubt} {contradictions[0]}{but}")
    return _with_rest("healthy", _healthy(job, account, outcomes, lacking, opportunities), *notes)


def _with_rest(name: str, first: str, *others: str) -> Verdict:
    """A verdict without a cost, whose headline has a first sentence, which may lack its stop, and others."""
    rest = "".join(f" {sentence}" for sentence in others)
    first += "." * (not first.endswith("."))
    return Verdict(name, first + rest, rest=rest)


def _first_to_fix(findings: Sequence[Finding], step_ns: float) -> Finding | None:
    """The costliest finding; where its fix alone saves nothing, of those that bind first the one that saves most, if it
    saves a sizable part of what it hides.
    """
    if not findings:
        return None
    worst, least_ms = findings[0], Severity.MINOR.least_share * step_ns / 1e6
    if not worst.together or worst.alone_ms >= least_ms:
        return worst
    least_ms = max(least_ms, _SIZABLE * worst.cost_ms)
    first = [one for one in findings if one.id in worst.together.findings and one.alone_ms >= least_ms]
    return max(first, key=lambda one: one.alone_ms, default=worst)


def _without_requests(account: Account, job: Job) -> list[str]:
    """How long a server has no request, as a sentence, where that is much: its GPUs idle for no fault of its own."""
    lines = (line for line in account.lines if line.kind == "no-requests" and line.share >= Severity.MINOR.least_share)
    return [
        f"The server has no request for {wording.ms(line.ms * 1e6)} of every {wording.ms(job.step_ns)} "
        f"({wording.percent(line.share)})."
        for line in lines
    ]


def _unexplained(lost_ms: float, job: Job, account: Account, causeless: Sequence[Finding]) -> str:
    """The headline for unexplained time: how much it is, and where it lies, or which ranks are slow without a cause;
    and why no replay explains it, where there is none.
    """
    where = account.unexplained
    share = wording.percent(lost_ms * 1e6 / job.step_ns if job.step_ns else 0.0)
    said = f"{wording.ms(lost_ms * 1e6)} of every {wording.ms(job.step_ns)} ({share}) is unexplained"
    if 2 * sum(finding.cost_ms for finding in causeless) >= lost_ms:
        slower = sorted({rank for finding in causeless for rank in finding.ranks})
        said += (
            f": {wording.ranks(slower)} {'is' if len(slower) == 1 else 'are'} slower than the median rank in the replay"
        )
    elif where:
        said += f": {place(where, job.ranks, job.steps, has_gpu=job.has_device)}"
    if account.no_replay:
        said += f". {account.no_replay.removesuffix('.')}"
    if waits := may_have_waited(job):
        return f"{said}. {waits}"
    how = record_again.stacks_in_words(setting(job)) if where and where.owner in IDLE else "more steps"
    return f"{said}. To learn more, capture {how}."


def place(where: Unexplained, ranks: Sized, steps: Sized, *, has_gpu: bool) -> str:
    """Where the unexplained time lies in a job of these ranks and steps: "mostly ..., on rank 1, in every step"."""
    phase = f" {PHASES[where.phase].within}" if where.phase and where.phase != "other" else ""
    on = "all ranks" if len(where.ranks) == len(ranks) > 1 else wording.ranks(where.ranks)
    at = "every step" if len(where.steps) == len(steps) > 1 else wording.steps(where.steps)
    owner = OWNERS[where.owner]
    what = owner.excess if has_gpu else owner.excess_on_cpu or owner.excess
    return f"mostly {what}{phase}, on {on}, in {at}"


def _healthy(
    job: Job,
    account: Account,
    outcomes: Sequence[RuleOutcome],
    lacking: Sequence[str],
    opportunities: Sequence[Finding],
) -> str:
    """No data is not healthy: the sentence names what was not looked at. It goes on with the largest opportunity."""
    largest = f" The largest opportunity: {opportunities[0].headline}" if opportunities else ""
    blind = []
    if job.missing_ranks:
        lack = "has" if len(job.missing_ranks) == 1 else "have"
        blind.append(f"{len(job.missing_ranks)} of {job.world_size} ranks {lack} no usable trace here")
    elif len(job.ranks) > 1 and not len(job.matched):
        blind.append("no collective could be matched between the ranks")
    status = Counter(outcome.status for outcome in outcomes)
    if blind and status["not-applicable"]:
        blind.append(f"{status['not-applicable']} of {len(outcomes)} rules on faults are not checked (lack data)")
    if status["error"]:
        blind.append(f"{status['error']} of {len(outcomes)} rules on faults failed")
    blind += lacking
    if blind:
        return f"No fault found in these traces, but {wording.listing(blind)}.{largest}"
    if largest:
        return f"Healthy.{largest}"
    floor, tracing = account.line("floor"), account.line("tracing")
    also = f", {wording.ms(tracing.ms * 1e6)} are tracing" if tracing.share >= Severity.MINOR.least_share else ""
    return f"Healthy: {wording.ms(floor.ms * 1e6).removesuffix(' ms')} of {wording.ms(job.step_ns)} is floor{also}."
