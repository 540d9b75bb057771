"""What runs in the times of a rank's modules: kernels, with the operator and the user's function that launched them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest.columns import distinct, searchsorted
from tb_ddp_doctor.digest.model import ModuleKernels, ModuleWork
from tb_ddp_doctor.digest.module_paths import percentile
from tb_ddp_doctor.digest.roofline import CallEvents
from tb_ddp_doctor.digest.sums import count, summed, total, total_by
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace.model import Ints

#: Rows that are kept by name, those with most time, and rows of the operators' calls: a digest stays small.
MOST_KERNELS = 1024
MOST_WORK = 1024
#: Times of rows by step that are held at once, and rows of a piece of more.
_MOST_CELLS, _AT_ONCE = 1 << 20, 64


class EventNames(msgspec.Struct, frozen=True, eq=False):
    """What events are called; indices into `strings`, -1 for none; shape (events,)."""

    strings: tuple[str, ...]
    operator: Ints
    kernel: Ints
    function: Ints

    def distinct(self) -> tuple[Ints, Ints]:
        """The different names, shape (3, names): operator, kernel, function. And which of them each event has."""
        columns = [self.operator, self.kernel, self.function]
        used = [distinct(column + 1, len(self.strings) + 1) for column in columns]
        shape = tuple(max(len(values), 1) for values, _ in used)
        key = np.ravel_multi_index(tuple(which for _, which in used), shape)
        kinds, name = distinct(key, int(np.prod(shape)))
        places = np.unravel_index(kinds, shape)
        chosen = [values[place] - 1 for (values, _), place in zip(used, places, strict=True)]
        return np.stack(chosen).reshape(3, -1), name


class TimeParts(msgspec.Struct, frozen=True, eq=False):
    """Time of events in steps, and the modules' times that it counts for; shape (parts,)."""

    #: Index of the event; -1 for idle time that none follows.
    event: Ints
    #: Row of `ModuleTimes`.
    row: Ints
    step: Ints
    length_ns: Ints
    #: Whether an event runs in it; else it is idle.
    runs: Mask


class KernelRows(msgspec.Struct, frozen=True, eq=False):
    """Which row of `ModuleKernels` each event counts for.

    A cell is a row of the modules' times with a name; cells with little time share a row without a name.
    """

    #: The name of each event, and how many names there are.
    name: Ints
    names: int
    #: Of each cell its ascending number, row of the times * `names` + name, and its row; shape (cells,).
    cells: Ints
    place: Ints
    #: The row of each of the parts of `TimeParts`, shape (parts,).
    of_part: Ints

    def of(self, event: Ints, row: Ints) -> Ints:
        """The rows of some events, of which the row of the times is known; -1 for events without time, or row -1."""
        wanted = row * self.names + self.name[event]
        at = searchsorted(self.cells, wanted)
        is_there = (row >= 0) & (np.append(self.cells, -1)[at] == wanted)
        return np.where(is_there, np.append(self.place, -1)[at], -1)


def module_work(calls: CallEvents, row: Ints) -> ModuleWork:
    """The calls of operators by the row of `ModuleKernels` that each counts for, -1 for none; shape (calls,)."""
    known = row >= 0
    row, call = row[known], calls.call[known]
    size = int(call.max(initial=0)) + 1
    cells, which = distinct(row * size + call, (int(row.max(initial=0)) + 1) * size)
    ns = summed(which, calls.ns[known], len(cells))
    kept = np.sort(np.argsort(-ns, kind="stable")[:MOST_WORK])
    of, call = np.divmod(cells[kept], size)
    counted = np.bincount(which, minlength=len(cells)).astype(np.int64)
    return ModuleWork(of.astype(np.int32), call.astype(np.int32), counted[kept], ns[kept])


def module_kernels(
    names: EventNames, parts: TimeParts, size: tuple[int, int], chosen: tuple[int, int], words: Vocabulary
) -> tuple[ModuleKernels, KernelRows]:
    """The kernels of each of the rows of the modules' times, and which of its own rows each event counts for.

    `size` says how many rows of times and how many steps there are, `chosen` is the slowest step and the median one.
    """
    kinds, name = names.distinct()
    # Events without any name, and idle time that no event follows, are the last kind.
    kinds, name = np.append(kinds, [[-1]] * 3, axis=1), np.append(name, kinds.shape[1])
    width = kinds.shape[1]
    cells, which = distinct(parts.row * width + name[parts.event], size[0] * width)
    if not len(cells):
        return empty(ModuleKernels), KernelRows(name, width, cells, cells, which)
    of, kind = np.divmod(cells, width)
    texts = [[names.strings[index] if index >= 0 else "" for index in column] for column in kinds.tolist()]
    kept, nameless, place = _places(summed(which, parts.length_ns, len(cells)), of, kind, texts)
    named = [words.indices(column[at] for at in kind[kept].tolist()) for column in texts]
    without = words.indices("" for _ in nameless)
    rows, mine = len(kept) + len(nameless), place[which]
    order = np.append(place[kept], place[nameless])
    columns = np.empty((4, rows), np.int32)
    columns[:, order] = np.append(of[kept], of[nameless]), *(np.append(column, without) for column in named)
    kernels = ModuleKernels(
        of=columns[0],
        operator=columns[1],
        kernel=columns[2],
        function=columns[3],
        total_ns=summed(mine, parts.length_ns, rows),
        events=count(mine, parts.runs & (parts.length_ns > 0), rows),
        p99_ns=_percentile(mine, parts, (rows, size[1])),
        slowest_ns=total(mine, parts.step == chosen[0], parts.length_ns, rows),
        median_ns=total(mine, parts.step == chosen[1], parts.length_ns, rows),
    )
    return kernels, KernelRows(name, width, cells, place, mine)


def _percentile(row: Ints, parts: TimeParts, shape: tuple[int, int]) -> Ints:
    """The percentile over steps of each row's time in a step, shape (rows,); `shape` is (rows, S)."""
    if shape[0] * shape[1] <= _MOST_CELLS:
        return percentile(total_by(row, parts.step, parts.length_ns, shape))
    several = [np.flatnonzero(row // _AT_ONCE == piece) for piece in range(-(-shape[0] // _AT_ONCE))]
    pieces = [
        percentile(total_by(row[at] % _AT_ONCE, parts.step[at], parts.length_ns[at], (_AT_ONCE, shape[1])))
        for at in several
    ]
    return np.concatenate(pieces)[: shape[0]]


def _places(total: Ints, of: Ints, kind: Ints, texts: Sequence[Sequence[str]]) -> tuple[Ints, Ints, Ints]:
    """The cells that are kept by name, one of the others for each row of times, and the row of each cell.

    Rows of the table are in the order of rows of times `of`; within one the longest come first, and last the nameless
    one. `kind` is each cell's name, an index into each of `texts`.
    """

    def place(cell: int) -> tuple[int, int, str, str, str]:
        """By row, the longest first, then by names: readers number a trace's strings in other orders."""
        at = int(kind[cell])
        return int(of[cell]), -int(total[cell]), texts[0][at], texts[1][at], texts[2][at]

    kept = np.array(sorted(_longest(total, place), key=place), np.int64)
    is_kept = np.zeros(len(total), np.bool_)
    is_kept[kept] = True
    rest = np.flatnonzero(~is_kept)
    left, first, group = np.unique(of[rest], return_index=True, return_inverse=True)
    order = np.argsort(np.append(of[kept], left), kind="stable")
    at = np.empty(len(order), np.int64)
    at[order] = np.arange(len(order))
    row_of = np.empty(len(total), np.int64)
    row_of[kept] = at[: len(kept)]
    row_of[rest] = at[len(kept) :][group]
    return kept, rest[first], row_of


def _longest(total: Ints, place: Callable[[int], tuple[int, int, str, str, str]]) -> list[int]:
    """The cells with most time, at most `MOST_KERNELS`; of those with equal times, the first by their places."""
    if len(total) <= MOST_KERNELS:
        return list(range(len(total)))
    least = int(np.partition(total, len(total) - MOST_KERNELS)[len(total) - MOST_KERNELS])
    longer: list[int] = np.flatnonzero(total > least).tolist()
    return longer + sorted(np.flatnonzero(total == least).tolist(), key=place)[: MOST_KERNELS - len(longer)]
