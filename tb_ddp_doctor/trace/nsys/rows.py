"""The rows of one process as columns, fetched and gathered some thousands at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.nsys.database import Database
from tb_ddp_doctor.storage.paths import ProcessPath
from tb_ddp_doctor.trace.args import MISSING
from tb_ddp_doctor.trace.columns import EVENT_TYPES, Shapes, Strings, Threads
from tb_ddp_doctor.trace.model import Category, Indices, Ints
from tb_ddp_doctor.trace.nsys.window import window
from tb_ddp_doctor.trace.times import MAX_NS

#: Rows that are fetched at once.
_BLOCK = 1 << 15
_PID_MASK = (1 << 24) - 1


class EventRows:
    """The columns of one process, as they are read."""

    def __init__(self, database: Database, path: ProcessPath, most_rows: int) -> None:
        self.database = database
        self.strings, self.threads = Strings(), Threads()
        self.shapes = Shapes(self.strings)
        self.window = window(database, path.process, most_rows)
        #: Of what runs on devices, and of calls, as SQL.
        self.of_process = f"globalPid = {path.process}"
        self.of_threads = f"globalTid BETWEEN {path.process} AND {path.process + _PID_MASK}"
        self._stream_threads = Memo(lambda key: self.threads[key >> 32, key & 0xFFFFFFFF])
        self._host_threads = Memo(lambda key: self.threads[key >> 24 & _PID_MASK, key & _PID_MASK])
        self._parts: list[dict[str, NDArray[Any]]] = []

    def blocks(self, table: str, columns: Sequence[str], where: str) -> Iterator[list[tuple[Any, ...]]]:
        """The process's rows in the window: start, length and columns, some thousands of rows at a time."""
        query = (
            f"SELECT start, end - start, {', '.join(columns)} FROM {table} "
            f"WHERE rowid BETWEEN ? AND ? AND {where} AND start >= ? AND start < ? AND end >= start"
        )
        for first, last in self.window.parts.get(table, ()):
            values = (first, last, self.window.start, self.window.end)
            yield from self.database.blocks(query, values, _BLOCK)

    def integers(self, table: str, columns: Sequence[str], where: str) -> Iterator[list[Ints]]:
        """The same as columns of whole numbers; what is none is -1."""
        for block in self.blocks(table, columns, where):
            values = chain.from_iterable(block)
            try:
                yield list(np.fromiter(values, np.int64, len(block) * len(block[0])).reshape(len(block), -1).T)
            except (TypeError, ValueError, OverflowError):
                yield [ints(column) for column in zip(*block, strict=True)]

    def add(self, category: Category, start: Ints, length: Ints, **columns: NDArray[Any]) -> None:
        """Keep some rows, but for those with impossible times; columns that are not given are missing."""
        known = {"category": np.full(len(start), category), "start_ns": start, "duration_ns": length, **columns}
        possible = (start >= 0) & (length >= 0) & (start <= MAX_NS) & (length <= MAX_NS - start)
        if not possible.all():
            known = {name: column[possible] for name, column in known.items()}
            start = start[possible]
        missing = np.full(len(start), MISSING)
        self._parts.append({name: known.get(name, missing).astype(dtype) for name, dtype in EVENT_TYPES.items()})

    def joined(self) -> dict[str, NDArray[Any]]:
        """All that was kept, which then is no more."""
        columns = {
            name: np.concatenate([np.empty(0, dtype), *(part[name] for part in self._parts)])
            for name, dtype in EVENT_TYPES.items()
        }
        self._parts.clear()
        return columns

    def has(self, table: str, *columns: str) -> bool:
        """Whether a table has these columns."""
        return self.database.has(table, *columns)

    def of_stream(self, stream: Ints) -> Indices:
        """The thread of each stream, numbered as device << 32 | stream."""
        return self._stream_threads.of(stream)

    def of_host(self, thread: Ints) -> Indices:
        """The thread of each `globalTid`."""
        return self._host_threads.of(thread)

    def names(self, change: Callable[[str], str] = str) -> Texts:
        """Numbers of `StringIds` to names, after a change of their texts."""
        return Texts(self.database, self.strings, change)


class Memo:
    """Numbers to indices, each found once."""

    def __init__(self, find: Callable[[int], int]) -> None:
        self._find = find
        self._known: dict[int, int] = {}

    def of(self, numbers: Ints) -> Indices:
        """The index of each number."""
        different, which = np.unique(numbers, return_inverse=True)
        for number in different.tolist():
            if number not in self._known:
                self._known[number] = self._find(number)
        known = np.array([self._known[number] for number in different.tolist()], np.int32)
        return known[which] if len(known) else np.empty(0, np.int32)


class Texts:
    """Numbers of `StringIds` to indices of the vocabulary, after a change of their texts."""

    def __init__(self, database: Database, strings: Strings, change: Callable[[str], str]) -> None:
        self._database, self._strings, self._change = database, strings, change
        self._known: dict[int, int] = {}

    def of(self, numbers: Ints) -> Indices:
        """The index of each number's text."""
        different, which = np.unique(numbers, return_inverse=True)
        new = [number for number in different.tolist() if number not in self._known]
        texts = self._database.texts(new)
        for number in new:
            self._known[number] = self._strings[self._change(texts.get(number, "unknown"))]
        known = np.array([self._known[number] for number in different.tolist()], np.int32)
        return known[which] if len(known) else np.empty(0, np.int32)


def ints(column: Sequence[Any]) -> Ints:
    """A column of whole numbers; what is none is -1."""
    try:
        return np.fromiter(column, np.int64, len(column))
    except (TypeError, ValueError, OverflowError):
        return np.array([one if isinstance(one, int) else -1 for one in column], np.int64)
