"""From a log directory to what its dumps say: one bad file costs that file, and a sentence that names it."""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import PurePath

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.flight import ras, stacks
from tb_ddp_doctor.flight.find import DumpFile, DumpRun, find, rank_in
from tb_ddp_doctor.flight.load import DumpError, named, read
from tb_ddp_doctor.flight.model import Dump
from tb_ddp_doctor.flight.stacks import Stack
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.stuck.build import build
from tb_ddp_doctor.stuck.model import StuckRun
from tb_ddp_doctor.stuck.threads import examined, with_threads
from tb_ddp_doctor.stuck.trusted import light
from tb_ddp_doctor.workers import pool

__all__ = ["DumpFile", "DumpRun", "StuckError", "beside", "examine", "examine_all", "find"]

_log = logging.getLogger(__name__)

#: Folders that recorders are told to write to, within a job's.
_RECORDER = re.compile(r"nccl|flight|comm_?trace|dump|(?:^|_)fr(?:_|$)", re.IGNORECASE)

#: Called with the number of files done, of files in all, and the file that was read last.
Progress = Callable[[int, int, str], None]


class StuckError(Exception):
    """Dumps of which none can be used. Its text is a sentence for users."""


def beside(dumps: Iterable[DumpRun], traces: Collection[str]) -> list[DumpRun]:
    """Jobs with dumps, by names that no run of traces in their log directory has."""
    return [replace(run, name=f"{run.name} (dumps)") if run.name in traces else run for run in dumps]


def examine_all(logdir: str | os.PathLike[str], traces: Collection[str] = ()) -> list[StuckRun]:
    """What the dumps of every job say, but of those that cannot be read. `traces` as in `examine`."""
    reports = []
    for run in beside(find(logdir), traces):
        try:
            reports.append(examine(run, traces))
        except StuckError:
            _log.debug("%s holds no dump that can be read", run.name)
    return reports


def examine(run: DumpRun, traces: Collection[str] = (), progress: Progress | None = None) -> StuckRun:
    """What the dumps of a job say. `traces` are the names of all runs of traces in the log directory.

    Raises StuckError where no dump can be used.
    """
    dumps: dict[int, Dump] = {}
    warnings: list[FileWarning] = []
    files = {file.path: file for file in run.files}
    attempts = pool.run(read, [(path, _size(path)) for path in files], gives=list[Dump], raises=(DumpError,))
    for done, (path, attempt) in enumerate(attempts, 1):
        for dump in _named(attempt, files[path], warnings):
            _keep(dump, dumps, warnings)
        if progress:
            progress(done, len(files), str(path))
    warnings.sort(key=lambda warning: warning.file)
    threads = _stacks(run, warnings)
    own_name = run.name.removesuffix(" (dumps)")
    if not dumps and threads:
        return examined(run.name, threads, warnings, same_job(own_name, traces))
    if not dumps:
        reason = f" {warnings[0].file}: {warnings[0].message}" if warnings else ""
        raise StuckError(f"None of its {len(run.files)} Flight Recorder dumps can be read.{reason}")
    kept, heavy = light(list(dumps.values()))
    warnings += heavy
    named = [rank for dump in kept for group in dump.groups.values() for rank in group.ranks[-1:]]
    world_size = max([*named, *(dump.rank for dump in kept)], default=0) + 1
    warnings += _ras(run, world_size)
    asked = _Asked(run.name, kept, warnings, same_job(own_name, traces), threads)
    try:
        # What dumps say of each other grows with what one of them claims.
        return pool.call(_joined, asked, sum(_size(path) for path in files), gives=StuckRun)
    except pool.CrashError as error:
        raise StuckError(f"Its dumps cannot be joined. {error}") from None
    except Exception as error:
        _log.debug("joining the dumps of %s failed", run.name, exc_info=True)
        raise StuckError(
            f"Joining its dumps failed in a way that is the doctor's fault, please report it ({type(error).__name__})."
        ) from error


class _Asked(msgspec.Struct, frozen=True):
    """What dumps are joined from, in a process of their own."""

    name: str
    dumps: list[Dump]
    warnings: list[FileWarning]
    traces: tuple[str, ...]
    threads: dict[int, Stack]


def _joined(asked: _Asked) -> StuckRun:
    return with_threads(build(asked.name, asked.dumps, asked.warnings, asked.traces), asked.threads)


def _stacks(run: DumpRun, warnings: list[FileWarning]) -> dict[int, Stack]:
    """Where the main threads of the ranks are, by rank."""
    stacks = {}
    read_of = dict(pool.run(_stack, [(path, _size(path)) for path in run.stacks], gives=Stack | None))
    for path in run.stacks:
        try:
            stack = read_of[path].result()
        except OSError as error:
            warnings.append(FileWarning(str(path), f"It cannot be read ({error.strerror or error})."))
            continue
        except pool.CrashError as error:
            warnings.append(FileWarning(str(path), f"Left out: {error}"))
            continue
        if stack is None:
            warnings.append(FileWarning(str(path), "It names no rank, or holds no stack of a main thread."))
        else:
            stacks[stack.rank] = stack
    return stacks


def _stack(path: FilePath) -> Stack | None:
    """Where the main thread of a rank is, in a process of its own."""
    return stacks.read(path, rank_in(path.name))


def same_job(name: str, traces: Iterable[str]) -> tuple[str, ...]:
    """The runs of traces that lie where the dumps do, or in the folder that holds the dumps' own (`comm_traces`)."""
    base = posixpath.dirname(name) if _RECORDER.search(posixpath.basename(name)) else name
    matching = [trace for trace in traces if not base or trace == base or trace.startswith(f"{base}/")]
    # Of a whole log directory they are of one job only if they lie in one folder.
    return tuple(matching) if base or len({trace.partition("/")[0] for trace in matching}) == 1 else ()


def _size(path: FilePath) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _named(attempt: Future[list[Dump]], file: DumpFile, warnings: list[FileWarning]) -> list[Dump]:
    """What was read of a file, with the rank that its name says; none, and a sentence, where it cannot be used."""
    try:
        return [named(dump, file.rank, file.host) for dump in attempt.result()]
    except (DumpError, pool.CrashError) as error:
        warnings.append(FileWarning(str(file.path), str(error)))
    except Exception as error:
        _log.debug("reading %s failed", file.path, exc_info=True)
        warnings.append(FileWarning(str(file.path), f"Left out: reading it failed ({type(error).__name__})."))
    return []


def _keep(dump: Dump, dumps: dict[int, Dump], warnings: list[FileWarning]) -> None:
    """Keep a dump; of two that claim one rank, the newer."""
    other = dumps.get(dump.rank)
    if other is None or dump.modified_ns > other.modified_ns:
        dumps[dump.rank] = dump
    if other is not None:
        kept = dumps[dump.rank]
        dropped = dump if kept is other else other
        warnings.append(
            FileWarning(
                dropped.file,
                f"Left out: rank {dump.rank} is also claimed by {PurePath(kept.file).name}, which is newer.",
            )
        )


def _ras(run: DumpRun, world_size: int) -> list[FileWarning]:
    """What NCCL's RAS says of ranks that do not run as they should."""
    members = []
    reads = partial(ras.read, world_size=world_size)
    answers = pool.run(reads, [(path, _size(path)) for path in run.ras], gives=list[ras.RasRank])
    for path, answer in sorted(answers, key=lambda one: str(one[0])):
        try:
            ranks = [one for one in answer.result() if one.state != "running"]
        except (ValueError, pool.CrashError) as error:
            said = str(error)
            members.append(FileWarning(str(path), said if said.startswith("Left out") else f"Left out: {said}"))
            continue
        problems = "; ".join(
            f"rank {one.rank} ({one.host or 'unknown host'}, pid {one.pid}) is {_RAS_WORDS[one.state]}"
            for one in ranks[:16]
        )
        more = f"; and {len(ranks) - 16} more" if len(ranks) > 16 else ""
        if problems:
            members.append(FileWarning(str(path), f"NCCL's RAS says: {problems}{more}."))
    return members


_RAS_WORDS = {
    "dead": "considered dead",
    "missing": "unresponsive",
    "error": "in an asynchronous error",
    "aborted": "aborted",
}
