"""A diagnosis or a comparison as Markdown, for a pull request or a chat: what matters first, the rest folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tb_ddp_doctor import kernel_names, wording
from tb_ddp_doctor.comparison.model import Comparison
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import OWNERS, Diagnosis, Finding, LayerTable, MeshTable
from tb_ddp_doctor.report import shown
from tb_ddp_doctor.report.compared import parts
from tb_ddp_doctor.report.escape import code_block, folded, table
from tb_ddp_doctor.report.escape import markdown as escaped
from tb_ddp_doctor.report.shown import longest_busy_time, where

#: Hosts of pull requests cut comments at 65,536 letters: a few runs must fit.
_MOST_RANKS = 16
_MOST_EVIDENCE = 3
_LAYER_LEVELS = 2
_MOST_LAYERS = 24
_MOST_KERNELS = 16


def document(results: Sequence[Result]) -> str:
    """All runs, one section each."""
    return "\n\n".join("\n\n".join(_run(result)) for result in results) + "\n"


def comparison(compared: Comparison) -> str:
    """Two runs: the step time, what made the difference, and the tables, folded."""
    sentences = [*compared.story, *compared.unlike]
    pieces = [
        f"## ddp-doctor: {escaped(compared.before)} against {escaped(compared.after)}",
        f"**{escaped(compared.headline)}**",
        "\n".join(f"- {escaped(sentence)}" for sentence in sentences),
        *(folded(part.title, _table(part.heads, part.align, part.rows)) for part in parts(compared)),
    ]
    return "\n\n".join(filter(None, pieces)) + "\n"


def _run(result: Result) -> Iterator[str]:
    diagnosis = result.diagnosis
    yield f"## ddp-doctor: {escaped(diagnosis.name)}"
    yield f"**{escaped(diagnosis.headline)}**"
    steps = f"{len(diagnosis.steps)} step{'' if len(diagnosis.steps) == 1 else 's'}"
    length = wording.duration(diagnosis.step_ms)
    rates = wording.rates(diagnosis.rates)
    seen = f"{wording.capital(wording.kind(diagnosis.kind))}, {len(diagnosis.ranks)} of {diagnosis.world_size} ranks"
    yield f"{seen}, {steps}, {length} a step{rates and ', '}{rates}"
    yield from map(escaped, shown.config(diagnosis))
    if diagnosis.rates and (used := shown.utilization(diagnosis.rates)):
        yield used
    if diagnosis.findings:
        yield _findings(diagnosis.findings, diagnosis, "finding", "costs a step")
        yield from (_finding(finding, result) for finding in diagnosis.findings)
    if diagnosis.opportunities:
        yield "Opportunities: nothing is wrong, but the step could be shorter still."
        yield _findings(diagnosis.opportunities, diagnosis, "opportunity", "would save a step")
        yield from (_finding(finding, result) for finding in diagnosis.opportunities)
    yield folded("Where the step goes: floor + tracing + findings + unexplained", _account(diagnosis))
    yield folded("Where each rank's step goes, ms", _budget(diagnosis))
    if diagnosis.layers:
        guess = "guessed from repeats" if diagnosis.layers.layer_events else f"named by {diagnosis.layers.named_by}"
        yield folded(f"Where in the model a step goes, the median rank, ms ({guess})", _layers(diagnosis.layers))
    if diagnosis.mesh and len(diagnosis.mesh.dimensions) > 1:
        yield folded("What each dimension of parallelism communicates in a step", _dimensions(diagnosis.mesh))
    if unseen := _unseen(diagnosis):
        yield folded("Not checked (lacks data)", "\n".join(f"- {escaped(line)}" for line in unseen))


def _findings(findings: Sequence[Finding], diagnosis: Diagnosis, kind: str, cost: str) -> str:
    rows = [
        (
            "" if kind == finding.severity else finding.severity.capitalize(),
            finding.rule + (f" ({finding.cause.replace('_', ' ')})" if finding.cause else ""),
            wording.duration(finding.cost_ms),
            wording.interval(*finding.range_ms) if finding.cost_ms else "",
            wording.percent(finding.cost_ms / diagnosis.step_ms if diagnosis.step_ms else 0.0),
            "all" if finding.ranks == diagnosis.ranks else wording.ranges(finding.ranks),
            finding.confidence,
        )
        for finding in findings
    ]
    heads = ("", kind, cost, "80 % interval", "share", "ranks", "confidence")
    money = [shown.money(finding, diagnosis) for finding in findings]
    if any(money):
        return _table((*heads, "in money"), "llrrrllr", [(*row, saved) for row, saved in zip(rows, money, strict=True)])
    return _table(heads, "llrrrll", rows)


def _finding(finding: Finding, result: Result) -> str:
    gain = shown.gain(finding, result.diagnosis)
    parts = [
        escaped(finding.why),
        f"Its fix brings: {gain}." if gain else "",
        "\n".join(f"- See {escaped(where(evidence, result.job))}" for evidence in finding.evidence[:_MOST_EVIDENCE]),
        f"**Fix:** {escaped(finding.fix_parts.advice)}",
        code_block(finding.fix_parts.code) if finding.fix_parts.code else "",
    ]
    return folded(f"{finding.rule}: {finding.title}", "\n\n".join(filter(None, parts)))


def _account(diagnosis: Diagnosis) -> str:
    rows = [
        (name, wording.duration(line.ms), wording.percent(line.share), beside)
        for name, line, beside in shown.account_parts(diagnosis)
    ]
    lines = _table(("part of the step", "", "share", ""), "lrrl", rows)
    notes = (f"- {escaped(note)}" for note in shown.account_notes(diagnosis))
    return "\n\n".join([lines, "\n".join(notes)])


def _budget(diagnosis: Diagnosis) -> str:
    longest = longest_busy_time(diagnosis, _MOST_RANKS)
    owners = [owner for owner in OWNERS if any(budget[owner] >= 0.005 for budget in diagnosis.budget_ms.values())]
    budgets = [(rank, diagnosis.budget_ms[rank]) for rank in longest]
    rows = [
        (rank, *(wording.decimals(budget[owner], 2) for owner in owners), wording.decimals(sum(budget.values()), 2))
        for rank, budget in budgets
    ]
    lines = _table(("rank", *owners, "step"), "r" * (len(owners) + 2), rows)
    if len(longest) == len(diagnosis.ranks):
        return lines
    return f"{lines}\n\nThe {len(longest)} ranks with the longest busy time, of {len(diagnosis.ranks)}."


def _layers(layers: LayerTable) -> str:
    """The modules with most time, to the second level."""
    shown = [row for row in layers.rows if row.level <= _LAYER_LEVELS]
    most = sorted(shown, key=lambda row: -row.step_ms)[:_MOST_LAYERS]
    columns = {"forward": "fwd", "backward": "bwd", "recomputed": "again", "communication": "comm.", "idle": "idle"}
    used = [name for name in columns if any(getattr(row, f"{name}_ms") >= 0.005 for row in most)]
    extra = {"above": "above_ms", "critical": "critical_ms"}
    extra = {head: field for head, field in extra.items() if any(getattr(row, field) is not None for row in most)}
    rows = [
        (
            row.path or "whole step",
            wording.decimals(row.step_ms, 2),
            *(wording.decimals(getattr(row, f"{name}_ms"), 2) for name in used),
            wording.decimals(row.longest_ms, 2),
            str(row.longest_rank),
            *(_decimals(getattr(row, field)) for field in extra.values()),
        )
        for row in shown
        if row in most
    ]
    heads = ("module", "step", *(columns[name] for name in used), "longest", "rank", *extra)
    table = _table(heads, "l" + "r" * (len(heads) - 1), rows)
    return "\n\n".join(
        [table, *(escaped(wording.capital(sentence)) for sentence in layers.said), _layer_kernels(layers)]
    )


def _layer_kernels(layers: LayerTable) -> str:
    """The kernels with most time, or most of the critical path, in all modules; "" where none has a name."""
    most = sorted(layers.kernels, key=lambda one: -max(one.step_ms, one.critical_ms or 0.0))[:_MOST_KERNELS]
    if not most:
        return ""
    short = kernel_names.distinguished([one.kernel for one in most])
    columns: dict[str, list[str]] = {
        "module": [one.path or "outside of all modules" for one in most],
        "part": [one.part for one in most],
        "operator": [one.operator for one in most],
        "kernel": [
            name.replace("at::native::", "") if one.kernel else "" for one, name in zip(most, short, strict=True)
        ],
        "source": [f"{one.source.file}:{one.source.line}" if one.source else "" for one in most],
        "ms": [wording.decimals(one.step_ms, 2) for one in most],
        "calls": [wording.decimals(one.calls, 1) for one in most],
        "longest": [wording.decimals(one.longest_ms, 2) for one in most],
        "rank": [str(one.longest_rank) for one in most],
        "critical": [_decimals(one.critical_ms) for one in most],
    }
    used = {heading: cells for heading, cells in columns.items() if any(cells)}
    numbers = sum(heading in ("ms", "calls", "longest", "rank", "critical") for heading in used)
    return _table(tuple(used), "l" * (len(used) - numbers) + "r" * numbers, list(zip(*used.values(), strict=True)))


def _decimals(ms: float | None) -> str:
    return "" if ms is None else wording.decimals(ms, 2)


def _dimensions(mesh: MeshTable) -> str:
    lines = _table(shown.DIMENSIONS, "l" + "r" * (len(shown.DIMENSIONS) - 1), list(shown.dimensions(mesh)))
    notes = [f"- {escaped(sentence)}" for sentence in wording.dimensions(mesh)]
    return "\n\n".join([lines, "Of one group: MB and calls, ms the mean over ranks, busbw in GB/s.", "\n".join(notes)])


def _unseen(diagnosis: Diagnosis) -> list[str]:
    lines = [f"{warning.file}: {warning.message}" for warning in diagnosis.warnings]
    silent = [outcome for outcome in diagnosis.outcomes if outcome.status in ("not-applicable", "error")]
    return lines + [f"{outcome.rule}: {outcome.reason}" for outcome in silent]


def _table(heads: Sequence[str], align: str, rows: Sequence[Sequence[str]]) -> str:
    return table(heads, ["--:" if letter == "r" else "---" for letter in align], rows)
