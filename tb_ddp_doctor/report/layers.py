"""Modules in a terminal: which part of the model a step's time is spent in, on all ranks or on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor import wording
from tb_ddp_doctor.account.layers import LEAST_SHARE
from tb_ddp_doctor.digest.module_paths import GUESSED
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts import MissingFactError
from tb_ddp_doctor.facts.modules import ModulePart, ModuleTree, in_order, modules
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
    try:
        tree = modules(result.job.digests)
    except MissingFactError as error:
        print_wrapped(console, str(error))
        return
    ranks = result.job.ranks.tolist()
    if rank is not None and rank not in ranks:
        print_wrapped(console, f"There is no rank {rank} among {wording.ranks(ranks)}.")
        return
    every = tree.step_ns.sum(axis=2)
    chosen = tree.step_ns if rank is None else tree.step_ns[[ranks.index(rank)]]
    # The median of sums and not the sum of medians, so that a line is some rank's time.
    median, whole = np.median(chosen, axis=0), np.median(chosen.sum(axis=2), axis=0)
    columns = {"step": _column(whole), "share": [wording.percent(part) for part in whole / max(whole[0], 1)]}
    columns |= {_HEADINGS[part]: _column(median[:, part]) for part in ModulePart if tree.step_ns[:, :, part].any()}
    if rank is None and len(ranks) > 1:
        longest = every.argmax(axis=0)
        columns["longest"], columns["rank"] = _column(every.max(axis=0)), [str(ranks[row]) for row in longest.tolist()]
    elif len(ranks) > 1:
        others = np.median(np.delete(every, ranks.index(rank), axis=0), axis=0)
        columns |= {"others": _column(others), "more": _column(whole - others, "+")}
    of = f"rank {rank}" if rank is not None else "the median rank" if len(ranks) > 1 else f"rank {ranks[0]}"
    title = f"{_kind(tree)} by their time in a step of {of}, ms ({_named(tree)})"
    shown = whole >= LEAST_SHARE * whole[0]
    if rank is not None:
        shown |= every.max(axis=0) >= LEAST_SHARE * whole[0]
    _print(console, title, tree, columns, shown & (tree.level <= depth))


def print_compared(console: Console, before: Result, after: Result, depth: int) -> None:
    """Print by how much longer or shorter a step is in each module of a later run, of the median ranks of both."""
    console.print()
    digests, size = (*before.job.digests, *after.job.digests), len(before.job.digests)
    try:
        tree = modules(digests)
    except MissingFactError as error:
        print_wrapped(console, str(error))
        return
    runs = [np.median(rows, axis=0) for rows in (tree.step_ns[:size], tree.step_ns[size:])]
    whole = [run.sum(axis=1) for run in runs]
    columns = {"before": _column(whole[0]), "after": _column(whole[1]), "more": _column(whole[1] - whole[0], "+")}
    change = runs[1] - runs[0]
    columns |= {_HEADINGS[part]: _column(change[:, part], "+") for part in ModulePart if tree.step_ns[:, :, part].any()}
    title = f"{_kind(tree)} by their time in a step of the median rank, ms; by part, what it is more ({_named(tree)})"
    shown = np.maximum(*whole) >= LEAST_SHARE * max(whole[0][0], whole[1][0])
    _print(console, title, tree, columns, shown & (tree.level <= depth))


def _print(
    console: Console, title: str, tree: ModuleTree, columns: Mapping[str, Sequence[str]], shown: NDArray[np.bool_]
) -> None:
    """Print a line for each module that is shown, with its cell of each column, by heading."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    listed = [module for module in in_order(tree) if shown[module] or not module]
    widths = {
        heading: max(len(heading), *(len(cells[module]) for module in listed)) for heading, cells in columns.items()
    }
    # Where the terminal is too narrow, names lose letters, and numbers none.
    room = console.width - sum(widths.values()) - len(widths)
    table.add_column("module", no_wrap=True, max_width=max(room, 12))
    for heading, width in widths.items():
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for module in listed:
        name = tree.path[module].rpartition(".")[2] if module else "whole step"
        cells = [column[module] for column in columns.values()]
        table.add_row(Text("  " * int(tree.level[module]) + printable(name)), *cells)
    console.print(table)


def _column(ns: NDArray[np.float64], sign: str = "") -> list[str]:
    return [f"{time / 1e6:{sign}.2f}" for time in ns.tolist()]


def _kind(tree: ModuleTree) -> str:
    return "Layers" if tree.named_by == GUESSED else "Modules"


def _named(tree: ModuleTree) -> str:
    """What names the modules; of guessed layers, that they are guesses."""
    if tree.layer_events:
        return f"guessed: repeats of {tree.layer_events} kernels"
    return f"named by {tree.named_by}"
