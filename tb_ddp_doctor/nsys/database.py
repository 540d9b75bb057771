"""An SQLite file of `nsys export --type sqlite`, opened so that nothing but what is needed can be read.

The export also holds the environment of the job, its arguments and its output, in which tokens and passwords stand.
SQLite asks before it reads a column of a table, and is refused all but those of `_READABLE`; texts of `StringIds`,
which all tables share, are asked for by number. The file is opened for reading alone, and no index is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

MAGIC = b"SQLite format 3\0"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
NVTX = "NVTX_EVENTS"
#: Tables of which all columns may be read; the schema's own table is there to find them.
_READABLE = {
    KERNEL,
    MEMCPY,
    MEMSET,
    RUNTIME,
    OVERHEAD,
    NVTX,
    "META_DATA_EXPORT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "PROCESSES",
    "StringIds",
    "TARGET_INFO_GPU",
    "TARGET_INFO_SESSION_START_TIME",
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
    "ENUM_CUPTI_OVERHEAD_TYPE",
    "sqlite_master",
    "sqlite_schema",
}
_ALLOWED_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_READ)
#: Texts that are asked for at once, and letters that are taken of one.
_AT_ONCE = 500
_LETTERS = 1 << 14


class NsysError(Exception):
    """A file that cannot be used. Its text is a sentence for users, without the file's name."""


class Database:
    """An open export."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        #: Columns of each table that may be read.
        self.columns: Mapping[str, frozenset[str]] = self._tables()

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with all of these columns."""
        return table in self.columns and self.columns[table].issuperset(columns)

    def rows(self, query: str, values: Iterable[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query. Raises NsysError."""
        try:
            yield from self._connection.execute(query, tuple(values))
        except sqlite3.Error as error:
            raise NsysError(f"It cannot be read on ({error}).") from None

    def blocks(self, query: str, values: Iterable[Any], size: int) -> Iterator[list[tuple[Any, ...]]]:
        """The same, so many rows at a time."""
        try:
            cursor = self._connection.execute(query, tuple(values))
            while block := cursor.fetchmany(size):
                yield block
        except sqlite3.Error as error:
            raise NsysError(f"It cannot be read on ({error}).") from None

    def last_row(self, table: str) -> int:
        """The largest rowid of a table: the number of its rows, where none was removed."""
        if table not in self.columns:
            return 0
        found = next(self.rows(f"SELECT max(rowid) FROM {table}"), (None,))[0]
        return found if isinstance(found, int) else 0

    def texts(self, numbers: Iterable[int]) -> dict[int, str]:
        """Texts of `StringIds` by number, of those that are there."""
        wanted = sorted(set(numbers))
        found: dict[int, str] = {}
        for at in range(0, len(wanted) if self.has("StringIds", "id", "value") else 0, _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            marks = ",".join("?" * len(some))
            query = f"SELECT id, substr(value, 1, {_LETTERS}) FROM StringIds WHERE id IN ({marks})"
            found.update((number, str(text)) for number, text in self.rows(query, some))
        return found

    def labels(self, enumeration: str) -> dict[int, str]:
        """The values of an enumeration, as "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE"."""
        if not self.has(enumeration, "id", "name"):
            return {}
        rows = self.rows(f"SELECT id, name FROM {enumeration}")
        return {number: name for number, name in rows if isinstance(number, int) and isinstance(name, str)}

    def _tables(self) -> dict[str, frozenset[str]]:
        found = {}
        for (name,) in list(self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")):
            if name in _READABLE:
                described = self._connection.execute(f"SELECT * FROM {name} LIMIT 0").description
                found[name] = frozenset(column[0] for column in described)
        return found


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """The export at a path. Raises NsysError, with a sentence."""
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise NsysError(f"The file cannot be opened ({error}).") from None
    with closing(connection):
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.set_authorizer(_authorise)
        try:
            # Pages are read as they are needed: a larger cache would hold what is read once.
            database = Database(connection)
        except sqlite3.Error as error:
            raise NsysError(f"It is no SQLite file that is whole ({error}).") from None
        yield database


def _authorise(action: int, table: str | None, _column: str | None, _database: str | None, _view: str | None) -> int:
    """SQLite's question whether a statement may be prepared: only reading, and only of tables without secrets."""
    if action not in _ALLOWED_ACTIONS:
        return sqlite3.SQLITE_DENY
    readable = action != sqlite3.SQLITE_READ or table in _READABLE
    return sqlite3.SQLITE_OK if readable else sqlite3.SQLITE_DENY
