"""What one snapshot says: what is allocated and for what, how the rest is scattered, and what a failed request lacked.

A snapshot lists segments, which the allocator got from the device, and their blocks in order of address; a block is
active (a tensor has it, or a stream still uses it) or inactive. `device_traces` lists what the allocator did before,
and `external_annotations` the annotations of that time. What a block is for is known by the stack that allocated it
(`categories`), else by the annotation, else by the optimizer's states (`inferred`), else not. What a segment has beyond
its blocks is split by its own sums. Values of a wrong type count as missing.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.findings import (
    MEMORY,
    MemoryFailure,
    MemoryHolder,
    MemoryModule,
    MemorySegment,
    MemorySnapshot,
    Source,
)
from tb_ddp_doctor.flight.model import StackFrame
from tb_ddp_doctor.memory_snapshot.categories import category, is_own, is_update, module, scatters_gradients
from tb_ddp_doctor.memory_snapshot.history import History
from tb_ddp_doctor.memory_snapshot.inferred import Allocation, inferred
from tb_ddp_doctor.storage.budget import BudgetError, ValueBudget
from tb_ddp_doctor.trace import names

_BY_PHASE = {
    names.Phase.LOADING: "activations",
    names.Phase.FORWARD: "activations",
    names.Phase.BACKWARD: "gradients",
    names.Phase.OPTIMIZER: "optimizer_states",
}
_INACTIVE = "inactive"
#: Segments and blocks that are named.
_SHOWN = 5
#: Places and modules that are named of all that is allocated.
_PLACES = 12
#: Stacks with C++ functions have more than a hundred.
_MOST_FRAMES, _MOST_LETTERS = 256, 300
#: Blocks, events and annotations of a snapshot: one of 256 MB has not as many.
_MOST_ROWS = 4_000_000
#: Devices that are told apart.
_MOST_DEVICES = 64
#: Annotations that are open at one time; what is never closed does not add up.
_MOST_OPEN = 64
#: More bytes than any device has.
_MOST_SIZE = 1 << 62


class SnapshotError(Exception):
    """A pickle that is no snapshot. Its text is a sentence for users."""


class _Block(msgspec.Struct, frozen=True):
    size: int
    is_active: bool
    #: "" where nothing shows it.
    category: str
    source: Source | None
    #: As `categories.module` has it.
    module: str = ""
    #: As in `inferred.Allocation`.
    requested: int = 0
    time_us: int = 0
    frame: StackFrame | None = None
    scatters: StackFrame | None = None
    has_stack: bool = False
    is_blank: bool = False


class _Segment(msgspec.Struct, frozen=True):
    size: int
    blocks: list[_Block]
    device: int = 0
    #: Of a pool of its own, as that of a CUDA graph: other requests do not get what is free in it.
    is_private: bool = False
    is_expandable: bool = False

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
    failed, stacks = _last_failed(traces), _Stacks()
    updates = failed is not None and is_update(stacks(failed.event))
    drawn = [_segment(each, annotated, born, stacks, updates=updates) for each in _dicts(data["segments"])]
    segments = _with_inferred(drawn, traces, stacks)
    active = [block for segment in segments for block in segment.blocks if block.is_active]
    categories = dict.fromkeys(MEMORY, 0)
    for block in active:
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
        without_stack=sum(one.size for one in active if not one.has_stack and one.category == "other"),
        devices=_devices(segments),
        expandable=any(segment.is_expandable for segment in segments),
        free_blocks=len(free),
        largest_free=max(free, default=0),
        segments=tuple(_memory_segment(segment) for segment in scattered[:_SHOWN]),
        failure=_failure(segments, failed, stacks),
        holders=_holders(active, _PLACES),
        modules=_modules(active),
    )


def _segment(
    data: Mapping[str, Any],
    annotated: _Annotations,
    born: Mapping[int, Mapping[str, Any]],
    stacks: _Stacks,
    *,
    updates: bool,
) -> _Segment:
    """A segment; `updates` says whether the snapshot is of an update that failed."""
    at, blocks = _int(data, "address"), []
    for each in _dicts(data.get("blocks")):
        size = _int(each, "size")
        address = _int(each, "address") or at
        at = address + size
        allocation = born.get(address, {})
        # Before torch 2.1 a block had a history, the newest first.
        of_old = next(iter(_dicts(each.get("history"))), {})
        frames = stacks(each) or stacks(of_old) or stacks(allocation)
        is_active = not _text(each.get("state")).startswith(_INACTIVE)
        time_us = _int(allocation, "time_us")
        is_for, shown_by = category(frames) if is_active else ("", None)
        if is_for == "temporary" and is_update(frames) and not updates:
            is_for = "optimizer_states"  # What an update only works with is gone after it.
        blocks.append(
            _Block(
                size,
                is_active,
                is_for or (annotated.category(time_us) if is_active else ""),
                _own(frames),
                module(frames) if is_active else "",
                _int(each, "requested_size") or _int(of_old, "real_size") or size,
                time_us,
                shown_by,
                scatters_gradients(frames),
                bool(is_for) or any(frame.file.endswith(".py") for frame in frames),
                not frames,
            )
        )
    segment = _Segment(
        max(_int(data, "total_size"), sum(block.size for block in blocks)),
        blocks,
        _int(data, "device"),
        any(number != 0 for number in _numbers(data.get("segment_pool_id"))),
        data.get("is_expandable") is True,
    )
    unlisted = segment.size - sum(block.size for block in blocks)
    active = min(max(_int(data, "active_size") - sum(block.size for block in blocks if block.is_active), 0), unlisted)
    rest = ((active, True), (unlisted - active, False))
    blocks += [_Block(size, is_active, "other", None) for size, is_active in rest if size]
    return segment


def _with_inferred(
    segments: Sequence[_Segment], traces: Sequence[Sequence[Mapping[str, Any]]], stacks: _Stacks
) -> list[_Segment]:
    """The segments with a category for each block: what no stack shows is inferred, and is other where it cannot be."""
    active = [block for segment in segments for block in segment.blocks if block.is_active]
    history = History((event for trace in traces for event in trace), stacks)
    active = [
        replace(one, category="activations")
        if not one.category and one.source and one.time_us and history.is_of_a_loss(one.time_us)
        else one
        for one in active
    ]
    of_block = inferred(
        [
            Allocation(
                one.requested,
                one.category,
                one.time_us,
                one.frame,
                one.scatters,
                one.has_stack,
                one.is_blank and not one.category,
            )
            for one in active
        ],
        history.updates(),
    )
    numbers = iter(range(len(active)))

    def named(block: _Block) -> _Block:
        if not block.is_active:
            return block
        number = next(numbers)
        return replace(block, category=of_block.get(number, active[number].category) or "other")

    return [replace(segment, blocks=[named(block) for block in segment.blocks]) for segment in segments]


def _own(frames: Sequence[StackFrame]) -> Source | None:
    """The innermost function of the user's own code: stacks begin with the innermost."""
    return next((Source(*frame) for frame in frames if is_own(frame)), None)


def _memory_segment(segment: _Segment) -> MemorySegment:
    """A segment with what keeps it from being given back."""
    active = [block for block in segment.blocks if block.is_active]
    return MemorySegment(
        bytes=segment.size,
        inactive=segment.inactive,
        largest_free=max((block.size for block in segment.blocks if not block.is_active), default=0),
        holders=_holders(active),
    )


def _modules(active: Sequence[_Block]) -> tuple[MemoryModule, ...]:
    """What forward passes of modules allocated, those with most bytes first."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for block in active:
        if block.module:
            sums[block.module][0] += block.size
            sums[block.module][1] += 1
    most = sorted(sums.items(), key=lambda item: -item[1][0])[:_PLACES]
    return tuple(MemoryModule(name, size, count) for name, (size, count) in most)


def _holders(blocks: Sequence[_Block], shown: int = _SHOWN) -> tuple[MemoryHolder, ...]:
    """Blocks by category and source, those with most bytes first."""
    sums: dict[tuple[str, Source | None], list[int]] = defaultdict(lambda: [0, 0])
    for block in blocks:
        of = sums[block.category, block.source]
        of[0] += block.size
        of[1] += 1
    most = sorted(sums.items(), key=lambda item: -item[1][0])[:shown]
    return tuple(MemoryHolder(category, source, size, count) for (category, source), (size, count) in most)


def _devices(segments: Sequence[_Segment]) -> dict[int, int]:
    """What is allocated on each device that has segments."""
    allocated: dict[int, int] = defaultdict(int)
    for segment in segments:
        allocated[segment.device] += segment.size - segment.inactive
    return dict(sorted(allocated.items())[:_MOST_DEVICES])


class _Failed(NamedTuple):
    """A request that failed, and what was allocated on its device since, bytes."""

    event: Mapping[str, Any]
    device: int
    since: int


def _last_failed(traces: Sequence[Sequence[Mapping[str, Any]]]) -> _Failed | None:
    """The last request that failed, of all devices by time; None where none failed."""
    last: list[_Failed] = []
    for device, trace in enumerate(traces):
        since = 0
        for event in reversed(trace):
            action, size = event.get("action"), _int(event, "size")
            if action == "oom" and size:
                last.append(_Failed(event, device, since))
                break
            since += size if action == "alloc" else 0
    return max(last, key=lambda failed: _int(failed.event, "time_us"), default=None)


def _failure(segments: Sequence[_Segment], failed: _Failed | None, stacks: _Stacks) -> MemoryFailure | None:
    """The last request that failed, and what would have to be released for it; None where none failed.

    It gets memory of its own device alone, and none of a private pool.
    """
    if failed is None:
        return None
    event = failed.event
    size, device_free = _int(event, "size"), _int(event, "device_free")
    # Of a process with one device, what numbers it in the list of traces is not always the segments' number.
    there = [one for one in segments if one.device == failed.device] or list(segments)
    shared = [one for one in there if not one.is_private]
    blocks = _fewest(shared, size)
    whole = blocks is None
    if blocks is None:
        blocks = _whole_segments(shared, size - device_free)
    return MemoryFailure(
        bytes=size,
        device=failed.device,
        went_on=failed.since >= size,
        device_free=device_free,
        free_in_segments=sum(one.inactive for one in shared),
        free_in_pools=sum(one.inactive for one in there if one.is_private),
        source=_own(stacks(event)),
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
    in_the_way: list[_Block] = []
    for segment in sorted(segments, key=lambda one: one.size - one.inactive):
        if size <= 0:
            break
        in_the_way += [block for block in segment.blocks if block.is_active]
        size -= segment.size
    return in_the_way


class _Stacks:
    """The functions of stacks, the innermost first. A snapshot shares what stacks have in common: each is read once."""

    def __init__(self) -> None:
        #: By the identity of what was read, which is kept so that nothing else gets it.
        self._read: dict[int, tuple[dict[str, Any], StackFrame]] = {}

    def __call__(self, data: Mapping[str, Any]) -> list[StackFrame]:
        read, frames = self._read, []
        for frame in _dicts(data.get("frames"))[:_MOST_FRAMES]:
            known = read.get(id(frame))
            if known is None:
                file, function = (_text(frame.get(key)) for key in ("filename", "name"))
                known = frame, StackFrame(file.replace("\\", "/"), _int(frame, "line"), function)
                read[id(frame)] = known
            frames.append(known[1])
        return frames


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


def _int(data: Mapping[str, Any], key: str) -> int:
    """A number of at most 62 bits, not negative; 0 for anything else."""
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_SIZE else 0


def _text(value: Any) -> str:
    """A text without half characters, which JSON does not hold, and not longer than names are."""
    return value[:_MOST_LETTERS].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _numbers(value: Any) -> list[Any]:
    """The numbers of a tuple or a list, as pools are told by two; none for anything else."""
    return [one for one in value if isinstance(one, int)] if isinstance(value, tuple | list) else []


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _lists(value: Any) -> list[list[Any]]:
    return [each for each in _list(value) if isinstance(each, list)]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in _list(value) if isinstance(each, dict)]
