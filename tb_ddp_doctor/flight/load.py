"""One file to a `Dump`: the recorder's pickle, or its JSON (`_dump_nccl_trace_json`, `_dump_fr_trace_json`).

A table of `torchfrtrace -j` (`table`) is a `Dump` for each rank.

Formats 2.x of torch 2.3 to 2.13 are read; what a newer one adds is passed over, and what an older one lacks is -1 or
empty. NCCL and its kin (RCCL, XCCL, HCCL) and gloo (torch 2.13) record; gloo lists no ranks of its groups, and leaves
the state of what has completed at "scheduled", but retires it.

Files are untrusted: nothing in one can run (`unpickle`), none is read beyond a size, values of the wrong type count as
absent, and only the newest entries are kept of a buffer of absurd length.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.discover.recorders.flight_recorder import TABLE_BEGINS
from tb_ddp_doctor.flight import table
from tb_ddp_doctor.flight.model import (
    COMPLETED,
    SCHEDULED,
    STARTED,
    Dump,
    Entries,
    GroupStatus,
    Ints,
    Operation,
    ProcessGroup,
    Shape,
    StackFrame,
)
from tb_ddp_doctor.storage.budget import BudgetError, ValueBudget
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.storage.unpickle import PickleError, loads

#: Bytes: 2,000 entries with stacks take some 2 MB.
MAX_BYTES = 1 << 28
#: Entries, groups, ranks of a group, tensors of a collective, dimensions, frames and letters that are kept of one.
_MOST_ENTRIES = 200_000
_MOST_GROUPS = 20_000
_MOST_RANKS = 1 << 17
_MOST_PARTS = 1_024
_MOST_FRAMES = 32
_MOST_LETTERS = 400
#: Frames, sizes, element types and ranks of all of them together: 20,000 pending entries with stacks have a million.
_MOST_VALUES = 2_000_000

_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_NAME = re.compile(r"(?:(?P<backend>\w+):)?(?P<kind>\w+)(?: (?P<own>\d{1,7})(?P<way>->|<-)(?P<peer>\d{1,7}))?")
#: Members of one coalesced call: they have no state of their own.
_COALESCED = "coalesced"
#: Backends whose work is over once it is retired; NCCL's watchdog retires what has failed too.
_RETIRES_COMPLETED = {"gloo", "mpi", "ucc"}
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_INTS = range(-(1 << 63), 1 << 63)


class DumpError(Exception):
    """A file that cannot be used. Its text is a sentence for users, without the file's name."""


def load(path: FilePath, rank: int | None = None, host: str = "") -> Dump:
    """One rank's dump, with the rank and host that names say. Raises DumpError."""
    return named(read(path)[0], rank, host)


def named(dump: Dump, rank: int | None, host: str) -> Dump:
    """A dump with its rank: what it says itself, else what its name says, else what follows from its groups.

    A rank that is in some of its groups only is not its own. Raises DumpError where none is left.
    """
    members = [set(group.ranks) for group in dump.groups.values() if group.ranks]
    possible: set[int] = set.intersection(*members) if members else set()
    said = dump.rank if dump.rank >= 0 else rank
    if said is not None and (said in possible or not possible) and said < _MOST_RANKS:
        return replace(dump, rank=said, host=host)
    if len(possible) == 1:
        return replace(dump, rank=possible.pop(), host=host)
    if said is None:
        raise DumpError("Left out: neither its name nor its process groups say of which rank it is.")
    raise DumpError(f"Left out: its name says rank {said:,}, which is not in its process groups.")


def read(path: FilePath) -> list[Dump]:
    """What a file holds: as a rule one rank's dump, its rank -1 where it does not say it itself. Raises DumpError."""
    try:
        status = path.stat()
        if status.st_size > MAX_BYTES:
            size = wording.size(status.st_size)
            raise DumpError(f"Left out: it has {size}, and no dump has over {wording.size(MAX_BYTES)}.")
        with path.open("rb") as file:
            # As much as it has: a reader makes room for all that is asked for.
            data = file.read(status.st_size)
    except OSError as error:
        raise DumpError(f"Left out: it cannot be read ({error.strerror or type(error).__name__}).") from None
    try:
        with _no_collection():
            if data[:1] not in (b"\x80", b"{") and TABLE_BEGINS.search(data):
                return _of_table(path, data, status.st_mtime_ns)
            return [_dump(path, _decoded(data), status.st_mtime_ns)]
    except BudgetError as error:
        raise DumpError(f"Left out: {error}") from None


def _of_table(path: FilePath, data: bytes, modified_ns: int) -> list[Dump]:
    try:
        ranks = table.read(data.decode("utf-8", "replace"))
    except table.TableError as error:
        raise DumpError(f"Left out: {error}") from None
    return [replace(_dump(path, one.content, modified_ns), is_cut=one.is_cut) for one in ranks]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing in a dump refers to itself: looking for that would take most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _decoded(data: bytes) -> Mapping[str, Any]:
    try:
        dump = loads(data) if data[:1] == b"\x80" else msgspec.json.decode(data)
    except PickleError as error:
        raise DumpError(f"Left out: {error}") from None
    except (*REFUSALS, MemoryError) as error:
        raise DumpError(f"Left out: it is no dump that is whole ({str(error) or type(error).__name__}).") from None
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise DumpError("Left out: it has no list of entries, so it is no dump of the Flight Recorder.")
    return dump


def _dump(path: FilePath, decoded: Mapping[str, Any], modified_ns: int) -> Dump:
    entries = [entry for entry in decoded["entries"][-_MOST_ENTRIES:] if isinstance(entry, dict)]
    budget = ValueBudget(_MOST_VALUES)
    table = _Tables(budget)
    columns = table.columns(entries)
    groups = _groups(decoded.get("pg_config"), budget)
    status = _status(decoded.get("pg_status"), table.group_numbers, groups)
    groups |= {name: ProcessGroup(name, text, ()) for name, text in table.descriptions.items() if name not in groups}
    return Dump(
        file=str(path),
        rank=_int(decoded.get("rank")),
        host="",
        version=_text(decoded.get("version")),
        library=_library(decoded),
        groups=groups,
        status=status,
        entries=columns,
        group_names=tuple(table.groups),
        operations=tuple(table.operations),
        shapes=tuple(table.shapes),
        stacks=tuple(table.stacks),
        modified_ns=modified_ns,
    )


class _Tables:
    """Interned names of a dump, filled as its entries are read."""

    def __init__(self, budget: ValueBudget) -> None:
        self._budget = budget
        self.groups: dict[str, int] = {}
        self.operations: dict[Operation, int] = {}
        self.shapes: dict[Shape, int] = {}
        self.stacks: dict[tuple[StackFrame, ...], int] = {}
        self.descriptions: dict[str, str] = {}
        #: The process's own number of a group (`pg_id`), by the group's name.
        self.group_numbers: dict[str, str] = {}
        self._parsed: dict[str, Operation] = {}

    def columns(self, entries: Sequence[dict[str, Any]]) -> Entries:
        rows = [self._row(entry) for entry in entries]
        table = np.array(rows, np.int64).reshape(len(rows), 7)
        record = _column(entries, "record_id")
        # Threads enqueue side by side: the recorder's own count is the order.
        order = np.argsort(np.where(record < 0, np.arange(len(entries)), record), kind="stable")
        group, operation, shape, stack, sequence, is_p2p, state = (
            np.ascontiguousarray(part) for part in table[order].T
        )
        return Entries(
            record=record[order],
            group=group,
            operation=operation,
            shape=shape,
            stack=stack,
            sequence=sequence,
            is_p2p=is_p2p.astype(bool),
            state=self._with_coalesced(group, is_p2p, sequence, operation, state),
            created_ns=_column(entries, "time_created_ns")[order],
            started_ns=_time(entries, "time_discovered_started_ns")[order],
            completed_ns=_time(entries, "time_discovered_completed_ns")[order],
            timeout_ms=_column(entries, "timeout_ms")[order],
        )

    def _row(self, entry: dict[str, Any]) -> tuple[int, ...]:
        name, description = _pair(entry.get("process_group"))
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = len(self.groups)
            self.descriptions[name] = description
        if name not in self.group_numbers and (number := _number(entry.get("pg_id"))):
            self.group_numbers[name] = number
        operation = self._operation(_text(entry.get("profiling_name")))
        is_p2p = entry.get("is_p2p")
        is_p2p = operation.kind in ("send", "recv") if not isinstance(is_p2p, bool) else is_p2p
        state = _STATES.get(_text(entry.get("state")), SCHEDULED)
        if entry.get("retired") is True and operation.backend in _RETIRES_COMPLETED:
            state = COMPLETED
        # What has completed needs no sizes and no stack: they take most of the time.
        pending = state != COMPLETED
        return (
            group,
            self.operations.setdefault(operation, len(self.operations)),
            self._shape(entry) if pending else -1,
            self._stack(entry.get("frames")) if pending else -1,
            _int(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))),
            is_p2p,
            state,
        )

    def _operation(self, name: str) -> Operation:
        known = self._parsed.get(name)
        if known is None:
            parts = _NAME.fullmatch(name)
            if parts is None:
                known = Operation("", name, -1, -1)
            elif parts["way"] is None:
                known = Operation(parts["backend"] or "", parts["kind"], -1, -1)
            else:
                own, peer = int(parts["own"]), int(parts["peer"])
                source, target = (own, peer) if parts["way"] == "->" else (peer, own)
                known = Operation(parts["backend"] or "", parts["kind"], source, target)
            self._parsed[name] = known
        return known

    def _shape(self, entry: dict[str, Any]) -> int:
        shape = Shape(
            self._sizes(entry.get("input_sizes")),
            self._sizes(entry.get("output_sizes")),
            self._texts(entry.get("input_dtypes")),
            self._texts(entry.get("output_dtypes")),
        )
        return self.shapes.setdefault(shape, len(self.shapes))

    def _sizes(self, value: Any) -> tuple[tuple[int, ...], ...]:
        sizes = [size[:_MOST_PARTS] for size in _list(value)[:_MOST_PARTS] if isinstance(size, list)]
        self._budget.spend(len(sizes) + sum(map(len, sizes)))
        return tuple([tuple(map(_int, size)) for size in sizes])

    def _texts(self, value: Any) -> tuple[str, ...]:
        texts = _list(value)[:_MOST_PARTS]
        self._budget.spend(len(texts))
        return tuple(map(_text, texts))

    def _stack(self, frames: Any) -> int:
        if not isinstance(frames, list) or not frames:
            return -1
        self._budget.spend(min(len(frames), _MOST_FRAMES))
        stack = tuple(
            StackFrame(_text(frame.get("filename")), _int(frame.get("line")), _text(frame.get("name")))
            for frame in frames[:_MOST_FRAMES]
            if isinstance(frame, dict)
        )
        return self.stacks.setdefault(stack, len(self.stacks))

    def _with_coalesced(self, group: Any, is_p2p: Any, sequence: Any, operation: Any, state: Any) -> Any:
        """States where the members of a coalesced call have that of the whole, the last entry of its number."""
        whole = [number for parsed, number in self.operations.items() if parsed.kind == _COALESCED]
        if not whole:
            return state
        ends = {
            (int(group[i]), int(is_p2p[i]), int(sequence[i])): int(state[i])
            for i in np.flatnonzero(np.isin(operation, whole)).tolist()
        }
        keys = zip(group.tolist(), is_p2p.tolist(), sequence.tolist(), state.tolist(), strict=True)
        return np.array([ends.get(key[:3], key[3]) for key in keys], np.int64)


def _library(decoded: Mapping[str, Any]) -> str:
    nccl, other = _text(decoded.get("nccl_version")), _text(decoded.get("comm_lib_version"))
    return f"NCCL {nccl or other}" if nccl or other else ""


def _groups(config: Any, budget: ValueBudget) -> dict[str, ProcessGroup]:
    if not isinstance(config, dict):
        return {}
    groups = {}
    for key, value in list(config.items())[:_MOST_GROUPS]:
        if isinstance(value, dict) and (name := _text(value.get("name")) or _text(key)):
            ranks = _ranks(value.get("ranks"))
            budget.spend(len(ranks))
            groups[name] = ProcessGroup(name, _text(value.get("desc")), ranks)
    return groups


def _ranks(value: Any) -> tuple[int, ...]:
    """Ranks of a group, ascending: a list, or its text "[0, 1]"."""
    if isinstance(value, str):
        return _ranks_of_text(value[: 8 * _MOST_RANKS])
    ranks = {rank for rank in _list(value)[:_MOST_RANKS] if isinstance(rank, int) and 0 <= rank < _MOST_RANKS}
    return tuple(sorted(ranks))


@lru_cache(4096)
def _ranks_of_text(text: str) -> tuple[int, ...]:
    # Kept: all ranks of a job name the same groups.
    ranks = {int(digits) for digits in re.findall(r"(?<![-\d])\d{1,7}(?!\d)", text)}
    return tuple(sorted(rank for rank in ranks if rank < _MOST_RANKS))


def _status(value: Any, numbers: Mapping[str, str], groups: Mapping[str, ProcessGroup]) -> dict[str, GroupStatus]:
    """The status of each group by its name.

    The file has it by the process's own numbers, which only entries tie to names. Both count groups in the order in
    which they were made, so where all entries agree with that order, it names the groups without entries too.
    """
    if not isinstance(value, dict):
        return {}
    status = {
        _number(key): GroupStatus(_int(one.get("last_enqueued_collective")), _int(one.get("last_completed_collective")))
        for key, one in list(value.items())[:_MOST_GROUPS]
        if isinstance(one, dict) and _number(key)
    }
    names = {number: name for name, number in numbers.items()}
    if len(groups) == len(status) and all(text.isdecimal() for text in (*groups, *status)):
        in_order = dict(zip(sorted(status, key=int), sorted(groups, key=int), strict=True))
        if all(in_order.get(number) == name for number, name in names.items()):
            names = in_order
    return {names[number]: one for number, one in status.items() if number in names}


def _pair(value: Any) -> tuple[str, str]:
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return _text(value[0]), _text(value[1])
    return _text(value), ""


def _text(value: Any) -> str:
    return value[:_MOST_LETTERS] if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> str:
    """The process's number of a group, which dumps have as a number or a text; "" for anything else."""
    return str(value) if isinstance(value, int) and value in _INTS else _text(value)


def _int(value: Any, absent: int = -1) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value not in _INTS:
        return absent
    return int(value)


def _column(entries: Sequence[dict[str, Any]], key: str) -> Ints:
    """A number of each entry, shape (E,); -1 where there is none."""
    values = (entry.get(key) for entry in entries)
    numbers = [value if type(value) is int else _int(value) for value in values]
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return np.array([_int(number) for number in numbers], np.int64)


def _time(entries: Sequence[dict[str, Any]], key: str) -> Ints:
    """The same of times that were discovered: JSON has 0 for none."""
    times = _column(entries, key)
    return np.where(times > 0, times, -1)
