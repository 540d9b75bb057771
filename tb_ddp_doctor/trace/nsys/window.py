"""Of which time the rows of a process are read, and where in the tables they are.

Tables have no index. Exports write rows in the order of time, of one process after the other or of all mixed: rows are
looked at in even distances, and those parts of a table are read that may hold rows of the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tb_ddp_doctor.nsys import database as tables
from tb_ddp_doctor.nsys.database import Database
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.times import MAX_NS

#: Rows of a table that are looked at.
_PROBES = 2_048
_PID_MASK = (1 << 24) - 1
_OF_DEVICE = (tables.KERNEL, tables.MEMCPY, tables.MEMSET)
_OF_HOST = (tables.RUNTIME, tables.OVERHEAD, tables.NVTX)


class RecordedWindow(NamedTuple):
    """What is read."""

    #: ns on the session's clock; rows that start at the end are not read.
    start: int
    end: int
    #: First and last row of the parts of each table.
    parts: Mapping[str, list[tuple[int, int]]]
    #: The share of the process's rows that lie in it, estimated.
    share: float


class _Probes(NamedTuple):
    """Rows of a table in even distances."""

    row: Ints
    start_ns: Ints
    process: Ints
    #: Of the table.
    rows: int


def window(database: Database, process: int, most_rows: int) -> RecordedWindow:
    """All of a process, or as much of it from the middle on as has about so many rows."""
    probes = {table: _probe(database, table) for table in (*_OF_DEVICE, *_OF_HOST)}
    whole = {table: [(1, probe.rows)] for table, probe in probes.items() if probe.rows}
    starts, weights = [np.empty(0, np.int64)], [np.empty(0)]
    for probe in probes.values():
        own = probe.process == process
        starts.append(probe.start_ns[own])
        weights.append(np.full(int(own.sum()), probe.rows / max(len(probe.row), 1)))
    start, weight = np.concatenate(starts), np.concatenate(weights)
    rows = float(weight.sum())
    if rows <= most_rows:
        return RecordedWindow(0, MAX_NS, whole, 1.0)
    order = np.argsort(start, kind="stable")
    share = most_rows / rows
    counted = np.cumsum(weight[order]) / rows
    # Warming up, compilation and the first allocations are at the beginning.
    first = int(np.searchsorted(counted, (1 - share) / 2))
    last = min(int(np.searchsorted(counted, (1 + share) / 2)), len(order) - 1)
    begin, end = int(start[order[first]]), int(start[order[last]]) + 1
    parts = {table: _parts(probe, begin, end) for table, probe in probes.items() if probe.rows}
    return RecordedWindow(begin, end, parts, share)


def _probe(database: Database, table: str) -> _Probes:
    process = "globalPid" if table in _OF_DEVICE else "globalTid"
    if not database.has(table, "start", process):
        nothing = np.empty(0, np.int64)
        return _Probes(nothing, nothing, nothing, 0)
    last = database.last_row(table)
    wanted = sorted({int(row) for row in np.linspace(1, last, min(last, _PROBES))}) if last > 0 else []
    query = f"SELECT rowid, start, {process} FROM {table} WHERE rowid = ?"
    probed = [row for at in wanted for row in database.rows(query, (at,)) if all(isinstance(one, int) for one in row)]
    row, start, of = np.array(probed, np.int64).reshape(-1, 3).T
    return _Probes(row, start, of & ~_PID_MASK, last)


def _parts(probes: _Probes, begin: int, end: int) -> list[tuple[int, int]]:
    """The rows between neighbouring probes that are not both before or both after the window, joined."""
    edges = [*probes.row.tolist()]
    if not edges:
        return [(1, probes.rows)]
    edges[0], edges[-1] = 1, probes.rows
    parts: list[tuple[int, int]] = []
    before, after = probes.start_ns < begin, probes.start_ns >= end
    for at, (first, last) in enumerate(pairwise(edges)):
        if (before[at] and before[at + 1]) or (after[at] and after[at + 1]):
            continue
        if parts and parts[-1][1] >= first - 1:
            parts[-1] = (parts[-1][0], last)
        else:
            parts.append((first, last))
    return parts
