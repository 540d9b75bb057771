"""What one snapshot says: what is allocated and for what, how the rest is scattered, and what a failed request lacked.

A snapshot lists segments, which the allocator got from the device, and their blocks in order of address; a block is
active (a tensor has it, or a stream still uses it) or inactive. `device_traces` lists what the allocator did before,
and `external_annotations` the annotations of that time. Blocks are told apart by the stack that allocated them, else by
the annotation, else not. What a segment has beyond its blocks is split by its own sums. Values of a wrong type count as
missing.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tb_ddp_doctor.findings import (
    MEMORY,
    MemoryFailure,
    MemoryHolder,
    MemorySegment,
    MemorySnapshot,
    Source,
)
from tb_ddp_doctor.storage.budget import BudgetError, ValueBudget
from tb_ddp_doctor.trace import names

#: What a stack says, by parts of its file names and by function names: the first kind that any of its functions shows.
_BY_STACK: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("optimizer_states", ("torch/optim/", "optimizer.py", "adam.py", "adamw.py"), ("_init_group", "optimizer_step")),
    (
        "gradients",
        ("torch/autograd/graph.py", "torch/autograd/__init__.py"),
        ("_engine_run_backward", "backward", "torch::autograd::Engine"),
    ),
    ("activations", (), ("forward", "_call_impl", "_wrapped_call_impl")),
    (
        "parameters",
        ("torch/nn/parameter.py",),
        ("__init__", "_apply", "reset_parameters", "load_state_dict", "convert"),
    ),
)
#: The same of communication, asked of the innermost Python function and what that calls: torchrun, FSDP and activation
#: checkpointing run the model from functions of torch.distributed.
_COMMUNICATION = ("torch/distributed/", "c10d")
_COLLECTIVES = ("all_gather", "reduce_scatter", "allgather_base")
_BY_PHASE = {
    names.Phase.LOADING: "activations",
    names.Phase.FORWARD: "activations",
    names.Phase.BACKWARD: "gradients",
    names.Phase.OPTIMIZER: "optimizer_states",
}
_INACTIVE = "inactive"
#: Segments and blocks that are named.
_SHOWN = 5
_MOST_FRAMES, _MOST_LETTERS = 64, 300
#: Blocks, events and annotations of a snapshot: one of 256 MB has not as many.
_MOST_ROWS = 4_000_000
#: Annotations that are open at one time; what is never closed does not add up.
_MOST_OPEN = 64
#: More bytes than any device has.
_MOST_SIZE = 1 << 62


class SnapshotError(Exception):
    """A pickle that is no snapshot. Its text is a sentence for users."""


class _Block(msgspec.Struct, frozen=True):
    size: int
    is_active: bool
    category: str
    source: Source | None


class _Segment(msgspec.Struct, frozen=True):
    size: int
    blocks: list[_Block]

    @property
    def inactive(self) -> int:
        return sum(block.size for block in self.blocks if not block.is_active)


def summary(data: Any, file: str, rank: int) -> MemorySnapshot:
    """What a snapshot says, from its unpickled data. Raises SnapshotError for what is none."""
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise SnapshotError("It has no list of segments.")
    try:
        return _summary(data, file, rank, ValueBudget(_MOST_ROWS))
    except BudgetError as error:
        raise SnapshotError(str(error)) from None


def _summary(data: Mapping[str, Any], file: str, rank: int, budget: ValueBudget) -> MemorySnapshot:
    for rows in (data["segments"], data.get("external_annotations"), *_lists(data.get("device_traces"))):
        budget.spend(len(_list(rows)))
    for each in _dicts(data["segments"]):
        budget.spend(len(_list(each.get("blocks"))))
    annotated = _Annotations(_dicts(data.get("external_annotations")))
    traces = [_dicts(trace) for trace in _lists(data.get("device_traces"))]
    # Of several at an address the last one is what lies there.
    born = {_int(event, "addr"): event for trace in traces for event in trace if event.get("action") == "alloc"}
    segments = [_segment(each, annotated, born) for each in _dicts(data["segments"])]
    categories = dict.fromkeys(MEMORY, 0)
    for segment in segments:
        for block in segment.blocks:
            if block.is_active:
                categories[block.category] += block.size
    free = [block.size for segment in segments for block in segment.blocks if not block.is_active]
    allocated, reserved = sum(categories.values()), sum(segment.size for segment in segments)
    scattered = sorted((one for one in segments if one.inactive), key=lambda one: -one.inactive)
    return MemorySnapshot(
        file=file,
        said=(),
        rank=rank if rank >= 0 else None,
        allocated=allocated,
        reserved=reserved,
        reserved_but_unallocated=max(reserved - allocated, 0),
        categories=categories,
        free_blocks=len(free),
        largest_free=max(free, default=0),
        segments=tuple(_memory_segment(segment) for segment in scattered[:_SHOWN]),
        failure=_failure(segments, traces),
    )


def _segment(data: Mapping[str, Any], annotated: _Annotations, born: Mapping[int, Mapping[str, Any]]) -> _Segment:
    at, blocks = _int(data, "address"), []
    for each in _dicts(data.get("blocks")):
        size = _int(each, "size")
        address = _int(each, "address") or at
        at = address + size
        allocation = born.get(address, {})
        frames = _frames(each) or _frames(allocation)
        is_active = not _text(each.get("state")).startswith(_INACTIVE)
        category = _category(frames) or annotated.category(_int(allocation, "time_us")) if is_active else ""
        blocks.append(_Block(size, is_active, category or "other", _own(frames)))
    segment = _Segment(max(_int(data, "total_size"), sum(block.size for block in blocks)), blocks)
    unlisted = segment.size - sum(block.size for block in blocks)
    active = min(max(_int(data, "active_size") - sum(block.size for block in blocks if block.is_active), 0), unlisted)
    rest = ((active, True), (unlisted - active, False))
    blocks += [_Block(size, is_active, "other", None) for size, is_active in rest if size]
    return segment


def _category(frames: Sequence[tuple[str, int, str]]) -> str:
    """What a stack is of, "" if it does not say."""
    found = (
        category
        for category, files, functions in _BY_STACK
        for file, _, function in frames
        if any(part in file for part in files) or function in functions
    )
    category = next(found, "")
    # An optimizer's states may be allocated by its own collectives.
    return "communication" if category != "optimizer_states" and _is_communication(frames) else category


def _is_communication(frames: Sequence[tuple[str, int, str]]) -> bool:
    """Whether the innermost Python function, or what it calls, communicates."""
    python = (number for number, (file, _, _) in enumerate(frames) if file.endswith(".py"))
    return any(
        any(part in file or part in function for part in _COMMUNICATION) or function in _COLLECTIVES
        for file, _, function in frames[: next(python, len(frames)) + 1]
    )


def _own(frames: Sequence[tuple[str, int, str]]) -> Source | None:
    """The innermost function of the user's own code: stacks begin with the innermost."""
    for file, line, function in frames:
        if names.is_own_code(f"{file}({line}): {function}"):
            return Source(file, line, function)
    return None


def _memory_segment(segment: _Segment) -> MemorySegment:
    """A segment with what keeps it from being given back."""
    active = [block for block in segment.blocks if block.is_active]
    return MemorySegment(
        bytes=segment.size,
        inactive=segment.inactive,
        largest_free=max((block.size for block in segment.blocks if not block.is_active), default=0),
        holders=_holders(active),
    )


def _holders(blocks: Sequence[_Block]) -> tuple[MemoryHolder, ...]:
    """Blocks by category and source, those with most bytes first."""
    sums: dict[tuple[str, Source | None], list[int]] = defaultdict(lambda: [0, 0])
    for block in blocks:
        of = sums[block.category, block.source]
        of[0] += block.size
        of[1] += 1
    most = sorted(sums.items(), key=lambda item: -item[1][0])[:_SHOWN]
    return tuple(MemoryHolder(category, source, size, count) for (category, source), (size, count) in most)


def _failure(segments: Sequence[_Segment], traces: Sequence[Sequence[Mapping[str, Any]]]) -> MemoryFailure | None:
    """The largest request that failed, and what would have to be released for it; None where none failed."""
    failed = [event for trace in traces for event in trace if event.get("action") == "oom" and _int(event, "size")]
    if not failed:
        return None
    largest = max(failed, key=lambda event: _int(event, "size"))
    size, device_free = _int(largest, "size"), _int(largest, "device_free")
    blocks = _fewest(segments, size)
    whole = blocks is None
    if blocks is None:
        blocks = _whole_segments(segments, size - device_free)
    return MemoryFailure(
        bytes=size,
        device_free=device_free,
        source=_own(_frames(largest)),
        whole_segments=whole,
        to_release=sum(block.size for block in blocks),
        holders=_holders(blocks),
    )


def _fewest(segments: Sequence[_Segment], size: int) -> list[_Block] | None:
    """Those active blocks, of fewest bytes, without which neighbours in one segment have `size` bytes; None if no
    segment is as large.

    Neighbours are taken from the left until they have as much; then the left one goes for the next.
    """
    best: tuple[list[_Block], int, int] | None = None
    least = _MOST_SIZE
    for segment in segments:
        blocks, first, total, active = segment.blocks, 0, 0, 0
        for last, block in enumerate(blocks):
            total += block.size
            active += block.size * block.is_active
            while total - blocks[first].size >= size:
                total -= blocks[first].size
                active -= blocks[first].size * blocks[first].is_active
                first += 1
            if total >= size and active < least:
                least, best = active, (blocks, first, last + 1)
    if best is None:
        return None
    blocks, first, end = best
    return [one for one in blocks[first:end] if one.is_active]


def _whole_segments(segments: Sequence[_Segment], size: int) -> list[_Block]:
    """The active blocks of whole segments that would have to be given back to the device, the emptiest first."""
    found: list[_Block] = []
    for segment in sorted(segments, key=lambda one: one.size - one.inactive):
        if size <= 0:
            break
        found += [block for block in segment.blocks if block.is_active]
        size -= segment.size
    return found


class _Annotations:
    """What was annotated when: the innermost annotation that tells a phase."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        self._times: list[int] = []
        self._phases: list[str] = []
        #: Names, and the phase that each tells, "" for none.
        open_: list[tuple[str, str]] = []
        for event in sorted(events, key=lambda event: _int(event, "time_us")):
            name = _text(event.get("name"))
            if event.get("stage") == "START":
                open_.append((name, _BY_PHASE.get(names.phase(name), "")))
                del open_[:-_MOST_OPEN]
            else:
                at = next((i for i in reversed(range(len(open_))) if open_[i][0] == name), None)
                if at is not None:
                    del open_[at]
            self._times.append(_int(event, "time_us"))
            self._phases.append(next((phase for _, phase in reversed(open_) if phase), ""))

    def category(self, time_us: int) -> str:
        """What was allocated then is for this; "" if nothing says so."""
        at = bisect.bisect_right(self._times, time_us) - 1
        return self._phases[at] if at >= 0 else ""


def _frames(data: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    return list(_each_frame(data.get("frames")))


def _each_frame(frames: Any) -> Iterator[tuple[str, int, str]]:
    for frame in _dicts(frames)[:_MOST_FRAMES]:
        file, function = (_text(frame.get(key)) for key in ("filename", "name"))
        yield file.replace("\\", "/"), _int(frame, "line"), function


def _int(data: Mapping[str, Any], key: str) -> int:
    """A number of at most 62 bits, not negative; 0 for anything else."""
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_SIZE else 0


def _text(value: Any) -> str:
    """A text without half characters, which JSON does not hold, and not longer than names are."""
    return value[:_MOST_LETTERS].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _lists(value: Any) -> list[list[Any]]:
    return [each for each in _list(value) if isinstance(each, list)]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in _list(value) if isinstance(each, dict)]
