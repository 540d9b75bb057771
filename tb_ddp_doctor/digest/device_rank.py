"""The digest of a rank with a device: from host calls and device events to all that the job needs of them."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest import owners
from tb_ddp_doctor.digest.allocator import Allocations
from tb_ddp_doctor.digest.attended import attended
from tb_ddp_doctor.digest.attention import attention, on_scores
from tb_ddp_doctor.digest.collectives import device_collectives
from tb_ddp_doctor.digest.compiled import compiled_work, prepares, tuned
from tb_ddp_doctor.digest.copies import copies
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.edges import Edges, busy_until_ns, edges
from tb_ddp_doctor.digest.flops import flops
from tb_ddp_doctor.digest.frames import code, kernel_files, launching_functions, of_stacks, stalled
from tb_ddp_doctor.digest.gap_ops import gap_ops
from tb_ddp_doctor.digest.gemms import gemms
from tb_ddp_doctor.digest.gradients import gradients
from tb_ddp_doctor.digest.graph_parts import GraphParts
from tb_ddp_doctor.digest.graph_walks import graph_walks
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.host_meetings import host_meetings
from tb_ddp_doctor.digest.host_updates import HostUpdates, host_updates
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.kernels import kernel_work, kernels
from tb_ddp_doctor.digest.late_launches import BlockingCalls, blocking_calls, late_launches, recording
from tb_ddp_doctor.digest.launch_queue import StalledCalls, host_stalls
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.lost_kernels import launched_earlier, lost_kernels
from tb_ddp_doctor.digest.memory import memory
from tb_ddp_doctor.digest.model import (
    LaunchDelay,
    Modules,
    PhaseWork,
    Pieces,
    RankDigest,
    Steps,
    StepWork,
    TraceContents,
    Track,
)
from tb_ddp_doctor.digest.module_paths import ModuleCalls
from tb_ddp_doctor.digest.module_segments import event_segments
from tb_ddp_doctor.digest.modules import device_modules
from tb_ddp_doctor.digest.op_stalls import HostStallTimes, op_stalls, stalls
from tb_ddp_doctor.digest.operators import operators
from tb_ddp_doctor.digest.optimizer import of_single_tensors, optimizer
from tb_ddp_doctor.digest.phases import HostPhases, device_phases, host_phases, launch_phases, stalled_phases
from tb_ddp_doctor.digest.point_to_point import message_ends, messages
from tb_ddp_doctor.digest.purposes import with_purposes
from tb_ddp_doctor.digest.rank_track import HostUse, rank_track
from tb_ddp_doctor.digest.recorded_steps import contents_and_rounds, contents_and_steps
from tb_ddp_doctor.digest.redundant import recomputed_events, redundant
from tb_ddp_doctor.digest.roofline import CallEvents, FixedEvents, roofline
from tb_ddp_doctor.digest.rounds import ROUND, SHARED_ROUND, RoundEnds, rounds_between
from tb_ddp_doctor.digest.serving import serving_work
from tb_ddp_doctor.digest.steps import UPDATE, device_windows, step_of
from tb_ddp_doctor.digest.sums import total
from tb_ddp_doctor.digest.trace_contents import MARKED, loader_kind
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.digest.waiting_work import idle_with_work
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import Program


class _DeviceRank(msgspec.Struct, frozen=True, eq=False):
    """What several parts of the digest are made from: what host and device do in the steps, made once."""

    #: A `Program`.
    program: str
    host: HostCalls
    #: Each with the step that it is of.
    device: DeviceEvents
    steps: Steps
    #: When something runs that may own the rank's time.
    layers: owners.Layers
    #: Each owner's time in each step, shape (S, len(RankOwner)), and the pieces of steps that are kept.
    owner_ns: Ints
    pieces: Pieces
    #: When the host is in which phase, and the phase that launched each event of the device, shape (events,).
    phases: HostPhases
    launch_phase: Ints
    #: When calls are stalled by a full launch queue or the profiler, and the calls that block the host.
    stalled_calls: StalledCalls
    blocking_calls: BlockingCalls
    #: When optimizers work on the CPU, and when the host is stalled inside an op.
    updates: HostUpdates
    op_stalls: HostStallTimes
    #: Which events of the device compute forward again, and which ones fixes remove or shorten.
    recomputes: Mask
    fixed: FixedEvents
    #: The user's own function that launched each event of the device (`launching_functions`).
    function: Ints
    #: The kernel of torch.compile's, with its file, that each is (`kernel_files`).
    kernel_file: Ints
    #: The calls of the model's modules, and which module each instant is of.
    modules: ModuleCalls
    #: Which parts of CUDA graphs the events of the device are of.
    graph_parts: GraphParts
    #: What the device's allocator did.
    allocations: Allocations

    @classmethod
    def of(cls, host: HostCalls, device: DeviceEvents, steps: Steps, device_number: int, program: str) -> _DeviceRank:
        layers = owners.device_layers(host, device, program)
        owner_ns, pieces = owners.cut(layers, steps)
        phases, parts = host_phases(host, device), GraphParts.of(device)
        stalled_calls = host_stalls(host, device, layers.device_busy)
        calls = blocking_calls(host, device, steps)
        updates = host_updates(host, device, steps, calls)
        return cls(
            program=program,
            host=host,
            device=device,
            steps=steps,
            layers=layers,
            owner_ns=owner_ns,
            pieces=pieces,
            phases=phases,
            launch_phase=parts.phases(launch_phases(device, phases)),
            stalled_calls=stalled_calls,
            blocking_calls=calls,
            updates=updates,
            op_stalls=stalls(host, layers, stalled_calls, updates.work),
            recomputes=recomputed_events(host, device),
            fixed=FixedEvents(on_scores(host, device), of_single_tensors(host, device), tuned(host, device)),
            function=launching_functions(host, device),
            kernel_file=kernel_files(host, device),
            modules=parts.calls(ModuleCalls.of(host, phases, steps)),
            graph_parts=parts,
            allocations=Allocations.of(host.trace, device_number, steps),
        )

    def use(self, once: Intervals) -> HostUse:
        """What the host's time goes to; `once` is when it does what later steps do without."""
        return HostUse(self.layers, self.stalled_calls, self.blocking_calls, self.updates, once)

    @property
    def removable(self) -> BlockingCalls:
        """The calls that block the host, without those that an update of parameters awaits."""
        return self.blocking_calls.chosen(~self.updates.awaited)

    @property
    def blocked(self) -> Intervals:
        """When the host is stalled inside an op, or a call is blocked by what is no work of its."""
        return self.op_stalls.intervals | self.stalled_calls.full_queue | self.stalled_calls.profiler

    def once(self) -> Intervals:
        """When the host does what later steps do without: it is stalled inside an op, or compiles."""
        layers, stalled = self.layers, self.stalled_calls
        compiling = prepares(self.host) - (layers.input | layers.sync | layers.alloc)
        return self.op_stalls.intervals | (compiling - stalled.full_queue - stalled.profiler - self.updates.work)


def digest_device(host: HostCalls, rows: DeviceRows, odd: Mask, ends: RoundEnds | None = None) -> RankDigest:
    """The digest of a rank whose device ran kernels; `odd` are events that were recorded out of order, shape (events,).

    Its steps are what the trace marks, or rounds that end at `ends`. Names are numbered in the order in which the parts
    ask for them.
    """
    trace, words, number = host.trace, Vocabulary(), rows.busiest
    listed = trace.header.listed(number)
    contents, marked, device, steps = _steps_on_device(host, DeviceEvents.of(host, number, rows), ends)
    rank = _DeviceRank.of(host, device, steps, number, contents.program)
    layers, phases, phase = rank.layers, rank.phases, rank.launch_phase
    once = rank.once()
    late_launch_ns, blocking = late_launches(
        host, device, steps, layers, rank.stalled_calls, rank.removable, once | rank.updates.work, rank.modules, words
    )
    collectives = device_collectives(host, device, phase, words)
    meetings = host_meetings(host, steps, words)
    track, track_row = rank_track(host, device, steps, rank.use(once), phases, meetings)
    parameters = gradients(host, device, steps, phase, words)
    return RankDigest(
        file=trace.file,
        header=trace.header,
        has_device=True,
        device=trace.header.devices.get(listed, ""),
        device_number=number,
        device_bytes=trace.header.device_bytes.get(listed, 0),
        has_launches=bool(device.is_launched.any()),
        earlier_kernels=launched_earlier(device),
        has_steps=contents.steps_from != "",
        pid=host.training_process(),
        loader=loader_kind(trace),
        lost_kernels=lost_kernels(host, device, odd, *marked),
        steps=steps,
        work=_step_work(rank, late_launch_ns),
        pieces=rank.pieces,
        collectives=with_purposes(host, device, collectives, phases, words),
        messages=messages(trace, steps),
        message_ends=message_ends(host, device, words),
        host_meetings=meetings,
        kernels=kernels(host, device, words),
        operators=operators(host, device, steps, words),
        blocking=blocking,
        stalled=stalled(host, rank.pieces, words),
        gap_ops=gap_ops(host, device, rank.pieces, words),
        code=code(host, device, rank.function, rank.kernel_file, words),
        op_stalls=op_stalls(host, device, steps, layers, rank.op_stalls, rank.modules, words),
        memory=memory(host, number, rank.allocations, steps, phases, collectives, words),
        track=track,
        roofline=(work := roofline(host, device, track, track_row, parameters, rank.fixed, phase, words))[0],
        gradients=parameters,
        modules=_modules(rank, work[1], track, track_row, words),
        contents=contents,
        warnings=(
            *trace.warnings,
            *_joining_warnings(device, number, rows),
            *idle_with_work(host, device, layers.device_busy),
        ),
        strings=words.strings(),
    )


def _modules(rank: _DeviceRank, calls: CallEvents, track: Track, track_row: Ints, words: Vocabulary) -> Modules:
    """The model's modules; `track_row` is the row of the track that launches each device event."""
    device = rank.device
    return device_modules(
        rank.modules,
        rank.graph_parts,
        device,
        rank.steps,
        rank.layers,
        rank.launch_phase,
        rank.recomputes,
        np.where(rank.kernel_file >= 0, rank.kernel_file, of_stacks(rank.host, rank.function)),
        calls,
        event_segments(track, track_row),
        rank.allocations,
        words,
    )


def _step_work(rank: _DeviceRank, late_launch_ns: Ints) -> StepWork:
    """What each step did; `late_launch_ns` has shape (S, len(LaunchDelay))."""
    host, device, steps = rank.host, rank.device, rank.steps
    tuned_ns = total(device.step, rank.fixed.tuned, device.length_ns, len(steps))
    phase_ns, exposed_ns = device_phases(device, steps, rank.launch_phase, rank.phases)
    return StepWork(
        owner_ns=rank.owner_ns,
        phases=PhaseWork(
            host_ns=rank.phases.measure(steps),
            device_ns=phase_ns,
            exposed_ns=exposed_ns,
            stalled_ns=stalled_phases(rank.phases, rank.pieces, steps),
        ),
        kernels=kernel_work(device, steps, rank.launch_phase),
        loader_ns=rank.layers.input.measure(steps.host_start_ns, steps.host_end_ns),
        copies=copies(device, steps, rank.layers, rank.blocking_calls.over(LaunchDelay.COPY)),
        gemms=gemms(device, steps),
        flops=flops(host, steps),
        optimizer=optimizer(host, device, steps, rank.layers, rank.blocked, rank.fixed.updates),
        attention=attention(host, device, steps, rank.fixed.scores),
        redundant=redundant(host, device, steps, rank.recomputes),
        recording_ns=recording(host, device, steps),
        graph_walks=graph_walks(host, steps),
        serving=serving_work(host, steps, rank.layers.device_busy, _attended(rank)),
        compiled=compiled_work(host, steps, rank.phases, tuned_ns),
        late_launch_ns=late_launch_ns,
    )


def _attended(rank: _DeviceRank) -> tuple[Ints, Ints]:
    """Which steps read prompts and which generate answers, by their kernels; zeros for what is no server."""
    size = len(rank.steps)
    if rank.program != Program.SERVING.value:
        return np.zeros(size, np.int64), np.zeros(size, np.int64)
    return attended(rank.host, rank.device, size)


def _steps_on_device(
    host: HostCalls, device: DeviceEvents, ends: RoundEnds | None
) -> tuple[TraceContents, tuple[Ints, Ints, Ints], DeviceEvents, Steps]:
    """What the trace records, its steps on the host, the device's events with the step that each is of, and the steps.

    Where neither a ProfilerStep nor a role marks the steps, what lies at the record's edges is of none.
    """
    if ends is None:
        contents, marked = contents_and_steps(host)
    else:
        begin_ns = int(host.trace.events.start_ns.min())
        contents, marked = contents_and_rounds(host, rounds_between(device, begin_ns, ends))
    if contents.steps_from == MARKED:
        # A recorder that starts while the launch queue is full lacks kernels for some steps of the device.
        record = replace(Edges.whole(), device_ns=busy_until_ns(device))
    else:
        record = Edges.whole() if contents.steps_from in (ROUND, SHARED_ROUND) else edges(host, device)
    if contents.steps_from == UPDATE:
        marked, record = record.whole_steps(marked), Edges.whole()
    marked = record.cut(marked)
    return contents, marked, *_cut(device, contents, marked, record)


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


def _joining_warnings(device: DeviceEvents, number: int, rows: DeviceRows) -> list[FileWarning]:
    warnings, named = [], sum(each >= 0 for each in rows.busy_ns)
    if named > 1:
        message = f"Kernels run on {named} devices; only device {number} is diagnosed."
        warnings.append(FileWarning(device.trace.file, message))
    if not device.is_launched.any():
        message = "No kernel can be joined to its launch; steps on the GPU are not known."
        warnings.append(FileWarning(device.trace.file, message))
    return warnings
