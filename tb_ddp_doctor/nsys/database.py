"""An SQLite file of `nsys export --type sqlite`, opened so that nothing but what is needed can be read.

The export also holds the environment of the job, its arguments and its output, in which tokens and passwords stand.
SQLite asks before it reads a column of a table, and is refused all but those of `_READABLE`; texts of `StringIds`,
which all tables share, are asked for by number. The file is opened for reading alone, and no index is written.

A file is also a program: its tables may compute their columns, and its pages may lead to one another without end. Such
tables are refused, of SQLite's functions only those that the queries here use may be called, and a file has as much
time as its size explains.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tb_ddp_doctor.storage.patience import patience

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
_FUNCTIONS = {"max", "substr", "coalesce"}
#: CPU time that a file may take in all, s, and bytes for each s more; by `patience()` longer.
_SURE_S = 5.0
_BYTES_PER_S = 4_000_000
#: Instructions of SQLite's machine between two looks at the clock: a tenth of a millisecond.
_BETWEEN_LOOKS = 10_000
#: Bytes of a value or a row, and columns of a table: what is read of a text is `_LETTERS` long.
_LONGEST = 1 << 24
_MOST_COLUMNS = 500
#: In the header: the pages' size and number, and the two counters that are equal where that number counts.
_PAGE_SIZE, _PAGES, _CHANGES, _VALID_FOR = slice(16, 18), slice(28, 32), slice(24, 28), slice(92, 96)
#: What sqlite3 raises of a file: its own, and where names in a damaged schema are no UTF-8.
_REFUSALS = (sqlite3.Error, OverflowError, UnicodeError)
#: Texts that are asked for at once, and letters that are taken of one.
_AT_ONCE = 500
_LETTERS = 1 << 14


class NsysError(Exception):
    """A file that cannot be used. Its text is a sentence for users, without the file's name."""


class DamagedError(NsysError):
    """An export of which a part is missing, or that is made to harm. Its text is a sentence as well."""


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
        except _REFUSALS as error:
            raise _stopped(error) from None

    def blocks(self, query: str, values: Iterable[Any], size: int) -> Iterator[list[tuple[Any, ...]]]:
        """The same, so many rows at a time."""
        try:
            cursor = self._connection.execute(query, tuple(values))
            while block := cursor.fetchmany(size):
                yield block
        except _REFUSALS as error:
            raise _stopped(error) from None

    def last_row(self, table: str) -> int:
        """The largest rowid of a table: the number of its rows, where none was removed."""
        if table not in self.columns:
            return 0
        largest = next(self.rows(f"SELECT max(rowid) FROM {table}"), (None,))[0]
        return largest if isinstance(largest, int) else 0

    def texts(self, numbers: Iterable[int]) -> dict[int, str]:
        """Texts of `StringIds` by number, of those that are there."""
        wanted = sorted(set(numbers))
        text_of: dict[int, str] = {}
        for at in range(0, len(wanted) if self.has("StringIds", "id", "value") else 0, _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            marks = ",".join("?" * len(some))
            query = f"SELECT id, substr(value, 1, {_LETTERS}) FROM StringIds WHERE id IN ({marks})"
            text_of.update((number, str(text)) for number, text in self.rows(query, some))
        return text_of

    def labels(self, enumeration: str) -> dict[int, str]:
        """The values of an enumeration, as "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE"."""
        if not self.has(enumeration, "id", "name"):
            return {}
        rows = self.rows(f"SELECT id, name FROM {enumeration}")
        return {number: name for number, name in rows if isinstance(number, int) and isinstance(name, str)}

    def _tables(self) -> dict[str, frozenset[str]]:
        columns = {}
        for (name,) in list(self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")):
            if name in _READABLE:
                _refuse_computed(self._connection, name)
                described = self._connection.execute(f"SELECT * FROM {name} LIMIT 0").description
                columns[name] = frozenset(column[0] for column in described)
        return columns


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """The export at a path. Raises NsysError, with a sentence, and OSError."""
    _refuse_cut(path)
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise NsysError(f"The file cannot be opened ({error}).") from None
    with closing(connection):
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            _limit(connection, path.stat().st_size)
            # Pages are read as they are needed: a larger cache would hold what is read once.
            database = Database(connection)
        except UnicodeError as error:
            raise _stopped(error) from None
        except sqlite3.Error as error:
            raise NsysError(f"It is no SQLite file that is whole ({error}).") from None
        yield database


def _refuse_cut(path: Path) -> None:
    """Raise DamagedError for a file that lacks pages which its header counts."""
    with path.open("rb") as file:
        head = file.read(100)
    if not head.startswith(MAGIC) or len(head) < 100 or head[_CHANGES] != head[_VALID_FOR]:
        return
    # 1 stands for what two bytes do not hold.
    page = int.from_bytes(head[_PAGE_SIZE], "big")
    whole = int.from_bytes(head[_PAGES], "big") * (page if page != 1 else 1 << 16)
    here = path.stat().st_size
    if here < whole:
        raise DamagedError(f"It is cut off: {here:,} of {whole:,} bytes are here. Copy it again, or export it again.")


def _refuse_computed(connection: sqlite3.Connection, table: str) -> None:
    """Raise DamagedError for a table whose columns are computed: no export has such, and they may be of any size."""
    columns = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
    if any(hidden for *_, hidden in columns):
        raise DamagedError(f"Its table {table} computes columns, as no export of Nsight Systems does.")


def _limit(connection: sqlite3.Connection, size: int) -> None:
    """Hold a connection to what reading an export of so many bytes takes."""
    # What the file itself says is to be called is not.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.set_authorizer(_authorise)
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _MOST_COLUMNS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    until = time.process_time() + patience() * (_SURE_S + size / _BYTES_PER_S)
    connection.set_progress_handler(lambda: time.process_time() > until, _BETWEEN_LOOKS)


def _stopped(error: Exception) -> NsysError:
    """What is said of an error within a query."""
    if str(error) == "interrupted":
        return DamagedError("Reading it takes longer than its size explains: its pages lead to one another.")
    if isinstance(error, UnicodeError):
        return DamagedError("Names of its tables or columns are no UTF-8.")
    return NsysError(f"It cannot be read on ({error}).")


def _authorise(action: int, what: str | None, detail: str | None, _database: str | None, _view: str | None) -> int:
    """SQLite's question whether a statement may be prepared: only reading, only of tables without secrets, and only by
    the functions that are used here.
    """
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and what in _READABLE)
        or (action == sqlite3.SQLITE_FUNCTION and (detail or "").lower() in _FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and what == "table_xinfo")
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
