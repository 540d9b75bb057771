"""Modules in a terminal: which part of the model a step's time is spent in, on all ranks or on one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor import wording
from tb_ddp_doctor.account.layers import LEAST_SHARE
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.module_paths import GUESSED
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts import MissingFactError
from tb_ddp_doctor.facts.modules import ModulePart, ModuleTree, in_order, modules
from tb_ddp_doctor.findings import LayerTable
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.wrapping import print_wrapped

_HEADINGS = {
    ModulePart.FORWARD: "fwd",
    ModulePart.BACKWARD: "bwd",
    ModulePart.RECOMPUTED: "again",
    ModulePart.OTHER: "other",
    ModulePart.COMMUNICATION: "comm.",
    ModulePart.IDLE: "idle",
}


def print_layers(console: Console, result: Result, depth: int, rank: int | None) -> None:
    """Print the tree of modules to a depth: the median over ranks of each time, or of a rank and of the others."""
    console.print()
    tree = _tree(console, result.job.digests)
    ranks = result.job.ranks.tolist()
    if tree is None:
        return
    if rank is None and result.diagnosis.layers:
        _print_median(console, result.diagnosis.layers, ranks, depth)
    elif rank in ranks:
        _print_rank(console, tree, ranks, ranks.index(rank), depth)
    else:
        print_wrapped(console, f"There is no rank {rank} among {wording.ranks(ranks)}.")


def _print_median(console: Console, table: LayerTable, ranks: Sequence[int], depth: int) -> None:
    """Print each module's median over ranks, and the rank that takes longest in it."""
    whole = table.rows[0].step_ms
    rows = [row for row in table.rows if not row.level or (row.level <= depth and row.step_ms >= LEAST_SHARE * whole)]
    columns = {
        "step": _column([row.step_ms for row in rows]),
        "share": [wording.percent(row.step_ms / max(whole, 1e-6)) for row in rows],
    }
    for part, heading in _HEADINGS.items():
        times = [getattr(row, f"{part.name.lower()}_ms") for row in table.rows]
        if any(times):
            columns[heading] = _column([getattr(row, f"{part.name.lower()}_ms") for row in rows])
    if len(ranks) > 1:
        columns |= {
            "longest": _column([row.longest_ms for row in rows]),
            "rank": [str(row.longest_rank) for row in rows],
        }
    of = "the median rank" if len(ranks) > 1 else f"rank {ranks[0]}"
    title = f"{_kind(table)} by their time in a step of {of}, ms ({_named(table)})"
    _print(console, title, [(row.path, row.level) for row in rows], columns)


def _print_rank(console: Console, tree: ModuleTree, ranks: Sequence[int], row: int, depth: int) -> None:
    """Print each module's time on the rank of a row, and how much more it is than the others' median."""
    every = tree.step_ns.sum(axis=2) / 1e6
    whole, parts = every[row], tree.step_ns[row] / 1e6
    shown = (every.max(axis=0) >= LEAST_SHARE * whole[0]) & (tree.level <= depth)
    listed = [module for module in in_order(tree) if shown[module] or not module]
    columns = {
        "step": _column(whole[listed]),
        "share": [wording.percent(share) for share in whole[listed] / max(whole[0], 1e-6)],
    }
    columns |= _part_columns(tree, parts[listed])
    if len(ranks) > 1:
        others = np.median(np.delete(every, row, axis=0), axis=0)
        columns |= {"others": _column(others[listed]), "more": _column((whole - others)[listed], "+")}
    title = f"{_kind(tree)} by their time in a step of rank {ranks[row]}, ms ({_named(tree)})"
    _print(console, title, _places(tree, listed), columns)


def print_compared(console: Console, before: Result, after: Result, depth: int) -> None:
    """Print by how much longer or shorter a step is in each module of a later run, of the median ranks of both."""
    console.print()
    tree, size = _tree(console, (*before.job.digests, *after.job.digests)), len(before.job.digests)
    if tree is None:
        return
    # The median of sums and not the sum of medians, so that a line is some rank's time.
    runs = [np.median(rows, axis=0) / 1e6 for rows in (tree.step_ns[:size], tree.step_ns[size:])]
    whole = [run.sum(axis=1) for run in runs]
    shown = (np.maximum(*whole) >= LEAST_SHARE * max(whole[0][0], whole[1][0])) & (tree.level <= depth)
    listed = [module for module in in_order(tree) if shown[module] or not module]
    columns = {"before": _column(whole[0][listed]), "after": _column(whole[1][listed])}
    columns |= {"more": _column((whole[1] - whole[0])[listed], "+")}
    columns |= _part_columns(tree, (runs[1] - runs[0])[listed], "+")
    title = f"{_kind(tree)} by their time in a step of the median rank, ms; by part, what it is more ({_named(tree)})"
    _print(console, title, _places(tree, listed), columns)


def _tree(console: Console, digests: Sequence[RankDigest]) -> ModuleTree | None:
    """The modules of all ranks; where no trace names any, None, and that is printed."""
    try:
        return modules(digests)
    except MissingFactError as error:
        print_wrapped(console, str(error))
        return None


def _places(tree: ModuleTree, listed: Sequence[int]) -> list[tuple[str, int]]:
    """Path and level of modules."""
    return [(tree.path[module], int(tree.level[module])) for module in listed]


def _print(
    console: Console, title: str, modules: Sequence[tuple[str, int]], columns: Mapping[str, Sequence[str]]
) -> None:
    """Print a line for each module, which has a path and a level, with its cell of each column, by heading."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    widths = {heading: max(map(len, (heading, *cells))) for heading, cells in columns.items()}
    # Where the terminal is too narrow, names lose letters, and numbers none.
    room = console.width - sum(widths.values()) - len(widths)
    table.add_column("module", no_wrap=True, max_width=max(room, 12))
    for heading, width in widths.items():
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for (path, level), *cells in zip(modules, *columns.values(), strict=True):
        name = path.rpartition(".")[2] or "whole step"
        table.add_row(Text("  " * level + printable(name)), *cells)
    console.print(table)


def _part_columns(tree: ModuleTree, ms: NDArray[np.float64], sign: str = "") -> dict[str, list[str]]:
    """A column for each part that some module has on some rank, of times of shape (rows, len(ModulePart))."""
    return {
        heading: _column(ms[:, part], sign) for part, heading in _HEADINGS.items() if tree.step_ns[:, :, part].any()
    }


def _column(ms: Iterable[float], sign: str = "") -> list[str]:
    return [wording.decimals(time, 2, sign) for time in ms]


def _kind(names: ModuleTree | LayerTable) -> str:
    return "Layers" if names.named_by == GUESSED else "Modules"


def _named(names: ModuleTree | LayerTable) -> str:
    """What names the modules; of guessed layers, that they are guesses."""
    if names.layer_events:
        return f"guessed: repeats of {names.layer_events} kernels"
    return f"named by {names.named_by}"
