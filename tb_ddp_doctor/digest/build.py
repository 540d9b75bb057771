"""One RankTrace to one RankDigest."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.allocator import ON_CPU
from tb_ddp_doctor.digest.attention import attention, on_scores
from tb_ddp_doctor.digest.collectives import device_collectives, host_collectives
from tb_ddp_doctor.digest.compiled import compiled_work, prepares
from tb_ddp_doctor.digest.copies import copies
from tb_ddp_doctor.digest.device_clock import corrected
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.edges import Edges, edges
from tb_ddp_doctor.digest.flops import flops
from tb_ddp_doctor.digest.frames import code, stalled
from tb_ddp_doctor.digest.gap_ops import gap_ops
from tb_ddp_doctor.digest.gemms import gemms
from tb_ddp_doctor.digest.gradients import gradients, no_gradients
from tb_ddp_doctor.digest.graph_walks import graph_walks
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.host_meetings import host_meetings, no_host_meetings
from tb_ddp_doctor.digest.host_updates import host_updates
from tb_ddp_doctor.digest.kernels import kernel_work, kernels, operators_as_kernels
from tb_ddp_doctor.digest.late_launches import blocking_calls, late_launches, no_blocking, recording
from tb_ddp_doctor.digest.launch_queue import host_stalls
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.lost_collectives import with_lost_collectives
from tb_ddp_doctor.digest.lost_kernels import lost_kernels, without_device
from tb_ddp_doctor.digest.memory import memory
from tb_ddp_doctor.digest.model import (
    AttentionWork,
    Collectives,
    CopyWork,
    FlopWork,
    GemmWork,
    KernelWork,
    LaunchDelay,
    OptimizerWork,
    PhaseWork,
    RankDigest,
    RedundantWork,
    Steps,
    StepWork,
    TraceContents,
    zeros,
)
from tb_ddp_doctor.digest.modules import device_modules, host_modules
from tb_ddp_doctor.digest.op_stalls import no_op_stalls, op_stalls, stalls
from tb_ddp_doctor.digest.operators import operators
from tb_ddp_doctor.digest.optimizer import of_single_tensors, optimizer
from tb_ddp_doctor.digest.order import before_launch, broken_order, overlong
from tb_ddp_doctor.digest.phases import (
    device_phases,
    exposed_on_host,
    host_phases,
    launch_phases,
    stalled_phases,
)
from tb_ddp_doctor.digest.plausible import plausible, without_copies
from tb_ddp_doctor.digest.point_to_point import message_ends, messages, no_message_ends
from tb_ddp_doctor.digest.purposes import with_purposes
from tb_ddp_doctor.digest.rank_track import rank_track
from tb_ddp_doctor.digest.redundant import recomputed_events, redundant
from tb_ddp_doctor.digest.roofline import no_roofline, roofline
from tb_ddp_doctor.digest.serving import serving_work
from tb_ddp_doctor.digest.set_back import one_side
from tb_ddp_doctor.digest.steps import NO_STEP, UPDATE, device_windows, host_steps, repeated_steps, step_of, updates
from tb_ddp_doctor.digest.trace_contents import MARKED, trace_contents
from tb_ddp_doctor.digest.track import no_track
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.digest.waiting_work import idle_with_work
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.model import Events, Ints, RankTrace

#: Overruns are said from this share of the device's time on: kernels launched programmatically overlap by design.
_SAID_OVERRUN = 0.01
#: What says what a name means stands in its first letters, even of C++ templates; all names are searched many times.
_MOST_LETTERS = 1 << 14
#: Programs whose iterations are looked for where no step is marked: what repeats in them. Training repeats updates.
_ITERATES = ("serving", "diffusion", "inference", "benchmark")
#: Operators too long to be true that are left out; beyond that the record is damaged as a whole.
_MOST_OVERLONG = 3
#: Without a device.
_NO_DEVICE = -1


def digest(trace: RankTrace) -> RankDigest:
    """Reduce a trace to what the job needs of it. A trace without events gives a digest without steps."""
    read = without_copies(replace(trace, strings=tuple(text[:_MOST_LETTERS] for text in trace.strings)))
    rows = DeviceRows.of(read.events)
    side = one_side(read, rows)
    if side is not read:
        found = _digest(side, DeviceRows.of(side.events))
        return replace(found, contents=replace(found.contents, clock_set_back=True))
    return _digest(read, rows)


def _digest(read: RankTrace, rows: DeviceRows) -> RankDigest:
    trace = plausible(read, rows)
    if trace is not read:
        rows = DeviceRows.of(trace.events)
    if not len(rows.kernels):
        return _digest_host(_calls(trace))
    odd = broken_order(rows)
    right = trace if odd.any() else corrected(trace, rows)
    if right is not trace:
        rows = DeviceRows.of(right.events)
    clipped = _clip_overruns(right, rows)
    host = _calls(clipped)
    grown = with_lost_collectives(clipped, host, rows)
    if grown is not clipped:
        rows, host = DeviceRows.of(grown.events), _calls(grown)
        odd = np.append(odd, np.zeros(len(grown.events) - len(odd), np.bool_))
    return _digest_device(host, rows, odd | before_launch(rows))


def _calls(trace: RankTrace) -> HostCalls:
    """The calls of a trace but for single operators that last too long to be true."""
    host = HostCalls.of(trace)
    for _ in range(_MOST_OVERLONG):
        if (call := overlong(host)) < 0:
            break
        losses = Losses()
        losses.add(Loss.IMPOSSIBLE, 0, f"{host.texts(np.array([call]))[0]} ends behind what it begins within", 1)
        (warning,) = losses.warnings(trace.file)
        host = host.without(call, warning)
    return host


def _digest_device(host: HostCalls, rows: DeviceRows, odd: Mask) -> RankDigest:
    trace, words, number = host.trace, Vocabulary(), rows.busiest
    contents, marked = _steps(host)
    device = DeviceEvents.of(host, number, rows)
    record = Edges.whole() if contents.steps_from == MARKED else edges(host, device)
    if contents.steps_from == UPDATE:
        marked, record = record.whole_steps(marked), Edges.whole()
    marked = record.cut(marked)
    device, steps = _cut(device, contents, marked, record)
    layers = owners.device_layers(host, device)
    owner_ns, pieces = owners.cut(layers, steps)
    phases = host_phases(host, device)
    phase = launch_phases(device, phases)
    phase_ns, exposed_phase_ns = device_phases(device, steps, phase, phases)
    blocked = host_stalls(host, device, layers.device_busy)
    calls = blocking_calls(host, device, steps)
    updates = host_updates(host, device, steps, calls)
    stuck = stalls(host, layers, blocked, updates.work)
    # Once done, later steps need neither: host time of a kind of its own, as a stall inside an op is.
    compiling = prepares(host) - (layers.input | layers.sync | layers.alloc)
    once = stuck.intervals | (compiling - blocked.full_queue - blocked.profiler - updates.work)
    others = once | updates.work
    removable = calls.chosen(~updates.awaited)
    late_launch_ns, blocking = late_launches(host, device, steps, layers, blocked, removable, others, words)
    collectives = device_collectives(host, device, phase, words)
    meetings = host_meetings(host, steps, words)
    played, row_end_ns = rank_track(host, device, steps, layers, blocked, calls, updates, once, phases, meetings)
    parameters = gradients(host, device, steps, phase, words)
    recomputes = recomputed_events(host, device)
    scores, alone = on_scores(host, device), of_single_tensors(host, device)
    return RankDigest(
        file=trace.file,
        header=trace.header,
        has_device=True,
        device=trace.header.devices.get(number, ""),
        device_number=number,
        device_bytes=trace.header.device_bytes.get(number, 0),
        has_launches=bool(device.is_launched.any()),
        has_steps=contents.steps_from != "",
        pid=_pid(host),
        loader=_loader(trace),
        lost_kernels=lost_kernels(host, device, odd, *marked),
        steps=steps,
        work=StepWork(
            owner_ns=owner_ns,
            phases=PhaseWork(
                host_ns=phases.measure(steps),
                device_ns=phase_ns,
                exposed_ns=exposed_phase_ns,
                stalled_ns=stalled_phases(phases, pieces, steps),
            ),
            kernels=kernel_work(device, steps, phase),
            loader_ns=layers.input.measure(steps.host_start_ns, steps.host_end_ns),
            copies=copies(device, steps, layers, calls.over(LaunchDelay.COPY)),
            gemms=gemms(device, steps),
            flops=flops(host, steps),
            optimizer=optimizer(host, device, steps, alone),
            attention=attention(host, device, steps, scores),
            redundant=redundant(host, device, steps, recomputes),
            recording_ns=recording(host, device, steps),
            graph_walks=graph_walks(host, steps),
            serving=serving_work(trace, steps),
            compiled=compiled_work(host, steps),
            late_launch_ns=late_launch_ns,
        ),
        pieces=pieces,
        collectives=with_purposes(host, device, collectives, phases, words),
        messages=messages(trace, steps),
        message_ends=message_ends(host, device, words),
        host_meetings=meetings,
        kernels=kernels(host, device, words),
        operators=operators(host, device, steps, words),
        blocking=blocking,
        stalled=stalled(host, pieces, words),
        gap_ops=gap_ops(host, device, pieces, words),
        code=code(host, device, words),
        op_stalls=op_stalls(host, device, steps, layers, stuck, words),
        memory=memory(host, number, steps, phases, collectives, words),
        track=played,
        roofline=roofline(host, device, row_end_ns, parameters, scores, alone, phase, words),
        gradients=parameters,
        modules=device_modules(host, device, steps, layers, phases, phase, recomputes, words),
        contents=contents,
        warnings=(
            *trace.warnings,
            *_joining_warnings(device, number, rows),
            *idle_with_work(host, device, layers.device_busy),
        ),
        strings=words.strings(),
    )


def _digest_host(host: HostCalls) -> RankDigest:
    trace, words = host.trace, Vocabulary()
    contents, (number, start, end) = _steps(host)
    keep = (end > start) & (number != NO_STEP)
    steps = Steps(number[keep], start[keep], end[keep], start[keep], end[keep])
    device = DeviceEvents.of(host, _NO_DEVICE, DeviceRows.none(trace.events))
    calls = owners.host_operators(host)
    layers = owners.host_layers(host, calls)
    owner_ns, pieces = owners.cut(layers, steps)
    phases = host_phases(host, device)
    phase_ns = phases.measure(steps)
    collectives = host_collectives(host, steps, end.max(initial=0), words)
    return RankDigest(
        file=trace.file,
        header=trace.header,
        has_device=False,
        device="",
        device_number=-1,
        device_bytes=0,
        has_launches=False,
        has_steps=contents.steps_from != "",
        pid=_pid(host),
        loader=_loader(trace),
        lost_kernels=without_device(number[number != NO_STEP]),
        steps=steps,
        work=StepWork(
            owner_ns=owner_ns,
            phases=PhaseWork(
                host_ns=phase_ns,
                device_ns=phase_ns,
                exposed_ns=exposed_on_host(phases, pieces, steps),
                stalled_ns=stalled_phases(phases, pieces, steps),
            ),
            kernels=zeros(KernelWork, len(steps)),
            loader_ns=layers.input.measure(steps.start_ns, steps.end_ns),
            copies=zeros(CopyWork, len(steps)),
            gemms=zeros(GemmWork, len(steps)),
            flops=zeros(FlopWork, len(steps)),
            optimizer=zeros(OptimizerWork, len(steps)),
            attention=zeros(AttentionWork, len(steps)),
            redundant=zeros(RedundantWork, len(steps)),
            recording_ns=recording(host, device, steps),
            graph_walks=graph_walks(host, steps),
            serving=serving_work(trace, steps),
            compiled=compiled_work(host, steps),
            late_launch_ns=np.zeros((len(steps), len(LaunchDelay)), np.int64),
        ),
        pieces=pieces,
        collectives=collectives,
        messages=messages(trace, steps),
        message_ends=no_message_ends(),
        host_meetings=no_host_meetings(),
        kernels=operators_as_kernels(host, calls.computing, steps, words),
        operators=operators(host, device, steps, words),
        blocking=no_blocking(),
        stalled=stalled(host, pieces, words),
        gap_ops=gap_ops(host, device, pieces, words),
        code=code(host, device, words),
        op_stalls=no_op_stalls(),
        memory=memory(host, ON_CPU, steps, phases, collectives, words),
        track=no_track(),
        roofline=no_roofline(),
        gradients=no_gradients(),
        modules=host_modules(host, steps, layers, calls, phases, words),
        contents=contents,
        warnings=(*trace.warnings, *_group_warnings(trace, collectives)),
        strings=words.strings(),
    )


def _cut(
    device: DeviceEvents, contents: TraceContents, marked: tuple[Ints, Ints, Ints], record: Edges
) -> tuple[DeviceEvents, Steps]:
    """The device's events with the step that each is of, and the steps."""
    number, host_start, host_end = marked
    launched = np.where(device.is_launched, device.launch_ns, host_start[0] - 1)
    step = np.where(launched < host_end[-1], step_of(launched, host_start), -1)
    if not contents.steps_from and not (step >= 0).any():
        step = np.zeros(len(device), np.int64)
    steps, index = device_windows(number, host_start, host_end, device.end_ns, step, device.stream, record.device_ns)
    return replace(device, step=np.where(step >= 0, index[step], -1)), steps


def _steps(host: HostCalls) -> tuple[TraceContents, tuple[Ints, Ints, Ints]]:
    """What the trace records, and its steps on the host: number, start and end."""
    marked = host_steps(host)
    if len(marked[0]):
        return trace_contents(host, MARKED), marked
    contents, events = trace_contents(host, ""), host.trace.events
    if contents.program in _ITERATES and (repeated := repeated_steps(host.trace)):
        return replace(contents, steps_from=repeated[0]), repeated[1]
    if updated := updates(host):
        return replace(contents, steps_from=UPDATE), updated
    return contents, _whole_trace(events) if len(events) else marked


def _whole_trace(events: Events) -> tuple[Ints, Ints, Ints]:
    """A trace without ProfilerSteps is one step, number 0."""
    end = events.start_ns + events.duration_ns
    return np.zeros(1, np.int64), events.start_ns.min(keepdims=True), end.max(keepdims=True) + 1


def _clip_overruns(trace: RankTrace, rows: DeviceRows) -> RankTrace:
    """End a kernel where the next one of its stream starts: ROCm's durations can overrun it."""
    events, (this, following) = trace.events, rows.neighbours
    gap, length = events.start_ns[following] - events.start_ns[this], events.duration_ns[this]
    over = (gap > 0) & (length > gap)
    if not over.any():
        return trace
    duration = events.duration_ns.copy()
    duration[this[over]] = gap[over]
    excess = int((length - gap)[over].sum())
    warnings = trace.warnings
    if excess > _SAID_OVERRUN * int(duration[rows.row[events.stream[rows.row] >= 0]].sum()):
        message = (
            f"{int(over.sum())} device events overran the next one of their stream, by "
            f"{wording.decimals(excess / 1e6, 1)} ms in all; they were cut there."
        )
        warnings = (*warnings, FileWarning(trace.file, message))
    return replace(trace, events=replace(events, duration_ns=duration), warnings=warnings)


def _pid(host: HostCalls) -> str:
    training = host.trains.argmax() if host.trains.any() else -1
    return host.trace.threads[host.thread[training]][0] if training >= 0 else ""


def _loader(trace: RankTrace) -> str:
    kinds = {kind for text in trace.strings if (kind := names.loader(text)) is not None}
    return min(kinds).name.lower() if kinds else ""


def _group_warnings(trace: RankTrace, collectives: Collectives) -> list[FileWarning]:
    """Gloo's events do not name their process group, so with several groups a match is a guess."""
    groups = sum(len(ranks) > 1 for ranks in trace.header.groups.values())
    unnamed = int((collectives.group_size < 0).sum())
    if groups < 2 or not unnamed:
        return []
    return [
        FileWarning(
            trace.file,
            f"This rank is in {groups} process groups, and {unnamed} collectives do not name theirs: some may be "
            "matched with ranks outside their group.",
        )
    ]


def _joining_warnings(device: DeviceEvents, number: int, rows: DeviceRows) -> list[FileWarning]:
    warnings, named = [], sum(each >= 0 for each in rows.busy_ns)
    if named > 1:
        message = f"Kernels run on {named} devices; only device {number} is diagnosed."
        warnings.append(FileWarning(device.trace.file, message))
    if not device.is_launched.any():
        message = "No kernel can be joined to its launch; steps on the GPU are not known."
        warnings.append(FileWarning(device.trace.file, message))
    return warnings
