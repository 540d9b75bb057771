"""Modules in a terminal: which part of the model a step's time is spent in, on all ranks or on one, and by kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor import wording
from tb_ddp_doctor.account.layers import LEAST_SHARE
from tb_ddp_doctor.account.module_path import path_of
from tb_ddp_doctor.account.module_steps import compared_steps, of_step
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.module_paths import GUESSED
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts import MissingFactError
from tb_ddp_doctor.facts.modules import ModuleKernelTable, ModulePart, ModuleTree, in_order, kernel_table, modules
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.layer_kernels import Line, bottom_up, top_down
from tb_ddp_doctor.report.wrapping import print_wrapped
from tb_ddp_doctor.trace.model import Floats

_HEADINGS = {
    ModulePart.FORWARD: "fwd",
    ModulePart.BACKWARD: "bwd",
    ModulePart.RECOMPUTED: "again",
    ModulePart.OTHER: "other",
    ModulePart.COMMUNICATION: "comm.",
    ModulePart.IDLE: "idle",
}
#: Letters of a module's name that columns at the right make room for: those furthest right are left out first.
_NAME = 20


class LayersAsked(msgspec.Struct, frozen=True):
    """What is to be shown of the model's modules."""

    #: Levels of modules.
    depth: int
    #: One rank in place of the median rank, and the rank that it is compared with in place of the median of the others.
    rank: int | None = None
    against: int | None = None
    #: Whether kernels are shown below their modules, or modules below their kernels.
    kernels: bool = False
    bottom_up: bool = False
    #: The slowest step beside the median one, in place of the mean over steps.
    slowest_step: bool = False


def print_layers(console: Console, result: Result, asked: LayersAsked) -> None:
    """Print the tree of modules: the median over ranks of each time, or of a rank and of what it is compared with."""
    console.print()
    if asked.slowest_step:
        _print_slowest_step(console, result, asked)
        return
    tree = _tree(console, result.job.digests)
    ranks = result.job.ranks.tolist()
    if tree is None:
        return
    unknown = [rank for rank in (asked.rank, asked.against) if rank is not None and rank not in ranks]
    if unknown:
        print_wrapped(console, f"There is no rank {unknown[0]} among {wording.ranks(ranks)}.")
        return
    table = kernel_table(tree, result.job.digests) if asked.kernels or asked.bottom_up else None
    path_ms = _path_ms(result, table) if asked.rank is None else None
    lines = _asked_lines(tree, table, asked, None if path_ms is None else lambda line: _most(line, path_ms))
    if asked.rank is None:
        more = _row_columns(tree, result, lines, path_ms)
        _print_median(console, tree, result, lines, more, bottom_up=asked.bottom_up)
    else:
        against = None if asked.against is None else ranks.index(asked.against)
        _print_rank(console, tree, ranks, ranks.index(asked.rank), against, lines)


def _asked_lines(
    tree: ModuleTree,
    table: ModuleKernelTable | None,
    asked: LayersAsked,
    amount: Callable[[Line], float] | None = None,
) -> list[Line]:
    """The modules, or, of a table of kernels, these with their modules."""
    if table and asked.bottom_up:
        return bottom_up(tree, table)
    lines = _lines(tree, asked.depth)
    return top_down(tree, table, lines, amount) if table and asked.kernels else lines


def _path_ms(result: Result, table: ModuleKernelTable | None) -> Floats | None:
    """How much of the critical path in a step lies in each kernel, ms, shape (K,); None without kernels or a path."""
    path = path_of(result.savings, table) if table and result.diagnosis.critical_path else None
    return path.of_kernels(table) / 1e6 if table and path else None


def _most(line: Line, path_ms: Floats) -> float:
    """The median over ranks of a line's time, or what it has of the critical path where that is more, ns."""
    of_path = 0.0 if line.rows is None else 1e6 * float(path_ms[line.rows].sum())
    return max(float(np.median(line.step_ns.sum(axis=1))), of_path)


def _lines(tree: ModuleTree, depth: int) -> list[Line]:
    """The modules with enough time to a depth, the whole step first."""
    every = tree.step_ns.sum(axis=2)
    shown = (every.max(axis=0) >= LEAST_SHARE * every[:, 0].max()) & (tree.level <= depth)
    return [
        Line(
            tree.path[module].rpartition(".")[2] or "whole step",
            int(tree.level[module]),
            tree.step_ns[:, module],
            module,
        )
        for module in in_order(tree)
        if shown[module] or not module
    ]


def _print_median(
    console: Console,
    tree: ModuleTree,
    result: Result,
    lines: Sequence[Line],
    more: Mapping[str, Sequence[str]],
    *,
    bottom_up: bool,
) -> None:
    """Print each line's median over ranks, the rank that takes longest in it, and as many more columns as have room."""
    ranks = result.job.ranks.tolist()
    # The median of sums and not the sum of medians, so that a line is some rank's time.
    every = np.array([line.step_ns.sum(axis=1) for line in lines]) / 1e6
    parts = np.array([np.median(line.step_ns, axis=0) for line in lines]) / 1e6
    step, whole = np.median(every, axis=1), float(np.median(tree.step_ns[:, 0].sum(axis=1))) / 1e6
    columns = {"step": _column(step), "share": _shares(step, whole), **_part_columns(tree, parts)}
    if len(ranks) > 1:
        longest = every.argmax(axis=1)
        columns |= {"longest": _column(every.max(axis=1)), "rank": [str(ranks[row]) for row in longest.tolist()]}
    of = "the median rank" if len(ranks) > 1 else f"rank {ranks[0]}"
    what = "Kernels, and the modules that launch them," if bottom_up else _kind(tree)
    title = f"{what} by their time in a step of {of}, ms ({_named(tree)})"
    _print(console, title, lines, columns, more)
    for sentence in result.diagnosis.layers.said if result.diagnosis.layers else ():
        print_wrapped(console, printable(wording.capital(sentence)))


def _print_rank(
    console: Console, tree: ModuleTree, ranks: Sequence[int], row: int, against: int | None, lines: Sequence[Line]
) -> None:
    """Print each line's time on the rank of a row, and how much more it is than another's, or the others' median."""
    every = np.array([line.step_ns.sum(axis=1) for line in lines]) / 1e6
    parts = np.array([line.step_ns[row] for line in lines]) / 1e6
    step, whole = every[:, row], float(tree.step_ns[row, 0].sum()) / 1e6
    columns = {"step": _column(step), "share": _shares(step, whole), **_part_columns(tree, parts)}
    if len(ranks) > 1:
        others = every[:, against] if against is not None else np.median(np.delete(every, row, axis=1), axis=1)
        heading = "others" if against is None else f"rank {ranks[against]}"
        columns |= {heading: _column(others), "more": _column(step - others, "+")}
    title = f"{_kind(tree)} by their time in a step of rank {ranks[row]}, ms ({_named(tree)})"
    _print(console, title, lines, columns)


def print_compared(console: Console, before: Result, after: Result, asked: LayersAsked) -> None:
    """Print by how much longer or shorter a step is in each module of a later run, of the median ranks or of one."""
    console.print()
    runs, rank = (before, after), asked.rank
    lacks = [run.diagnosis.name for run in runs if rank is not None and rank not in run.job.ranks]
    if lacks:
        print_wrapped(console, printable(f"There is no rank {rank} in {lacks[0]}."))
        return
    earlier, later = (
        [one for number, one in zip(run.job.ranks.tolist(), run.job.digests, strict=True) if rank in (None, number)]
        for run in runs
    )
    of = "the median rank" if rank is None else f"rank {rank}"
    _print_pair(console, earlier, later, asked, f"a step of {of}", ("before", "after"))


def _print_slowest_step(console: Console, result: Result, asked: LayersAsked) -> None:
    """Print by how much longer the slowest step is in each module than the median one, of the median rank or of one."""
    ranks, digests = result.job.ranks.tolist(), list(result.job.digests)
    if asked.rank is not None and asked.rank not in ranks:
        print_wrapped(console, f"There is no rank {asked.rank} among {wording.ranks(ranks)}.")
        return
    chosen = digests if asked.rank is None else [digests[ranks.index(asked.rank)]]
    steps = compared_steps(chosen)
    if steps is None:
        print_wrapped(console, "One step alone is recorded of each rank: there is no other to compare it with.")
        return
    before, after = ([of_step(chosen[rank], slowest=slowest) for rank in steps.ranks] for slowest in (False, True))
    of = "the median rank" if asked.rank is None else f"rank {asked.rank}"
    said = f"steps {steps.median} (median) and {steps.slowest} (slowest) of {of}"
    _print_pair(console, before, after, asked, said, (f"step {steps.median}", f"step {steps.slowest}"))
    if len(steps.ranks) < len(chosen):
        others = len(chosen) - len(steps.ranks)
        print_wrapped(console, f"Of {others} of {len(chosen)} ranks other steps are the slowest and the median one.")


def _print_pair(
    console: Console,
    before: Sequence[RankDigest],
    after: Sequence[RankDigest],
    asked: LayersAsked,
    of: str,
    heads: tuple[str, str],
) -> None:
    """Print the times of modules in two runs, or steps, and by how much those of the later one are longer."""
    digests, size = (*before, *after), len(before)
    tree = _tree(console, digests)
    if tree is None:
        return
    table = kernel_table(tree, digests) if asked.kernels or asked.bottom_up else None
    lines = _asked_lines(tree, table, asked, lambda line: _change(line, size))
    # The median of sums and not the sum of medians, so that a line is some rank's time.
    times = np.array([line.step_ns for line in lines]) / 1e6
    parts = [np.median(rows, axis=1) for rows in (times[:, :size], times[:, size:])]
    whole = [np.median(rows.sum(axis=2), axis=1) for rows in (times[:, :size], times[:, size:])]
    columns = {
        heads[0]: _column(whole[0]),
        heads[1]: _column(whole[1]),
        "more": _column(whole[1] - whole[0], "+"),
        **_part_columns(tree, parts[1] - parts[0], "+"),
    }
    _print(
        console, f"{_kind(tree)} by their time in {of}, ms; by part, what it is more ({_named(tree)})", lines, columns
    )


def _change(line: Line, size: int) -> float:
    """By how much a line's median over the first so many ranks and its median over the others differ, ns."""
    every = line.step_ns.sum(axis=1)
    return abs(float(np.median(every[size:]) - np.median(every[:size])))


def _tree(console: Console, digests: Sequence[RankDigest]) -> ModuleTree | None:
    """The modules of all ranks; where no trace names any, None, and that is printed."""
    try:
        return modules(digests)
    except MissingFactError as error:
        print_wrapped(console, str(error))
        return None


def _print(
    console: Console,
    title: str,
    lines: Sequence[Line],
    columns: Mapping[str, Sequence[str]],
    more: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Print the lines, each with its cell of each column, by heading, and of some more columns as many as have room."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    widths = {heading: max(map(len, (heading, *cells))) for heading, cells in (*columns.items(), *more.items())}
    columns = {**columns, **more}
    # Where the terminal is too narrow, names lose letters, and numbers none.
    room = console.width - sum(widths.values()) - len(widths)
    for heading in reversed(list(more)):
        if room < _NAME:
            room += widths.pop(heading) + 1
            del columns[heading]
    table.add_column("module", no_wrap=True, max_width=max(room, 12))
    for heading, width in widths.items():
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for line, *cells in zip(lines, *columns.values(), strict=True):
        table.add_row(Text("  " * line.level + printable(line.name)), *cells)
    console.print(table)


def _row_columns(
    tree: ModuleTree, result: Result, lines: Sequence[Line], path_ms: Floats | None
) -> dict[str, list[str]]:
    """What the diagnosis says of the modules of lines beside their times; columns that have nothing are left out.

    `path_ms` is how much of the critical path lies in each kernel. The first columns are those that a narrow terminal
    keeps.
    """
    table = result.diagnosis.layers
    rows = {row.path: row for row in table.rows} if table else {}
    listed = [rows.get(tree.path[line.module]) if line.module >= 0 else None for line in lines]
    columns = {}
    for heading, (field, said) in _OF_ROWS.items():
        values = [None if row is None else getattr(row, field) for row in listed]
        if field == "critical_ms" and path_ms is not None:
            of_rows = zip(values, (line.rows for line in lines), strict=True)
            values = [value if rows is None else float(path_ms[rows].sum()) for value, rows in of_rows]
        if any(value is not None for value in values):
            columns[heading] = ["" if value is None else said(value) for value in values]
    return columns


def _giga(value: float) -> str:
    return wording.decimals(value / 1e9, 0 if value >= 100e9 else 2)


def _ms(value: float) -> str:
    return wording.decimals(value, 2)


#: Columns of fields of `LayerRow` that may be None, and how their values are said.
_OF_ROWS: Mapping[str, tuple[str, Callable[[float], str]]] = MappingProxyType(
    {
        "p99": ("p99_ms", _ms),
        "peak MB": ("peak_bytes", wording.megabytes),
        "critical": ("critical_ms", _ms),
        "above": ("above_ms", _ms),
        "opt.": ("optimizer_ms", _ms),
        "beside": ("beside_ms", _ms),
        "longer": ("beside_longer_ms", _ms),
        "alloc. MB": ("allocated_bytes", wording.megabytes),
        "GFLOP": ("flops", _giga),
        "GB": ("moved_bytes", _giga),
    }
)


def _part_columns(tree: ModuleTree, ms: NDArray[np.float64], sign: str = "") -> dict[str, list[str]]:
    """A column for each part that some module has on some rank, of times of shape (lines, len(ModulePart))."""
    return {
        heading: _column(ms[:, part], sign) for part, heading in _HEADINGS.items() if tree.step_ns[:, :, part].any()
    }


def _column(ms: Iterable[float], sign: str = "") -> list[str]:
    return [wording.decimals(time, 2, sign) for time in ms]


def _shares(ms: NDArray[np.float64], whole_ms: float) -> list[str]:
    return [wording.percent(share) for share in ms / max(whole_ms, 1e-6)]


def _kind(tree: ModuleTree) -> str:
    return "Layers" if tree.named_by == GUESSED else "Modules"


def _named(tree: ModuleTree) -> str:
    """What names the modules; of guessed layers, that they are guesses."""
    if tree.layer_events:
        return f"guessed: repeats of {tree.layer_events} kernels"
    return f"named by {tree.named_by}"
