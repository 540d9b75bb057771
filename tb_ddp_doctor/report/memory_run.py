"""A job of which there are snapshots of memory and no traces, in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from rich.console import Console
from rich.text import Text

from tb_ddp_doctor import step_parts, wording
from tb_ddp_doctor.findings import MemoryFinding, MemoryHolder, MemoryRun, MemorySnapshot
from tb_ddp_doctor.report.escape import code_block, folded, printable, printable_lines, table
from tb_ddp_doctor.report.escape import markdown as escaped
from tb_ddp_doctor.report.wrapping import print_code, print_table, print_wrapped, titled, without_trailing_spaces

#: Ranks that have a column each: more are in the JSON.
_MOST_RANKS = 8
#: Places and modules that have a row each.
_MOST_ROWS = 6
#: A title, heads, and rows of a table.
_Table = tuple[str, list[str], list[list[str]]]


def print_run(console: Console, run: MemoryRun) -> None:
    """Print what the snapshots of a job say."""
    with without_trailing_spaces(console):
        console.rule(Text(printable(run.name), "bold"), align="left", style="dim")
        print_wrapped(console, _facts(run), "dim")
        print_wrapped(console, printable(run.headline), "bold red" if run.findings else "bold")
        console.print()
        for finding in run.findings:
            _print_finding(console, finding)
        for sentence in run.said:
            print_wrapped(console, printable(sentence))
        print_tables(console, _of_ranks(run))
        for snapshot in run.snapshots[:_MOST_RANKS]:
            print_snapshot(console, snapshot)
        for one in run.warnings:
            print_wrapped(console, f"- {printable(one.file)}: {printable(one.message)}", "dim", indent=2, first=0)


def print_snapshot(console: Console, snapshot: MemorySnapshot) -> None:
    """Print what one snapshot says."""
    console.print()
    print_code(console, f"Snapshot {printable(snapshot.file)}", "bold")
    for sentence in snapshot.said:
        print_wrapped(console, printable(sentence))
    print_tables(console, _of_snapshot(snapshot))


def print_tables(console: Console, tables: Iterator[_Table]) -> None:
    """Print tables, numbers to the right."""
    for title, heads, rows in tables:
        columns = [printable(head if head in _WORDS else f">{head}") for head in heads]
        console.print()
        print_table(console, titled(title, *columns, gap=2, no_wrap=True), rows)


def markdown(runs: Sequence[MemoryRun]) -> str:
    """All runs, one section each."""
    return "\n\n".join("\n\n".join(_section(run)) for run in runs) + "\n" if runs else ""


def _section(run: MemoryRun) -> Iterator[str]:
    yield f"## ddp-doctor: {escaped(run.name)}"
    yield f"**{escaped(run.headline)}**"
    yield _facts(run)
    for finding in run.findings:
        fix = finding.fix_parts
        yield "\n\n".join(filter(None, [escaped(finding.why), f"**Fix:** {fix.advice}", code_block(fix.code)]))
    yield "\n".join(f"- {escaped(sentence)}" for sentence in run.said)
    yield from map(_folded, _of_ranks(run))
    for snapshot in run.snapshots[:_MOST_RANKS]:
        yield f"**{escaped(snapshot.file)}**: {escaped(' '.join(snapshot.said))}"
        yield from map(_folded, _of_snapshot(snapshot))
    yield "\n".join(f"- {escaped(one.file)}: {escaped(one.message)}" for one in run.warnings)


def _folded(one: _Table) -> str:
    title, heads, rows = one
    return folded(title, table(heads, ["---" if head in _WORDS else "---:" for head in heads], rows))


def _print_finding(console: Console, finding: MemoryFinding) -> None:
    print_wrapped(console, printable(finding.why), indent=2)
    print_wrapped(console, f"Fix: {printable(finding.fix_parts.advice)}", indent=2)
    console.print()
    if code := finding.fix_parts.code:
        print_code(console, f"{printable_lines(code)}\n", "cyan", indent=6)


def _facts(run: MemoryRun) -> str:
    count = len(run.snapshots)
    return f"{count} snapshot{'' if count == 1 else 's'} of torch.cuda.memory, no traces"


#: Columns of words.
_WORDS = ("category", "at", "module")


def _of_ranks(run: MemoryRun) -> Iterator[_Table]:
    """The categories of all ranks side by side, where there are several."""
    ranked = sorted((one for one in run.snapshots if one.rank is not None), key=lambda one: -one.allocated)[
        :_MOST_RANKS
    ]
    if len(ranked) < 2:
        return
    ranked.sort(key=lambda one: one.rank or 0)
    rows = [
        [part.title, *(wording.megabytes(one.categories[name]) for one in ranked)]
        for name, part in step_parts.MEMORY.items()
        if any(one.categories[name] for one in ranked)
    ]
    rows.append(["reserved but unallocated", *(wording.megabytes(one.reserved_but_unallocated) for one in ranked)])
    yield "Ranks, MB", ["category", *(f"rank {one.rank}" for one in ranked)], rows


def _of_snapshot(snapshot: MemorySnapshot) -> Iterator[_Table]:
    """What is allocated, by line and by module."""
    total = max(snapshot.allocated, 1)
    if snapshot.holders:
        rows = [
            [
                wording.megabytes(one.bytes),
                wording.percent(one.bytes / total),
                step_parts.MEMORY[one.category].title,
                str(one.count),
                _at(one),
            ]
            for one in snapshot.holders[:_MOST_ROWS]
        ]
        yield "What is allocated, by line", ["MB", "share", "category", "blocks", "at"], rows
    if snapshot.modules:
        rows = [
            [wording.megabytes(one.bytes), wording.percent(one.bytes / total), str(one.count), one.module]
            for one in snapshot.modules[:_MOST_ROWS]
        ]
        yield "By module, in forward", ["MB", "share", "blocks", "module"], rows


def _at(holder: MemoryHolder) -> str:
    source = holder.source
    return f"{PurePath(source.file).name}:{source.line} ({source.function})" if source else "not in the job's own code"
