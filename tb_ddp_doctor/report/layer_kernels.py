"""The kernels of the model's modules as lines of a table: below their modules, or with their modules below them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import kernel_names
from tb_ddp_doctor.facts.modules import ModuleKernelTable, ModulePart, ModuleTree, in_order
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: Kernels of a module that have a line; kernels listed with their modules below, and modules listed of each.
_OF_MODULE, _LISTED, _OF_KERNEL = 5, 15, 3
#: A kernel has a line from this share of the step on.
_LEAST_SHARE = 0.0005


class Line(msgspec.Struct, frozen=True, eq=False):
    """A line of the table: a module or a kernel, with its times in a step."""

    name: str
    level: int
    #: Shape (R, len(ModulePart)), R = ranks.
    step_ns: NDArray[np.float64]
    #: Index of the module; -1 for what is no module.
    module: int = -1
    #: Of what is no module, the rows of the table of kernels that it is the sum of.
    rows: Ints | None = None


def top_down(
    tree: ModuleTree,
    table: ModuleKernelTable,
    shown: Sequence[Line],
    amount: Callable[[Line], float] | None = None,
) -> list[Line]:
    """The lines of modules, each followed by those kernels with most time that no line below it has.

    A kernel of a module without a line of its own stands below the module around it. With an `amount`, kernels with
    most of that are listed.
    """
    has_line = np.zeros(len(tree.path), np.bool_)
    has_line[[line.module for line in shown]] = True
    nearest = np.arange(len(tree.path))
    for module in range(1, len(nearest)):
        if not has_line[module]:
            nearest[module] = nearest[tree.parent[module]]
    of, lines = nearest[table.module], []
    for line in shown:
        lines.append(line)
        mine = np.flatnonzero(of == line.module)
        of_module = _by_name(table, mine, line.level + 1)
        most = {line: max(_time(line), amount(line) if amount else 0.0) for line in of_module}
        of_module = [line for line in of_module if most[line] >= _least_ns(tree)]
        lines += sorted(of_module, key=amount or most.__getitem__, reverse=True)[:_OF_MODULE]
    return lines


def bottom_up(tree: ModuleTree, table: ModuleKernelTable) -> list[Line]:
    """The kernels with most time in all modules together, each followed by the modules in which it takes longest."""
    runs = np.flatnonzero(table.part != ModulePart.IDLE)
    lines: list[Line] = []
    for line in _by_name(table, runs, 0)[:_LISTED]:
        if _time(line) < _least_ns(tree):
            break
        lines.append(line)
        within, of = [], np.empty(0, np.int64) if line.rows is None else line.rows
        for module in in_order(tree):
            its = of[table.module[of] == module]
            if len(its):
                within.append(_line(table, tree.path[module] or "outside of all modules", 1, its))
        within.sort(key=_time, reverse=True)
        lines += within[:_OF_KERNEL]
        if rest := [one.rows for one in within[_OF_KERNEL:] if one.rows is not None]:
            lines.append(_line(table, f"{len(rest)} more", 1, np.concatenate(rest)))
    return lines


def _by_name(table: ModuleKernelTable, rows: Ints, level: int) -> list[Line]:
    """Some rows by operator, kernel and function, those with most time first."""
    index: dict[tuple[str, str, str], list[int]] = {}
    for row in rows.tolist():
        key = (table.operator[row], table.kernel[row], table.function[row])
        if any(key):
            index.setdefault(key, []).append(row)
    short = dict(zip(index, kernel_names.distinguished([kernel for _, kernel, _ in index]), strict=True))
    lines = [_line(table, _name(*key, short[key]), level, np.array(its, np.int64)) for key, its in index.items()]
    return sorted(lines, key=lambda line: -_time(line))


def _line(table: ModuleKernelTable, name: str, level: int, rows: Ints) -> Line:
    return Line(name, level, _summed(table, rows), rows=rows)


def _name(operator: str, kernel: str, function: str, short: str) -> str:
    """The operator, the place in the source that calls it, and the kernel: "aten::mm model.py:88: gemm"."""
    at = names.source(function)
    place = f"{at[0].rpartition('/')[2]}:{at[1]}" if at else ""
    called = " ".join(text for text in (operator, place) if text)
    return ": ".join(text for text in (called, short.replace("at::native::", "") if kernel else "") if text)


def _summed(table: ModuleKernelTable, rows: Ints) -> NDArray[np.float64]:
    """The times of some rows by part, shape (R, len(ModulePart))."""
    times = np.zeros((len(table.step_ns), len(ModulePart)))
    for part in ModulePart:
        times[:, part] = table.step_ns[:, rows[table.part[rows] == part]].sum(axis=1)
    return times


def _time(line: Line) -> float:
    """The median over ranks of a line's time, ns."""
    return float(np.median(line.step_ns.sum(axis=1)))


def _least_ns(tree: ModuleTree) -> float:
    return _LEAST_SHARE * float(np.median(tree.step_ns[:, 0].sum(axis=1)))
