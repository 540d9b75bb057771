"""Jobs that left snapshots of torch.cuda.memory and no traces: one that ran out of memory often leaves nothing else.

The snapshots of a folder are a job; those in folders named for ranks, steps or memory (`job7/memory_snapshot/step_10`)
are of the folder above. Snapshots that a run of traces reads beside its own files are its own, and no job. Of several
of one rank the last counts. Remote directories are not looked into.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor import step_parts, wording
from tb_ddp_doctor.account import memory_text
from tb_ddp_doctor.discover import walk
from tb_ddp_doctor.discover.names import is_remote, natural
from tb_ddp_doctor.discover.recorders.memory_snapshots import MemorySnapshots
from tb_ddp_doctor.discover.runs import Run
from tb_ddp_doctor.discover.trace_file import Parts
from tb_ddp_doctor.findings import FixParts, MemoryFailure, MemoryFinding, MemoryRun, MemorySnapshot
from tb_ddp_doctor.memory_snapshot.categories import is_of_keys_and_values
from tb_ddp_doctor.memory_snapshot.read import read
from tb_ddp_doctor.storage.paths import RemotePath
from tb_ddp_doctor.storage.reach import Reach

#: Ranks of a job that are read and compared.
MOST_RANKS = 64
_RECORDER = MemorySnapshots()
_MOST_REMEMBERED = 1 << 14
#: Folders within a job's.
_WITHIN_JOB = re.compile(
    r".*(?:rank|step|iter\w*|epoch|node|host|gpu|device)[_-]?\d+.*|.*memory.*|.*snapshots?", re.IGNORECASE | re.DOTALL
)
#: From this share of what is reserved on, memory free in pieces or in private pools is to blame: some always is.
_LEAST_FREE = 0.05
#: A rank with this share more allocated than the median rank has a sentence, at most so many ranks.
_LEAST_EXCESS, _MOST_SAID = 0.05, 4


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file that looks like a snapshot."""

    path: Path


class SnapshotRun(msgspec.Struct, frozen=True):
    """The snapshots of one job."""

    #: Path relative to the log directory, with "/"; its last part for the log directory itself.
    name: str
    files: tuple[SnapshotFile, ...]


class NoSnapshotError(Exception):
    """Snapshots of which none can be read. Its text is a sentence for users."""


def find(logdir: str | os.PathLike[str], reach: Reach | None = None) -> list[SnapshotRun]:
    """All jobs with snapshots below a log directory, in the order of their names, those beside traces too.

    Empty where the directory cannot be read: that is said of the traces.
    """
    location = os.fspath(logdir)
    if not location or is_remote(location):
        return []
    root = Path(location).expanduser()
    if root.is_file():
        seen: Iterable[tuple[Parts, Path, os.stat_result]] = [((), root, root.stat())]
        base = root.name
    else:
        below = walk.below(root, lambda name, _: _RECORDER.matches(name), reach or Reach(), lambda *_: None)
        seen = [(parts, path, status) for parts, path, status in below if status]
        base = Path(os.path.abspath(root)).name
    jobs: defaultdict[str, list[SnapshotFile]] = defaultdict(list)
    for parts, path, status in seen:
        if _RECORDER.matches(path.name) and _is_snapshot(path, status.st_size, status.st_mtime_ns):
            jobs["/".join(_of_job(parts)) or base].append(SnapshotFile(path))
    named = ((name.encode("utf-8", "backslashreplace").decode(), tuple(files)) for name, files in jobs.items())
    return sorted((SnapshotRun(*one) for one in named), key=lambda run: natural(run.name))


def alone(jobs: Iterable[SnapshotRun], traces: Collection[Run], taken: Collection[str] = ()) -> list[SnapshotRun]:
    """The jobs of whose files no run of traces reads any, by names that neither these nor others have taken."""
    if not (jobs := list(jobs)):
        return []
    places = set(_places(traces))
    names = {*(run.name for run in traces), *taken}
    unread = []
    for run in jobs:
        files = tuple(file for file in run.files if not _is_beside(file.path, places))
        name = f"{run.name} (memory)" if run.name in names else run.name
        if files:
            unread.append(SnapshotRun(name, files))
    return unread


def examine(run: SnapshotRun) -> MemoryRun:
    """What the snapshots of a job say. Raises NoSnapshotError where none can be read."""
    of_ranks, warnings = read([file.path for file in run.files], MOST_RANKS)
    if not of_ranks:
        reason = f" {warnings[0].file}: {warnings[0].message}" if warnings else ""
        raise NoSnapshotError(f"None of its {len(run.files)} snapshots of memory can be read.{reason}")
    snapshots = tuple(
        replace(one, file=wording.encodable(one.file), said=tuple(memory_text.snapshot_sentences(one)))
        for one in of_ranks
    )
    finding = _finding(snapshots)
    fullest = max(snapshots, key=lambda one: one.allocated)
    return MemoryRun(
        name=run.name,
        ranks=tuple(one.rank for one in snapshots if one.rank is not None),
        verdict="out-of-memory" if finding else "unknown",
        headline=finding.title if finding else memory_text.snapshot_sentences(fullest)[0],
        said=tuple(_ranks_compared(snapshots)),
        findings=(finding,) if finding else (),
        snapshots=snapshots,
        warnings=tuple(replace(one, file=wording.encodable(one.file)) for one in warnings),
    )


def examine_all(runs: Iterable[SnapshotRun], failed: Callable[[SnapshotRun, NoSnapshotError], None]) -> list[MemoryRun]:
    """What the snapshots of all jobs say; those that cannot be read go to `failed`."""
    examined = []
    for run in runs:
        try:
            examined.append(examine(run))
        except NoSnapshotError as error:
            failed(run, error)
    return examined


@lru_cache(_MOST_REMEMBERED)
def _is_snapshot(path: Path, _size: int, _modified_ns: int) -> bool:
    """Whether a file begins as a snapshot does: one that has not changed is not opened again, as by TensorBoard."""
    return walk.begins(_RECORDER, path)


def _of_job(parts: Parts) -> Parts:
    """The folder of the job that a folder of snapshots belongs to."""
    while parts and _WITHIN_JOB.fullmatch(parts[-1]):
        parts = parts[:-1]
    return parts


def _places(traces: Iterable[Run]) -> Iterator[Path]:
    """The folders in which runs of traces look for what lies beside them."""
    for run in traces:
        if isinstance(run.directory, Path):
            yield from (run.directory, run.directory.parent)
        yield from (file.path.parent for file in run.files if not isinstance(file.path, RemotePath))


def _is_beside(path: Path, places: Collection[Path]) -> bool:
    """Whether a run that looks in these folders reads a snapshot, as `discover.walk.beside` finds it."""
    folder = path.parent
    if folder in places:
        return True
    for _ in range(_RECORDER.depth):
        if _RECORDER.within in folder.name.lower() and folder.parent in places:
            return True
        folder = folder.parent
    return False


def _finding(snapshots: Sequence[MemorySnapshot]) -> MemoryFinding | None:
    """The ranks that a failed request stopped, with what the largest such request needed; None where none failed."""
    failed = [(one, one.failure) for one in snapshots if one.failure and not one.failure.went_on]
    if not failed:
        return None
    one, failure = max(failed, key=lambda pair: pair[1].bytes)
    ranks = tuple(each.rank for each, _ in failed if each.rank is not None)
    who = wording.capital(wording.ranks(ranks)) if ranks else "A rank"
    fix = _fix(one, failure)
    whose = f", on rank {one.rank}" if len(ranks) > 1 else ""
    return MemoryFinding(
        severity="critical",
        ranks=ranks,
        title=f"{who} ran out of memory: a request of {wording.size(failure.bytes)} failed{whose}, with "
        f"{wording.size(one.allocated)} allocated.",
        why=" ".join(memory_text.snapshot_sentences(one)),
        fix=fix,
        fix_parts=FixParts.of(fix),
    )


def _fix(one: MemorySnapshot, failure: MemoryFailure) -> str:
    """What helps most: against fragmentation where as much is reserved and free, else against the largest category."""
    free, of_note = failure.free_in_segments + failure.device_free, _LEAST_FREE * one.reserved
    if free >= failure.bytes and failure.free_in_segments >= of_note:
        return _OF_EXPANDABLE if one.expandable else _OF_FRAGMENTATION
    if free + failure.free_in_pools >= failure.bytes and failure.free_in_pools >= of_note:
        return _OF_POOLS
    most = max(one.categories, key=lambda name: one.categories[name])
    fullest = next((each.source for each in one.holders if each.category == most), None)
    if most == "other" and fullest and is_of_keys_and_values(fullest):
        return _OF_KEYS_AND_VALUES
    return _OF_NO_STACK if most == "other" and one.without_stack > one.allocated / 2 else _FIXES[most]


def _ranks_compared(snapshots: Sequence[MemorySnapshot]) -> Iterator[str]:
    """Which ranks have more allocated than the median rank, and in which category; or how far ranks are apart."""
    ranked = [one for one in snapshots if one.rank is not None]
    if len(ranked) < 2:
        return
    typical = median(one.allocated for one in ranked)
    most = sorted(ranked, key=lambda one: -one.allocated)
    above = [one for one in most if one.allocated - typical > _LEAST_EXCESS * max(typical, 1)]
    for one in above[:_MOST_SAID]:
        excess = {
            name: size - median(each.categories[name] for each in ranked) for name, size in one.categories.items()
        }
        category = max(excess, key=lambda name: excess[name])
        yield (
            f"Rank {one.rank} has {wording.size(one.allocated - typical)} more allocated than the median rank, most of "
            f"it in {step_parts.MEMORY[category].title}."
        )
    if not above:
        yield (
            f"The ranks have {wording.size(most[-1].allocated)} to {wording.size(most[0].allocated)} allocated: none "
            "stands out."
        )


_OF_FRAGMENTATION = """\
As much memory as the request needs is free, but in pieces that are too small: let the allocator grow its segments.

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"""
_OF_EXPANDABLE = """\
As much memory as the request needs is free, but in pieces between allocations that stay, though segments can grow: \
give back what is free before the largest allocations, and make those that stay early.

torch.cuda.empty_cache()"""
_OF_POOLS = """\
As much memory as the request needs is free, but in private pools of CUDA graphs: let all graphs share one pool, and \
release graphs that are not replayed any more.

pool = torch.cuda.graph_pool_handle()
with torch.cuda.graph(graph, pool=pool):
    output = model(static_input)"""
_OF_KEYS_AND_VALUES = """\
The server's cache of keys and values takes most: leave more of the GPU to the rest.

vllm serve MODEL --gpu-memory-utilization 0.85   # SGLang: --mem-fraction-static 0.8"""
_OF_NO_STACK = """\
What is allocated has no stacks, so what takes most is not known. Record them from the start of the job, before the \
model is made.

torch.cuda.memory._record_memory_history(max_entries=100_000)"""
#: By the category that has most.
_FIXES = {
    "parameters": """\
Parameters take most: shard them over the ranks (FSDP, ZeRO 3), or keep them in bfloat16.

from torch.distributed.fsdp import fully_shard

for block in model.layers:
    fully_shard(block)
fully_shard(model)""",
    "gradients": """\
Gradients take most: shard them over the ranks (FSDP, ZeRO 2), and release them after each update.

optimizer.zero_grad(set_to_none=True)""",
    "optimizer_states": """\
Optimizer states take most: shard them over the ranks.

from torch.distributed.optim import ZeroRedundancyOptimizer

optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)""",
    "activations": """\
Activations take most: compute them again in backward (activation checkpointing), or use smaller micro-batches.

from torch.utils.checkpoint import checkpoint

x = checkpoint(block, x, use_reentrant=False)""",
    "temporary": """\
Temporary memory takes most: smaller micro-batches, and kernels that keep less (fused attention, a loss in chunks).""",
    "communication": """\
Communication buffers take most: smaller buckets, fewer gathered layers at a time.

model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)""",
    "other": """\
What takes most is of no known category. The table of what is allocated has the lines that allocated it: keep fewer of \
these tensors on the GPU, or release them earlier (`del`).""",
}
