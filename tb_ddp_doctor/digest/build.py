"""One RankTrace to one RankDigest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest import collectives, owners, track
from tb_ddp_doctor.digest.attention import attention
from tb_ddp_doctor.digest.flops import flops
from tb_ddp_doctor.digest.frames import code, stalled
from tb_ddp_doctor.digest.gemms import gemms, slow_inputs
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.launches import enclosing, launch_rows
from tb_ddp_doctor.digest.lost_kernels import lost_kernels, without_device
from tb_ddp_doctor.digest.memory import memory as memory_of
from tb_ddp_doctor.digest.memory import no_memory
from tb_ddp_doctor.digest.model import (
    AttentionWork,
    Collectives,
    CopyWork,
    FlopWork,
    GemmWork,
    GraphWalkWork,
    Kernels,
    KernelWork,
    OptimizerWork,
    PhaseWork,
    RankDigest,
    Starved,
    Steps,
    StepWork,
    TraceContents,
    Track,
    zeros,
)
from tb_ddp_doctor.digest.op_stalls import no_op_stalls, op_stalls, stalls
from tb_ddp_doctor.digest.operators import operators
from tb_ddp_doctor.digest.optimizer import optimizer
from tb_ddp_doctor.digest.phases import (
    device_phases,
    exposed_on_host,
    host_phases,
    launch_phases,
    stalled_phases,
)
from tb_ddp_doctor.digest.plausible import plausible
from tb_ddp_doctor.digest.point_to_point import messages
from tb_ddp_doctor.digest.purposes import with_purposes
from tb_ddp_doctor.digest.starvation import host_time, no_blocking, recorded, recording_ns, starvation
from tb_ddp_doctor.digest.steps import NO_STEP, device_windows, host_steps, repeated_steps, step_of
from tb_ddp_doctor.digest.sums import count, longest, total
from tb_ddp_doctor.digest.trace_contents import trace_contents
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Events, Ints, RankTrace

#: Overruns are said from this share of the device's time on: kernels launched programmatically overlap by design.
_SAID_OVERRUN = 0.01
#: What says what a name means stands in its first letters, even of C++ templates; all names are searched many times.
_MOST_LETTERS = 1 << 14
#: Programs whose iterations are looked for where no step is marked. Of training, all ranks must agree on the number.
_ITERATES = ("serving", "diffusion", "inference")
_DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


def digest(trace: RankTrace) -> RankDigest:
    """Reduce a trace to what the job needs of it. A trace without events gives a digest without steps."""
    trace = plausible(replace(trace, strings=tuple(text[:_MOST_LETTERS] for text in trace.strings)))
    device = _device(trace.events)
    return _digest_host(trace) if device < 0 else _digest_device(_clip_overruns(trace), device)


def _device(events: Events) -> int:
    """The device whose kernels run longest; -1 without kernels."""
    kernels = np.flatnonzero(events.category == Category.KERNEL)
    if not len(kernels):
        return -1
    devices, which = np.unique(events.device[kernels], return_inverse=True)
    busy = np.bincount(which, weights=events.duration_ns[kernels])
    # -1 stands for kernels that name no device; they still make it a trace of a device.
    return max(int(devices[busy.argmax()]), 0)


def _clip_overruns(trace: RankTrace) -> RankTrace:
    """End a kernel where the next one of its stream starts: ROCm's durations can overrun it."""
    events = trace.events
    rows = np.flatnonzero(np.isin(events.category, _DEVICE_CATEGORIES) & (events.stream >= 0))
    rows = rows[np.lexsort((events.start_ns[rows], events.stream[rows], events.device[rows]))]
    if len(rows) < 2:
        return trace
    this, following = rows[:-1], rows[1:]
    same = (events.stream[this] == events.stream[following]) & (events.device[this] == events.device[following])
    gap = events.start_ns[following] - events.start_ns[this]
    over = same & (gap > 0) & (events.duration_ns[this] > gap)
    if not over.any():
        return trace
    duration = events.duration_ns.copy()
    duration[this[over]] = gap[over]
    excess = int((events.duration_ns - duration).sum())
    warnings = trace.warnings
    if excess > _SAID_OVERRUN * int(duration[rows].sum()):
        message = (
            f"{int(over.sum())} device events overran the next one of their stream, by {excess / 1e6:.1f} ms in all; "
            "they were cut there."
        )
        warnings = (*warnings, FileWarning(trace.file, message))
    return replace(trace, events=replace(events, duration_ns=duration), warnings=warnings)


def _digest_device(trace: RankTrace, device: int) -> RankDigest:
    events = trace.events
    on_device = np.isin(events.category, _DEVICE_CATEGORIES) & ((events.device == device) | (events.device < 0))
    rows = np.flatnonzero(on_device)
    launch = launch_rows(events, rows)
    end = events.start_ns[rows] + events.duration_ns[rows]

    contents, (number, host_start, host_end) = _steps(trace)
    has_steps = contents.steps_from != ""
    launch_time = np.where(launch >= 0, events.start_ns[launch], host_start[0] - 1)
    step = np.where(launch_time < host_end[-1], step_of(launch_time, host_start), -1)
    if not has_steps and not (step >= 0).any():
        step = np.zeros(len(rows), np.int64)
    steps, index = device_windows(number, host_start, host_end, end, step)
    step = np.where(step >= 0, index[step], -1)

    words = collectives.Vocabulary()
    is_comm = owners.named(trace, names.is_communication_kernel)[rows] & (events.category[rows] == Category.KERNEL)
    memory = np.array([names.host_memory(text) for text in trace.strings], np.int8)[events.name[rows]]
    is_copy = events.category[rows] == Category.MEMCPY
    pageable = is_copy & (memory == names.HostMemory.PAGEABLE)
    pinned = is_copy & (memory == names.HostMemory.PINNED)
    layers = owners.device_layers(trace, on_device, launch[pageable & (launch >= 0)])
    owner_ns, pieces = owners.cut(layers, steps)
    compute = (events.category[rows] == Category.KERNEL) & ~is_comm
    to_device = is_copy & owners.named(trace, names.is_to_device)[rows] & (launch >= 0)
    host = host_phases(trace, launch[to_device])
    by_backward = launch_phases(events, launch, host) == names.Phase.BACKWARD
    phase_ns, exposed_phase_ns = device_phases(events, steps, rows, launch, is_comm, host)

    stuck = stalls(trace, layers, rows, launch)
    starved, blocking = starvation(trace, layers, stuck.intervals, steps, rows, launch, words)

    size = len(steps)
    copy_alone = layers.copy - layers.compute
    work = StepWork(
        owner_ns=owner_ns,
        phases=PhaseWork(
            host_ns=host.measure(steps),
            device_ns=phase_ns,
            exposed_ns=exposed_phase_ns,
            stalled_ns=stalled_phases(host, pieces, steps),
        ),
        kernels=KernelWork(
            kernels=count(step, compute, size),
            kernel_ns=total(step, compute, events.duration_ns[rows], size),
            backward_compute_ns=total(step, compute & by_backward, events.duration_ns[rows], size),
        ),
        loader_ns=layers.input.measure(steps.host_start_ns, steps.host_end_ns),
        copies=CopyWork(
            pageable_copies=count(step, pageable, size),
            pageable_bytes=total(step, pageable, np.maximum(events.bytes[rows], 0), size),
            pageable_ns=total(step, pageable, events.duration_ns[rows], size),
            pageable_exposed_ns=total(step, pageable, copy_alone.measure(events.start_ns[rows], end), size),
            pageable_blocked_ns=total(step, pageable & (launch >= 0), events.duration_ns[launch], size),
            unnamed_copies=count(step, is_copy & (memory == names.HostMemory.UNNAMED), size),
            pinned_bytes=total(step, pinned, np.maximum(events.bytes[rows], 0), size),
            pinned_ns=total(step, pinned, events.duration_ns[rows], size),
            pinned_exposed_ns=total(step, pinned, copy_alone.measure(events.start_ns[rows], end), size),
        ),
        recording_ns=_recording(trace, steps, launch),
        graph_walks=_graph_walks(trace, steps),
        starved_ns=starved,
        flops=flops(trace, steps),
        gemms=gemms(trace, rows[compute], step[compute], size),
        optimizer=optimizer(trace, rows[compute], launch[compute], step[compute], steps),
        attention=attention(trace, rows[compute], launch[compute], step[compute], steps),
    )
    by = _launched_by(trace, launch, step, by_backward, is_comm, compute)
    found = collectives.device_collectives(trace, rows[is_comm], launch[is_comm], by, words)
    found = with_purposes(trace, found, rows[is_comm], launch[is_comm], host, words)
    counted = compute & (step >= 0)
    kernels = _kernels(trace, rows[counted], launch[counted], words)
    spent = operators(trace, steps, rows[step >= 0], launch[step >= 0], words)
    idle = stalled(trace, pieces, words)
    own_code = code(trace, rows, launch, is_comm, words)
    told = [host.of(phase) for phase in names.Phase if phase is not names.Phase.OTHER]
    tracked = _track(
        trace, layers, stuck.intervals, steps, rows, launch, is_comm, launch[pageable & (launch >= 0)], told
    )
    return RankDigest(
        file=trace.file,
        header=trace.header,
        strings=words.strings(),
        has_device=True,
        device=trace.header.devices.get(device, ""),
        device_bytes=trace.header.device_bytes.get(device, 0),
        has_launches=bool((launch >= 0).any()),
        has_steps=has_steps,
        pid=_pid(trace),
        loader=_loader(trace),
        lost_kernels=lost_kernels(trace, number, host_start, host_end, rows),
        steps=steps,
        work=work,
        pieces=pieces,
        collectives=found,
        messages=messages(trace, steps),
        kernels=kernels,
        operators=spent,
        blocking=blocking,
        stalled=idle,
        op_stalls=op_stalls(trace, layers, steps, stuck, rows, launch, words),
        code=own_code,
        memory=memory_of(trace, device, steps),
        track=tracked,
        contents=contents,
        warnings=(*trace.warnings, *_joining_warnings(trace, device, launch)),
    )


def _digest_host(trace: RankTrace) -> RankDigest:
    events = trace.events
    contents, (number, start, end) = _steps(trace)
    has_steps = contents.steps_from != ""
    keep = (end > start) & (number != NO_STEP)
    steps = Steps(number[keep], start[keep], end[keep], start[keep], end[keep])
    computing = owners.host_operators(trace)
    layers = owners.host_layers(trace, computing)
    owner_ns, pieces = owners.cut(layers, steps)
    host = host_phases(trace, np.empty(0, np.int64))
    phase_ns = host.measure(steps)
    rows = collectives.host_collective_rows(trace)
    words = collectives.Vocabulary()
    started = events.start_ns[rows]
    step = np.where(started < end.max(initial=0), step_of(started, steps.start_ns), -1)
    found = collectives.host_collectives(trace, step, rows, words)
    kernels = _operators(trace, _in_steps(trace, computing.computing, steps), words)
    spent = operators(trace, steps, np.empty(0, np.int64), np.empty(0, np.int64), words)
    idle = stalled(trace, pieces, words)
    no_events = np.empty(0, np.int64)
    own_code = code(trace, no_events, no_events, np.empty(0, np.bool_), words)
    return RankDigest(
        file=trace.file,
        header=trace.header,
        strings=words.strings(),
        has_device=False,
        device="",
        device_bytes=0,
        has_launches=False,
        has_steps=has_steps,
        pid=_pid(trace),
        loader=_loader(trace),
        lost_kernels=without_device(number[number != NO_STEP]),
        steps=steps,
        work=StepWork(
            owner_ns=owner_ns,
            phases=PhaseWork(
                host_ns=phase_ns,
                device_ns=phase_ns,
                exposed_ns=exposed_on_host(host, pieces, steps),
                stalled_ns=stalled_phases(host, pieces, steps),
            ),
            kernels=zeros(KernelWork, len(steps)),
            loader_ns=layers.input.measure(steps.start_ns, steps.end_ns),
            copies=zeros(CopyWork, len(steps)),
            gemms=zeros(GemmWork, len(steps)),
            flops=zeros(FlopWork, len(steps)),
            optimizer=zeros(OptimizerWork, len(steps)),
            attention=zeros(AttentionWork, len(steps)),
            recording_ns=_recording(trace, steps, np.empty(0, np.int64)),
            graph_walks=_graph_walks(trace, steps),
            starved_ns=np.zeros((len(steps), len(Starved)), np.int64),
        ),
        pieces=pieces,
        collectives=found,
        messages=messages(trace, steps),
        kernels=kernels,
        operators=spent,
        blocking=no_blocking(),
        stalled=idle,
        op_stalls=no_op_stalls(),
        code=own_code,
        memory=no_memory(len(steps)),
        track=track.no_track(),
        contents=contents,
        warnings=(*trace.warnings, *_group_warnings(trace, found)),
    )


def _track(
    trace: RankTrace,
    layers: owners.Layers,
    op_stalled: Intervals,
    steps: Steps,
    rows: Ints,
    launch: Ints,
    is_comm: NDArray[np.bool_],
    blocking: Ints,
    phases: list[Intervals],
) -> Track:
    """The rank's track; none where the trace does not show what the host does when it launches."""
    events = trace.events
    known = launch >= 0
    if not len(steps) or not _launched_by_operators(trace, launch[known & ~is_comm]):
        return track.no_track()
    # A call that a step ends with is of that step.
    within = step_of(events.start_ns[launch], steps.host_start_ns)
    until = np.append(steps.host_start_ns[1:], steps.host_end_ns[-1])[within]
    ended = events.start_ns[launch] + events.duration_ns[launch]
    ended = np.where(events.start_ns[launch] < until, np.minimum(ended, until - 1), ended)
    launched = np.where(known, ended, -1)
    launched = np.where(np.isin(launch, blocking), events.start_ns[launch], launched)
    start = events.start_ns[rows]
    end = start + events.duration_ns[rows]
    order = np.argsort(start, kind="stable")
    work, comm = order[~is_comm[order]], order[is_comm[order]]
    return track.track(
        steps,
        track.Device(start[work], end[work], launched[work]),
        track.Communication(start[comm], end[comm], launched[comm], events.stream[rows[comm]].astype(np.int64)),
        host_time(trace, layers, op_stalled, steps, rows, launch),
        phases,
    )


def _launched_by_operators(trace: RankTrace, launch: Ints) -> bool:
    """Whether most launches lie within operators: without them the host seems to do nothing."""
    events = trace.events
    operators = np.flatnonzero(events.category == Category.OP)
    within = enclosing(
        events.start_ns[operators],
        events.start_ns[operators] + events.duration_ns[operators],
        events.thread[operators],
        events.start_ns[launch],
        events.thread[launch],
    )
    return 2 * int((within >= 0).sum()) > len(launch)


def _steps(trace: RankTrace) -> tuple[TraceContents, tuple[Ints, Ints, Ints]]:
    """What the trace records, and its steps on the host: number, start and end."""
    marked = host_steps(trace)
    if len(marked[0]):
        return trace_contents(trace, "ProfilerStep"), marked
    found = trace_contents(trace, "")
    if found.program in _ITERATES and (repeated := repeated_steps(trace)):
        return replace(found, steps_from=repeated[0]), repeated[1]
    return found, _whole_trace(trace.events) if len(trace.events) else marked


def _whole_trace(events: Events) -> tuple[Ints, Ints, Ints]:
    """A trace without ProfilerSteps is one step, number 0."""
    end = events.start_ns + events.duration_ns
    return np.zeros(1, np.int64), events.start_ns.min(keepdims=True), end.max(keepdims=True) + 1


def _launched_by(
    trace: RankTrace,
    launch: Ints,
    step: Ints,
    by_backward: NDArray[np.bool_],
    is_communication: NDArray[np.bool_],
    compute: NDArray[np.bool_],
) -> collectives.Launched:
    """What launched the collectives among the device's events, given the launch and step of each.

    A backward pass is a run of kernels in the order of their launches that backward launched.
    """
    events = trace.events
    known = np.flatnonzero(compute & (launch >= 0))
    known = known[np.argsort(events.start_ns[launch[known]], kind="stable")]
    inside = by_backward[known]
    passes = events.start_ns[launch[known]][inside & ~np.concatenate(([False], inside[:-1]))]
    updates = (events.category == Category.ANNOTATION) & owners.named(trace, names.is_optimizer_step)
    begun = np.sort(events.start_ns[updates])
    by = launch[is_communication]
    instant = events.start_ns[by]
    backward = np.searchsorted(passes, instant, side="right") - 1
    update = np.searchsorted(begun, instant, side="right") if len(begun) else np.full(len(by), -1)
    return collectives.Launched(
        step=step[is_communication],
        backward=np.where(by_backward[is_communication], backward, -1),
        update=np.where(by >= 0, update, -1),
    )


def _recording(trace: RankTrace, steps: Steps, launch: Ints) -> Ints:
    start = recorded(trace)
    events = np.searchsorted(start, steps.host_end_ns) - np.searchsorted(start, steps.host_start_ns)
    return events * recording_ns(trace, launch)


def _graph_walks(trace: RankTrace, steps: Steps) -> GraphWalkWork:
    """DDP's walks of the graph, by the step in whose host window each starts."""
    events = trace.events
    rows = np.flatnonzero((events.category == Category.OP) & owners.named(trace, names.is_graph_walk))
    step = np.searchsorted(steps.host_start_ns, events.start_ns[rows], side="right") - 1
    if len(steps):
        step = np.where(events.start_ns[rows] < steps.host_end_ns[step], step, -1)
    every, size = np.ones(len(rows), np.bool_), len(steps)
    return GraphWalkWork(
        graph_walks=count(step, every, size),
        graph_walk_ns=total(step, every, events.duration_ns[rows], size),
    )


def _pid(trace: RankTrace) -> str:
    training = np.unique(trace.events.thread[owners.training_threads(trace)])
    return trace.threads[training[0]][0] if len(training) else ""


def _loader(trace: RankTrace) -> str:
    kinds = {kind for text in trace.strings if (kind := names.loader(text)) is not None}
    return min(kinds).name.lower() if kinds else ""


def _kernels(trace: RankTrace, rows: Ints, launch: Ints, words: collectives.Vocabulary) -> Kernels:
    events = trace.events
    width = len(trace.strings) + 1
    key = events.name[rows].astype(np.int64) * width + events.shape[rows] + 1
    kinds, which = np.unique(key, return_inverse=True)
    # Of several of one kind the last one stays: the longest.
    ascending = np.argsort(events.duration_ns[rows], kind="stable")
    at = np.zeros(len(kinds), np.int64)
    at[which[ascending]] = ascending
    return Kernels(
        name=np.array([words.index(trace.strings[i]) for i in kinds // width], np.int32),
        shape=np.array([words.index(trace.strings[i - 1] if i else "") for i in kinds % width], np.int32),
        inputs=np.array([words.index(text) for text in slow_inputs(trace, rows[at], launch[at])], np.int32),
        **_measures(events, rows, which, len(kinds)),
    )


def _measures(events: Events, rows: Ints, which: Ints, size: int) -> dict[str, Ints]:
    """The columns of `Kernels` that tell how long they run, given the kind of each row."""
    every, length = np.ones(len(rows), np.bool_), events.duration_ns[rows]
    estimated = events.occupancy[rows] > 0
    occupied = length // 100 * np.minimum(events.occupancy[rows].astype(np.int64), 100)
    longest_start, longest_end = longest(which, every, events.start_ns[rows], length, size)
    return {
        "count": count(which, every, size),
        "total_ns": total(which, every, length, size),
        "estimated_ns": total(which, estimated, length, size),
        "occupied_ns": total(which, estimated, occupied, size),
        "longest_start_ns": longest_start,
        "longest_end_ns": longest_end,
    }


def _in_steps(trace: RankTrace, chosen: NDArray[np.bool_], steps: Steps) -> Ints:
    """Rows of the chosen events that start within a step."""
    if not len(steps):
        return np.empty(0, np.int64)
    start = trace.events.start_ns
    return np.flatnonzero(chosen & (start >= steps.start_ns[0]) & (start < steps.end_ns[-1]))


def _operators(trace: RankTrace, rows: Ints, words: collectives.Vocabulary) -> Kernels:
    """The CPU's operators as kernels, whose grid is the number of elements that they are given.

    Without shapes nothing tells more work from slower work, so operators without them are left out.
    """
    events = trace.events
    shapes, which = np.unique(events.shape[rows], return_inverse=True)
    sizes = np.array([collectives.count_elements(trace.strings[i]) if i >= 0 else -1 for i in shapes], np.int64)
    known = sizes[which] > 0
    rows, elements = rows[known], sizes[which][known]
    width = len(trace.strings)
    distinct, size = np.unique(elements, return_inverse=True)
    kinds, which = np.unique(size * width + events.name[rows], return_inverse=True)
    return Kernels(
        name=np.array([words.index(trace.strings[i]) for i in kinds % width], np.int32),
        shape=np.array([words.index(f"[{distinct[i]}]") for i in kinds // width], np.int32),
        inputs=np.full(len(kinds), words.index(""), np.int32),
        **_measures(events, rows, which, len(kinds)),
    )


def _group_warnings(trace: RankTrace, found: Collectives) -> list[FileWarning]:
    """Gloo's events do not name their process group, so with several groups a match is a guess."""
    groups = sum(len(ranks) > 1 for ranks in trace.header.groups.values())
    unnamed = int((found.group_size < 0).sum())
    if groups < 2 or not unnamed:
        return []
    return [
        FileWarning(
            trace.file,
            f"This rank is in {groups} process groups, and {unnamed} collectives do not name theirs: some may be "
            "matched with ranks outside their group.",
        )
    ]


def _joining_warnings(trace: RankTrace, device: int, launch: Ints) -> list[FileWarning]:
    warnings = []
    kernels = trace.events.category == Category.KERNEL
    others = np.unique(trace.events.device[kernels & (trace.events.device >= 0)])
    if len(others) > 1:
        warnings.append(
            FileWarning(trace.file, f"Kernels run on {len(others)} devices; only device {device} is diagnosed.")
        )
    if not (launch >= 0).any():
        warnings.append(
            FileWarning(trace.file, "No kernel can be joined to its launch; steps on the GPU are not known.")
        )
    return warnings
