"""One rank of a trace that ddp-doctor itself wrote (`slices`), as it was in the trace that the slice was cut from.

Such a file has the common clock, made-up numbers of processes and threads, and events that end where the one around
them does: what viewers need. What it says of each rank, beside its events, undoes that (`RankOfSlice`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.discover import own_files
from tb_ddp_doctor.findings import FileWarning, WarningKind
from tb_ddp_doctor.storage.message import REFUSALS, json_of
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.header import header_of
from tb_ddp_doctor.trace.losses import Losses
from tb_ddp_doctor.trace.model import MOST_HEADER_LETTERS, Category, Indices, Ints, RankTrace, TraceError
from tb_ddp_doctor.trace.times import MAX_NS

#: The member of Chrome's JSON, behind the events, that has a `RankOfSlice` for each rank; in Perfetto's format it is a
#: field of the descriptor of the rank's track that is not in Perfetto's own schema.
MEMBER = "ddp_doctor_ranks"
FIELD = 9_600
#: Offsets of clocks, ns; and times an instant is moved there and back until it stays: clocks drift by a thousandth at
#: most.
_MOST_OFFSET, _MOST_DRIFT, _ROUNDS = 2e18, 0.01, 16
_CUT = "Diagnose the traces that it was cut from."
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
T = TypeVar("T", bound=msgspec.Struct)


class SliceClock(msgspec.Struct, frozen=True):
    """What was subtracted from the rank's clock at its own instant t: offset + drift * (t - origin), in whole ns."""

    offset_ns: float = 0.0
    drift: float = 0.0
    origin_ns: Natural = 0

    def own(self, common_ns: Ints) -> Ints:
        """The instants of the rank's own clock that these of the common one come from."""
        if not self.offset_ns and not self.drift:
            return common_ns
        own = common_ns
        for _ in range(_ROUNDS):
            correction = self.offset_ns + self.drift * (own - self.origin_ns)
            before, own = own, common_ns + np.rint(correction).astype(np.int64)
            if np.array_equal(before, own):
                break
        return own


class ExactTimes(msgspec.Struct, frozen=True):
    """Rows of a table whose times the file's do not give: cut to what is around, or rounded by a clock that drifts."""

    #: Rows of the whole table: a file that lacks some has no exact times.
    length: Natural = 0
    row: tuple[Natural, ...] = ()
    start_ns: tuple[Natural, ...] = ()
    duration_ns: tuple[Natural, ...] = ()


class RankOfSlice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a file says of one of its ranks, beside the rank's events."""

    rank: Natural
    #: Numbers of the process and of its first thread in the file; the others follow.
    pid: Natural
    first_tid: Natural
    #: Process, thread and place among the threads of the original trace of each of them.
    threads: tuple[tuple[str, str, Natural], ...]
    #: The members around the events of the original trace, but with numbers in place of process groups.
    header: dict[str, Any] = msgspec.field(default_factory=dict)
    recorder: str = ""
    step_range: str = ""
    #: The process groups that no rank before has, which count on through the file.
    groups: tuple[dict[str, Any], ...] = ()
    clock: SliceClock = SliceClock()
    #: Whether arguments that are JSON stand as text, as in Perfetto's format.
    is_quoted: bool = False
    #: Whether the rank's whole trace is there; else the steps that are there as a whole, and how many events are not.
    is_whole: bool = False
    steps: tuple[Natural, ...] = ()
    left_out: Natural = 0
    events: ExactTimes = ExactTimes()
    frames: ExactTimes = ExactTimes()
    #: Of the original trace: events that the reader dropped, by category, and what it lost.
    dropped: dict[str, Natural] = msgspec.field(default_factory=dict)
    warnings: tuple[tuple[WarningKind, str], ...] = ()


def of_file(said: Iterable[Any]) -> dict[str, RankOfSlice]:
    """What a file says of its ranks, by the label of each; without those whose words are damaged."""
    by_label: dict[str, RankOfSlice] = {}
    groups: list[dict[str, Any]] = []
    for one in said:
        try:
            # Readers of JSON leave numbers with a fraction as they are spelled.
            declared = msgspec.convert(one, RankOfSlice, strict=False)
        except REFUSALS:
            continue
        groups.extend(declared.groups)
        if _is_possible(declared):
            header = _with_groups(declared.header, groups)
            by_label[own_files.label(declared.rank)] = replace(declared, header=header)
    return by_label


def _is_possible(declared: RankOfSlice) -> bool:
    clock = declared.clock
    # Not a number is no smaller than anything.
    return abs(clock.offset_ns) <= _MOST_OFFSET and abs(clock.drift) <= _MOST_DRIFT and clock.origin_ns <= 2 * MAX_NS


def _with_groups(header: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    distributed = header.get("distributedInfo")
    if not isinstance(distributed, dict) or not isinstance(distributed.get("pg_config"), list):
        return header
    numbers = [number for number in distributed["pg_config"] if isinstance(number, int) and 0 <= number < len(groups)]
    return header | {"distributedInfo": distributed | {"pg_config": [groups[number] for number in numbers]}}


def shared_groups(declared: RankOfSlice, known: dict[bytes, int]) -> RankOfSlice:
    """The same with numbers in place of process groups; `known` has the number of each so far, and grows."""
    distributed = declared.header.get("distributedInfo", {})
    if not distributed.get("pg_config"):
        return declared
    numbers, fresh = [], []
    for group in distributed["pg_config"]:
        spelled = json_of(group)
        if spelled not in known:
            known[spelled] = len(known)
            fresh.append(group)
        numbers.append(known[spelled])
    header = declared.header | {"distributedInfo": distributed | {"pg_config": numbers}}
    return replace(declared, header=header, groups=tuple(fresh))


def only(trace: RankTrace, declared: RankOfSlice, name: str) -> RankTrace:
    """The trace of one rank of a file; `name` is what warnings call it.

    Raises TraceError for a slice in which no step is whole.
    """
    if not declared.is_whole:
        _check_steps(declared)
    mine, place = _threads(trace, declared)
    chosen = mine[trace.events.thread]
    events, comms = _rows(trace.events, chosen), _rows(trace.comms, chosen[trace.comms.event])
    comms = replace(comms, event=(np.cumsum(chosen) - 1)[comms.event])
    memory, frames = _rows(trace.memory, mine[trace.memory.thread]), _rows(trace.frames, mine[trace.frames.thread])
    clock = declared.clock
    start, duration = _own_times(events.start_ns, events.duration_ns, clock, declared.events)
    events = replace(events, start_ns=start, duration_ns=duration, thread=place[events.thread])
    start, duration = _own_times(frames.start_ns, frames.duration_ns, clock, declared.frames)
    frames = replace(frames, start_ns=start, duration_ns=duration, thread=place[frames.thread])
    memory = replace(memory, time_ns=np.clip(clock.own(memory.time_ns), 0, 2 * MAX_NS), thread=place[memory.thread])
    strings = trace.strings
    if declared.is_quoted:
        strings, unquoted = _unquoted(strings, (events.shape, events.types, events.values))
        events = replace(events, **dict(zip(("shape", "types", "values"), unquoted, strict=True)))
    losses = Losses()
    header = header_of(declared.header, losses)
    header = replace(
        header,
        recorder=declared.recorder[:MOST_HEADER_LETTERS],
        step_range=declared.step_range[:MOST_HEADER_LETTERS],
        has_shapes=header.has_shapes or bool((events.shape[events.category == Category.OP] >= 0).any()),
    )
    original = (FileWarning(name, message, kind) for kind, message in declared.warnings)
    read = replace(
        trace,
        file=name,
        header=header,
        strings=strings,
        threads=tuple((pid, tid) for pid, tid, _ in sorted(declared.threads, key=lambda thread: thread[2])),
        events=events,
        comms=comms,
        memory=memory,
        frames=frames,
        dropped=declared.dropped,
        warnings=(*original, *losses.warnings(name), *(replace(warning, file=name) for warning in trace.warnings)),
    )
    return read if declared.is_whole else _of_whole_steps(read, declared.steps)


def _check_steps(declared: RankOfSlice) -> None:
    if declared.left_out:
        events = "1 event" if declared.left_out == 1 else f"the {declared.left_out:,} shortest events"
        raise TraceError(f"It is a slice that ddp-doctor wrote, from which {events} of its window are left out. {_CUT}")
    if not declared.steps:
        raise TraceError(f"It is a slice that ddp-doctor wrote, in which no step is whole. {_CUT}")


def _threads(trace: RankTrace, declared: RankOfSlice) -> tuple[NDArray[np.bool_], Indices]:
    """Which threads of the file are the rank's, and the place of each in the rank's own list of threads."""
    of_text = {str(declared.first_tid + lane): lane for lane in range(len(declared.threads))}
    order = sorted(range(len(declared.threads)), key=lambda lane: declared.threads[lane][2])
    place_of_lane = {lane: place for place, lane in enumerate(order)}
    pid = str(declared.pid)
    mine = np.zeros(len(trace.threads) + 1, np.bool_)
    place = np.zeros(len(trace.threads) + 1, np.int32)
    for index, (process, thread) in enumerate(trace.threads):
        if process == pid and thread in of_text:
            mine[index], place[index] = True, place_of_lane[of_text[thread]]
    return mine, place


def _rows(table: T, chosen: NDArray[np.bool_]) -> T:
    """Some rows of a table of columns."""
    return type(table)(*(getattr(table, name)[chosen] for name in table.__struct_fields__))


def _own_times(start_ns: Ints, duration_ns: Ints, clock: SliceClock, exact: ExactTimes) -> tuple[Ints, Ints]:
    """Starts and durations on the rank's own clock."""
    start = np.clip(clock.own(start_ns), 0, 2 * MAX_NS)
    duration = np.clip(clock.own(start_ns + duration_ns) - start, 0, MAX_NS)
    row, begins, lasts = (np.array(column, np.int64) for column in (exact.row, exact.start_ns, exact.duration_ns))
    if exact.length != len(start) or not len(row) or not len(row) == len(begins) == len(lasts):
        return start, duration
    is_possible = (row < len(start)) & (begins <= 2 * MAX_NS) & (lasts <= MAX_NS)
    start, duration = start.copy(), duration.copy()
    start[row[is_possible]], duration[row[is_possible]] = begins[is_possible], lasts[is_possible]
    return start, duration


def _unquoted(strings: tuple[str, ...], columns: Sequence[Indices]) -> tuple[tuple[str, ...], list[Indices]]:
    """The columns with JSON in place of texts of JSON, and the vocabulary with it."""
    known = {text: index for index, text in enumerate(strings)}
    table = np.arange(len(strings), dtype=np.int32)
    for index in np.unique(np.concatenate(columns)).tolist():
        if index >= 0:
            table[index] = known.setdefault(_unquoted_text(strings[index]), len(known))
    return tuple(known), [np.where(column >= 0, table[column], column) for column in columns]


def _unquoted_text(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text


def _of_whole_steps(trace: RankTrace, steps: Sequence[int]) -> RankTrace:
    """The trace without the marks of steps that are not there as a whole."""
    of_text = [names.step_number(text) for text in trace.strings]
    is_part = np.array([number is not None and number not in set(steps) for number in of_text], np.bool_)
    kept = ~(is_part[trace.events.name] & (trace.events.category == Category.ANNOTATION))
    comms = _rows(trace.comms, kept[trace.comms.event])
    return replace(
        trace, events=_rows(trace.events, kept), comms=replace(comms, event=(np.cumsum(kept) - 1)[comms.event])
    )
