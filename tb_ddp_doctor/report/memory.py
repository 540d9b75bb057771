"""What memory is made of, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor import step_parts
from tb_ddp_doctor.findings import Diagnosis, Memory, Source
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.wrapping import print_code, print_wrapped
from tb_ddp_doctor.rules.support import text

#: What to record where traces have no memory events.
NOTHING = "Memory: not checked. The traces have no memory events: capture with profile(..., profile_memory=True)."
#: Ranks that have a line each.
_SHOWN_RANKS = 16
_NUMBERS = ("MB", "share", "change, MB", "peak, MB", "ms a step")


def print_memory(console: Console, diagnosis: Diagnosis) -> None:
    """Print what the rank with the highest peak has allocated for, what would save some of it, and the other ranks."""
    memory = diagnosis.memory
    console.print()
    if memory is None:
        print_wrapped(console, NOTHING, "dim")
        return
    print_code(console, "Memory", "bold")
    for sentence in sentences(memory):
        print_wrapped(console, printable(sentence))
    for table in (_parts(memory), _phases(memory), _largest(memory), _ranks(memory), _savings(memory)):
        if table.row_count:
            console.print()
            console.print(table)


def sentences(memory: Memory) -> list[str]:
    """What is said of a job's memory, a sentence or two for each thing."""
    peak, where = memory.peak, "the CPU" if memory.on_cpu else "the GPU"
    said = f"{_size(peak.allocated)} allocated at the peak, on rank {peak.rank} in step {peak.step}, in {peak.phase}"
    if memory.on_cpu:
        said += f", on {where}, whose allocator counts from the beginning of the recording"
    else:
        of = f" of the GPU's {_size(memory.capacity)}" if memory.capacity else ""
        said += f". Reserved then: {_size(peak.reserved)}{of}; reserved but unallocated: "
        said += _size(memory.reserved_but_unallocated)
    found = [f"{said}."]
    if memory.unusable:
        found.append(
            f"The allocator reserved more although {_size(memory.unusable)} were reserved but unallocated: they were "
            "in pieces too small for what was asked for, so nothing could use them."
        )
    states = memory.states
    if memory.on_cpu and states.parameters and not peak.categories["parameters"]:
        kept = f", and {states.optimizer}'s states {_size(states.optimizer_states)}" if states.optimizer_states else ""
        found.append(
            f"Not counted, since it was there before: by the gradients' sizes, parameters take "
            f"{_size(states.parameters)}{kept}."
        )
    if growth := memory.growth:
        places = "; ".join(
            f"{place.op or 'an unknown op'}{_at(place.source)}: {_size(place.bytes)}" for place in growth.places
        )
        found.append(
            f"Rank {growth.rank} has {_size(growth.bytes)} more allocated after each step: a leak, if it goes on."
            + (f" Allocated in most steps and not released: {places}." if places else "")
        )
    found += [
        f"Rank {one.rank} has {_size(one.excess)} more than the median rank, most of it in "
        f"{_title(one.excess_category)}."
        for one in memory.ranks
        if one.excess_category
    ][:4]
    if memory.largest_batch:
        found.append(
            f"If activations and temporary memory grow with the batch, {memory.largest_batch:.1f} times the batch fits "
            "in 90 % of the GPU."
        )
    return found


def _parts(memory: Memory) -> Table:
    table = _table("What is allocated at the peak", "category", "MB", "share", "is")
    peak = memory.peak
    for name, part in step_parts.MEMORY.items():
        if size := peak.categories[name]:
            table.add_row(part.title, _mb(size), text.percent(size / peak.allocated), Text(part.when, "dim"))
    return table


def _phases(memory: Memory) -> Table:
    table = _table("Change by phase", "phase", "change, MB", "peak, MB")
    for phase in memory.phases:
        if phase.peak is not None:
            table.add_row(phase.phase, f"{phase.change / 1e6:+,.1f}", _mb(phase.peak))
    return table


def _largest(memory: Memory) -> Table:
    table = _table("The largest allocations then", "op", "MB", "category", "in")
    for block in memory.largest:
        where = ", ".join(filter(None, (block.module, _at(block.source).removeprefix(" at "))))
        name = printable(block.op) or "?"
        table.add_row(
            Text(name), _mb(block.bytes), _title(block.category), Text(printable(where) or block.phase, "dim")
        )
    return table


def _ranks(memory: Memory) -> Table:
    if len(memory.ranks) < 2:
        return Table()
    fullest = sorted(memory.ranks, key=lambda one: -one.allocated)[:_SHOWN_RANKS]
    seen = [name for name in step_parts.MEMORY if any(one.categories[name] for one in fullest)]
    table = _table(
        "Ranks at their peaks, MB", "rank", "allocated", "reserved", *(_title(name).replace(" ", "\n") for name in seen)
    )
    for one in sorted(fullest, key=lambda one: one.rank):
        cells = (one.allocated, one.reserved, *(one.categories[name] for name in seen))
        table.add_row(str(one.rank), *map(_mb, cells), style="bold red" if one.excess_category else None)
    if len(memory.ranks) > _SHOWN_RANKS:
        table.caption = f"The {_SHOWN_RANKS} with the highest peaks, of {len(memory.ranks)}."
    return table


def _savings(memory: Memory) -> Table:
    table = _table("What would save memory", "what", "MB", "ms a step", "why")
    for one in memory.savings:
        cost = "?" if one.cost_ms is None else f"{one.cost_ms:+.1f}" if one.cost_ms else "0"
        table.add_row(Text(printable(one.title)), _mb(one.bytes), cost, Text(printable(one.why), "dim"))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    for column in columns:
        is_number = column in _NUMBERS or "rank" in columns
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number)
    return table


def _title(category: str | None) -> str:
    return step_parts.MEMORY[category].title if category else ""


def _at(source: Source | None) -> str:
    return f" at {source.file}:{source.line} ({source.function})" if source else ""


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _size(size: int | None) -> str:
    return text.gigabytes(size or 0) if (size or 0) >= 1e7 else f"{(size or 0) / 1e6:.1f} MB"
