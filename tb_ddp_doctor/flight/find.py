"""Finding Flight Recorder dumps in a log directory: which files, of which ranks, of which job.

A dump is known by its first bytes, not by its name alone: a pickle of plain data, or JSON, with the recorder's keys.
A text that begins with the table of `torchfrtrace -j` has those of all ranks: it is a job where no dumps are.
Names that are looked at end in a number or hold a rank: `nccl_trace_rank_3`, `comm_traces/rank_3`, `_dump_3`,
`anything3`, `node7_nccl_trace_rank_3`, `rank_3.json`, or lie in a folder `rank_3`. What else a name holds, where it
differs between ranks or says "host" or "node", is the host.

The dumps of a folder are a job; those of folders side by side (one a node) too, if no two are of one rank. Where a
folder has several of one rank, names that differ in more than the rank are several jobs, or attempts of one.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.discover.names import is_remote, natural
from tb_ddp_doctor.flight import stacks, table
from tb_ddp_doctor.storage import paths, time_limit
from tb_ddp_doctor.storage.paths import FilePath, RemoteError, RemotePath
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.storage.time_limit import beginning, within

_RANK = re.compile(r"(?<![a-z])rank[_-]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE)
_SUFFIX = re.compile(r"\.(?:json|pickle|pkl|bin|dump|trace|txt|pt)$", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<!\d)(?P<rank>\d{1,6})$")
#: Of other tools, with numbers in their names too.
_OTHERS = re.compile(
    r"tfevents|\.pt\.trace\.json|\.(?:gz|zst|npy|npz|safetensors|py|png|html|csv|digest)$", re.IGNORECASE
)
_WORDS = re.compile(
    r"(?:nccl|gloo|flight|recorder|comm|trace|dump|debug|info|global|lib|fr|ras)s?(?=[^a-z]|$)|rank", re.IGNORECASE
)
#: What stacks are called, so that what somebody keeps of py-spy beside traces is no job that hangs.
STACKS_SUFFIX = ".stacks.txt"
#: What a table, or an answer of RAS, may be called.
_TEXT = re.compile(r"\.(?:txt|log|out|err|json)$", re.IGNORECASE)
_HEAD_BYTES = 4096
#: Reading heads waits for the disk, on network file systems for milliseconds each.
_READERS = 8
_PICKLE_KEYS = (b"version", b"entries", b"pg_config", b"pg_status", b"comm_lib_version")
_JSON_KEYS = (b'"comm_lib_version"', b'"nccl_version"', b'"pg_config"', b'"collective_seq_id"', b'"nccl_comm_state"')
_RAS_KEYS = (b'"communicators"', b'"communicators_count"')


#: Folders below the log directory.
Parts: TypeAlias = tuple[str, ...]


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
    base, found = _candidates(os.fspath(logdir), reach or Reach())
    dumps: dict[Parts, list[DumpFile]] = {}
    tables: dict[Parts, list[DumpFile]] = {}
    ras: dict[Parts, list[FilePath]] = defaultdict(list)
    threads: dict[Parts, list[FilePath]] = defaultdict(list)
    with ThreadPoolExecutor(_READERS) as pool:
        heads = pool.map(_head, (path for _, path in found))
        for (parts, path), head in zip(found, heads, strict=True):
            if any(key in head for key in _RAS_KEYS):
                ras[parts].append(path)
            elif path.name.endswith(STACKS_SUFFIX) and any(mark in head for mark in stacks.MARKS):
                threads[parts].append(path)
            elif (file := _file(path, head)) is not None:
                (tables if file.is_table else dumps).setdefault(parts, []).append(file)
    runs = []
    for parts, files in _merged(dumps).items():
        for kind, of_kind in _jobs(files).items():
            named = (*parts, kind) if kind else parts
            runs.append(_run(base, named, of_kind, _beside(parts, ras), threads.pop(parts, ())))
    for parts, files in tables.items():
        if not any(folder[: len(parts)] == parts for folder in dumps):
            alone = len(files) == 1
            runs += [_run(base, parts if alone else (*parts, file.kind), [file], _beside(parts, ras)) for file in files]
    runs += [_run(base, parts, [], _beside(parts, ras), paths) for parts, paths in threads.items()]
    return sorted(runs, key=lambda run: natural(run.name))


def _candidates(location: str, reach: Reach) -> tuple[str, list[tuple[Parts, FilePath]]]:
    """The name of a log directory, and every file that may be a dump by its name, with its folders."""
    if is_remote(location):
        try:
            root, files = paths.find(location)
        except RemoteError:
            return "", []
        return root.rpartition("/")[2], list(_may_be_of(root, files))
    local = Path(location).expanduser()
    found = [((), local)] if local.is_file() else _walk(local, reach) if location else ()
    return Path(os.path.abspath(local)).name, list(found)


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
        folder = file.path.parent.name if len(folders) > 1 and not _RANK.fullmatch(file.path.parent.name) else ""
        yield replace(file, host=named or folder)


def _may_be_of(root: str, files: Sequence[RemotePath]) -> Iterator[tuple[Parts, FilePath]]:
    """The remote files below a folder that may be dumps by their names, with their folders."""
    for file in files:
        *parts, name = paths.below(root, file)
        folder = parts[-1] if parts else root.rpartition("/")[2]
        if not any(part.startswith(".") for part in (*parts, name)) and _may_be(name, folder):
            yield tuple(parts), file


def _walk(root: Path, reach: Reach) -> Iterator[tuple[Parts, FilePath]]:
    """Every regular file that may be a dump by its name, with its folders; each folder once."""
    seen: set[tuple[int, int]] = set()
    ahead: list[tuple[Parts, bool]] = [((), False)]
    while ahead and not reach.is_stopped:
        parts, is_link = ahead.pop()
        folder = root.joinpath(*parts)
        try:
            identity, folders, files = within(time_limit.PATIENCE_S, partial(_list, folder), folder)
        except OSError:  # what cannot be read is said of the traces
            continue
        if identity in seen:
            continue
        seen.add(identity)
        if not reach.enters(folder, identity[0], is_link=is_link):
            continue
        ahead += [((*parts, name), is_linked) for name, is_linked in folders]
        yield from ((parts, folder / name) for name in files)


def _list(folder: Path) -> tuple[tuple[int, int], list[tuple[str, bool]], list[str]]:
    """A folder's device and number, the folders in it and whether they are links, and its files."""
    status = folder.stat()
    folders, files = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append((entry.name, entry.is_symlink()))
            elif _may_be(entry.name, folder.name) and stat.S_ISREG(entry.stat().st_mode):
                files.append(entry.name)
    return (status.st_dev, status.st_ino), sorted(folders), sorted(files)


def _may_be(name: str, folder: str) -> bool:
    if _OTHERS.search(name):
        return False
    stem = _SUFFIX.sub("", name)
    return bool(_RANK.search(stem) or stem[-1:].isdecimal() or _RANK.fullmatch(folder) or _TEXT.search(name))


def rank_in(name: str) -> int | None:
    """The rank that a file's name holds."""
    found = _RANK.search(name)
    return int(found["rank"]) if found else None


def _head(path: FilePath) -> bytes:
    try:
        return beginning(path, _HEAD_BYTES)
    except OSError:
        return b""


def _file(path: FilePath, head: bytes) -> DumpFile | None:
    if head[:1] not in (b"\x80", b"{") and table.BEGINS.search(head):
        return DumpFile(path, None, "", path.name, is_table=True)
    is_pickle = head[:1] == b"\x80" and any(key in head for key in _PICKLE_KEYS)
    is_json = head.lstrip()[:1] == b"{" and any(key in head for key in _JSON_KEYS)
    if not is_pickle and not is_json:
        return None
    stem = _SUFFIX.sub("", path.name)
    found = _RANK.search(stem) or _LAST_NUMBER.search(stem)
    rank = int(found["rank"]) if found else None
    rest = stem[: found.start()] + "*" + stem[found.end() :] if found else stem
    if rank is None and (of_folder := _RANK.fullmatch(path.parent.name)):
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
