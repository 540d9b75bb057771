"""Which processes of an export used a GPU: each of them is a rank.

No index leads to them, and a file may have millions of kernels: of larger tables kernels are looked up at even
distances, so that a process is missed only if it ran fewer than one in thousands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tb_ddp_doctor.nsys.database import KERNEL, NVTX, Database, NsysError, opened
from tb_ddp_doctor.nsys.payloads import Payload, Payloads, has_payloads

#: Kernels that are looked at one after the other, and of a larger table, at even distances.
_LOOKED_AT = 20_000
_PROBES = 4_096
_PID_BITS = 24
_PID_MASK = (1 << _PID_BITS) - 1
#: A file with more is no recording of a node.
_MOST_PROCESSES = 1_024
#: Payloads may say anything: no job is larger.
_MOST_RANKS = 1 << 20


class Process(msgspec.Struct, frozen=True):
    """A process with kernels."""

    #: As all tables number it: `globalPid`.
    number: int
    pid: int
    #: The device that most of its kernels ran on.
    device: int
    #: Its rank in the job, and the job's size, as NCCL's payload told; None where none did.
    rank: int | None = None
    world_size: int | None = None


class Recording(msgspec.Struct, frozen=True):
    """What an export holds."""

    #: By device, then by pid.
    processes: tuple[Process, ...]
    #: When recording began, ns since 1970; None where the file does not say.
    start_ns: int | None
    #: When the last kernel ended that was looked at, ns since 1970; None where that or the start is not known.
    end_ns: int | None


def read(path: Path) -> Recording:
    """The processes of an export. Raises NsysError, with a sentence, and OSError."""
    with opened(path) as database:
        if "StringIds" not in database.columns:
            raise NsysError("It is an SQLite file, but no export of Nsight Systems.")
        ranks = communicators(database)
        devices, end = _devices(database)
        start = start_ns(database)
        processes = [
            Process(number, number >> _PID_BITS & _PID_MASK, device, *ranks.get(number, (None, None)))
            for number, device in devices.items()
        ]
        processes.sort(key=lambda process: (process.device, process.pid))
        ended = None if start is None or end is None else start + end
        return Recording(tuple(processes[:_MOST_PROCESSES]), start, ended)


def start_ns(database: Database) -> int | None:
    """When recording began, ns since 1970; None where the file does not say."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if not database.has(table, "utcEpochNs"):
        return None
    for (instant,) in database.rows(f"SELECT utcEpochNs FROM {table} LIMIT 1"):
        return instant if isinstance(instant, int) and 0 < instant < 1 << 62 else None
    return None


def communicators(database: Database) -> dict[int, tuple[int, int]]:
    """Rank and size of each process in its largest communicator, as far as the export holds NCCL's payloads."""
    payload_of: dict[int, Payload] = {}
    for process, payload in _initialised(database):
        if 0 <= payload.rank < payload.ranks and payload.ranks > payload_of.get(process, Payload()).ranks:
            payload_of[process] = payload
    largest = max((payload.ranks for payload in payload_of.values()), default=0)
    # Two ranks that claim one number are in communicators of their own: the job's is not among them.
    claimed = Counter(payload.rank for payload in payload_of.values() if payload.ranks == largest)
    if any(count > 1 for count in claimed.values()):
        return {}
    return {process: (one.rank, one.ranks) for process, one in payload_of.items() if one.ranks == largest}


def members(database: Database) -> dict[tuple[int, int], int]:
    """Ranks in the job by communicator and rank in it, of the processes in the file and of the job's communicator."""
    job = communicators(database)
    rank_of = {}
    for process, payload in _initialised(database):
        if process in job and 0 <= payload.rank < payload.ranks <= _MOST_RANKS:
            rank, size = job[process]
            rank_of[payload.communicator, payload.rank] = rank
            if payload.ranks == size:
                rank_of.update({(payload.communicator, one): one for one in range(size)})
    return rank_of


def _initialised(database: Database) -> Iterator[tuple[int, Payload]]:
    """Payloads of the calls that make communicators, by process."""
    if not database.has(NVTX, "jsonText", "binaryData", "text", "textId", "globalTid") or not has_payloads(database):
        return
    payloads = Payloads(database)
    names = "('ncclCommInitRank', 'ncclCommInitAll', 'ncclCommInitRankConfig', 'ncclCommInitRankScalable')"
    registered = f"textId IN (SELECT id FROM StringIds WHERE value IN {names})"
    query = (
        f"SELECT globalTid, jsonText, binaryData FROM {NVTX} "
        f"WHERE (jsonText IS NOT NULL OR binaryData IS NOT NULL) AND (text IN {names} OR {registered})"
    )
    for thread, json, binary in database.rows(query):
        payload = payloads.read(json, binary)
        if payload is not None and isinstance(thread, int):
            yield thread & ~_PID_MASK, payload


def _devices(database: Database) -> tuple[dict[int, int], int | None]:
    """Of each process with kernels the device that most of them ran on; and when the last of them ended, ns."""
    if not database.has(KERNEL, "globalPid", "deviceId", "end"):
        return {}, None
    counted: defaultdict[int, Counter[int]] = defaultdict(Counter)
    until: int | None = None
    last = database.last_row(KERNEL)
    query = f"SELECT globalPid, deviceId, end FROM {KERNEL} WHERE rowid"
    looked = database.rows(f"{query} <= ?", (_LOOKED_AT,))
    apart = max(last // _PROBES, 1)
    probed = (row for at in range(_LOOKED_AT + 1, last + 1, apart) for row in database.rows(f"{query} = ?", (at,)))
    ends = database.rows(f"{query} > ?", (max(last - _PROBES, _LOOKED_AT),))
    for rows in (looked, probed, ends):
        for process, device, end in rows:
            if isinstance(process, int) and isinstance(device, int):
                counted[process][device] += 1
                until = max(until or 0, end) if isinstance(end, int) and end < 1 << 62 else until
    return {process: devices.most_common(1)[0][0] for process, devices in counted.items()}, until
