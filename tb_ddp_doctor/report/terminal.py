"""A diagnosis in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor import record_again, step_parts, wording
from tb_ddp_doctor.account.interval import interval
from tb_ddp_doctor.comparison.model import Comparison
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import (
    MOST_UNEXPLAINED,
    OWNERS,
    PHASES,
    Diagnosis,
    Finding,
    MeshTable,
    PathPiece,
    Prospect,
    Severity,
)
from tb_ddp_doctor.report import shown
from tb_ddp_doctor.report.brief import STYLES, label, marked, print_brief
from tb_ddp_doctor.report.compared import parts
from tb_ddp_doctor.report.escape import printable, printable_lines
from tb_ddp_doctor.report.layers import LayersAsked, print_layers
from tb_ddp_doctor.report.memory import print_memory
from tb_ddp_doctor.report.roofline import print_roofline
from tb_ddp_doctor.report.shown import longest_busy_time, where
from tb_ddp_doctor.report.wrapping import (
    print_code,
    print_table,
    print_wrapped,
    titled,
    without_trailing_spaces,
    wrapped,
)
from tb_ddp_doctor.view import stacks

#: Columns that no table needs.
_WIDEST = 10_000
#: Spaces before what belongs to a finding.
_INDENT = 4
#: Ranks in the budget table: beyond, only the slowest are shown.
_SHOWN_RANKS = 32
#: Kinds and groups in the table of communication: beyond, only those that transfer longest are shown.
_SHOWN_GROUPS = 16
#: Steps in the table of the critical path; pieces shorter than the step by this are summed up there.
_SHOWN_STEPS = 8
_SHOWN_PIECES = 200
#: Owners that mean something else on the critical path: it waits for nobody else, and its transfers are all of it.
_ON_PATH = {"wait": "wait for ranks without a trace", "transfer": "communication"}
#: A larger share of the step in these phases is what guides look for first.
_LARGE_SHARE = 0.2
_SIGNS = {
    "loading": f"loading over {100 * _LARGE_SHARE:g} %: input-bound",
    "other": f"other over {100 * _LARGE_SHARE:g} %: Python outside forward/backward/optimizer",
}


def diagnosed(
    console: Console,
    result: Result,
    *,
    verbose: bool = False,
    communication: bool = False,
    phases: bool = False,
    critical_path: bool = False,
    memory: bool = False,
    roofline: bool = False,
    layers: LayersAsked | None = None,
) -> None:
    """Print a run's diagnosis in six lines, and all of it where that is asked for.

    Communication, each rank's phases, the critical path, memory, the roofline and the model's modules are printed where
    they are asked for.
    """
    with without_trailing_spaces(console):
        print_brief(console, result, is_all=verbose)
        if verbose:
            console.print()
            _print_all(console, result)
        _print_tables(console, result.diagnosis, communication=communication, phases=phases, path=critical_path)
        if memory:
            print_memory(console, result.diagnosis)
        if roofline:
            print_roofline(console, result)
        if layers:
            print_layers(console, result, layers)
        if verbose:
            _print_unseen(console, result)
        console.print()


def _print_all(console: Console, result: Result) -> None:
    diagnosis = result.diagnosis
    for mark, finding in marked(diagnosis):
        _print_finding(console, mark, finding, result)
    if diagnosis.rates and (used := shown.utilization(diagnosis.rates)):
        print_wrapped(console, used)
        console.print()
    _print_account(console, diagnosis)
    console.print(_fitting(console, diagnosis))
    if diagnosis.phases_ms:
        console.print()
        _print_phases_line(console, diagnosis)


def _print_tables(console: Console, diagnosis: Diagnosis, *, communication: bool, phases: bool, path: bool) -> None:
    if phases and diagnosis.phases_ms:
        console.print()
        console.print(_phases_table(diagnosis))
    if communication and diagnosis.communication:
        console.print()
        console.print(_communication_table(diagnosis))
        if diagnosis.mesh and len(diagnosis.mesh.dimensions) > 1:
            console.print()
            console.print(_dimensions_table(diagnosis.mesh))
            for line in wording.dimensions(diagnosis.mesh):
                print_wrapped(console, printable(line), "dim")
        if sentence := wording.network(diagnosis.network):
            print_wrapped(console, printable(sentence), "dim")
    if path:
        console.print()
        console.print(_critical_path(diagnosis))


def predicted(console: Console, diagnosis: Diagnosis, prospects: Sequence[Prospect]) -> None:
    """Print what the step would take without some of what was found."""
    with without_trailing_spaces(console):
        print_code(console, f"{printable(diagnosis.name)}: {wording.duration(diagnosis.step_ms)} a step now", "bold")
        _print_headline(console, diagnosis)
        if any(prospect.fixed for prospect in prospects):
            console.print(_prospects(prospects))
        else:
            console.print("Nothing was found here that could be fixed.")
        console.print()


def _prospects(prospects: Sequence[Prospect]) -> Table:
    table = Table(box=None)
    table.add_column("without")
    for column in ("step, ms", "80 % interval", "saved, ms", "share"):
        table.add_column(column, justify="right")
    for prospect in prospects:
        saved = prospect.step_ms - prospect.without_ms
        least, most = prospect.range_ms
        share = saved / prospect.step_ms if prospect.step_ms else 0.0
        table.add_row(
            ", ".join(prospect.fixed),
            wording.decimals(prospect.without_ms, 1),
            wording.interval(least, most),
            wording.decimals(saved, 1),
            wording.percent(share),
        )
    return table


def compared(console: Console, comparison: Comparison) -> None:
    """Print how two runs differ."""
    with without_trailing_spaces(console):
        print_wrapped(console, printable(comparison.headline), "bold")
        for sentence in (*comparison.story, *comparison.unlike):
            print_wrapped(console, f"- {printable(sentence)}", indent=2, first=0)
        for part in parts(comparison):
            first, *others = part.heads
            console.print()
            print_table(console, titled(part.title, first, *(f">{head}" for head in others), no_wrap=True), part.rows)


def _print_headline(console: Console, diagnosis: Diagnosis) -> None:
    level = diagnosis.level
    print_wrapped(console, printable(diagnosis.headline), "bold" if level == "info" else STYLES[level])


def _print_finding(console: Console, mark: str, finding: Finding, result: Result) -> None:
    """One finding, by its number, as `slice --finding` takes it, or an opportunity by its letter."""
    cost = shown.cost(finding, result.diagnosis.step_ms)
    begin = f"{mark:>2}  {finding.severity.capitalize():<8}  "
    verb = ", would save " if finding.severity == "opportunity" else ", costs "
    said = f"{begin}{label(finding)}{cost and verb}{cost}, confidence {finding.confidence}"
    line = Text(wrapped(said, console.width, _INDENT, first=0))
    line.stylize(STYLES[finding.severity], 4, 4 + len(finding.severity))
    line.stylize("bold", len(begin), len(begin) + len(label(finding)))
    console.print(line, soft_wrap=True)
    print_wrapped(console, printable(finding.title), indent=_INDENT)
    if gain := shown.gain(finding, result.diagnosis):
        print_wrapped(console, f"Its fix brings: {gain}.", indent=_INDENT)
    print_wrapped(console, printable(finding.why), indent=_INDENT)
    for evidence in finding.evidence:
        print_wrapped(console, f"See {printable(where(evidence, result.job))}", "dim", _INDENT)
    print_wrapped(console, f"Fix: {printable(finding.fix_parts.advice)}", indent=_INDENT)
    if code := finding.fix_parts.code:
        console.print()
        print_code(console, printable_lines(code), "cyan", indent=2 * _INDENT)
    console.print()


def _print_account(console: Console, diagnosis: Diagnosis) -> None:
    print_wrapped(console, "Where the step goes: floor + tracing + findings + unexplained", "bold")
    serious = {finding.id: finding.severity for finding in diagnosis.findings}
    lines = list(shown.account_parts(diagnosis))
    longest = max(len(printable(name)) for name, _, _ in lines)
    digits = wording.sum_digits(diagnosis.step_ms)
    for name, line, beside in lines:
        level = serious.get(name, "info") if line.kind == "finding" else _level(line.kind, line.share)
        spent = f"{wording.decimals(line.ms, digits):>7} ms  {wording.percent(line.share):>6}"
        numbers = f" {printable(name):<{longest}}  {spent}"
        said = wrapped(f"{numbers}  {printable(beside)}".rstrip(), console.width, len(numbers) + 2, first=0)
        row = Text(said, "dim")
        row.stylize("not dim", 0, len(numbers))
        if level != "info":
            row.stylize(STYLES[level], 1, 1 + len(name))
        console.print(row, soft_wrap=True)
    for note in shown.account_notes(diagnosis):
        print_wrapped(console, printable(note), "dim")
    console.print()


def _level(kind: str, share: float) -> str:
    is_much = kind == "unexplained" and interval(share, 0.0, 1.0)[0] >= MOST_UNEXPLAINED
    return Severity.of_share(share).label if is_much else "info"


def _print_phases_line(console: Console, diagnosis: Diagnosis) -> None:
    """The step by phase, mean over ranks; and what a large share is a sign of, where it is exposed."""
    print_code(console, "The step by phase", "bold")
    places = _places(diagnosis)
    for place, by_rank in places:
        total = {phase: sum(phases[phase] for phases in by_rank.values()) for phase in PHASES}
        step = sum(total.values()) or 1.0
        shares = ", ".join(f"{phase} {wording.percent(ms / step)}" for phase, ms in total.items())
        signs = [sign for phase, sign in _SIGNS.items() if total[phase] > _LARGE_SHARE * step]
        said = "".join(f" ({sign})" for sign in signs) if place == places[0][0] else ""
        print_wrapped(console, f"on the {place}: {shares}{said}", indent=_INDENT, first=0)


def _fitting(console: Console, diagnosis: Diagnosis) -> Table:
    """The table of budgets, with as many owners by name as fit: the shortest are summed up as other."""
    mean = {owner: sum(budget[owner] for budget in diagnosis.budget_ms.values()) for owner in OWNERS}
    seen = {owner for budget in diagnosis.budget_ms.values() for owner, ms in budget.items() if ms >= 0.005}
    owners = sorted((owner for owner in OWNERS if owner in seen), key=lambda owner: -mean[owner])
    unbounded = console.options.update(max_width=_WIDEST)
    while True:
        table = _budget_table(diagnosis, owners)
        if len(owners) < 2 or Measurement.get(console, unbounded, table).maximum <= console.width:
            return table
        owners.pop()


def _budget_table(diagnosis: Diagnosis, named: Sequence[str]) -> Table:
    owners = [owner for owner in OWNERS if owner in named]
    rest = [owner for owner in OWNERS if owner not in named]
    budgets = diagnosis.budget_ms
    has_rest = any(sum(budget[owner] for owner in rest) >= 0.005 for budget in budgets.values())
    columns = ("rank", *owners, *(["other"] if has_rest else []), "step")
    table = titled("Where each rank's step goes, ms", *(f">{column}" for column in columns), no_wrap=True)
    stragglers = {rank for finding in diagnosis.findings for rank in finding.ranks if finding.rule == "straggler"}
    for rank in longest_busy_time(diagnosis, _SHOWN_RANKS):
        budget = budgets[rank]
        cells = [budget[owner] for owner in owners] + ([sum(budget[owner] for owner in rest)] if has_rest else [])
        style = "bold red" if int(rank) in stragglers else None
        table.add_row(rank, *(wording.decimals(ms, 2) for ms in (*cells, sum(budget.values()))), style=style)
    table.caption = _left_out(diagnosis)
    return table


def _left_out(diagnosis: Diagnosis) -> str | None:
    if len(diagnosis.budget_ms) <= _SHOWN_RANKS:
        return None
    return f"The {_SHOWN_RANKS} ranks with the longest busy time, of {len(diagnosis.budget_ms)}."


def _phases_table(diagnosis: Diagnosis) -> Table:
    title = "Each rank's step by phase, ms: on the GPU by the phase of the launch, and on the CPU"
    table = titled(title, ">rank", "on", *(f">{phase}" for phase in PHASES), ">step")
    for rank in longest_busy_time(diagnosis, _SHOWN_RANKS):
        for place, by_rank in _places(diagnosis):
            phases = by_rank[rank]
            cells = (wording.decimals(phases[phase], 2) for phase in PHASES)
            table.add_row(rank, place, *cells, wording.decimals(sum(phases.values()), 2))
    table.caption = _left_out(diagnosis)
    return table


def _places(diagnosis: Diagnosis) -> list[tuple[str, dict[str, dict[str, float]]]]:
    """Where steps are cut by phase, by rank and phase: without a GPU both are the CPU's."""
    cpu = ("CPU", diagnosis.host_phases_ms)
    return [cpu] if diagnosis.phases_ms == diagnosis.host_phases_ms else [("GPU", diagnosis.phases_ms), cpu]


def _communication_table(diagnosis: Diagnosis) -> Table:
    title = "Communication in a step: MB, ms, busbw in GB/s as in nccl-tests, latency in µs"
    numbers = (">ranks", ">calls", ">MB", ">wait", ">transfer", ">hidden", ">busbw", ">latency")
    table = titled(title, "collective", "group", *numbers, gap=1)
    for traffic in diagnosis.communication[:_SHOWN_GROUPS]:
        fit = traffic.fit
        table.add_row(
            traffic.kind or "?",
            Text(" ".join(filter(None, (traffic.parallelism, printable(traffic.group)))) or "?"),
            str(traffic.size),
            wording.decimals(traffic.calls, 0),
            _number(traffic.megabytes, 2),
            wording.decimals(traffic.wait_ms, 2),
            wording.decimals(traffic.transfer_ms, 2),
            wording.percent(traffic.hidden_share),
            _number(traffic.bus_gb_s, 2),
            _number(fit.alpha_us if fit and fit.significant else None, 0),
        )
    if len(diagnosis.communication) > _SHOWN_GROUPS:
        table.caption = f"The {_SHOWN_GROUPS} with the longest communication, of {len(diagnosis.communication)}."
    return table


def _dimensions_table(mesh: MeshTable) -> Table:
    title = "Dimensions of parallelism in a step: MB, ms, of one group"
    first, *others = shown.DIMENSIONS
    table = titled(title, first, *(f">{head}" for head in others), gap=1)
    for row in shown.dimensions(mesh):
        table.add_row(*row)
    return table


def _critical_path(diagnosis: Diagnosis) -> Table | Text:
    """The path step by step, in order of time."""
    if not diagnosis.critical_path:
        return Text(printable(f"No critical path. {diagnosis.account.no_replay}".rstrip()), "dim")
    title = "Critical path across ranks, step by step in order of time"
    table = titled(title, ">step", ">rank", "on the path", "phase", ">ms", ">share", gap=1)
    for step in diagnosis.critical_path[:_SHOWN_STEPS]:
        total = (step.end_ns - step.start_ns) / 1e6
        least = total / _SHOWN_PIECES
        few: list[PathPiece] = []
        for piece in step.pieces:
            if piece.ms < least:
                few.append(piece)
                continue
            _add_short(table, step.step, few, total)
            few = []
            what = _ON_PATH.get(piece.owner) or step_parts.OWNERS[piece.owner].title
            what += f": {piece.what}" if piece.what else ""
            _add_path_row(table, step.step, str(piece.rank), what, piece.phase or "", piece.ms, total)
        _add_short(table, step.step, few, total)
        table.add_section()
    if len(diagnosis.critical_path) > _SHOWN_STEPS:
        table.caption = f"The first {_SHOWN_STEPS} steps, of {len(diagnosis.critical_path)}; --json has all."
    return table


def _add_short(table: Table, step: int, few: Sequence[PathPiece], total: float) -> None:
    """One row for short pieces one after the other."""
    if few:
        ranks = ", ".join(map(str, sorted({piece.rank for piece in few})[:4]))
        what = f"{len(few)} short piece{'s' if len(few) > 1 else ''}"
        _add_path_row(table, step, ranks, what, "", sum(piece.ms for piece in few), total)


def _add_path_row(table: Table, step: int, rank: str, what: str, phase: str, ms: float, total: float) -> None:
    share = wording.percent(ms / total) if total else ""
    table.add_row(str(step), rank, Text(printable(what)), phase, wording.decimals(ms, 2), share)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else wording.decimals(value, digits)


def _print_unseen(console: Console, result: Result) -> None:
    diagnosis = result.diagnosis
    lines = [f"{printable(w.file)}: {printable(w.message)}" for w in diagnosis.warnings]
    lines += [
        f"{outcome.rule}: {printable(outcome.reason)}"
        for outcome in diagnosis.outcomes
        if outcome.status in ("not-applicable", "error")
    ]
    if diagnosis.findings and stacks.lacking(result.job):
        lines.append(f"evidence: {stacks.SENTENCE}: capture {record_again.stacks_in_words(diagnosis.setting)}.")
    if lines:
        console.print()
        print_code(console, "Not checked (lacks data)", "bold")
        for line in lines:
            print_wrapped(console, f"- {line}", "dim", indent=2, first=0)
