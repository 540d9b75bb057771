"""Modules in a terminal: which part of the model a step's time is spent in, on all ranks or on one."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.module_paths import GUESSED
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts.facts import MissingFactError
from tb_ddp_doctor.facts.modules import ModuleTree, Part, modules
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.wrapping import print_wrapped

#: Modules with less of the step are not listed.
_LEAST_SHARE = 0.001
_HEADINGS = {
    Part.FORWARD: "fwd",
    Part.BACKWARD: "bwd",
    Part.RECOMPUTED: "again",
    Part.OTHER: "other",
    Part.COMMUNICATION: "comm.",
    Part.IDLE: "idle",
}


def print_layers(console: Console, result: Result, depth: int, rank: int | None) -> None:
    """Print the tree of modules to a depth: the median over ranks of each time, or a rank's own."""
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
    chosen = tree.step_ns if rank is None else tree.step_ns[[ranks.index(rank)]]
    of = f"rank {rank}" if rank is not None else "the median rank" if len(ranks) > 1 else f"rank {ranks[0]}"
    title = (
        f"{'Layers' if tree.named_by == GUESSED else 'Modules'} by their time in a step of {of}, ms ({_named(tree)})"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    listed = [part for part in Part if tree.step_ns[:, :, part].any()]
    several = rank is None and len(ranks) > 1
    digits = len(_ms(float(tree.step_ns.sum(axis=2).max())))
    widths = {"step": digits, "share": 5} | {_HEADINGS[part]: digits for part in listed}
    if several:
        widths |= {"longest": digits, "rank": len(str(max(ranks)))}
    widths = {heading: max(width, len(heading)) for heading, width in widths.items()}
    # Where the terminal is too narrow, names lose letters, and numbers none.
    room = console.width - sum(widths.values()) - len(widths)
    table.add_column("module", no_wrap=True, max_width=max(room, 12))
    for heading, width in widths.items():
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    # The median of sums and not the sum of medians, so that a line is some rank's time.
    median, whole = np.median(chosen, axis=0), np.median(chosen.sum(axis=2), axis=0)
    every = tree.step_ns.sum(axis=2)
    for module in in_order(tree):
        share = whole[module] / whole[0] if whole[0] else 0.0
        if tree.level[module] > depth or (module and share < _LEAST_SHARE):
            continue
        cells = [_ms(whole[module]), wording.percent(share)]
        cells += [_ms(median[module, part]) for part in listed]
        if several:
            longest = int(every[:, module].argmax())
            cells += [_ms(every[longest, module]), str(ranks[longest])]
        name = tree.path[module].rpartition(".")[2] if module else "whole step"
        table.add_row(Text("  " * int(tree.level[module]) + printable(name)), *cells)
    console.print(table)


def _named(tree: ModuleTree) -> str:
    """What names the modules; of guessed layers, that they are guesses."""
    if tree.layer_events:
        return f"guessed: repeats of {tree.layer_events} kernels"
    return f"named by {tree.named_by}"


def in_order(tree: ModuleTree) -> list[int]:
    """The modules from the root on, each followed by those within it, in the order in which traces name them."""
    within: list[list[int]] = [[] for _ in tree.path]
    for module, parent in enumerate(tree.parent.tolist()):
        if module:
            within[parent].append(module)
    order, ahead = [], [0]
    while ahead:
        order.append(ahead.pop())
        ahead += reversed(within[order[-1]])
    return order


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f}"
