"""The trace files under a directory, by folder, each with what its name and head tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from tb_ddp_doctor.discover import foreign, merged, names, walk
from tb_ddp_doctor.discover.head import Head, source
from tb_ddp_doctor.discover.recorder import DamagedRecordingError, RecordingError
from tb_ddp_doctor.discover.recorders import recorder_of
from tb_ddp_doctor.discover.trace_file import Parts, Status, TraceFile
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage import time_limit
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath, identity
from tb_ddp_doctor.storage.reach import Reach
from tb_ddp_doctor.storage.time_limit import within

_PACKED = "This format is not supported: unpack it, or compress traces with gzip."
_STALE = "Left out: this digest was made of another trace than the one beside it, which is read."
#: Reading heads waits for the disk, on network file systems for milliseconds each.
_PEEKERS = 8
#: In remote directories, of so many files that are no traces the beginning is read, to say what they are.
_MOST_STRANGERS = 64


def scan(
    root: Path,
    unreadable: list[FileWarning],
    others: list[FileWarning],
    peek: Callable[[FilePath], Head],
    reach: Reach,
) -> dict[Parts, list[TraceFile]]:
    """The trace files under `root` by the folder, as parts of its path below `root`; `peek` reads a file's head.

    What `reach` leaves out, and folders and files that cannot be read go to `unreadable`, those of other recorders to
    `others`.
    """

    def patient(path: FilePath) -> Head | None:
        try:
            return within(time_limit.PATIENCE_S, lambda: peek(path), path)
        except TimeoutError as error:
            unreadable.append(FileWarning(str(path), f"Left out: {error}"))
            return None

    def failed(folder: Path, error: OSError) -> None:
        reason = error.strerror or type(error).__name__
        said = f"is left out: {error}" if isinstance(error, TimeoutError) else f"cannot be read ({reason})."
        unreadable.append(FileWarning(str(folder), f"This folder {said}"))

    below = [((), root, root.stat())] if root.is_file() else list(walk.below(root, _may_be, reach, failed))
    unreadable += [FileWarning(str(path), _PACKED) for _, path, _ in below if names.PACKED_NAME.fullmatch(path.name)]
    seen = [one for one in below if root.is_file() or not names.PACKED_NAME.fullmatch(one[1].name)]
    unreadable += [FileWarning(str(root), sentence) for sentence in reach.left_out()]
    is_trace = [names.TRACE_NAME.fullmatch(names.trace_name(path.name)) is not None for _, path, _ in seen]
    name = root.absolute().name
    folders = _by_folder(name, [one for one, is_one in zip(seen, is_trace, strict=True) if is_one], patient, unreadable)
    known = {file.path for files in folders.values() for file in files}
    for parts, path, status in seen:
        if recorder := recorder_of(path.name):
            try:
                folders.setdefault(parts, []).extend(recorder.processes(path, status))
                continue
            except (RecordingError, OSError) as error:
                reason = error
            if not folders[parts]:
                del folders[parts]
            if isinstance(reason, DamagedRecordingError):
                unreadable.append(FileWarning(str(path), f"Left out: {reason}"))
            else:
                others.append(foreign.explained(path) or FileWarning(str(path), str(reason)))
        elif path not in known and (explained := foreign.explained(path)):
            others.append(explained)
    return folders


def scan_remote(
    address: str, unreadable: list[FileWarning], others: list[FileWarning], peek: Callable[[FilePath], Head]
) -> tuple[str, dict[Parts, list[TraceFile]]]:
    """The name of a remote directory, and the same of it as `scan` gives. Raises RemoteError.

    Digests are passed over: they are mapped into memory, so they must lie here.
    """
    root_name, files = walk.remote(address, _may_be)
    remote, strangers = [], []
    for parts, file in files:
        if names.PACKED_NAME.fullmatch(file.name):
            unreadable.append(FileWarning(str(file), _PACKED))
        elif names.TRACE_NAME.fullmatch(file.name):
            remote.append((parts, file, file.stat()))
        elif recorder_of(file.name) or foreign.may_be(file.name):
            strangers.append(file)
    folders = _by_folder(root_name, remote, peek, unreadable)
    known = {file.path for files in folders.values() for file in files}
    strangers += [file for _, file, _ in remote if file not in known]
    with ThreadPoolExecutor(_PEEKERS) as pool:
        for explained in filter(None, pool.map(foreign.explained, strangers[:_MOST_STRANGERS])):
            recorder = recorder_of(explained.file)
            if recorder and explained.message == foreign.NO_RECORDING:
                unreadable.append(FileWarning(explained.file, recorder.elsewhere))
            else:
                others.append(explained)
    return root_name, folders


def digested_trace(path: Path) -> Path | None:
    """The trace that a digest was made from, if it lies beside it: then the digest is read, and the trace is shown."""
    trace = path.with_suffix("")
    return trace if path.suffix == names.DIGEST_SUFFIX and trace.is_file() else None


def _is_of(digest: Head, trace: Path) -> bool:
    """Whether a digest was made of a trace, as far as it says of which."""
    if not digest.source:
        return True
    try:
        return within(time_limit.PATIENCE_S, partial(_source, trace, identity(trace)), trace) == digest.source
    except OSError:
        return True


@lru_cache(1 << 16)
def _source(trace: Path, _state: str) -> str:
    return source(trace)


def _by_folder(
    root: str,
    listed: Sequence[tuple[Parts, FilePath, Status | None]],
    peek: Callable[[FilePath], Head | None],
    unreadable: list[FileWarning],
) -> dict[Parts, list[TraceFile]]:
    with ThreadPoolExecutor(_PEEKERS) as pool:
        heads = list(pool.map(peek, (path for _, path, _ in listed)))
        beside = {
            path: (head, trace)
            for (_, path, _), head in zip(listed, heads, strict=True)
            if head and head.is_trace and isinstance(path, Path) and (trace := digested_trace(path))
        }
        is_own = dict(zip(beside, pool.map(_is_of, *zip(*beside.values(), strict=True)), strict=True)) if beside else {}
        # Of a digest and its trace one is read: the digest, unless the trace is another one by now.
        passed = {beside[path][1] if own else path for path, own in is_own.items()}
        unreadable += [FileWarning(str(path), _STALE) for path, own in is_own.items() if not own]
        folders: dict[Parts, list[TraceFile]] = defaultdict(list)
        for (parts, path, status), head in zip(listed, heads, strict=True):
            if head and path not in passed and (file := _file(path, status, head)):
                files = _parts(file, head) if head.parts else [file]
                if merged.are_captures(head.parts) and len(files) == len(head.parts):
                    for one, name in zip(files, merged.capture_names(head.parts), strict=True):
                        folders[parts + (path.name, name)].append(one)  # noqa: RUF005 - Python 3.10 has no star here
                else:
                    folders[parts] += files
    for parts, files in folders.items():
        _take_rank_of_folder((root, *parts)[-1], files)
        _take_rank_of_other_spans(files)
    return folders


def _may_be(name: str, _folder: str) -> bool:
    """Whether a file may be a trace, packed or not, a recording or another recorder's by its name."""
    is_trace = names.TRACE_NAME.fullmatch(names.trace_name(name)) or names.PACKED_NAME.fullmatch(name)
    return bool(is_trace) or bool(recorder_of(name)) or foreign.may_be(name)


def _file(path: FilePath, status: Status | None, head: Head) -> TraceFile | None:
    """The file, or None if it is no trace."""
    name = names.trace_name(path.name)
    match = names.TORCH_NAME.fullmatch(name)
    is_torch = match is not None
    match = match or names.TRACE_NAME.fullmatch(name)
    worker = match["worker"] if match else name
    span = (match["span"] or "") if match and is_torch else ""
    named_rank = names.rank_in_name(worker)
    named_ns, worker = names.time_in_name(worker)
    if not is_torch:
        names_trace = named_rank is not None and (head.is_trace or not head.has_text)
        if not (names_trace or head.is_kineto):
            return None
    file = TraceFile(
        path=path,
        worker=worker,
        span=span,
        time_ns=names.span_time_ns(span) or named_ns,
        size=status.st_size if status else 0,
        modified_ns=status.st_mtime_ns if status else 0,
        is_readable=head.is_trace,
        # Of other names only Dynolog's says a host: `profile_0.json` is no node.
        node=(names.host_in_name(worker) if is_torch or names.is_dynolog(worker) else "") or head.host,
        world_size=head.world_size,
        begin_ns=head.begin_ns,
    )
    if head.rank is not None:
        file.rank, file.source = head.rank, "distributedInfo"
    elif named_rank is not None:
        file.rank, file.source = named_rank, "file name"
    elif not span:
        file.time_ns = file.time_ns or head.begin_ns
    return file


def _parts(file: TraceFile, head: Head) -> list[TraceFile]:
    """A file of several ranks, or captures, as a file for each.

    Ranks that it does not number are in the order of their labels.
    """
    if not isinstance(file.path, Path):
        return [file]
    parts = []
    nodes = head.own.node_of_rank if head.own else ()
    for number, part in enumerate(head.parts):
        rank = 0 if merged.are_captures(head.parts) else merged.rank(part)
        parts.append(
            TraceFile(
                path=ProcessPath(file.path, number, part),
                worker=f"{file.worker} {part}",
                span=file.span,
                time_ns=file.time_ns,
                size=file.size // len(head.parts),
                modified_ns=file.modified_ns,
                is_readable=True,
                node=nodes[number] if number < len(nodes) else "",
                world_size=head.world_size if head.own else None,
                rank=rank,
                source="order" if rank is None else "distributedInfo",
            )
        )
    return parts


def _take_rank_of_folder(folder: str, files: list[TraceFile]) -> None:
    """`rank_3/` holds rank 3, if it holds one worker: `rank8/` may also be an experiment with a matrix of rank 8."""
    match = names.RANK_FOLDER.fullmatch(folder)
    if match and len({file.worker for file in files}) == 1:
        for file in files:
            if file.rank is None:
                file.rank, file.source = int(match["rank"]), "folder name"


def _take_rank_of_other_spans(files: list[TraceFile]) -> None:
    """What a file that cannot be read would have said, another span of the same worker has said."""
    known: dict[str, set[tuple[int, int | None]]] = defaultdict(set)
    for file in files:
        if file.rank is not None and file.source == "distributedInfo":
            known[file.worker].add((file.rank, file.world_size))
    for file in files:
        if not file.is_readable and len(known[file.worker]) == 1:
            ((file.rank, file.world_size),) = known[file.worker]
            file.source = "distributedInfo"
