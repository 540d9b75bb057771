"""A slice as Chrome-trace JSON, for every viewer that Kineto's own files open in.

Times are us, and `baseTimeNanoseconds` is to be added: as us since the epoch, numbers of JSON would be rounded to a
quarter of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import IO, Any

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.slices import event_text
from tb_ddp_doctor.slices.labels import placed
from tb_ddp_doctor.slices.model import CATEGORY_NAMES, RankSlice, Slice
from tb_ddp_doctor.storage.message import json_of
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.own_slice import MEMBER, ExactTimes, RankOfSlice, shared_groups

CONTENT_TYPE = "application/json"
#: Numbers of arrows between arrivals start here: whole, since Perfetto drops others, and below 2^53, as doubles are.
_COLLECTIVES = 1 << 52
#: Events may begin so long before the window, its launches and functions around it; what is longer ago is cut there.
_BEFORE_NS = 3_600 * 10**9
#: Of what is said of all ranks, which is read as one member of the file.
_MOST_SAID = 12 << 20


def write(part: Slice, file: IO[bytes]) -> None:
    """Write the slice to a binary file."""
    # No event may come before zero: Perfetto drops those, and launches lie before the window.
    base = max(part.start_ns - _BEFORE_NS, 0)
    left_out = {}
    encode = msgspec.json.Encoder().encode
    file.write(b"{" + part.own.spelled() + b', "displayTimeUnit": "ms", "traceEvents": [')
    comma = b""
    said = _Said()
    for order, rank in enumerate(part.ranks, 1):
        left_out[rank.rank] = rank.left_out
        said.add(rank.declared, order)
        for event in _events(part, rank, order, base):
            file.write(comma + encode(event))
            comma = b",\n"
    for event in _doctor(part, event_text.left_out(left_out), base):
        file.write(comma + msgspec.json.encode(event))
        comma = b",\n"
    file.write(b'], "baseTimeNanoseconds": %d, "%b": [%b]}' % (base, MEMBER.encode(), b",".join(said.of_ranks)))


class _Said:
    """What is said of each rank, as JSON."""

    def __init__(self) -> None:
        self.of_ranks: list[bytes] = []
        self._groups: dict[bytes, int] = {}
        self._size = 0

    def add(self, declared: RankOfSlice, pid: int) -> None:
        """Say what there is to say of a rank. Where that becomes too much, times are those of viewers."""
        shared = replace(shared_groups(declared, self._groups), pid=pid, first_tid=1)
        spelled = json_of(shared)
        if self._size + len(spelled) > _MOST_SAID:
            spelled = json_of(replace(shared, events=ExactTimes(), frames=ExactTimes()))
        self._size += len(spelled)
        self.of_ranks.append(spelled)


def _events(part: Slice, rank: RankSlice, pid: int, base: int) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", pid, 0, name=event_text.process(rank.rank, rank.node))
    yield _meta("process_sort_index", pid, 0, sort_index=pid)
    for tid, lane in enumerate(rank.lanes, 1):
        yield _meta("thread_name", pid, tid, name=event_text.label(lane.title))
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)
    yield from _complete(part, rank, pid, base)
    for thread, time, allocation in event_text.allocations(rank):
        place = {"pid": pid, "tid": thread + 1, "ts": max(time - base, 0) / 1e3}
        what = {"ph": names.INSTANT_PHASE, "s": "t", "cat": names.INSTANT, "name": names.MEMORY}
        yield {**what, **place, "args": allocation}
    yield from _counters(rank, pid, base)


def _complete(part: Slice, rank: RankSlice, pid: int, base: int) -> Iterator[dict[str, Any]]:
    """The rank's events, each with the arrows that begin or end there."""
    args = event_text.args_of(rank, part.collectives)
    labels = event_text.WholeTexts(rank.strings)
    launched = _begins(rank)
    columns = (rank.lane, rank.start_ns, rank.end_ns, rank.name, rank.category, rank.correlation, rank.collective)
    for i, (lane, start, end, name, category, correlation, collective) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        start, end = max(start, base), max(end, base)
        place = {"pid": pid, "tid": lane + 1, "ts": (start - base) / 1e3}
        yield {
            "ph": "X",
            "cat": CATEGORY_NAMES[category],
            "name": labels[name],
            **place,
            "dur": (end - start) / 1e3,
            "args": args(i),
        }
        if correlation >= 0:
            begins = launched.get(correlation) == i
            flow = {"cat": "launch", "name": "launch", "id": pid << 32 | correlation & 0xFFFFFFFF, **place}
            yield {"ph": "s" if begins else "f", "bp": "e", **flow}
        if collective in part.collectives:
            matched = part.collectives[collective]
            turn = {matched.shown_first: "s", matched.shown_last: "f"}.get(rank.rank, "t")
            flow = {"cat": "collective", "name": "arrivals", "id": _COLLECTIVES | collective, **place}
            yield {"ph": turn, "bp": "e", **flow}


def _counters(rank: RankSlice, pid: int, base: int) -> Iterator[dict[str, Any]]:
    """The rank's memory, allocated and reserved bytes at each instant; and its GPU's clock and power."""
    gpu = rank.gpu
    for name, unit, values in (("SM clock", "MHz", gpu.sm_mhz), ("power", "W", gpu.power_w)):
        for time, value in zip(gpu.time_ns.tolist(), values.tolist(), strict=True):
            if math.isfinite(value):
                yield {
                    "ph": "C",
                    "name": name,
                    "pid": pid,
                    "tid": 0,
                    "ts": max(time - base, 0) / 1e3,
                    "args": {unit: value},
                }
    memory = rank.memory
    for time, allocated, reserved in zip(
        memory.time_ns.tolist(), memory.allocated.tolist(), memory.reserved.tolist(), strict=True
    ):
        sizes = {"in use": allocated, "reserved": reserved}
        yield {"ph": "C", "name": "memory", "pid": pid, "tid": 0, "ts": max(time - base, 0) / 1e3, "args": sizes}


def _begins(rank: RankSlice) -> dict[int, int]:
    """The first event of each correlation: the call that launches."""
    first: dict[int, int] = {}
    start = rank.start_ns.tolist()
    for i, correlation in enumerate(rank.correlation.tolist()):
        if correlation >= 0 and start[i] < start[first.setdefault(correlation, i)]:
            first[correlation] = i
    return first


def _doctor(part: Slice, left_out: str, base: int) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", 0, 0, name="ddp-doctor")
    yield _meta("process_sort_index", 0, 0, sort_index=-1)
    for tid, labels in enumerate(placed(part, left_out), 1):
        yield _meta("thread_name", 0, tid, name="this slice" if tid == 1 else "evidence")
        for label in labels:
            start, end = max(label.start_ns, base), max(label.end_ns, base)
            times = {"ts": (start - base) / 1e3, "dur": (end - start) / 1e3}
            place = {"pid": 0, "tid": tid, **times}
            yield {"ph": "X", "cat": names.OWN, "name": label.name, **place, "args": label.args}


def _meta(kind: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
