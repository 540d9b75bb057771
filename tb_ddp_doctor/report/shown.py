"""What of a diagnosis is shown where there is little room, and where in a trace to look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tb_ddp_doctor import findings, wording
from tb_ddp_doctor.account import verdict
from tb_ddp_doctor.job.model import Job

#: What the floor is not.
_FLOOR = "What is equally slow on all ranks and in all steps stays in the floor (ddp-doctor explain floor)."
#: Where its terms are.
_TERMS = "Terms and formulas: ddp-doctor explain TERM."
#: Of a smaller share of the step it is not said where it lies.
_LEAST_PLACED = 0.01
#: Less of a floor is not said, ms; and of so many classes of kernels it is said what they have.
_LEAST_MS = 0.05
_MOST_CLASSES = 3
#: The ends of a shorter window of evidence have two digits, ms.
_SHORT_MS = 0.1
_FLOOR_WORDS: Mapping[findings.FloorKind, str] = {
    "below-attainable": "is spent above what kernels could reach",
    "avoidable-traffic": "is traffic that fusion avoids",
    "below-link-speed": "is communication below the link's speed",
    "not-modelled": "is in kernels that are not modelled",
}


def longest_busy_time(diagnosis: findings.Diagnosis, most: int) -> list[str]:
    """The keys of the ranks with the longest busy time, at most so many, in the order of ranks."""
    budgets = diagnosis.budget_ms
    by_busy_time = sorted(budgets, key=lambda rank: sum(budgets[rank].values()) - budgets[rank]["wait"], reverse=True)
    chosen = set(by_busy_time[:most])
    return [rank for rank in budgets if rank in chosen]


#: Heads of the columns of `dimensions`.
DIMENSIONS = ("dimension", "ranks", "stride", "calls", "MB", "busbw", "wait", "transfer", "exposed")


def dimensions(mesh: findings.MeshTable) -> Iterator[tuple[str, ...]]:
    """What each dimension of parallelism communicates in a step, a row of texts each: MB, ms, GB/s of one group."""

    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else wording.decimals(value, digits)

    for one in mesh.dimensions:
        yield (
            f"{one.name}{' (inferred)' if one.inferred else ''}",
            str(one.size),
            str(one.stride or "-"),
            number(one.calls, 0),
            *(number(each, 2) for each in (one.megabytes, one.bus_gb_s, one.wait_ms, one.transfer_ms, one.exposed_ms)),
        )


def where(evidence: findings.Evidence, job: Job) -> str:
    """Where a piece of evidence is, in the step of its rank."""
    rank = job.ranks.tolist().index(evidence.rank)
    step = job.steps.tolist().index(evidence.step)
    origin = int(job.budget.start_ns[rank, step])
    start, end = (evidence.start_ns - origin) / 1e6, (evidence.end_ns - origin) / 1e6
    digits = 1 if end - start >= _SHORT_MS else 2
    window = f"{wording.decimals(start, digits)} to {wording.decimals(end, digits)} ms"
    place = f"rank {evidence.rank}, step {evidence.step}, {window} of it"
    return f"{place}: {evidence.what}{_code(evidence)}"


def _code(evidence: findings.Evidence) -> str:
    """Where in the user's own code that is, after a space: by stacks, else by the ops around; "" if neither tells."""
    if source := evidence.source:
        return f" In {source.function} ({source.file}:{source.line})."
    if not (evidence.op_before and evidence.op_after):
        return ""
    return f" The last op before it is {evidence.op_before}, the first after it {evidence.op_after}."


def account_parts(diagnosis: findings.Diagnosis) -> Iterator[tuple[str, findings.AccountLine, str]]:
    """The lines of the account: a name, the line, and what is said beside it. The floor takes what rounding leaves."""
    for line in diagnosis.account.lines:
        match line.kind:
            case "finding":
                yield line.finding or "", line, ""
            case "unexplained":
                where = diagnosis.account.unexplained
                parts = (
                    verdict.place(where, diagnosis.ranks, diagnosis.steps, has_gpu=diagnosis.setting.has_gpu)
                    if where and line.share >= _LEAST_PLACED
                    else ""
                )
                yield "unexplained", line, parts
            case "tracing":
                yield "tracing", line, "what recording the traces adds"
            case "no-requests":
                yield "no requests", line, "the server waits for requests, and its GPUs idle"
            case "floor":
                yield "floor", msgspec.structs.replace(line, ms=_floor_ms(diagnosis)), "the rest of the step"


def _floor_ms(diagnosis: findings.Diagnosis) -> float:
    """The floor as it is shown."""
    others = [line.ms for line in diagnosis.account.lines if line.kind != "floor"]
    return wording.remainder(diagnosis.step_ms, others)


def account_notes(diagnosis: findings.Diagnosis) -> Iterator[str]:
    """What is said below the account, in sentences: why there is no replay, what the floor is, what is not counted."""
    if diagnosis.account.no_replay:
        yield f"Costs come from busy times. {diagnosis.account.no_replay}"
    yield _FLOOR
    yield from _floor(diagnosis)
    yield from _left_out(diagnosis.account)
    yield _TERMS


def _floor(diagnosis: findings.Diagnosis) -> Iterator[str]:
    """The floor against what the GPU could do, in a sentence; nothing where no kernel is modelled, or no floor is."""
    known = {line.kind: line for line in diagnosis.account.floor_lines}
    parts = [
        f"{wording.duration(line.ms)} {_FLOOR_WORDS[kind]}{_classes(line)}"
        for kind, line in known.items()
        if kind in _FLOOR_WORDS and line.ms >= _LEAST_MS
    ]
    if not parts or known["below-attainable"].ms < _LEAST_MS:
        return
    limit = wording.duration(
        wording.remainder(_floor_ms(diagnosis), [line.ms for kind, line in known.items() if kind != "limit"])
    )
    yield (
        f"Of the floor, {wording.listing(parts)}; {limit} is the limit of this GPU for this model "
        "(ddp-doctor explain attainable)."
    )


def _classes(line: findings.FloorLine) -> str:
    """The classes of kernels that have most of a line, with their times."""
    most = [
        f"{kind} {wording.duration(ms)}" for kind, ms in [*line.by_class.items()][:_MOST_CLASSES] if ms >= _LEAST_MS
    ]
    return f" ({', '.join(most)})" if most else ""


def _left_out(account: findings.Account) -> Iterator[str]:
    """A sentence for each step that is in the traces and not in the account."""
    for step in account.left_out:
        yield f"Not counted: step {step.step} ({wording.duration(step.ms)}): {step.reason.rstrip('.')}."


def gain(finding: findings.Finding, diagnosis: findings.Diagnosis) -> str:
    """What the fix of a finding brings in the user's units; "" where these are not given."""
    rates, gain = diagnosis.rates, _gain_of(finding, diagnosis)
    return wording.gain(gain, rates.currency) if rates and gain else ""


def money(finding: findings.Finding, diagnosis: findings.Diagnosis) -> str:
    """What the fix of a finding saves: "117.89 EUR a day"; "" where no price is given."""
    rates, gain = diagnosis.rates, _gain_of(finding, diagnosis)
    if rates is None or gain is None or gain.money_per_day is None:
        return ""
    return f"{wording.money(gain.money_per_day, rates.currency)} a day"


def _gain_of(finding: findings.Finding, diagnosis: findings.Diagnosis) -> findings.RateGain | None:
    gains = diagnosis.rates.gains if diagnosis.rates else ()
    return next((one for one in gains if one.finding == finding.id), None)


def config(diagnosis: findings.Diagnosis) -> Iterator[str]:
    """A sentence for each file of settings that the diagnosis was made with."""
    for one in diagnosis.config:
        values = ", ".join(
            f"{name}={value:g}" if isinstance(value, float | int) else f"{name}={value}"
            for name, value in one.values.items()
        )
        yield f"Settings of {one.file}: {values}."


def utilization(rates: findings.Rates) -> str:
    """MFU and HFU of the user's FLOPs beside those that are counted, a sentence; "" where neither is known."""
    known = [
        f"MFU {wording.percent(mfu)}{f', HFU {wording.percent(hfu)}' if hfu is not None else ''} {of}"
        for mfu, hfu, of in (
            (rates.mfu, rates.hfu, "by your FLOPs"),
            (rates.counted_mfu, rates.counted_hfu, "by the FLOPs of the trace's ops"),
        )
        if mfu is not None
    ]
    return f"{'; '.join(known)}." if known else ""


def cost(finding: findings.Finding, step_ms: float) -> str:
    """What a finding costs, with its share and interval, and what fixing it alone saves where that differs.

    "" for what costs nothing.
    """
    if wording.duration(max(finding.cost_ms, finding.alone_ms)) == wording.duration(0.0):
        return ""
    shares = abs(finding.alone_ms - finding.cost_ms) > 0.1
    share = wording.percent(finding.cost_ms / step_ms if step_ms else 0.0)
    least, most = finding.range_ms
    said = f"{wording.duration(finding.cost_ms)} a step ({share}){' on top of other fixes' if shares else ''}"
    said += f", 80 % interval {wording.interval(least, most)} ms"
    return said + (f"; {wording.duration(finding.alone_ms)} if fixed alone" if shares else "")
