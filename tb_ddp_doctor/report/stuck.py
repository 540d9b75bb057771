"""A job that is stuck, in a terminal and as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from tb_ddp_doctor.report.escape import code_block, folded, printable, printable_lines, table
from tb_ddp_doctor.report.escape import markdown as escaped
from tb_ddp_doctor.report.wrapping import print_code, print_table, print_wrapped, titled, without_trailing_spaces
from tb_ddp_doctor.stuck import text
from tb_ddp_doctor.stuck.model import GroupProgress, StuckFinding, StuckRun

_STYLES = {"critical": "bold red", "info": "bold", "healthy": "bold green"}
_RECORDERS = {"flight_recorder": "Flight Recorder dumps", "stacks": "Python stacks"}
#: Rows of a table: more are counted.
_MOST_ROWS = 32
_WAYS = {
    "absent": "has not come",
    "no-dump": "left no dump",
    "incomplete": "came, does not complete",
    "mismatch": "came with something else",
    "not-started": "came, did not start",
    "queued": "came, is blocked too",
}


def print_run(console: Console, run: StuckRun) -> None:
    """Print what the dumps or stacks of a job say."""
    with without_trailing_spaces(console):
        _print_run(console, run)


def _print_run(console: Console, run: StuckRun) -> None:
    console.rule(Text(printable(run.name), "bold"), align="left", style="dim")
    print_wrapped(console, printable(_facts(run)), "dim")
    print_wrapped(console, printable(run.headline), _STYLES[run.level])
    console.print()
    for finding in run.findings:
        _print_finding(console, finding)
    for title, heads, rows, more in _tables(run):
        print_table(console, titled(title, *heads, gap=2), rows, more)
        console.print()
    if run.warnings:
        console.print(Text("Not checked (lacks data), and what else to know", "bold"))
        for one in run.warnings:
            print_wrapped(console, f"- {printable(one.file)}: {printable(one.message)}", "dim", indent=2, first=0)
        console.print()


def _print_finding(console: Console, finding: StuckFinding) -> None:
    console.print(
        Text.assemble(
            (f"{finding.severity.capitalize():<9}", _STYLES[finding.severity]),
            (finding.cause, "bold"),
            f"  {text.ranks(finding.ranks)}, confidence {finding.confidence}",
        )
    )
    parts = finding.fix_parts
    print_wrapped(console, printable(finding.title), indent=2)
    print_wrapped(console, printable(finding.why), indent=2)
    if site := _site(finding):
        print_wrapped(console, printable(site), "dim", indent=2)
    print_wrapped(console, f"Fix: {printable(parts.advice)}", indent=2)
    console.print()
    if parts.code:
        print_code(console, f"{printable_lines(parts.code)}\n", "cyan", indent=6)


def markdown(runs: Sequence[StuckRun]) -> str:
    """All runs, one section each."""
    return "\n\n".join("\n\n".join(_section(run)) for run in runs) + "\n" if runs else ""


def _section(run: StuckRun) -> Iterator[str]:
    yield f"## ddp-doctor: {escaped(run.name)}"
    yield f"**{escaped(run.headline)}**"
    yield escaped(_facts(run))
    for finding in run.findings:
        fix = finding.fix_parts
        site = _site(finding)
        parts = [
            escaped(finding.why),
            escaped(site),
            f"**Fix:** {escaped(fix.advice)}",
            code_block(fix.code) if fix.code else "",
        ]
        yield folded(f"{finding.cause}: {finding.title}", "\n\n".join(filter(None, parts)))
    for title, heads, rows, more in _tables(run):
        yield folded(title, "\n\n".join(filter(None, [table(heads, ["---"] * len(heads), rows), more])))
    if run.warnings:
        lines = [f"- {escaped(one.file)}: {escaped(one.message)}" for one in run.warnings]
        yield folded("Not checked (lacks data), and what else to know", "\n".join(lines))


def _facts(run: StuckRun) -> str:
    parts = [f"{len(run.ranks)} of {run.world_size} ranks", _RECORDERS[run.recorder], run.library]
    parts += [f"traces of the same job: {', '.join(run.traces[:4])}"] if run.traces else []
    return ", ".join(filter(None, parts))


def _site(finding: StuckFinding) -> str:
    site = finding.call.site
    return f"{finding.call.kind} is called at {site.file}:{site.line} ({site.function})." if site else ""


def _tables(run: StuckRun) -> Iterator[tuple[str, list[str], list[list[str]], str]]:
    """Title, heads, rows and what is left out of each table that has rows."""
    for title, heads, rows in (
        ("Waiting graph", ["rank", "blocked by", "which", "in"], _waits(run)),
        (
            "Groups whose ranks are apart: newest collective enqueued",
            ["group", "ranks", "front", "behind"],
            _behind(run),
        ),
    ):
        if rows:
            more = f"{len(rows) - _MOST_ROWS} more; --json has all." if len(rows) > _MOST_ROWS else ""
            yield title, heads, rows[:_MOST_ROWS], more


def _waits(run: StuckRun) -> list[list[str]]:
    """Ranks that wait for the same in the same, together."""
    together: defaultdict[tuple[tuple[int, ...], str, str], list[int]] = defaultdict(list)
    for wait in run.waits:
        together[wait.targets, wait.why, wait.what].append(wait.rank)
    return [
        [text.ranks(ranks), text.ranks(targets), _WAYS[why], what] for (targets, why, what), ranks in together.items()
    ]


def _behind(run: StuckRun) -> list[list[str]]:
    apart = [group for group in run.groups if len(set(group.enqueued)) > 1]
    return [[_group(group), text.ranks(group.ranks), str(group.front), _who_is_behind(group)] for group in apart]


def _group(group: GroupProgress) -> str:
    return f"{group.description} ({group.name})" if group.description else group.name


def _who_is_behind(group: GroupProgress) -> str:
    at: defaultdict[int, list[int]] = defaultdict(list)
    for rank, enqueued in zip(group.ranks, group.enqueued, strict=True):
        if enqueued < group.front:
            at[enqueued].append(rank)
    return "; ".join(f"{text.ranks(ranks)} at {number if number >= 0 else '?'}" for number, ranks in sorted(at.items()))
