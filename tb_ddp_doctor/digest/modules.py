"""Which part of the model the time of a rank's steps is of: a tree of modules, with their times.

Every nanosecond of the steps is of exactly one module (the root for what is outside of all), so that the times of all
modules sum to the budget's:

- A device event is of the module whose call, or autograd node, launched it; within a CUDA graph, of the part that its
  capture named. Of events that run beside each other, the time is the first one's to start; a kernel's before a
  copy's, and a copy's before communication's.
- An idle time is of the module that launches the next event.
- On a CPU, operators are the events, and a nanosecond is the innermost operator's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.digest.allocator import Allocations
from tb_ddp_doctor.digest.beside import beside_communication
from tb_ddp_doctor.digest.columns import distinct, searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.frames import own_function
from tb_ddp_doctor.digest.graph_parts import GraphParts
from tb_ddp_doctor.digest.host_calls import HostCalls, one_of
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import Modules, ModuleTime, ModuleTimes, Steps
from tb_ddp_doctor.digest.module_gradients import module_gradients
from tb_ddp_doctor.digest.module_kernels import EventNames, TimeParts, module_kernels, module_work
from tb_ddp_doctor.digest.module_memory import module_memory
from tb_ddp_doctor.digest.module_paths import ROOT, ModuleCalls
from tb_ddp_doctor.digest.module_segments import module_segments
from tb_ddp_doctor.digest.nesting import enclosing
from tb_ddp_doctor.digest.owners import HostOperators, Layers
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.redundant import recomputed
from tb_ddp_doctor.digest.roofline import CallEvents
from tb_ddp_doctor.digest.sums import count, summed, total_by
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace.model import Category, Floats, Ints
from tb_ddp_doctor.trace.names import Phase

#: Modules that are kept, those with the most time; the time of others is their parents'. A digest stays small.
MOST_MODULES = 512
#: A first step this much longer than the median of the others stands for none of them.
_ODD_FIRST = 1.25


class _Work(msgspec.Struct, frozen=True, eq=False):
    """What runs: device events, or stretches of operators; shape (events,)."""

    start_ns: Ints
    end_ns: Ints
    #: A `ModuleTime`.
    kind: Ints
    #: Indices into `PathTable`, of `Phase`, and whether it is forward that is computed again.
    module: Ints
    phase: Ints
    recomputed: Mask
    names: EventNames
    calls: CallEvents
    #: The segment of a step that each is of (`digest.module_segments`); -1 for none.
    segment: Ints
    #: The share of each that runs beside communication, and how much longer it takes than alone, ns.
    beside: Floats
    longer_ns: Floats


def device_modules(
    calls: ModuleCalls,
    parts: GraphParts,
    device: DeviceEvents,
    steps: Steps,
    layers: Layers,
    phase: Ints,
    recomputes: Mask,
    function: Ints,
    work_calls: CallEvents,
    segment: Ints,
    allocations: Allocations,
    words: Vocabulary,
) -> Modules:
    """The modules of a rank with a device; `phase` is what launched each of the device's events.

    `recomputes` says which of them compute forward again (`redundant.recomputed_events`), `function` the user's own
    function that launched each, or the compiled kernel's file (`frames.of_stacks`, `frames.kernel_files`),
    `work_calls` which are calls of operators with rooflines, and `segment` is the part of a step that each is of
    (`module_segments.event_segments`).
    """
    host, launched = calls.host, np.flatnonzero(device.is_launched)
    by, module = device.launch[launched], parts.modules(calls, device)
    copies = one_of(device.category, (Category.MEMCPY, Category.MEMSET))
    kind = np.select([device.communicates, copies], [ModuleTime.COMMUNICATION, ModuleTime.COPY], ModuleTime.COMPUTE)
    operator = np.full(len(device), -1, np.int64)
    operator[launched] = host.around(by, host.is_operator)
    named = EventNames(host.trace.strings, _names(host, operator), device.name, function)
    beside = beside_communication(host, device, operator, layers.communication)
    work = _Work(device.start_ns, device.end_ns, kind, module, phase, recomputes, named, work_calls, segment, *beside)
    return _modules(calls, work, steps, layers, allocations, words)


def host_modules(
    host: HostCalls,
    steps: Steps,
    layers: Layers,
    operators: HostOperators,
    phases: HostPhases,
    allocations: Allocations,
    words: Vocabulary,
) -> Modules:
    """The modules of a rank that computes on its CPU."""
    calls = ModuleCalls.of(host, phases, steps)
    stretches = [
        _innermost(host, chosen, kind)
        for chosen, kind in (
            (operators.computing | operators.around_calls, ModuleTime.COMPUTE),
            (operators.collective, ModuleTime.COMMUNICATION),
        )
    ]
    start, end, by, kind = np.concatenate(stretches, axis=1)
    module, phase, again = calls.at(start, host.thread[by]), phases.at(host.start_ns[by]), recomputed(host, by)
    unknown = np.full(len(by), -1, np.int64)
    function = own_function(host, start, host.thread[by]) if len(host.trace.frames) else unknown
    named = EventNames(host.trace.strings, host.name[by], unknown, function)
    nothing = np.zeros(len(by))
    work = _Work(start, end, kind, module, phase, again, named, empty(CallEvents), unknown, nothing, nothing)
    return _modules(calls, work, steps, layers, allocations, words)


def _names(host: HostCalls, calls: Ints) -> Ints:
    """The name of each call, an index into `trace.strings`; -1 for none."""
    return np.append(host.name, -1)[calls]


def _innermost(host: HostCalls, chosen: Mask, kind: ModuleTime) -> Ints:
    """Stretches with one innermost operator each: start, end, operator and kind, shape (4, stretches)."""
    parts = [np.empty((4, 0), np.int64)]
    rows = np.flatnonzero(chosen)
    for thread in np.unique(host.thread[rows]).tolist():
        here = rows[host.thread[rows] == thread]
        edges = np.unique(np.concatenate((host.start_ns[here], host.end_ns[here])))
        on = np.full(len(edges) - 1, thread, np.int32)
        call = enclosing(host.start_ns[here], host.end_ns[here], host.thread[here], edges[:-1], on)
        inside = call >= 0
        start, end = edges[:-1][inside], edges[1:][inside]
        parts.append(np.stack((start, end, here[call[inside]], np.full(len(start), kind, np.int64))))
    return np.concatenate(parts, axis=1)


class _Part(msgspec.Struct, frozen=True, eq=False):
    """Time of events in steps; shape (parts,)."""

    #: Index into `_Work`; -1 for idle time that no event follows.
    event: Ints
    step: Ints
    length_ns: Ints
    #: A `ModuleTime`.
    kind: Ints


def _modules(
    calls: ModuleCalls, work: _Work, steps: Steps, layers: Layers, allocations: Allocations, words: Vocabulary
) -> Modules:
    copy = layers.copy - layers.compute
    communication = layers.communication - layers.copy - layers.compute
    parts = [
        _running(work, ModuleTime.COMPUTE, layers.compute, steps),
        _running(work, ModuleTime.COPY, copy, steps),
        _running(work, ModuleTime.COMMUNICATION, communication, steps),
        _idle(work, layers.device_busy, steps),
    ]
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in _Part.__struct_fields__)
    return _table(calls, work, _Part(*columns), steps, allocations, words)


def _running(work: _Work, kind: ModuleTime, alone: Intervals, steps: Steps) -> _Part:
    """The time of a kind, in which no other kind goes before it: of events that overlap, the first to start has it."""
    event = np.flatnonzero(work.kind == kind)
    event = event[np.argsort(work.start_ns[event], kind="stable")]
    start, end = work.start_ns[event], work.end_ns[event]
    reach = np.maximum.accumulate(end)
    start[1:] = np.maximum(start[1:], reach[:-1])
    first = end > start
    place, step, start, end = _by_step(start[first], end[first], steps)
    length = alone.measure(start, end)
    return _Part(event[first][place], step, length, np.full(len(place), kind, np.int64))


def _idle(work: _Work, busy: Intervals, steps: Steps) -> _Part:
    """The time in which nothing runs, by the event that follows it."""
    gaps = Intervals.union(steps.start_ns, steps.end_ns) - busy
    place, step, start, end = _by_step(gaps.start, gaps.end, steps)
    order = np.argsort(work.start_ns, kind="stable")
    following = np.append(order, -1)[searchsorted(work.start_ns[order], gaps.end[place])]
    return _Part(following, step, end - start, np.full(len(place), ModuleTime.IDLE, np.int64))


def _by_step(start: Ints, end: Ints, steps: Steps) -> tuple[Ints, Ints, Ints, Ints]:
    """Stretches (ascending, apart) cut by the steps' windows: which stretch, its step, start and end."""
    first = searchsorted(steps.end_ns, start, side="right")
    parts = np.maximum(searchsorted(steps.start_ns, end) - first, 0)
    place = np.repeat(np.arange(len(start)), parts)
    step = first[place] + np.arange(len(place)) - np.repeat(np.cumsum(parts) - parts, parts)
    return place, step, np.maximum(start[place], steps.start_ns[step]), np.minimum(end[place], steps.end_ns[step])


def _table(
    calls: ModuleCalls, work: _Work, part: _Part, steps: Steps, allocations: Allocations, words: Vocabulary
) -> Modules:
    # What follows no event is of the root, outside of all phases.
    of = [np.append(work.module, ROOT), np.append(work.phase, Phase.OTHER), np.append(work.recomputed, False)]
    module, phase, again = (column[part.event] for column in of)
    kept, ancestor = _kept(calls.table.parents(), summed(module, part.length_ns, len(calls.table)))
    place_of = searchsorted(kept, ancestor)
    shape = (len(kept), len(Phase), 2, len(ModuleTime))
    key = np.ravel_multi_index((place_of[module], phase, again.astype(np.int64), part.kind), shape)
    rows, which = distinct(key, math.prod(shape))
    parts = TimeParts(part.event, which, part.step, part.length_ns, part.kind != ModuleTime.IDLE)
    times = _times(work, parts, np.unravel_index(rows, shape))
    paths = calls.table.kept(
        kept, total_by(place_of[module], part.step, part.length_ns, (len(kept), len(steps))), words
    )
    chosen = _slowest_and_median(steps)
    kernels, kernel_rows = module_kernels(work.names, parts, (len(times), len(steps)), chosen, words)
    row = _rows_of(rows, np.ravel_multi_index(_key(work, work.calls.event, place_of), shape))
    return Modules(
        named_by=calls.named_by,
        paths=paths,
        times=times,
        kernels=kernels,
        slowest_step=int(np.append(steps.number, -1)[chosen[0]]),
        median_step=int(np.append(steps.number, -1)[chosen[1]]),
        work=module_work(work.calls, kernel_rows.of(work.calls.event, row)),
        segments=module_segments(work.segment, parts, kernel_rows.of_part, kernels, len(times)),
        memory=module_memory(allocations, calls, place_of, len(kept)),
        gradients=module_gradients(calls, steps, place_of, len(kept)),
    )


def _slowest_and_median(steps: Steps) -> tuple[int, int]:
    """The longest and the median step (of an even number the shorter one), as indices; -1 for a single step."""
    length = steps.end_ns - steps.start_ns
    some = np.arange(len(length))
    if len(some) > 2 and length[0] > _ODD_FIRST * np.median(length[1:]):
        some = some[1:]
    if len(some) < 2:
        return -1, -1
    order = some[np.argsort(length[some], kind="stable")]
    return int(order[-1]), int(order[(len(order) - 1) // 2])


def _times(work: _Work, parts: TimeParts, columns: Sequence[Ints]) -> ModuleTimes:
    """The times of each row, given what the rows are: module, phase, again and kind."""
    module, phase, again, kind = (column.astype(np.int32) for column in columns)
    size, runs = len(module), parts.runs & (parts.length_ns > 0)
    event, length, row = parts.event[runs], parts.length_ns[runs].astype(np.float64), parts.row[runs]
    of_event = length / np.maximum(work.end_ns[event] - work.start_ns[event], 1)
    # Of a kernel that the window of a step cuts, each part has its share.
    beside, longer = np.bincount(row, work.beside[event] * length, size), work.longer_ns[event] * of_event
    return ModuleTimes(
        module=module,
        phase=phase,
        recomputed=again,
        kind=kind,
        total_ns=summed(parts.row, parts.length_ns, size),
        events=count(parts.row, runs, size),
        beside_ns=np.rint(beside).astype(np.int64),
        longer_ns=np.rint(np.bincount(row, longer, size)).astype(np.int64),
    )


def _rows_of(rows: Ints, key: Ints) -> Ints:
    """The row that has each key, of ascending keys of rows; -1 where none has."""
    row = searchsorted(rows, key)
    return np.where(np.append(rows, -1)[row] == key, row, -1)


def _key(work: _Work, event: Ints, place_of: Ints) -> tuple[Ints, ...]:
    """What the times that some events have are kept by: the module's place, the phase, again, and the kind."""
    again = work.recomputed[event].astype(np.int64)
    return place_of[work.module[event]], work.phase[event], again, work.kind[event]


def _kept(parents: Ints, own_ns: Ints) -> tuple[Ints, Ints]:
    """The modules to keep, ascending, and for each module the one that has its time: itself, or the next kept around.

    A module with all in it takes no less than each of its children and stands before them, so that the longest ones
    have their parents among them.
    """
    with_children, above = own_ns.tolist(), parents.tolist()
    for module in range(len(above) - 1, ROOT, -1):
        with_children[above[module]] += with_children[module]
    kept = np.sort(np.argsort(-np.array(with_children, np.int64), kind="stable")[:MOST_MODULES])
    chosen, ancestor = set(kept.tolist()), np.arange(len(above))
    for module in range(1, len(above)):
        if module not in chosen:
            ancestor[module] = ancestor[above[module]]
    return kept, ancestor
