"""The Flight Recorder's dumps in a log directory: which files, of which ranks, of which job.

What a dump may be called and how it begins is in `discover.recorders.flight_recorder`. A text that begins with the
table of `torchfrtrace -j` has the dumps of all ranks: it is a job where no dumps are. What a name holds beside the
rank, where it differs between ranks or says "host" or "node", is the host.

The dumps of a folder are a job; those of folders side by side (one a node) too, if no two are of one rank. Where a
folder has several of one rank, names that differ in more than the rank are several jobs, or attempts of one.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.discover import walk
from tb_ddp_doctor.discover.names import is_remote, natural
from tb_ddp_doctor.discover.recorders.flight_recorder import RANK, SUFFIX, FlightRecorder
from tb_ddp_doctor.discover.trace_file import Parts
from tb_ddp_doctor.storage.paths import FilePath, RemoteError
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.storage.time_limit import beginning

_RECORDER = FlightRecorder()
_LAST_NUMBER = re.compile(r"(?<!\d)(?P<rank>\d{1,6})$")
_WORDS = re.compile(
    r"(?:nccl|gloo|flight|recorder|comm|trace|dump|debug|info|global|lib|fr|ras)s?(?=[^a-z]|$)|rank", re.IGNORECASE
)
#: Reading heads waits for the disk, on network file systems for milliseconds each.
_READERS = 8


class DumpFile(msgspec.Struct, frozen=True):
    """A file that looks like a dump."""

    path: FilePath
    #: None where no name says it.
    rank: int | None
    #: "" where no name says it.
    host: str
    #: Its name without rank and host.
    kind: str
    #: Whether it is a table of all ranks' entries.
    is_table: bool = False


class DumpRun(msgspec.Struct, frozen=True):
    """The dumps of one job, by rank; those without a rank last."""

    #: Path relative to the log directory, with "/"; its last part for the log directory itself.
    name: str
    files: tuple[DumpFile, ...]
    #: Answers of NCCL's RAS (`ncclras -f json`) beside them.
    ras: tuple[FilePath, ...] = ()
    #: Python stacks of ranks (`rank_3.stacks.txt`) beside them, or alone.
    stacks: tuple[FilePath, ...] = ()


def find(logdir: str | os.PathLike[str], reach: Reach | None = None) -> list[DumpRun]:
    """All jobs with dumps below a log directory, here or remote, in the order of their names.

    None where the directory cannot be read: that is said of the traces, as is what `reach` leaves out.
    """
    base, candidates = _candidates(os.fspath(logdir), reach or Reach())
    dumps: dict[Parts, list[DumpFile]] = {}
    tables: dict[Parts, list[DumpFile]] = {}
    ras: dict[Parts, list[FilePath]] = defaultdict(list)
    threads: dict[Parts, list[FilePath]] = defaultdict(list)
    with ThreadPoolExecutor(_READERS) as pool:
        heads = pool.map(_head, (path for _, path in candidates))
        for (parts, path), head in zip(candidates, heads, strict=True):
            kind = _RECORDER.kind(path.name, head)
            if kind == "ras":
                ras[parts].append(path)
            elif kind == "stacks":
                threads[parts].append(path)
            elif kind:
                (tables if kind == "table" else dumps).setdefault(parts, []).append(_file(path, kind == "table"))
    runs = []
    for parts, files in _merged(dumps).items():
        for job, of_job in _jobs(files).items():
            named = (*parts, job) if job else parts
            runs.append(_run(base, named, of_job, _beside(parts, ras), threads.pop(parts, ())))
    for parts, files in tables.items():
        if not any(folder[: len(parts)] == parts for folder in dumps):
            alone = len(files) == 1
            runs += [_run(base, parts if alone else (*parts, file.kind), [file], _beside(parts, ras)) for file in files]
    runs += [_run(base, parts, [], _beside(parts, ras), paths) for parts, paths in threads.items()]
    return sorted(runs, key=lambda run: natural(run.name))


def _candidates(location: str, reach: Reach) -> tuple[str, Sequence[tuple[Parts, FilePath]]]:
    """The name of a log directory, and every file that may be a dump by its name, with its folders."""
    if is_remote(location):
        try:
            return walk.remote(location, _RECORDER.wants)
        except RemoteError:
            return "", []
    local = Path(location).expanduser()
    if local.is_file():
        return local.absolute().name, [((), local)]
    # What cannot be read is said of the traces.
    seen = walk.below(local, _RECORDER.wants, reach, lambda *_: None) if location else ()
    return Path(os.path.abspath(local)).name, [(parts, path) for parts, path, status in seen if status]


def _beside(parts: Parts, ras: Mapping[Parts, Sequence[FilePath]]) -> list[FilePath]:
    """Answers of RAS in a folder, those above it and those below."""
    return [path for at, paths in ras.items() for path in paths if at == parts[: len(at)] or at[: len(parts)] == parts]


def _run(
    base: str, parts: Parts, files: Sequence[DumpFile], ras: Sequence[FilePath], threads: Sequence[FilePath] = ()
) -> DumpRun:
    name = "/".join(parts) or base
    name = name.encode("utf-8", "backslashreplace").decode()
    ordered = sorted(files, key=lambda file: (file.rank is None, file.rank or 0, file.path.name))
    return DumpRun(
        name,
        tuple(_with_hosts(ordered)),
        tuple(sorted(ras, key=str)),
        tuple(sorted(threads, key=lambda path: natural(path.name))),
    )


def _with_hosts(files: Sequence[DumpFile]) -> Iterator[DumpFile]:
    """The files, with a host only where names differ in it, or in folders, or say that it is one."""
    hosts = {file.host for file in files}
    folders = {file.path.parent for file in files}
    for file in files:
        named = file.host if len(hosts) > 1 or re.search(r"host|node", file.host, re.IGNORECASE) else ""
        folder = file.path.parent.name if len(folders) > 1 and not RANK.fullmatch(file.path.parent.name) else ""
        yield replace(file, host=named or folder)


def rank_in(name: str) -> int | None:
    """The rank that a file's name holds."""
    named = RANK.search(name)
    return int(named["rank"]) if named else None


def _head(path: FilePath) -> bytes:
    try:
        return beginning(path, _RECORDER.head_bytes)
    except OSError:
        return b""


def _file(path: FilePath, is_table: bool) -> DumpFile:
    """A file with the rank, host and kind that its name says."""
    if is_table:
        return DumpFile(path, None, "", path.name, is_table=True)
    stem = SUFFIX.sub("", path.name)
    named = RANK.search(stem) or _LAST_NUMBER.search(stem)
    rank = int(named["rank"]) if named else None
    rest = stem[: named.start()] + "*" + stem[named.end() :] if named else stem
    if rank is None and (of_folder := RANK.fullmatch(path.parent.name)):
        rank = int(of_folder["rank"])
    host = re.sub(r"^[^0-9A-Za-z]+|[^0-9A-Za-z]+$", "", re.sub(r"[*_]+", "_", _WORDS.sub("", rest)))
    kind = rest.replace(host, "") if host else rest
    return DumpFile(path, rank, host, kind)


def _merged(folders: dict[Parts, list[DumpFile]]) -> dict[Parts, list[DumpFile]]:
    """Folders side by side become one where all their ranks differ."""
    beside: defaultdict[Parts, list[Parts]] = defaultdict(list)
    for parts in folders:
        if parts:
            beside[parts[:-1]].append(parts)
    merged = dict(folders)
    for parent, children in beside.items():
        ranks = [file.rank for parts in children for file in folders[parts]]
        if len(children) > 1 and parent not in folders and None not in ranks and len(set(ranks)) == len(ranks):
            merged[parent] = [file for parts in children for file in merged.pop(parts)]
    return merged


def _jobs(files: Sequence[DumpFile]) -> dict[str, list[DumpFile]]:
    """The files by job: one where each rank is there once; else by what their names share."""
    chosen: dict[tuple[str, str, int | None], DumpFile] = {}
    for file in sorted(files, key=lambda file: file.path.suffix == ".json"):
        # The same dump may be there as pickle and as JSON.
        key = (file.kind, file.host, file.rank)
        if file.rank is None or key not in chosen:
            chosen[key if file.rank is not None else (file.path.name, "", None)] = file
    kept = list(chosen.values())
    ranks = [file.rank for file in kept if file.rank is not None]
    if len(set(ranks)) == len(ranks):
        return {"": kept}
    jobs: defaultdict[str, list[DumpFile]] = defaultdict(list)
    for file in kept:
        jobs[file.kind.replace("*", "").strip("_-.") or "dump"].append(file)
    if len(jobs) == 1:
        # The names are alike but for what looked like a host.
        jobs = defaultdict(list)
        for file in kept:
            jobs[file.host or "dump"].append(file)
    return dict(jobs)
