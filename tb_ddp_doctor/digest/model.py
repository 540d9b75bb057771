"""What is kept of one rank: small, and enough for every later stage. No raw events leave the per-rank stages.

S = steps, C = collectives, P = pieces, K = kinds of kernel. Times are on the rank's own clock, int64 ns.
Missing is -1, as in the trace's columns; text columns index `RankDigest.strings`. `Annotated[..., Owner]` names the
enumeration that a column holds, or whose members are its second axis; the stored format follows from all of it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.trace.model import Header, Indices, Ints
from tb_ddp_doctor.trace.names import Phase

T = TypeVar("T", bound=msgspec.Struct)

#: What the values of a digest mean, beside its layout: it rises when code that reads or digests traces gives the same
#: trace other values. Digest files of another number are refused. `tests/test_golden.py` fails where it has to rise.
MEANING = 3


class RankOwner(IntEnum):
    """Owners that one rank can tell alone, in order of precedence: only the job can split communication."""

    COMPUTE = 0
    COPY = 1
    #: Communication runs and nothing beside it: wait or transfer.
    COMMUNICATION = 2
    INPUT = 3
    SYNC = 4
    ALLOC = 5
    DISPATCH = 6
    HOST = 7


class Starved(IntEnum):
    """What keeps the device waiting for launches, in the order in which it is charged (see `starvation`)."""

    #: cudaMalloc, cudaFree and their kin.
    ALLOC = 0
    #: Copies to the device from pageable memory, which hold the host.
    COPY = 1
    #: Every other call that waits for the device.
    SYNC = 2
    #: The profiler's own stalls; not those of a full launch queue (see `launch_queue`).
    OVERHEAD = 3
    #: Recording host events, by an estimate.
    RECORDING = 4
    #: The launches themselves: the host is slower than the device.
    LAUNCHES = 5


class Steps(msgspec.Struct, frozen=True, eq=False):
    """The steps whose window is whole, in order of time."""

    #: N of ProfilerStep#N; 0 for a trace without steps.
    number: Ints
    #: Device window: from the end of the last device event of the step before to the end of this one's last.
    start_ns: Ints
    end_ns: Ints
    #: Host window: from this ProfilerStep's start to the next one's.
    host_start_ns: Ints
    host_end_ns: Ints

    def __len__(self) -> int:
        return len(self.number)


class LostKernels(msgspec.Struct, frozen=True, eq=False):
    """Launches, and what the trace lacks or has at the wrong time, of all steps that the host shows, in order of time;
    shape (N,).
    """

    #: As `Steps.number`.
    number: Ints
    #: Calls that launch a kernel, and those whose kernel the trace lacks.
    launches: Ints
    lost: Ints
    #: The same of communication alone, where the host's events tell it.
    communications: Ints
    lost_communications: Ints
    #: Kernels whose launch the trace lacks although they follow, on their stream, one that the step launched.
    unlaunched: Ints
    #: Operators, annotations and runtime calls of the threads that train.
    calls: Ints
    #: Device events that run before their launch, or before or beside one launched earlier on their stream.
    out_of_order: Ints
    #: Calls that are out of turn on their thread: by their number, or since they overlap another without nesting.
    out_of_turn: Ints


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """Stretches of a step with one owner: all communication that is exposed, and every longer stretch of the rest."""

    #: Index of the step.
    step: Indices
    start_ns: Ints
    end_ns: Ints
    #: A `RankOwner`.
    owner: Annotated[Indices, RankOwner]

    def __len__(self) -> int:
        return len(self.step)


#: What a collective outside of the backward pass is for (`Collectives.purpose`).
BUFFERS = "broadcast of DDP's buffers in forward (broadcast_buffers)"
NORM = "all_reduce of the gradient norm (clip_grad_norm_)"
METRIC = "all_reduce of a few bytes outside backward (a metric or a loss)"


class Collectives(msgspec.Struct, frozen=True, eq=False):
    """Communication kernels (on CPUs: gloo's operations), by arrival."""

    #: Index of the step that launched it; -1 if its launch is not recorded.
    step: Indices
    #: One spelling for each kind (`names.collective`), "" if unknown.
    kind: Indices
    #: Process group: its name, and its ranks as the file spells them.
    group: Indices
    group_ranks: Indices
    group_size: Ints
    dtype: Indices
    #: Elements of the larger side of the message.
    elements: Ints
    bytes: Ints
    sequence: Ints
    #: The device's stream; -1 for the CPU's.
    stream: Ints
    #: When this rank's part starts and ends on the device.
    arrival_ns: Ints
    end_ns: Ints
    #: Which backward pass of the trace launched it, and how many optimizer steps had begun before; -1 if none did, or
    #: if the trace shows none.
    backward: Indices
    update: Indices
    #: What it is for, where the trace shows it (`digest.purposes`), else "".
    purpose: Indices

    def __len__(self) -> int:
        return len(self.step)


class PointToPoint(msgspec.Struct, frozen=True, eq=False):
    """Sends and receives of the recorded steps, one row per step, direction and other rank."""

    #: Index of the step.
    step: Indices
    #: 1 for sends, 0 for receives.
    sent: Indices
    #: The other one's rank in the job; -1 if unknown.
    peer: Ints
    count: Ints
    #: Of all of them; -1 where the size of some is unknown.
    bytes: Ints

    def __len__(self) -> int:
        return len(self.step)


class MessageEnds(msgspec.Struct, frozen=True, eq=False):
    """The sends and receives that communication kernels carry out, in the order in which the CPU enqueued them.

    A kernel that carries out a batch of them has a row for each, for example one that sends to rank 2 and receives from
    rank 0: (call 7, sent 1, peer 2) and (call 7, sent 0, peer 0).
    """

    #: Row in `Collectives`.
    call: Indices
    #: 1 for sends, 0 for receives.
    sent: Indices
    #: The other one's rank in the job; -1 if unknown.
    peer: Ints
    #: Process group: its name.
    group: Indices

    def __len__(self) -> int:
        return len(self.call)


class HostMeetings(msgspec.Struct, frozen=True, eq=False):
    """Collectives that the CPU of a rank with a device carries out ("gloo:*"), by start; shape (H,)."""

    #: Index of the step in whose host window it starts.
    step: Indices
    #: As in `Collectives`.
    kind: Indices
    start_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.step)


class Kernels(msgspec.Struct, frozen=True, eq=False):
    """Compute kernels of whole steps, by name and grid; on CPUs operators, by name and number of elements "[N]"."""

    name: Indices
    shape: Indices
    #: What the operator of the longest one was given, as "64x512, 512x30"; "" where shapes are not recorded, and of all
    #: but products off the tensor cores.
    inputs: Indices
    count: Ints
    total_ns: Ints
    #: Of those that run beside communication from start to end, and of those that run without any: number and time.
    beside: Ints
    beside_ns: Ints
    alone: Ints
    alone_ns: Ints
    #: Time of those whose occupancy was estimated, and that time weighed with it, ns.
    estimated_ns: Ints
    occupied_ns: Ints
    #: The longest one.
    longest_start_ns: Ints
    longest_end_ns: Ints


class Operators(msgspec.Struct, frozen=True, eq=False):
    """What the steps spend by name (see `operations`), the host's first; the name "" is the sum of all others.

    Times are sums over events, which on different threads or streams may run side by side.
    """

    #: An operator, annotation or runtime call on the host; a kernel, copy or memset on the device.
    name: Indices
    #: 1 for the device's.
    on_device: Indices
    count: Ints
    #: The host's time in it and in nothing within it.
    host_ns: Ints
    #: The device's time; of the host's, that of what was launched directly inside.
    device_ns: Ints
    #: Device time of kernels whose occupancy was estimated, and that time weighed with it.
    estimated_ns: Ints
    occupied_ns: Ints
    #: Device time of products on tensor cores.
    tensor_ns: Ints

    def __len__(self) -> int:
        return len(self.name)


class Blocking(msgspec.Struct, frozen=True, eq=False):
    """Calls of the recorded steps that hold the host, one row per kind, name and operator."""

    #: A `Starved`: ALLOC, COPY or SYNC.
    kind: Annotated[Indices, Starved]
    #: The runtime call, and the innermost operator around it, "" outside of all.
    call: Indices
    op: Indices
    #: The innermost function of the user's own code around the call that starves longest; "" without stacks.
    own: Indices
    count: Ints
    #: Host time in them, and the device's starvation that they are charged with, all steps together.
    blocked_ns: Ints
    lost_ns: Ints
    #: The call that starves the device longest: from its start to the end of that.
    worst_start_ns: Ints
    worst_end_ns: Ints

    def __len__(self) -> int:
        return len(self.kind)


class CpuTime(IntEnum):
    """What the host's time goes to (see `track`)."""

    #: cudaMalloc, cudaFree and their kin.
    ALLOC = 0
    #: Copies to the device from pageable memory.
    COPY = 1
    #: Every other call that waits for the device.
    SYNC = 2
    #: Those of them that wait for what an optimizer on the CPU works on (see `host_updates`).
    READ = 3
    #: The DataLoader's __next__.
    INPUT = 4
    #: Outside any op, for long.
    STALL = 5
    #: Stalled inside one op or launch call (see `op_stalls`).
    OP_STALL = 6
    #: An optimizer's work on the CPU.
    UPDATE = 7
    #: The profiler's own stalls.
    OVERHEAD = 8
    #: Recording host events, by an estimate.
    RECORDING = 9
    #: Ops, launches, and Python between them.
    WORK = 10


class HostTimes(msgspec.Struct, frozen=True, eq=False):
    """What the host's time in the rows of a `Track` goes to, by kind, then row; shape (times,). Most rows have one."""

    #: A `CpuTime`, and a row.
    kind: Annotated[Indices, CpuTime]
    row: Indices
    ns: Ints

    def by_row(self) -> dict[int, dict[CpuTime, int]]:
        """What it goes to in each row that has any."""
        rows: dict[int, dict[CpuTime, int]] = {}
        kinds = [*CpuTime]
        for kind, row, ns in zip(self.kind.tolist(), self.row.tolist(), self.ns.tolist(), strict=True):
            rows.setdefault(row, {})[kinds[kind]] = ns
        return rows


class Track(msgspec.Struct, frozen=True, eq=False):
    """What a rank does between the points that can hold it up, in order; shape (rows,) unless a comment says more."""

    #: Index of the step in whose host window it lies.
    step: Indices
    #: The host's time before it is held at the end.
    host: HostTimes
    #: A `names.Phase`: where the host is for most of the row; OTHER where the trace does not tell.
    phase: Annotated[Indices, Phase]
    #: A `CpuTime`: what holds the host at the row's end; -1 if nothing does.
    blocked_by: Annotated[Indices, CpuTime]
    #: How long it does, from then on or, if it waits for the device, from when all that was launched is done.
    blocked_ns: Ints
    waits: NDArray[np.bool_]
    #: What leaves the launch queue before the row can be issued: device work of an earlier row, up to `queue_tail_ns`
    #: before its end (or `track.BEFORE`: what was launched before the record), or a collective (row in `Collectives`);
    #: -1 for none. And how long after that the row is issued at the earliest. In a row that is `synced`, held at its
    #: end until an event is over, the same of that event and of the row's end.
    queue_row: Indices
    queue_tail_ns: Ints
    queue_part: Indices
    queue_ns: Ints
    synced: NDArray[np.bool_]
    #: What the device needs for what the row launched; copies from pageable memory alone are a part of it.
    device_ns: Ints
    #: From when the host has issued the row to when the device is done, at least; `track.LONG_AGO` if it launched none.
    lead_ns: Ints
    #: For how long, until it is done, the device last had all its launches in time; -1 if it always had.
    fed_ns: Ints
    #: Row in `Collectives` of the one that the row's first device event awaits, or -1, and how long it starts after.
    awaits: Indices
    delay_ns: Ints
    #: Whether nothing but that collective can have delayed the event: it starts as soon as the collective ends, and
    #: later than its launch would let it. A launch-bound kernel may start then by chance.
    awaits_for_certain: NDArray[np.bool_]
    #: Row in `Collectives` of the one that the host launches at the row's end, or -1. Here and in `queue_part` rows
    #: after the last are those of `HostMeetings`, which the host enters and leaves.
    launches: Indices
    #: Row in `Collectives` of the one before it on its stream, or -1.
    after: Indices
    #: Row in `Collectives` of one on another stream that it awaits: the one that ended right before it arrived; or -1.
    follows: Indices
    #: The row whose device work it awaits, or -1; and when it arrives after that, its launch and those before it.
    needs: Indices
    ready_ns: Ints

    def __len__(self) -> int:
        return len(self.step)


class Gradients(msgspec.Struct, frozen=True, eq=False):
    """Gradients of parameters in the order in which backward completes them; empty where autograd is not recorded."""

    #: Index of the step, and which backward pass of the trace, as in `Collectives`.
    step: Indices
    backward: Indices
    #: Elements of the parameter, -1 if shapes are not recorded.
    elements: Ints
    #: When the host has it and could launch its transfer, and when the device is done with all launched before that.
    ready_ns: Ints
    done_ns: Ints
    #: The host's time from then on that launching a collective with it takes; 0 where none is launched.
    launching_ns: Ints
    #: Module whose forward used the parameter (with_stack=True), "" if unknown.
    module: Indices

    def __len__(self) -> int:
        return len(self.step)


class Stalled(msgspec.Struct, frozen=True, eq=False):
    """What the host does while it is outside operators for long and the device idles; empty without stacks."""

    #: The innermost Python function or annotation whose name tells what it does (`names.activity`), else the innermost
    #: of all; and the innermost of the user's own functions, "" if none.
    doing: Indices
    own: Indices
    #: All steps together.
    total_ns: Ints
    #: The longest stall.
    longest_start_ns: Ints
    longest_end_ns: Ints

    def __len__(self) -> int:
        return len(self.doing)


class OpStalls(msgspec.Struct, frozen=True, eq=False):
    """Stalls of the host inside one op or launch call, by time: the longest of the recorded steps."""

    #: Index of the step.
    step: Indices
    #: The innermost op, "" if none; and the runtime call within it, "" if the host is in none.
    op: Indices
    call: Indices
    #: The kernel that this call launches, or the next one that is launched; "" if none is.
    kernel: Indices
    #: Whether the trace shows the first use of something: the first launch of a kernel, or the first call of an op, of
    #: which later ones are quick; the loading of a module; compilation.
    is_first_use: NDArray[np.bool_]
    start_ns: Ints
    end_ns: Ints
    #: GPU idle during the stall.
    idle_ns: Ints

    def __len__(self) -> int:
        return len(self.step)


class GapOps(msgspec.Struct, frozen=True, eq=False):
    """The ops around the longest stretches of each step in which the device idles and the host is outside any op."""

    #: Index of the step.
    step: Indices
    #: When the stretch begins, as in `Pieces`.
    start_ns: Ints
    #: The last op that ended before it and the first that starts after it, "" if there is none.
    before: Indices
    after: Indices
    #: The next kernel that is launched, "" if none is.
    kernel: Indices

    def __len__(self) -> int:
        return len(self.step)


class CodeOf(IntEnum):
    """What a stretch of `Code` is of."""

    HOST = 0
    #: Kernels and copies.
    COMPUTE = 1
    COMMUNICATION = 2


class Code(msgspec.Struct, frozen=True, eq=False):
    """The user's own function that the host is in, or was in when it launched what the device runs.

    A row is a stretch of time with one function; of one kind they are in order of time. Empty without stacks.
    """

    #: A `CodeOf`.
    of: Annotated[Indices, CodeOf]
    #: "train.py(41): step".
    function: Indices
    start_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.of)


class MemoryCategory(IntEnum):
    """What allocated memory is for (see `memory_categories`)."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER_STATE = 2
    #: What forward leaves for backward, with the batch.
    ACTIVATION = 3
    #: Born and released within one phase.
    TEMPORARY = 4
    #: Buckets of DDP, gathered parameters and scattered gradients.
    COMMUNICATION = 5
    #: Buffers, workspaces, frozen parameters, and what stays without being any of the others.
    OTHER = 6


class LargestBlocks(msgspec.Struct, frozen=True, eq=False):
    """The largest allocations at the peak of the whole trace, the largest first."""

    bytes: Ints
    #: A `MemoryCategory`, and the `names.Phase` in which it was allocated.
    category: Annotated[Indices, MemoryCategory]
    phase: Annotated[Indices, Phase]
    #: The innermost op around it that does more than allocate; the innermost module (with_stack=True), and the
    #: innermost of the user's own functions. "" where the trace does not tell.
    op: Indices
    module: Indices
    own: Indices

    def __len__(self) -> int:
        return len(self.bytes)


class KeptBlocks(msgspec.Struct, frozen=True, eq=False):
    """What is allocated in a step (or between two updates, without marked steps) and outlives the recording, by op and
    function: where memory may leak.
    """

    op: Indices
    own: Indices
    count: Ints
    #: Of all steps, and in how many steps.
    bytes: Ints
    steps: Ints

    def __len__(self) -> int:
        return len(self.op)


class ModuleMemory(msgspec.Struct, frozen=True, eq=False):
    """Activations at the peak by class of module, with all that is within it (with_stack=True), the largest first."""

    #: "Block" of Block_0, Block_1, ..., and how many of them have activations.
    module: Indices
    count: Ints
    #: Activations of all of them, of the largest one, and those that each allocates last, which is what it hands on.
    bytes: Ints
    largest_bytes: Ints
    output_bytes: Ints
    #: The host's time in their forward pass of one step.
    forward_ns: Ints

    def __len__(self) -> int:
        return len(self.module)


class StateBytes(msgspec.Struct, frozen=True):
    """What the model's states take by the gradients of a pass, whether the allocator counts them or not; -1 unknown."""

    gradients: int
    parameters: int
    optimizer: int
    #: Bytes of a gradient's element, and of the optimizer's state for each byte of parameters; 0 if unknown.
    element: int
    #: Name of the optimizer's class, "" if unknown.
    optimizer_name: str


class Memory(msgspec.Struct, frozen=True, eq=False):
    """The device's memory as the rank's allocator has it, bytes; profile_memory=True tells it.

    Those of steps have shape (S,), or (S, ...) where a comment says so; the series is over the trace, empty where it is
    not told.
    """

    #: Whether it is the CPU's, of a trace without a device: it counts from the beginning of the recording.
    on_host: bool
    #: Most bytes allocated, and what is reserved at that moment; -1 where the step does not show it.
    peak_allocated: Ints
    reserved_at_peak: Ints
    #: When that is, and what the host is at: a `Phase`; -1 likewise.
    peak_ns: Ints
    peak_phase: Annotated[Ints, Phase]
    #: What it is made of, shape (S, len(MemoryCategory)): rows sum to `peak_allocated`, or are zero.
    categories: Annotated[Ints, MemoryCategory]
    #: The most that each category has at any moment of the step, of the same shape.
    category_peaks: Annotated[Ints, MemoryCategory]
    #: By how much allocated memory changes in each phase, and its most there, shape (S, len(Phase)); -1: no event.
    phase_change: Annotated[Ints, Phase]
    phase_peak: Annotated[Ints, Phase]
    #: Allocated at the end of each step, in order; without marked steps, before each update but the first. Shape (N,).
    end_allocated: Ints
    #: Most bytes reserved; -1 likewise.
    peak_reserved: Ints
    #: Bytes asked of the device although as many as were requested were free, in pieces; and the most that were free
    #: then.
    scattered: Ints
    unusable: Ints
    #: Bytes given back to the device.
    released: Ints
    #: At most `memory.POINTS` instants, ascending, with the bytes allocated and reserved then; the peaks are among
    #: them. What is allocated is made of, shape (points, len(MemoryCategory)): rows sum to it.
    time_ns: Ints
    allocated: Ints
    reserved: Ints
    series: Annotated[Ints, MemoryCategory]
    states: StateBytes
    largest: LargestBlocks
    kept: KeptBlocks
    modules: ModuleMemory


class PhaseWork(msgspec.Struct, frozen=True, eq=False):
    """Each phase's time in the steps, shape (S, len(names.Phase)). Without a device all are of the host."""

    #: What the host is at; each row sums to the step's host window.
    host_ns: Annotated[Ints, Phase]
    #: The same of the device, by what launched; each row sums to the step's window.
    device_ns: Annotated[Ints, Phase]
    #: The part of it in which only communication runs; each row sums to that owner.
    exposed_ns: Annotated[Ints, Phase]
    #: The host's phase while device and host do nothing, in stretches of at least `owners.LONG_STALL_NS`.
    stalled_ns: Annotated[Ints, Phase]


class KernelWork(msgspec.Struct, frozen=True, eq=False):
    """Compute kernels that each step launched, shape (S,)."""

    kernels: Ints
    kernel_ns: Ints
    #: The part of it that the backward pass launched.
    backward_compute_ns: Ints
    #: What the kernels of a usual step would take with the grids of this one: it tells longer sequences from slower
    #: kernels. Equal in all steps where grids are not told.
    sized_ns: Ints


class CopyWork(msgspec.Struct, frozen=True, eq=False):
    """Copies between host and device, shape (S,)."""

    #: From or to pageable memory: number, bytes, device time, exposed device time; and the host's time in those to the
    #: device, which block, and in the synchronisation after each.
    pageable_copies: Ints
    pageable_bytes: Ints
    pageable_ns: Ints
    pageable_exposed_ns: Ints
    pageable_blocked_ns: Ints
    #: Copies whose names do not say which memory they use.
    unnamed_copies: Ints
    #: From or to pinned memory: bytes, device time, exposed device time.
    pinned_bytes: Ints
    pinned_ns: Ints
    pinned_exposed_ns: Ints


class GemmWork(msgspec.Struct, frozen=True, eq=False):
    """Products of matrices, convolutions and attention (`names.Product`), shape (S,)."""

    #: Time on tensor cores; number and time in float32 off them; the same in half precision whose dimensions do not
    #: fit.
    tensor_ns: Ints
    float32_products: Ints
    float32_ns: Ints
    misaligned_products: Ints
    misaligned_ns: Ints
    #: Start and end of the longest product off the tensor cores; equal where there is none.
    slow_product_start_ns: Ints
    slow_product_end_ns: Ints


class FlopWork(msgspec.Struct, frozen=True, eq=False):
    """Operations of products, convolutions and attention (`digest.flops`), shape (S,)."""

    #: The model's, and those done again.
    model_flops: Ints
    repeated_flops: Ints


class OptimizerWork(msgspec.Struct, frozen=True, eq=False):
    """Calls of a torch optimizer's step, shape (S,)."""

    optimizer_steps: Ints
    #: Host time in them; kernels that they launched for one tensor alone, not for a list of tensors: number and time;
    #: from the first of them to the last one's end. Start and end are equal where there are none.
    optimizer_host_ns: Ints
    optimizer_kernels: Ints
    optimizer_ns: Ints
    optimizer_start_ns: Ints
    optimizer_end_ns: Ints


class AttentionWork(msgspec.Struct, frozen=True, eq=False):
    """Attention by separate operations (`digest.attention`), shape (S,): zeros where shapes are not recorded."""

    #: Calls of scaled_dot_product_attention that fell back to them.
    attention_fallbacks: Ints
    #: Time of the products that make or multiply scores; number and time of the other kernels that read or write them;
    #: start and end of the longest of these.
    score_products_ns: Ints
    score_passes: Ints
    score_passes_ns: Ints
    score_pass_start_ns: Ints
    score_pass_end_ns: Ints


class RedundantWork(msgspec.Struct, frozen=True, eq=False):
    """Compute kernels whose result was there before (`digest.redundant`), shape (S,).

    Of each kind time and number, and start and end of the longest; these are equal where there is none.
    """

    #: Forward computed again within backward: activation checkpointing.
    recomputed_ns: Ints
    recomputed_kernels: Ints
    recomputed_start_ns: Ints
    recomputed_end_ns: Ints
    #: Casts of parameters that were cast since their last update.
    recast_ns: Ints
    recast_kernels: Ints
    recast_start_ns: Ints
    recast_end_ns: Ints
    #: Copies of a tensor for other strides.
    layout_ns: Ints
    layout_kernels: Ints
    layout_start_ns: Ints
    layout_end_ns: Ints


class GraphWalkWork(msgspec.Struct, frozen=True, eq=False):
    """DDP's walks of the autograd graph for unused parameters, shape (S,): number, and the host's time in them."""

    graph_walks: Ints
    graph_walk_ns: Ints


class StepWork(msgspec.Struct, frozen=True, eq=False):
    """What each step did, shape (S,) unless a comment says more."""

    #: Shape (S, len(RankOwner)); each row sums to the step's window.
    owner_ns: Annotated[Ints, RankOwner]
    phases: PhaseWork
    kernels: KernelWork
    #: Host time in the DataLoader's __next__, whatever the device does meanwhile.
    loader_ns: Ints
    copies: CopyWork
    gemms: GemmWork
    flops: FlopWork
    optimizer: OptimizerWork
    attention: AttentionWork
    redundant: RedundantWork
    #: The host's time that recording its events took, by an estimate, ns.
    recording_ns: Ints
    graph_walks: GraphWalkWork
    #: Shape (S, len(Starved)): device idle that an earlier launch would have shortened, by what delayed the launch.
    starved_ns: Annotated[Ints, Starved]


def zeros(kind: type[T], steps: int) -> T:
    """A table of `StepWork` whose columns have shape (S,), all zero."""
    return kind(*(np.zeros(steps, np.int64) for _ in kind.__struct_fields__))


class TraceContents(msgspec.Struct, frozen=True):
    """What a trace records, and what it shows to have been left out (see `digest.trace_contents`)."""

    #: Work of accelerators that are not known here, by category: events and busy time, ns (-1 if not read).
    unknown_work: dict[str, tuple[int, int]]
    #: What shows that a device worked, in a trace without any event of one, as words; "" if nothing does.
    hidden_work: str
    #: Name of a `names.Program`, in small letters.
    program: str
    #: What marks the steps: "ProfilerStep", an annotation that repeats, "graph launch"; "" if nothing does.
    steps_from: str
    #: Share of the runtime's calls that were left out of the file; 0 for all that Kineto itself writes.
    calls_left_out: float
    #: Kernel launches that were captured for a graph, so that no kernel ran, in a record in which no graph is launched;
    #: and all kernel launches.
    captured_launches: int
    launches: int
    #: Launches of captured graphs.
    graph_launches: int
    #: The library that sends tokens to their experts and back, such as "DeepEP"; "" if none does.
    expert_library: str


class RankDigest(msgspec.Struct, frozen=True, eq=False):
    """One rank, digested."""

    file: str
    header: Header
    strings: tuple[str, ...]
    #: Whether the budget is a device's; False for traces of CPUs alone.
    has_device: bool
    device: str
    #: What the device has of memory, bytes; 0 if unknown.
    device_bytes: int
    #: Whether device events can be joined to their launches.
    has_launches: bool
    #: Whether something marks the steps (`TraceContents.steps_from`); False means that the trace is taken as one step.
    has_steps: bool
    #: Process that trains, "" where the trace does not say.
    pid: str
    #: How the DataLoader was seen to work: single_process, workers, or "" if it was not seen.
    loader: str
    lost_kernels: LostKernels
    steps: Steps
    work: StepWork
    pieces: Pieces
    collectives: Collectives
    messages: PointToPoint
    message_ends: MessageEnds
    host_meetings: HostMeetings
    kernels: Kernels
    operators: Operators
    blocking: Blocking
    stalled: Stalled
    op_stalls: OpStalls
    gap_ops: GapOps
    code: Code
    memory: Memory
    track: Track
    gradients: Gradients
    contents: TraceContents
    warnings: tuple[FileWarning, ...]
    #: What tells the trace from others (`discover.head.source`), in digest files; "" where nothing does.
    source: str = ""
