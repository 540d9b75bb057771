"""Processes of one job that do not count their ranks together: engines of reinforcement learning.

Its trainer starts engines that generate (vLLM, SGLang) as processes of their own, each a world of one or a few ranks,
so that several processes call themselves rank 0:

    job_100.pt.trace.json     rank 0 of 2       trains        rank 0 of the run
    job_101.pt.trace.json     rank 1 of 2       trains        rank 1
    job_200.pt.trace.json     rank 0 of 1       generates     rank 2
    job_201.pt.trace.json     rank 0 of 1       generates     rank 3

Worlds are of one job if they are in one folder and one profiler cycle, their records overlap as far as their times
tell, and their work complements each other: one generates, another one trains. So two servers remain apart, and so do
two trainings, jobs one after the other, and what is in another folder. The ranks of the largest world that trains keep
their numbers; those of the others follow.

What a process does is known by names in the beginning of its file: heads are read for every file, this where ranks
clash alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from tb_ddp_doctor.discover.head import beginning_of, digested_program
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX, natural
from tb_ddp_doctor.discover.trace_file import TraceFile
from tb_ddp_doctor.storage import time_limit
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath, identity
from tb_ddp_doctor.storage.time_limit import within

#: Names that only a process which generates has, and those of backward passes and optimizers. With gradients on, torch
#: numbers the operators of the forward pass, too.
_GENERATES = re.compile(
    rb'["/:._ ](?:vllm|sglang|sgl_kernel|tensorrt_llm|lmdeploy|lightllm)["/:._ ]|reshape_and_cache|paged_attention|'
    rb"execute_context_\d|step\[(?:DECODE|PREFILL|EXTEND|MIXED)\b|Batch(?:Decode|Prefill)With"
)
_TRAINS = re.compile(rb'autograd::engine|Backward\d"|"Optimizer\.(?:step|zero_grad)#|"Sequence number"\s*:\s*"?\d')

#: Files that the sentence names; more are counted.
_MOST_NAMED = 6


class _World(msgspec.Struct, frozen=True):
    """Processes that count their ranks together."""

    files: tuple[TraceFile, ...]
    size: int
    work: str

    def overlaps(self, other: _World) -> bool:
        """Whether both may have been recorded at one time."""
        (begin, end), (its_begin, its_end) = _recorded(self.files), _recorded(other.files)
        return max(begin, its_begin) < min(end, its_end)


def join(files: Sequence[TraceFile]) -> bool:
    """Number the ranks of files of one folder and cycle together if they are worlds of one job; whether they are."""
    files = [file for file in files if file.is_readable and not isinstance(file.path, ProcessPath)]
    if not _clash(files):
        return False
    worlds = [_world(its) for its in _apart(files)]
    of_work = {work: [world for world in worlds if world.work == work] for work in ("trains", "generates")}
    if not all(of_work.values()):
        return False
    if not all(one.overlaps(other) for one in of_work["trains"] for other in of_work["generates"]):
        return False
    first = 0
    for world in sorted(worlds, key=lambda one: (one.work != "trains", -one.size, _by_worker(one.files[0]))):
        for file in world.files:
            file.own_rank = file.rank or 0
            file.rank = first + file.own_rank
        first += world.size
    return True


def size(files: Sequence[TraceFile]) -> int | None:
    """How many ranks a job of several worlds has; None where it has one."""
    joined = [file for file in files if file.own_rank is not None]
    return max((file.rank or 0) - (file.own_rank or 0) + _size(file) for file in joined) if joined else None


def said(files: Sequence[TraceFile]) -> str:
    """Which files have which ranks of a job of several worlds: a sentence; "" where it has one."""
    moved = [file for file in files if file.own_rank is not None and file.own_rank != file.rank]
    if not moved:
        return ""
    listed = [f"rank {file.rank} is {file.path.name} (rank {file.own_rank} of {_size(file)})" for file in moved]
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return (
        "Processes that generate have ranks of their own beside those that train, so they are numbered behind these: "
        f"{', '.join(listed[:_MOST_NAMED])}{more}."
    )


def _clash(files: Sequence[TraceFile]) -> bool:
    """Whether some of the files cannot be ranks of one world: several claim a rank, or one names none."""
    ranks = [file.rank for file in files]
    return any(rank is not None for rank in ranks) and (None in ranks or len({*ranks}) < len(ranks))


def _apart(files: Sequence[TraceFile]) -> Iterator[list[TraceFile]]:
    """Files by world: of those that claim one rank of as many, the first by work and name are of the first world."""
    of_rank: defaultdict[tuple[int, int], list[TraceFile]] = defaultdict(list)
    for file in files:
        of_rank[_size(file), file.rank or 0].append(file)
    worlds: defaultdict[tuple[int, int], list[TraceFile]] = defaultdict(list)
    for (size, _), rivals in sorted(of_rank.items()):
        if len(rivals) > 1:
            rivals.sort(key=lambda file: (_work(file.path), *_by_worker(file)))
        for number, file in enumerate(rivals):
            worlds[size, number].append(file)
    yield from worlds.values()


def _size(file: TraceFile) -> int:
    """How many ranks the file's world has; a process without torch.distributed is alone."""
    rank = file.rank if file.own_rank is None else file.own_rank
    return max(file.world_size or 1, (rank or 0) + 1)


def _world(files: list[TraceFile]) -> _World:
    return _World(tuple(files), max(map(_size, files)), _work(files[0].path))


def _by_worker(file: TraceFile) -> tuple[object, ...]:
    return natural(file.node), natural(str(file.path.parent)), natural(file.worker), file.time_ns or 0


def _recorded(files: Sequence[TraceFile]) -> tuple[float, float]:
    """When records begin and end, as far as the files' heads and names tell: a file is written after its record."""
    begins = [file.begin_ns for file in files if file.begin_ns is not None]
    ends = [file.end_ns or file.time_ns or 0 for file in files]
    begin = min(begins, default=float("-inf"))
    return begin, max(ends) if max(ends) > begin > 0 else float("inf")


def _work(path: FilePath) -> str:
    """What a process does by its file: "generates", "trains" or "" for anything else."""
    try:
        return within(time_limit.PATIENCE_S, partial(_work_of, path, identity(path)), path)
    except OSError:
        return ""


@lru_cache(1 << 16)
def _work_of(path: FilePath, _state: str) -> str:
    if isinstance(path, Path) and path.suffix == DIGEST_SUFFIX:
        return {"serving": "generates", "training": "trains"}.get(digested_program(path), "")
    text = beginning_of(path)
    return "trains" if _TRAINS.search(text) else "generates" if _GENERATES.search(text) else ""
