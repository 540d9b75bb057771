"""What memory is made of, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor import record_again, step_parts, wording
from tb_ddp_doctor.findings import Diagnosis, Memory, Source
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.memory_run import print_snapshot
from tb_ddp_doctor.report.wrapping import print_code, print_wrapped, titled

#: Ranks that have a column each.
_SHOWN_RANKS = 8


def print_memory(console: Console, diagnosis: Diagnosis) -> None:
    """Print what the rank with the highest peak has allocated for, what would save some of it, and the other ranks."""
    console.print()
    if diagnosis.memory:
        _print_contents(console, diagnosis.memory)
    else:
        print_wrapped(console, f"Memory: not checked. {record_again.no_memory(diagnosis.setting)}", "dim")
    for snapshot in diagnosis.memory_snapshots:
        print_snapshot(console, snapshot)


def _print_contents(console: Console, memory: Memory) -> None:
    print_code(console, "Memory", "bold")
    for sentence in memory.said:
        print_wrapped(console, printable(sentence))
    for table in (_parts(memory), _phases(memory), _largest(memory), _ranks(memory), _savings(memory)):
        if table.row_count:
            console.print()
            console.print(table)


def _parts(memory: Memory) -> Table:
    table = titled("What is allocated at the peak", "category", ">MB", ">share", "is", gap=1, no_wrap=True)
    peak = memory.peak
    for name, part in step_parts.MEMORY.items():
        if size := peak.categories[name]:
            table.add_row(
                part.title, wording.megabytes(size), wording.percent(size / peak.allocated), Text(part.when, "dim")
            )
    return table


def _phases(memory: Memory) -> Table:
    table = titled("Change by phase", "phase", ">change, MB", ">peak, MB", gap=1, no_wrap=True)
    for phase in memory.phases:
        if phase.peak is not None:
            table.add_row(phase.phase, wording.megabytes(phase.change, "+"), wording.megabytes(phase.peak))
    return table


def _largest(memory: Memory) -> Table:
    table = titled("The largest allocations then", "op", ">MB", "category", "in", gap=1, no_wrap=True)
    for block in memory.largest:
        where = ", ".join(filter(None, (block.module, _at(block.source).removeprefix(" at "))))
        name = printable(block.op) or "?"
        table.add_row(
            Text(name),
            wording.megabytes(block.bytes),
            _title(block.category),
            Text(printable(where) or block.phase, "dim"),
        )
    return table


def _ranks(memory: Memory) -> Table:
    if len(memory.ranks) < 2:
        return Table()
    fullest = sorted(memory.ranks, key=lambda one: -one.allocated)[:_SHOWN_RANKS]
    fullest.sort(key=lambda one: one.rank)
    table = titled("Ranks at their peaks, MB", "of rank", gap=1, no_wrap=True)
    for one in fullest:
        style = "bold red" if one.excess_category else None
        table.add_column(str(one.rank), justify="right", style=style, no_wrap=True)
    rows = {"allocated": [one.allocated for one in fullest], "reserved": [one.reserved for one in fullest]}
    rows |= {_title(name): [one.categories[name] for one in fullest] for name in step_parts.MEMORY}
    for title, sizes in rows.items():
        if any(sizes):
            table.add_row(title, *(wording.whole(size / 1e6) for size in sizes))
    if len(memory.ranks) > _SHOWN_RANKS:
        table.caption = f"The {_SHOWN_RANKS} with the highest peaks, of {len(memory.ranks)}."
    return table


def _savings(memory: Memory) -> Table:
    table = titled("What would save memory", "what", ">MB", ">ms a step", "why", gap=1, no_wrap=True)
    for one in memory.savings:
        cost = "?" if one.cost_ms is None else wording.decimals(one.cost_ms, 1, "+") if one.cost_ms else "0"
        table.add_row(Text(printable(one.title)), wording.megabytes(one.bytes), cost, Text(printable(one.why), "dim"))
    return table


def _title(category: str | None) -> str:
    return step_parts.MEMORY[category].title if category else ""


def _at(source: Source | None) -> str:
    return f" at {source.file}:{source.line} ({source.function})" if source else ""
