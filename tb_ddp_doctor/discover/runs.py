"""Finding the traces: from a log directory to runs, each a set of rank files of one job.

Names that are taken:

- torch's own, whatever their content: `<worker>[.<span>].pt.trace.json[.gz]`. The worker is `host_pid` by default,
  but may be anything; the span is a time stamp, or Composer's batch number.
- `.json[.gz]` that name a rank (`rank0_trace`, `rank-0`, `trace_rank0`, `megatron_kineto_0`), unless their head
  shows that they are something else.
- any other `.json[.gz]` whose head is that of a Kineto trace (Accelerate's `profile_0`, SGLang's `TP-0`).
- such a file into which several ranks were merged, as one for each rank (`merged`); where these are no ranks of one job
  ("before", "after"), each is a run, named for the file and the name that it has there.
- SQLite exports of Nsight Systems, each with a rank for each process that ran kernels. Their ranks are numbered by
  file, GPU and process, where NCCL's payloads do not tell them; sessions that began together are one job.

Where there is nothing else, other recorders' files are answered with what to do with them (`foreign`).

A digest beside its trace is read in its stead. Hidden files and folders are passed over: that is where rsync keeps what
it has not finished.

What makes a run, in this order:

1. A folder with such files. Symbolic links are followed, each folder once.
2. Folders that differ in one part of their path and hold different ranks of one job (`rank_0/`, `rank_1/`, or one
   folder per node) become one run, named for the path without that part. Captures (`step_1000/`, `step_2000/`) and
   starts of a job that is captured (`start_2/`, `start_3/`) do not.
3. Files of one rank are told apart by the time in their names: each profiler cycle, or repetition of the job, is a
   run `<name>/span_N`. Ranks are paired by time, so a cycle that a rank lost shifts nothing. Servers that were recorded
   at once, and name their files alike, are no cycles. Files whose names say neither a rank nor a time go by the time of
   their first event. Merged files beside the files of as many ranks are left out.
4. Files that claim one rank of jobs of different size are different jobs: `<name>/world_size_N`; but for engines that
   generate beside ranks that train (`own_worlds`). Two files of every rank whose names have other words, as SGLang's
   of prefill and decode, are two runs: `<name>/named_DECODE`.

Only the head of a file is read here. What is wrong with a file, the reader says later: nothing that a file or folder
holds raises an exception here.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path, PurePath

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.discover import merged, own_worlds
from tb_ddp_doctor.discover.cycles import (
    Worker,
    by_cycle,
    by_job,
    in_order,
    order_of_recurring,
    without_repeats,
    worker_of,
)
from tb_ddp_doctor.discover.files import scan, scan_remote
from tb_ddp_doctor.discover.folders import SAME_TIME_NS, FolderGroup, merge_folders, most_claimed
from tb_ddp_doctor.discover.head import Head, peek
from tb_ddp_doctor.discover.names import TRACE_NAME, is_remote, natural, words
from tb_ddp_doctor.discover.recorders import recorder_of
from tb_ddp_doctor.discover.trace_file import Parts, RankSource, TraceFile
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage import time_limit
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath, RemoteError, RemotePath
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.storage.time_limit import within

__all__ = [
    "DiscoverError",
    "RankFile",
    "RankSource",
    "Run",
    "discover",
    "has_step_range",
    "no_traces",
    "only_run",
    "parse_logdir_spec",
    "with_step_range",
]

#: Names of runs that share a folder, and so have none of their own.
_WITHOUT_FOLDER = re.compile(r"span_\d+|no_rank|world_size_(\d+|unknown)|named_.+")
#: What is said of a merged file that is left out.
_REPEATS = "Left out: several ranks were merged into it, and beside it each has its own file."
#: Names in a sentence: more are counted.
_MOST_NAMED = 6


class DiscoverError(ValueError):
    """There is nothing to look into. Its text is a sentence for users."""


class RankFile(msgspec.Struct, frozen=True):
    """The trace of one rank in one profiler cycle."""

    path: FilePath
    #: The file's name without span and suffixes.
    worker: str
    #: Host name, or the folder of the node; "" where nothing says it.
    node: str
    #: The digits between the worker and ".pt.trace.json"; "" if none.
    span: str
    rank: int
    rank_source: RankSource
    #: What this file's `distributedInfo` says; None where it says nothing.
    world_size: int | None
    #: Bytes on disk.
    size: int
    #: When it was written: ns since 1970, by its name, else by the file system.
    written_ns: int
    #: What it calls its rank, where the job has several worlds: `world_size` is the size of its own one.
    own_rank: int | None = None


class Run(msgspec.Struct, frozen=True):
    """The files of one job and one profiler cycle: one per rank, sorted by rank."""

    #: Path relative to the log directory, with "/"; its last part for the log directory itself.
    name: str
    directory: FilePath
    files: tuple[RankFile, ...]
    #: The most common claim of the files, the larger of equals; None where no file says it.
    world_size: int | None
    warnings: tuple[FileWarning, ...]


def discover(
    logdir: str | os.PathLike[str] | Mapping[str, str],
    *,
    peek: Callable[[FilePath], Head] = peek,
    reach: Callable[[], Reach] = Reach,
) -> list[Run]:
    """All runs under a log directory, here or remote, a single trace file, or the named directories of `--logdir_spec`.

    `peek` reads the head of a file; one that remembers heads spares opening the files. `reach` says, for each
    directory, how far below it is looked.

    Raises:
        DiscoverError: the directory does not exist, or nothing in it could be read.
    """
    if not isinstance(logdir, Mapping):
        return _discover(os.fspath(logdir), None, peek, reach())
    runs: list[Run] = []
    absent = []
    for name, path in logdir.items():
        try:
            runs += _discover(path, name, peek, reach())
        except DiscoverError as error:
            absent.append(FileWarning(path, str(error)))
    if absent and not runs:
        raise DiscoverError(" ".join(warning.message for warning in absent))
    return [_add_warnings(run, absent) for run in runs]


def only_run(location: str, *, peek: Callable[[FilePath], Head] = peek, reach: Callable[[], Reach] = Reach) -> Run:
    """The only run at a location, which may name one of those that share a folder or a file: `logs/my_job/span_2`.

    Raises:
        DiscoverError: as `discover`, and where there is no run.
        ValueError: there are several. It says their names.
    """
    folder, shared = location.rstrip("/"), list[str]()
    while not is_remote(folder) and not os.path.exists(folder):
        above, name = os.path.split(folder)
        if not _WITHOUT_FOLDER.fullmatch(name) and not os.path.isfile(above):
            break
        folder = above
        shared.insert(0, name)
    runs = discover(folder or location, peek=peek, reach=reach)
    if shared:
        runs = [run for run in runs if run.name.split("/")[-len(shared) :] == shared]
    if not runs:
        raise DiscoverError(no_traces(location))
    if len(runs) > 1:
        more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
        names = ", ".join(run.name for run in runs[:_MOST_NAMED])
        raise ValueError(f"{location} holds {len(runs)} runs; name the directory of one: {names}{more}.")
    return runs[0]


def with_step_range(run: Run, name: str) -> Run:
    """The run with the range of this name as step; files whose recorder has no such ranges as they are."""
    if not name:
        return run
    files = [
        replace(file, path=replace(file.path, asked=name))
        if isinstance(file.path, ProcessPath) and has_step_range(file)
        else file
        for file in run.files
    ]
    return replace(run, files=tuple(files))


def has_step_range(file: RankFile) -> bool:
    """Whether a range can be named that is a step of this file."""
    recorder = recorder_of(file.path.file.name) if isinstance(file.path, ProcessPath) else None
    return recorder is not None and recorder.takes_step_range


def _is_pickle(path: Path) -> bool:
    return path.suffix.lower() in (".pickle", ".pkl")


def no_traces(location: str) -> str:
    """What is said of a log directory without a run."""
    return (
        f"{location} holds no profiler traces (*.pt.trace.json[.gz], *.pftrace, *.sqlite of Nsight Systems), "
        "no snapshots of torch.cuda.memory (*.pickle) and no Flight Recorder dumps (nccl_trace_rank_0 ...): name the "
        "directory that tensorboard_trace_handler or the Doctor of the job writes to."
    )


def parse_logdir_spec(spec: str) -> dict[str, str]:
    """TensorBoard's `name:path,name2:path2` as paths by name; a path without a name is named by itself."""
    paths: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in spec.split(","))):
        named = ":" in part and part[0] != "/" and not is_remote(part) and not os.path.splitdrive(part)[0]
        name, path = part.split(":", 1) if named else (part, part)
        paths[f"{name} ({path})" if name in paths else name] = path
    return paths


def _discover(logdir: str, name: str | None, peek: Callable[[FilePath], Head], reach: Reach) -> list[Run]:
    if not logdir:
        raise DiscoverError("The name of the log directory is empty.")
    if is_remote(logdir):
        return _discover_remote(logdir, name, peek)
    root = Path(logdir).expanduser()
    try:
        if not within(time_limit.PATIENCE_S, root.exists, root):
            raise DiscoverError(f"{logdir} does not exist.")
    except TimeoutError as error:
        raise DiscoverError(f"{logdir} cannot be read. {error}") from None
    if not root.is_dir() and not root.is_file():
        raise DiscoverError(f"{logdir} is neither a folder nor a file, but a device or a pipe.")
    unreadable: list[FileWarning] = []
    others: list[FileWarning] = []
    folders = scan(root, unreadable, others, peek, reach)
    if not folders and not unreadable and others:
        raise DiscoverError(_nothing_but(others))
    if not folders and root.is_file() and not unreadable:
        snapshot = ", nor a snapshot of torch.cuda.memory or a Flight Recorder dump" if _is_pickle(root) else ""
        raise DiscoverError(
            f"{logdir} is not a trace of the PyTorch profiler{snapshot}: name one, or the directory that has those of "
            "all ranks."
        )
    if not folders and unreadable:
        raise DiscoverError(_nothing_but(unreadable))

    base = name if name is not None else Path(os.path.abspath(root)).name
    runs = _runs_of_folders(folders, base, always=name is not None)
    return sorted(_with_unreadable(runs, unreadable), key=lambda run: natural(run.name))


def _nothing_but(unreadable: Sequence[FileWarning]) -> str:
    return f"No trace was found. {unreadable[0].file}: {unreadable[0].message}"


def _with_unreadable(runs: Sequence[Run], unreadable: Sequence[FileWarning]) -> list[Run]:
    """The runs, each with what cannot be read beside it or above it: that may hold some of its ranks."""
    return [
        _add_warnings(
            run,
            [each for each in unreadable if PurePath(str(run.directory)).is_relative_to(PurePath(each.file).parent)],
        )
        for run in runs
    ]


def _discover_remote(logdir: str, name: str | None, peek: Callable[[FilePath], Head]) -> list[Run]:
    unreadable: list[FileWarning] = []
    others: list[FileWarning] = []
    try:
        base, folders = scan_remote(logdir, unreadable, others, peek)
    except RemoteError as error:
        raise DiscoverError(str(error)) from None
    if not folders and not unreadable and others:
        raise DiscoverError(_nothing_but(others))
    if not folders and unreadable:
        raise DiscoverError(_nothing_but(unreadable))
    runs = _runs_of_folders(folders, base if name is None else name, always=name is not None)
    return sorted(_with_unreadable(runs, unreadable), key=lambda run: natural(run.name))


def _runs_of_folders(folders: Mapping[Parts, list[TraceFile]], base: str, *, always: bool) -> list[Run]:
    """Runs, named for their folders below `base`, which `always` comes first."""
    runs: list[Run] = []
    for group in merge_folders([FolderGroup.of(parts, files) for parts, files in folders.items()]):
        prefix = (base,) if always or not group.parts else ()
        runs += _runs("/".join((*prefix, *group.parts)), group.files)
    return runs


def _add_warnings(run: Run, warnings: list[FileWarning]) -> Run:
    return replace(run, warnings=(*run.warnings, *warnings)) if warnings else run


def _runs(name: str, files: list[TraceFile]) -> list[Run]:
    files, repeats = without_repeats(files)
    cycles = by_cycle(files)
    order = order_of_recurring(cycles)
    runs = []
    for number, cycle in enumerate(cycles, 1):
        cycle_name = f"{name}/span_{number}" if len(cycles) > 1 else name
        runs += [_run(cycle_name + suffix, of_job, order) for suffix, of_job in by_job(cycle)]
    return [
        _add_warnings(
            run, [FileWarning(str(path), _REPEATS) for path, source in repeats.items() if source in _paths(run)]
        )
        for run in runs
    ]


def _paths(run: Run) -> set[FilePath]:
    return {file.path for file in run.files}


def _run(name: str, files: list[TraceFile], order: list[Worker] | None) -> Run:
    directory = _common([file.path.parent for file in files])
    world_size = own_worlds.size(files) or most_claimed(file.world_size for file in files)
    _number_by_order(files, world_size, order)
    kept, left_out = _one_per_rank(files, world_size)
    for file in files:
        if file.rank is None:
            message = f"Left out: it names no rank, and all {world_size} ranks are taken."
            left_out.append(FileWarning(str(file.path), message))
    warnings = (*_warn_of_run(str(directory), list(kept.values()), world_size), *left_out)
    rank_files = tuple(_rank_file(rank, file) for rank, file in kept.items())
    # Bytes that are no UTF-8 are named so that they can be printed, sent and asked for.
    name = name.encode("utf-8", "backslashreplace").decode()
    return Run(name, directory, rank_files, world_size, warnings)


def _common(folders: Sequence[FilePath]) -> FilePath:
    """The folder that all are in."""
    first = folders[0]
    if isinstance(first, RemotePath):
        paths = [folder.path for folder in folders if isinstance(folder, RemotePath)]
        return replace(first, path=posixpath.commonpath(paths))
    return Path(os.path.commonpath([str(folder) for folder in folders]))


def _number_by_order(files: list[TraceFile], world_size: int | None, order: list[Worker] | None) -> None:
    """Give the job's free ranks to the workers that name none, in order of their names, as far as there are any."""
    claimed = {file.rank for file in files}
    workers = order or in_order({worker_of(file) for file in files if file.rank is None})
    free = (rank for rank in count() if rank not in claimed)
    ranks = dict(zip(workers, free, strict=False))
    for file in files:
        if file.rank is None and (world_size is None or ranks[worker_of(file)] < world_size):
            file.rank = ranks[worker_of(file)]


def _one_per_rank(files: list[TraceFile], world_size: int | None) -> tuple[dict[int, TraceFile], list[FileWarning]]:
    """The best file of each rank, by rank, and a sentence for each file that had to stand back."""
    by_rank: dict[int, list[TraceFile]] = defaultdict(list)
    for file in files:
        if file.rank is not None:
            by_rank[file.rank].append(file)
    by_words = Counter(words(file.worker) for file in files)
    kept, left_out = {}, []
    for rank, rivals in sorted(by_rank.items()):
        merits = {id(file): _merit(file, world_size, by_words) for file in rivals}
        best, *others = sorted(rivals, key=lambda file: merits[id(file)], reverse=True)
        kept[rank] = best
        for other in others:
            compared = zip(_MERITS, merits[id(best)], merits[id(other)], strict=True)
            why = next((why for why, mine, theirs in compared if mine != theirs), "comes first")
            message = f"Left out: rank {rank} is also claimed by {best.path.name}, which {why}."
            left_out.append(FileWarning(str(other.path), message))
    return kept, left_out


#: Why one file is preferred to another that claims its rank, in the order of `_merit`.
_MERITS = (
    "can be read",
    "has a better source of its rank",
    "has the world size of the others",
    "is named as more of the files are",
    "is newer",
    "is not compressed, so it cannot be half written",
    "is larger",
)
_WORST_SOURCE_FIRST: tuple[RankSource, ...] = ("order", "folder name", "file name", "distributedInfo")


def _merit(file: TraceFile, world_size: int | None, by_words: Mapping[frozenset[str], int]) -> tuple[int, ...]:
    return (
        file.is_readable,
        _WORST_SOURCE_FIRST.index(file.source),
        file.world_size == world_size,
        by_words[words(file.worker)],
        file.time_ns or file.modified_ns,
        file.path.suffix != ".gz",
        file.size,
    )


def _rank_file(rank: int, file: TraceFile) -> RankFile:
    return RankFile(
        path=file.path,
        worker=file.worker,
        node=file.node,
        span=file.span,
        rank=rank,
        rank_source=file.source,
        world_size=file.world_size,
        size=file.size,
        written_ns=file.time_ns or file.modified_ns,
        own_rank=file.own_rank,
    )


def _warn_of_run(directory: str, files: list[TraceFile], world_size: int | None) -> Iterator[FileWarning]:
    """What must be said of the files together, one sentence for each kind of doubt."""
    sources = Counter(file.source for file in files if not isinstance(file.path, ProcessPath))
    for source in ("file name", "folder name"):
        if number := sources[source]:
            message = (
                f"The rank of {_files(number)} is taken from the {source}: the trace has no distributedInfo, as torch "
                "writes where torch.distributed is initialised."
            )
            yield FileWarning(directory, message)
    if number := sources["order"]:
        yield FileWarning(
            directory,
            f"The rank of {_files(number)} is taken from the order of the file names: neither the trace nor its name "
            "tells it.",
        )

    yield from _warn_of_processes(directory, [file for file in files if isinstance(file.path, ProcessPath)])

    yield from _warn_of_sizes(directory, files, world_size)
    times = [file.time_ns for file in files if file.time_ns is not None]
    apart_ns = max(times, default=0) - min(times, default=0)
    if apart_ns > SAME_TIME_NS:
        minutes = apart_ns // (60 * 10**9)
        message = f"The files were written up to {minutes} minutes apart: they may not be of one job."
        yield FileWarning(directory, message)


def _warn_of_sizes(directory: str, files: list[TraceFile], world_size: int | None) -> Iterator[FileWarning]:
    """What must be said of the sizes that the files claim."""
    if said := own_worlds.said(files):
        yield FileWarning(directory, said)
    claims = Counter(file.world_size for file in files if file.world_size is not None and file.own_rank is None)
    if len(claims) > 1:
        listed = ", ".join(f"{size} in {_files(number)}" for size, number in sorted(claims.items()))
        yield FileWarning(directory, f"The files disagree about the world size: {listed}. It is taken as {world_size}.")


def _warn_of_processes(directory: str, files: list[TraceFile]) -> Iterator[FileWarning]:
    """What must be said of files that hold several processes."""
    paths = [file.path for file in files if isinstance(file.path, ProcessPath)]
    for file, number in Counter(path.file for path in paths).items():
        labels = [path.label for path in paths if path.file == file]
        if merged.are_captures(labels):
            message = "Captures that are not ranks of one job were put side by side into this file: each is a run."
            yield FileWarning(str(file), message)
        elif TRACE_NAME.fullmatch(file.name) and number > 1:
            message = f"{number} ranks were merged into this file: each is read by itself."
            order = " They are numbered in the order of their labels." if merged.rank(labels[0]) is None else ""
            yield FileWarning(str(file), f"{message}{order}")
    numbered = (file.path for file in files if isinstance(file.path, ProcessPath) and file.source == "order")
    for recorder, number in Counter(recorder_of(path.file.name) for path in numbered).items():
        if recorder is None:
            continue
        processes = "1 process" if number == 1 else f"{number} processes"
        yield FileWarning(directory, f"The rank of {processes} is assumed from {recorder.rank_order}")


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"
