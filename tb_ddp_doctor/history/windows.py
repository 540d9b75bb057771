"""All step times of a job to its pyramid, some ten thousand steps of all ranks at a time.

What lies before the last steps of a job does not change any more: its part of the pyramid is kept (`Keep`), so that a
job of days is read once, and only its last steps again.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.history.blocks import FILE_HEAD_BYTES, SAMPLE_ROW
from tb_ddp_doctor.history.grid import StepGrid, place, restarts_of, sampled_rows
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.over_ranks import lower_median
from tb_ddp_doctor.history.pyramid import Bins, Floats, Ints, Pyramid, bins_of_row, joined, reduced
from tb_ddp_doctor.history.read import StepTimesHead, read_head, read_history, read_portion
from tb_ddp_doctor.history.step_tokens import of_equal_tokens
from tb_ddp_doctor.storage.plain_file import open_plain
from tb_ddp_doctor.workers import pool

#: Steps of a window, and values of all ranks in one at most: 512 MB.
_WINDOW, _MOST_VALUES = 1 << 14, 1 << 27
#: Steps of a bin in jobs of more steps than a window, and bins of shorter ones.
_WIDTH, _BINS, _LEAST_WIDTH = 64, 512, 8
#: Holes in the numbers of steps: each has the files read again. No job of ours has one.
_MOST_HOLES = 256
#: Below this many bytes no process is started to read them.
_WORTH_PROCESSES = 128 << 20
#: Ranks that a process reads at once.
_BATCH = 64
#: What was not written to for so long is kept as a whole, s.
_AT_REST_S = 600.0


class WindowPart(msgspec.Struct, frozen=True):
    """A window of a job's steps, and how far each of its files was read for it."""

    pyramid: Pyramid
    #: Of each file: the byte from which on to read later steps, and the first of those, -1 where there is none.
    later_at: Ints
    later_steps: Ints
    lost_bytes: int


class Keep(Protocol):
    """Where parts are kept between runs."""

    def part(self, key: str) -> WindowPart | None: ...

    def keep_part(self, part: WindowPart, key: str) -> None: ...


class StepTimesFile(NamedTuple):
    """A file of step times, and its first step."""

    path: Path
    #: Where it is without symbolic links: what its part is kept under.
    resolved: str
    head: StepTimesHead
    size: int
    modified_s: float
    first_step: int
    has_busy: bool
    #: The median tokens of its first steps; 0 where it says none.
    reference_tokens: float


class RankFiles(msgspec.Struct, frozen=True):
    """What is to be read of a rank: its files in order of their start, and from which byte on."""

    paths: tuple[str, ...]
    at: tuple[int, ...]
    #: Whether the lengths of its steps and their begins are asked for.
    is_sampled: bool


class Batch(msgspec.Struct, frozen=True):
    """Some ranks' files, and the window of steps to read."""

    row: int
    ranks: tuple[RankFiles, ...]
    first: int
    count: int
    width: int
    is_busy: bool
    #: Tokens of a step that times are compared at (`of_equal_tokens`); 0 where no file says any.
    reference_tokens: float


class RankSteps(msgspec.Struct, frozen=True):
    """A rank's steps of a window; no lengths and begins where they were not asked for."""

    busy_us: Floats
    bins: Bins
    length_us: Floats
    begins_ns: Ints
    later_at: Ints
    later_steps: Ints
    lost_bytes: int
    #: Steps up to the last that is known.
    used: int


class BatchRows(msgspec.Struct, frozen=True):
    """The rows of a batch."""

    row: int
    rows: tuple[RankSteps, ...]


def read_job(
    paths: Sequence[Path], keep: Keep | None = None, since: int | None = None
) -> tuple[JobHistory | None, list[str]]:
    """The hours of a job in its files, from step `since` on, and a sentence for each file that cannot be read.

    None where no step is there. Raises CrashError.
    """
    sources, problems = _sources(paths)
    by_rank: dict[int, list[StepTimesFile]] = {}
    for source in sources:
        by_rank.setdefault(source.head.rank, []).append(source)
    files = [sorted(by_rank[rank], key=lambda source: source.head.started_ns) for rank in sorted(by_rank)]
    if not files:
        return None, problems
    parts, left_out, holes = _parts(files, keep, since)
    if not parts:
        return None, problems
    if holes > _MOST_HOLES:
        problems.append(f"The numbers of steps jump more than {_MOST_HOLES} times: later steps are not read.")
    first = [read for source in files[0] if (read := read_history(source.path))]
    restarts, again_s = restarts_of(first)
    phases = tuple(sorted(phase for read in first for phase in read.phases))
    lost = sum(part.lost_bytes for part in parts)
    pyramid = joined([part.pyramid for part in parts])
    samples = {}
    if any(len(read.samples) for read in first):
        samples = {files[row][0].head.rank: _samples(files[row]) for row in sampled_rows(len(files))}
    return JobHistory(pyramid, phases, restarts, again_s, lost, left_out, samples), problems


def _samples(files: Sequence[StepTimesFile]) -> NDArray[Any]:
    """What was recorded on request of a rank; of files that are gone nothing."""
    rows = [np.zeros(0, dtype=SAMPLE_ROW)]
    for source in files:
        with contextlib.suppress(OSError):
            read = read_history(source.path)
            rows += [read.samples] if read else []
    return np.concatenate(rows)


def _sources(paths: Sequence[Path]) -> tuple[list[StepTimesFile], list[str]]:
    """The files with steps, and a sentence for each that cannot be read."""
    with_steps, problems = [], []
    for path in paths:
        try:
            with open_plain(path) as file:
                head = read_head(file)
                if head is None:
                    problems.append(f"{path} holds no step times, or its first 128 bytes are damaged.")
                    continue
                later = read_portion(file, FILE_HEAD_BYTES, until=0)
            status, resolved = path.stat(), path.resolve()
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror or error}).")
            continue
        if later.later_step is not None:
            of_first = (later.later_step, later.later_has_busy, later.later_tokens)
            with_steps.append(StepTimesFile(path, str(resolved), head, status.st_size, status.st_mtime, *of_first))
    return with_steps, problems


def _parts(
    files: Sequence[Sequence[StepTimesFile]], keep: Keep | None, since: int | None
) -> tuple[list[WindowPart], int, int]:
    """The parts of a job, how many steps before a hole were left out, and how many holes; files by rank and start."""
    sources = [source for of_rank in files for source in of_rank]
    window = min(_WINDOW, max(_MOST_VALUES // len(files), _WIDTH) // _WIDTH * _WIDTH)
    most = max(sum(source.size // (8 if source.has_busy else 4) for source in of_rank) for of_rank in files)
    width = _WIDTH if most > window else max(_LEAST_WIDTH, -(-most // _BINS))
    at_rest = time.time() - max(source.modified_s for source in sources) > _AT_REST_S
    is_busy = all(source.has_busy for source in sources)
    first = max(min(source.first_step for source in sources), since or 0)
    at = np.full(len(sources), FILE_HEAD_BYTES)
    later_steps = np.array([source.first_step for source in sources])
    parts: list[WindowPart] = []
    asked = Batch(0, (), first, window, width, is_busy, sources[0].reference_tokens)
    key, left_out, holes = hashlib.sha256(f"{width} {is_busy} {asked.reference_tokens}".encode()), 0, 0
    while (later_steps >= 0).any():
        following = int(later_steps[later_steps >= 0].min())
        if parts and following > first + window:
            holes += 1
            if holes > _MOST_HOLES:
                break
            # A hole takes no memory: what is before it is left out.
            left_out += sum(int(np.count_nonzero(part.pyramid.steps.begins_ns)) for part in parts)
            parts, first = [], following
        until = first + window
        taken = (later_steps >= 0) & (later_steps < until)
        name = _key(key, sources, at, taken, first)
        whole = f"{name} {[source.size for source in sources]}"
        part = keep and (keep.part(name) or keep.part(whole))
        if not part:
            waiting = bool((later_steps >= until).any())
            part = _read(files, at, taken, msgspec.structs.replace(asked, first=first), waiting)
            is_sealed = all((part.later_steps[rows] >= until).any() for rows in _rows_of(files))
            if keep and (is_sealed or at_rest):
                keep.keep_part(part, name if is_sealed else whole)
        at, later_steps = part.later_at, np.where(taken, part.later_steps, later_steps)
        if len(part.pyramid.steps.length_us):
            parts.append(part)
        first = until
    return parts, left_out, holes


def _key(key: hashlib._Hash, sources: Sequence[StepTimesFile], at: Ints, taken: NDArray[np.bool_], first: int) -> str:
    """What the part of a window is kept under: its files, and how far each was read before it."""
    files = [
        (source.resolved, source.head, int(begin))
        for source, begin, is_taken in zip(sources, at, taken, strict=True)
        if is_taken
    ]
    result = key.copy()
    result.update(f"{first} {len(sources)} {files}".encode(errors="surrogateescape"))
    return result.hexdigest()


def _rows_of(files: Sequence[Sequence[StepTimesFile]]) -> Iterator[slice]:
    """The places of each rank's files among all."""
    begin = 0
    for of_rank in files:
        yield slice(begin, begin + len(of_rank))
        begin += len(of_rank)


def _read(
    files: Sequence[Sequence[StepTimesFile]], at: Ints, taken: NDArray[np.bool_], asked: Batch, has_later: bool
) -> WindowPart:
    """Read a window of all ranks: in other processes where it is large; whether other files have later steps."""
    sampled = set(sampled_rows(len(files)))
    ranks, sizes = [], []
    for row, (of_rank, places) in enumerate(zip(files, _rows_of(files), strict=True)):
        paths = [str(source.path) if is_taken else "" for source, is_taken in zip(of_rank, taken[places], strict=True)]
        ranks.append(RankFiles(tuple(paths), tuple(at[places].tolist()), row in sampled))
        remaining = sum(max(source.size - begin, 0) for source, begin in zip(of_rank, at[places].tolist(), strict=True))
        sizes.append(min(remaining, 9 * asked.count))
    batches = [
        (
            msgspec.structs.replace(asked, row=row, ranks=tuple(ranks[row : row + _BATCH])),
            sum(sizes[row : row + _BATCH]),
        )
        for row in range(0, len(ranks), _BATCH)
    ]
    busy = np.empty((len(files), asked.count), dtype=np.float32)
    rows: list[RankSteps | None] = [None] * len(files)
    for batch in _batches(batches):
        for row, each in enumerate(batch.rows, batch.row):
            busy[row] = each.busy_us
            rows[row] = msgspec.structs.replace(each, busy_us=np.zeros(0, dtype=np.float32))
    return _part(files, busy, [row for row in rows if row is not None], asked, has_later)


def _batches(batches: Sequence[tuple[Batch, int]]) -> Iterator[BatchRows]:
    if sum(size for _, size in batches) < _WORTH_PROCESSES:
        yield from (read_batch(batch) for batch, _ in batches)
        return
    imports = ("tb_ddp_doctor.history.windows",)
    for _, future in pool.run(read_batch, batches, gives=BatchRows, imports=imports):  # type: ignore[arg-type]
        yield future.result()


def _part(
    files: Sequence[Sequence[StepTimesFile]], busy: Floats, rows: Sequence[RankSteps], asked: Batch, has_later: bool
) -> WindowPart:
    """The part of a window; the last one ends with its last step."""
    has_later = has_later or any((row.later_steps >= 0).any() for row in rows)
    used = asked.count if has_later else max(row.used for row in rows)
    grid = StepGrid(
        np.array([of_rank[0].head.rank for of_rank in files]),
        tuple(of_rank[-1].head.node for of_rank in files),
        np.array([of_rank[-1].head.stage for of_rank in files]),
        asked.first,
        busy[:, :used],
        asked.is_busy,
        lower_median(np.stack([row.length_us[:used] for row in rows if len(row.length_us)])),
        rows[0].begins_ns[:used],
        (),
        (),
        0.0,
        0,
        0,
    )
    return WindowPart(
        reduced(grid, asked.width, [_cut(row.bins, used // asked.width) for row in rows]),
        np.concatenate([row.later_at for row in rows]),
        np.concatenate([row.later_steps for row in rows]),
        sum(row.lost_bytes for row in rows),
    )


def _cut(bins: Bins, count: int) -> Bins:
    """The first bins; those after the last step have nothing."""
    return msgspec.structs.replace(
        bins, low_us=bins.low_us[:count], median_us=bins.median_us[:count], high_us=bins.high_us[:count]
    )


def read_batch(batch: Batch) -> BatchRows:
    """The rows of some ranks in a window; of files that are gone nothing."""
    return BatchRows(batch.row, tuple(_row(files, batch) for files in batch.ranks))


def _row(files: RankFiles, asked: Batch) -> RankSteps:
    busy = np.full(asked.count, np.nan, dtype=np.float32)
    length = np.full(asked.count, np.nan, dtype=np.float32)
    begins = np.zeros(asked.count, dtype=np.int64)
    tokens = np.zeros(asked.count, dtype=np.float32) if asked.reference_tokens else None
    later_at, later_steps, lost = list(files.at), [-1] * len(files.at), 0
    for number, (path, at) in enumerate(zip(files.paths, files.at, strict=True)):
        if not path:
            continue
        try:
            with open_plain(Path(path)) as file:
                portion = read_portion(file, at, asked.first + asked.count)
        except OSError:
            # The job deletes its oldest files beyond its limit.
            continue
        later_at[number], lost = portion.later_at, lost + portion.lost_bytes
        if portion.later_step is not None:
            later_steps[number] = portion.later_step
        phases = sorted(portion.phases)
        for stretch in portion.stretches:
            place(stretch, asked.first, phases, asked.is_busy, busy, length, begins, tokens)
    known = np.flatnonzero(~np.isnan(length))
    step_us = float(np.median(length[known])) if len(known) else np.inf
    nothing: Floats = np.zeros(0, dtype=np.float32)
    return RankSteps(
        busy,
        bins_of_row(of_equal_tokens(busy, tokens, asked.reference_tokens), asked.width, step_us),
        length if files.is_sampled else nothing,
        begins if files.is_sampled else np.zeros(0, dtype=np.int64),
        np.array(later_at, dtype=np.int64),
        np.array(later_steps, dtype=np.int64),
        lost,
        int(known[-1]) + 1 if len(known) else 0,
    )
