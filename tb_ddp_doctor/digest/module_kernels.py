"""What runs in the times of a rank's modules: kernels, with the operator and the user's function that launched them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from tb_ddp_doctor.digest.columns import distinct
from tb_ddp_doctor.digest.model import ModuleKernels, ModuleTime, ModuleTimes
from tb_ddp_doctor.digest.sums import count, summed
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace.model import Ints

#: Rows that are kept by name, those with most time: a digest stays small.
MOST_KERNELS = 1024


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


def module_kernels(
    names: EventNames, event: Ints, row: Ints, times: ModuleTimes, length_ns: Ints, words: Vocabulary
) -> ModuleKernels:
    """The kernels of each row of the modules' times.

    The arrays have shape (parts,): the event of each part of a step (-1 for idle time that none follows), the row of
    `times` that it counts for, and its length in ns.
    """
    kinds, name = names.distinct()
    # Events without any name, and idle time that no event follows, are the last kind.
    kinds, name = np.append(kinds, [[-1]] * 3, axis=1), np.append(name, kinds.shape[1])
    size = kinds.shape[1]
    cells, which = distinct(row * size + name[event], len(times) * size)
    if not len(cells):
        return empty(ModuleKernels)
    total = summed(which, length_ns, len(cells))
    of, kind = np.divmod(cells, size)
    runs = (times.kind[row] != ModuleTime.IDLE) & (length_ns > 0)
    events = count(which, runs, len(cells))
    texts = [[names.strings[index] if index >= 0 else "" for index in column] for column in kinds.tolist()]

    def place(cell: int) -> tuple[int, int, str, str, str]:
        """By row, the longest first, then by names: readers number a trace's strings in other orders."""
        at = int(kind[cell])
        return int(of[cell]), -int(total[cell]), texts[0][at], texts[1][at], texts[2][at]

    kept = np.array(sorted(_longest(total, place), key=place), np.int64)
    rest = np.ones(len(cells), np.bool_)
    rest[kept] = False
    left = np.unique(of[rest])
    more = (summed(of[rest], column[rest], len(times))[left] for column in (total, events))
    named = [words.indices(column[at] for at in kind[kept].tolist()) for column in texts]
    nameless = words.indices("" for _ in left)
    columns = [
        np.append(of[kept], left).astype(np.int32),
        *(np.append(column, nameless).astype(np.int32) for column in named),
        *(np.append(column[kept], others) for column, others in zip((total, events), more, strict=True)),
    ]
    order = np.argsort(columns[0], kind="stable")
    return ModuleKernels(*(column[order] for column in columns))


def _longest(total: Ints, place: Callable[[int], tuple[int, int, str, str, str]]) -> list[int]:
    """The cells with most time, at most `MOST_KERNELS`; of those with equal times, the first by their places."""
    if len(total) <= MOST_KERNELS:
        return list(range(len(total)))
    least = int(np.partition(total, len(total) - MOST_KERNELS)[len(total) - MOST_KERNELS])
    longer: list[int] = np.flatnonzero(total > least).tolist()
    return longer + sorted(np.flatnonzero(total == least).tolist(), key=place)[: MOST_KERNELS - len(longer)]
