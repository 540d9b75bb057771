"""Files of one folder apart by profiler cycle, and by job where several share the folder."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from tb_ddp_doctor.discover import own_worlds
from tb_ddp_doctor.discover.folders import SAME_TIME_NS
from tb_ddp_doctor.discover.names import TRACE_NAME, natural, words
from tb_ddp_doctor.discover.trace_file import TraceFile
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath

#: Two files of one rank and of different workers that are closer than this were not written by a job and its
#: repetition: starting Python, torch and NCCL again takes longer.
_RESTART_NS = 5 * 10**9
#: Processes of one job that are recorded at once begin within so much of a record of each other.
_SOONER = 0.1

#: Folder and name.
Worker: TypeAlias = tuple[str, str]


def worker_of(file: TraceFile) -> Worker:
    """What stays the same for a rank from cycle to cycle."""
    return str(file.path.parent), file.worker


def by_cycle(files: list[TraceFile]) -> list[list[TraceFile]]:
    """The files by profiler cycle."""
    timed = [file for file in files if file.time_ns is not None]
    by_time = _by_overlap(timed) if all(file.end_ns is not None for file in timed) else _by_time(timed)
    by_number = _by_number([file for file in files if file.time_ns is None])
    # Names without a span beside one cycle of names with one: somebody renamed files of that cycle.
    return [files] if len(by_time) <= 1 and len(by_number) <= 1 else by_time + by_number


def _by_time(files: list[TraceFile]) -> list[list[TraceFile]]:
    """Files whose times are closer to each other than the cycles of any rank."""
    cycles: list[list[TraceFile]] = []
    files = sorted(files, key=_time)
    longest = _longest_spread_ns(files)
    for file in files:
        if cycles and _time(file) - _time(cycles[-1][0]) <= longest:
            cycles[-1].append(file)
        else:
            cycles.append([file])
    return cycles


def _by_overlap(files: list[TraceFile]) -> list[list[TraceFile]]:
    """Files of which both ends are known: recordings of one job overlap, those of one job after another do not."""
    cycles: list[list[TraceFile]] = []
    until = 0
    for file in sorted(files, key=_time):
        if cycles and _time(file) < until:
            cycles[-1].append(file)
        else:
            cycles.append([file])
        until = max(until, file.end_ns or 0)
    return cycles


def _longest_spread_ns(files: list[TraceFile]) -> float:
    """How far the times of one cycle's files may lie apart."""
    cycle = _shortest_cycle_ns(files)
    if cycle is not None:
        return cycle / 2
    # One file per rank, or per worker. Ranks that the files name are of one cycle, however late one was written.
    return math.inf if any(file.rank is not None for file in files) else SAME_TIME_NS


def _time(file: TraceFile) -> int:
    return file.time_ns or 0


def _shortest_cycle_ns(files: list[TraceFile]) -> int | None:
    """The shortest time between two files of one rank; None if no rank has two. Takes files in order of time."""
    by_rank: dict[object, list[TraceFile]] = defaultdict(list)
    for file in files:
        by_rank[file.rank if file.rank is not None else worker_of(file)].append(file)
    records = [record for file in files if file.node and (record := _record(file))]
    cycles = []
    for own in by_rank.values():
        for one, next_one in pairwise(own):
            if _at_once(one, next_one, records):
                continue
            gap = _time(next_one) - _time(one)
            if gap >= (1 if worker_of(one) == worker_of(next_one) else _RESTART_NS):
                cycles.append(gap)
    return min(cycles, default=None)


def _record(file: TraceFile) -> tuple[int, int] | None:
    """When a file's record begins and ends; None where it does not say both: torch names files for when it ends."""
    if file.begin_ns is None or _time(file) <= file.begin_ns:
        return None
    return file.begin_ns, _time(file)


def _at_once(one: TraceFile, other: TraceFile, records: Sequence[tuple[int, int]]) -> bool:
    """Whether two files that claim one rank are of two processes that were recorded at once.

    One was not yet written when the other began. Or, as SGLang names files for when they begin, and all servers of a
    job alike, both began within one of the records (begin and end) of processes that are named.
    """
    same_worker = worker_of(one) == worker_of(other)
    if other.begin_ns is None or (same_worker and one.node):
        return False
    if other.begin_ns < _time(one):
        return not same_worker or _record(one) is not None
    first, last = sorted((one.begin_ns or _time(one), other.begin_ns))
    return same_worker and any(begin - _SOONER * (end - begin) <= first and last < end for begin, end in records)


def _by_number(files: list[TraceFile]) -> list[list[TraceFile]]:
    """By the number before ".pt.trace.json", if a worker has several: Composer's batches. Else one cycle."""
    numbers: dict[Worker, set[str]] = defaultdict(set)
    for file in files:
        numbers[worker_of(file)].add(file.span)
    if all(len(spans) == 1 for spans in numbers.values()):
        return [files] if files else []
    cycles: dict[int, list[TraceFile]] = defaultdict(list)
    for file in files:
        cycles[int(file.span or -1)].append(file)
    return [cycles[number] for number in sorted(cycles)]


def order_of_recurring(cycles: list[list[TraceFile]]) -> list[Worker] | None:
    """The workers without a rank in order, if one of them is in several cycles: it must be the same rank in each."""
    seen = Counter(worker for cycle in cycles for worker in {worker_of(file) for file in cycle if file.rank is None})
    return in_order(seen) if any(times > 1 for times in seen.values()) else None


def in_order(workers: Iterable[Worker]) -> list[Worker]:
    """Sorted, with numbers in names as numbers."""
    return sorted(workers, key=lambda worker: (natural(worker[0]), natural(worker[1])))


def by_job(files: list[TraceFile]) -> list[tuple[str, list[TraceFile]]]:
    """Files of one cycle by job, with what to add to the run's name."""
    if own_worlds.join(files):
        return [("", files)]
    claims: dict[int, set[int]] = defaultdict(set)
    for file in files:
        if file.rank is not None and file.world_size is not None:
            claims[file.rank].add(file.world_size)
    clash = any(len(sizes) > 1 for sizes in claims.values())
    jobs: dict[str, list[TraceFile]] = defaultdict(list)
    strays = [file for file in files if file.is_stray and claims]
    for file in sorted(files, key=lambda file: file.world_size or 0):
        if file in strays:
            continue
        jobs[f"/world_size_{file.world_size or 'unknown'}" if clash else ""].append(file)
    jobs = {suffix + kind: own for suffix, files in jobs.items() for kind, own in _by_kind(files)}
    cycles = by_cycle(strays) if strays else []
    for number, cycle in enumerate(cycles, 1):
        jobs["/no_rank" if len(cycles) == 1 else f"/no_rank/span_{number}"] = cycle
    return list(jobs.items())


def _by_kind(files: list[TraceFile]) -> list[tuple[str, list[TraceFile]]]:
    """Files apart by the words in their names, where each kind of name has the same ranks, each once.

    Such are SGLang's traces by stage: "TP-0-EXTEND", "TP-0-DECODE". They are named for the words that not all have.
    """
    kinds: dict[frozenset[str], list[TraceFile]] = defaultdict(list)
    for file in files:
        kinds[words(file.worker)].append(file)
    ranks = [sorted(-1 if file.rank is None else file.rank for file in own) for own in kinds.values()]
    if len(kinds) < 2 or ranks[0][0] < 0 or any(own != ranks[0] or len(set(own)) < len(own) for own in ranks):
        return [("", files)]
    common = frozenset.intersection(*kinds)
    return [(f"/named_{'-'.join(sorted(kind - common))}" if kind - common else "", own) for kind, own in kinds.items()]


def without_repeats(files: list[TraceFile]) -> tuple[list[TraceFile], dict[Path, FilePath]]:
    """Files without the merged ones that lie beside what they were made of; and these, with a file that they hold.

    They are of the cycle that is the closest in time, if that has a file for each of their ranks.
    """
    single = [file for file in files if not _merged_file(file)]
    merged: dict[Path, list[TraceFile]] = defaultdict(list)
    for file in files:
        if path := _merged_file(file):
            merged[path].append(file)
    cycles = by_cycle(single) if single and merged else []
    repeats = {}
    for path, parts in merged.items():
        near = min(cycles, key=lambda cycle: _apart_ns(parts[0], cycle[0]), default=[])
        workers = {worker_of(file) for file in near if file.is_readable}
        if 1 < len(parts) <= len(workers) and _apart_ns(parts[0], near[0]) <= SAME_TIME_NS:
            repeats[path] = near[0].path
    return [file for file in files if _merged_file(file) not in repeats], repeats


def _apart_ns(one: TraceFile, other: TraceFile) -> int:
    """How far apart two files were recorded; 0 where nothing says so."""
    return 0 if one.time_ns is None or other.time_ns is None else abs(one.time_ns - other.time_ns)


def _merged_file(file: TraceFile) -> Path | None:
    """The file into which the rank was merged with others; None if it has its own."""
    is_merged = isinstance(file.path, ProcessPath) and TRACE_NAME.fullmatch(file.path.file.name)
    return file.path.file if isinstance(file.path, ProcessPath) and is_merged else None
