"""What is kept of one rank: small, and enough for every later stage. No raw events leave the per-rank stages.

S = steps, C = collectives, P = pieces, K = kinds of kernel. Times are on the rank's own clock, int64 ns.
Missing is -1, as in the trace's columns; text columns index `RankDigest.strings`. `Annotated[..., Owner]` names the
enumeration that a column holds, or whose members are its second axis; the stored format follows from all of it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NewType, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.trace.model import Header, Indices, Ints
from tb_ddp_doctor.trace.names import Phase
from tb_ddp_doctor.trace.program_names import ServerWork

T = TypeVar("T", bound=msgspec.Struct)

#: Columns of indices into a rank's own tables: its steps, the rows of its track, its collectives. -1 is none.
StepRow = NewType("StepRow", Indices)
TrackRow = NewType("TrackRow", Indices)
#: Rows of `Collectives`; indices after its last row are rows of `HostMeetings`.
CollectiveRow = NewType("CollectiveRow", Indices)

#: What the values of a digest mean, beside its layout: it rises when code that reads or digests traces gives the same
#: trace other values. Digest files of another number are refused. `tests/test_golden.py` fails where it has to rise.
MEANING = 55


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


class LaunchDelay(IntEnum):
    """What keeps the device waiting for launches, in the order in which it is charged (see `late_launches`)."""

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


class Steps(ColumnTable, frozen=True, eq=False):
    """The steps that were recorded as a whole, in order of time; shape (S,).

    For example:

        host    |ProfilerStep#3 ......|ProfilerStep#4 ......|
        device      |work of step 3 ......|work of step 4 ..|
                0   3                 21  25                44

        number  start_ns  end_ns  host_start_ns  host_end_ns
             3         3      25              0           21
             4        25      44             21           44
    """

    #: N of ProfilerStep#N; 0 for a trace without steps.
    number: Ints
    #: Begin of the step's window on the device: the end of the last device event of the step before.
    start_ns: Ints
    #: End of that window: the end of the step's own last device event.
    end_ns: Ints
    #: Begin of the step's window on the host: the start of its ProfilerStep.
    host_start_ns: Ints
    #: End of that window: the start of the next ProfilerStep.
    host_end_ns: Ints


class LostKernels(msgspec.Struct, frozen=True, eq=False):
    """How many launches each step has, and how many of its events the trace lacks or has at a wrong time; shape (N,).

    In order of time, for all steps that the host shows: also those whose device events are lost.
    """

    #: As `Steps.number`.
    number: Ints
    #: Calls that launch a kernel.
    launches: Ints
    #: Those of them whose kernel the trace lacks.
    lost: Ints
    #: Launches of communication kernels, as far as the host's events show them.
    communications: Ints
    #: Those of them whose kernel the trace lacks.
    lost_communications: Ints
    #: What replays of CUDA graphs run, where the recorder numbers the nodes of graphs.
    graph_nodes: Ints
    #: Those of them that the trace lacks: most other replays of the same graph have them.
    lost_graph_nodes: Ints
    #: Kernels whose launch the trace lacks although they follow, on their stream, one that the step launched.
    unlaunched: Ints
    #: Operators, annotations and runtime calls of the threads that train.
    calls: Ints
    #: Device events that run before their launch, or before or beside one launched earlier on their stream.
    out_of_order: Ints
    #: Calls that are out of turn on their thread: by their number, or since they overlap another without nesting.
    out_of_turn: Ints


class Pieces(ColumnTable, frozen=True, eq=False):
    """Stretches of a step with one owner: all exposed communication, and of other owners the longer stretches.

    For example:

        device   |forward.....|AllReduce 3 ms|idle, loading 9 ms|        step  start_ns    end_ns     owner
                                                                            0  17000000  20000000     COMMUNICATION
                                                                            0  20000000  29000000     INPUT
    """

    #: Index of the step.
    step: Indices
    start_ns: Ints
    end_ns: Ints
    #: A `RankOwner`.
    owner: Annotated[Indices, RankOwner]


#: What a collective outside of the backward pass is for (`Collectives.purpose`).
BUFFERS = "broadcast of DDP's buffers in forward (broadcast_buffers)"
NORM = "all_reduce of the gradient norm (clip_grad_norm_)"
METRIC = "all_reduce of a few bytes outside backward (a metric or a loss)"


class Collectives(ColumnTable, frozen=True, eq=False):
    """Communication kernels (on CPUs: gloo's operations), by arrival.

    For example:

        step  kind            group  group_size  dtype    elements      bytes  sequence  stream  arrival_ns    end_ns
           0  all_reduce      "0"             8  Float     6553600   26214400       117      20    17000000  20100000
           0  reduce_scatter  "1"             4  BFloat16  4194304    8388608       118      24    18200000  19900000
    """

    #: Index of the step that launched it; -1 if its launch is not recorded.
    step: Indices
    #: One spelling for each kind (`names.collective`), "" if unknown.
    kind: Indices
    #: Name of the process group.
    group: Indices
    #: Ranks of the process group, as the file spells them.
    group_ranks: Indices
    #: Number of these ranks.
    group_size: Ints
    #: Type of the elements, as the file spells it.
    dtype: Indices
    #: Elements of the larger side of the message.
    elements: Ints
    #: Bytes of the larger side of the message.
    bytes: Ints
    #: The process group's sequence number of the collective.
    sequence: Ints
    #: The device's stream; -1 for collectives of CPUs.
    stream: Ints
    #: When this rank's part starts on the device.
    arrival_ns: Ints
    #: When this rank's part ends on the device.
    end_ns: Ints
    #: Number of the backward pass in the trace that launched it; -1 if none did, or if the trace shows none.
    backward: Indices
    #: How many optimizer steps had begun before; -1 if the trace shows none.
    update: Indices
    #: What it is for, where the trace shows it (`digest.purposes`), else "".
    purpose: Indices
    #: What NCCL chose for it, as NCCL spells it, such as "RING" and "LL", and the channels: "" and -1 if unknown.
    algorithm: Indices
    protocol: Indices
    channels: Ints


class PointToPoint(ColumnTable, frozen=True, eq=False):
    """Sends and receives of the recorded steps, one row per step, direction and other rank.

    For example:

        step  sent  peer  count      bytes
           0     1     2      8   67108864     eight activations of 8 MiB to the next stage
           0     0     2      8   67108864     and their gradients back
    """

    #: Index of the step.
    step: Indices
    #: 1 for sends, 0 for receives.
    sent: Indices
    #: The other one's rank in the job; -1 if unknown.
    peer: Ints
    #: How many of them there are.
    count: Ints
    #: Bytes of all of them; -1 if the size of some is unknown.
    bytes: Ints


class MessageEnds(ColumnTable, frozen=True, eq=False):
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


class HostMeetings(ColumnTable, frozen=True, eq=False):
    """Collectives that the CPU of a rank with a device carries out ("gloo:*"), by start; shape (H,)."""

    #: Index of the step in whose host window it starts.
    step: Indices
    #: As in `Collectives`.
    kind: Indices
    start_ns: Ints
    end_ns: Ints


class Kernels(msgspec.Struct, frozen=True, eq=False):
    """Compute kernels of whole steps, by name and grid; on CPUs operators, by name and number of elements "[N]".

    For example:

        name          shape       inputs             count  total_ns  beside  beside_ns  alone  alone_ns
        sgemm_128x64  "[8,4,1]"   "64x512, 512x30"      48  31000000      12    9000000     30  17600000
    """

    #: The kernel, or the operator.
    name: Indices
    #: Its grid, or "[N]".
    shape: Indices
    #: Sizes of the tensors that the operator of the longest kernel was given, such as "64x512, 512x30". Recorded only
    #: of GEMMs off the tensor cores; "" for other kernels, and where the trace has no shapes.
    inputs: Indices
    count: Ints
    total_ns: Ints
    #: How many of them run beside communication from start to end.
    beside: Ints
    #: Time of these.
    beside_ns: Ints
    #: How many of them run without any communication beside them.
    alone: Ints
    #: Time of these.
    alone_ns: Ints
    #: Time of those whose occupancy was estimated.
    estimated_ns: Ints
    #: That time multiplied by the occupancy.
    occupied_ns: Ints
    #: Start of the longest one.
    longest_start_ns: Ints
    #: End of the longest one.
    longest_end_ns: Ints


class Operators(ColumnTable, frozen=True, eq=False):
    """What the steps spend by name (see `operators`), the host's first; the name "" is the sum of all others.

    Times are sums over events, which on different threads or streams may run side by side.

        name            on_device  count   host_ns  device_ns
        aten::addmm             0     48   1900000   31000000     its kernels run 31 ms
        ampere_sgemm..          1     48         0   31000000     the same 31 ms, by kernel
    """

    #: An operator, annotation or runtime call on the host; a kernel, copy or memset on the device.
    name: Indices
    #: 1 for the device's.
    on_device: Indices
    count: Ints
    #: Host time in it, without what is nested in it.
    host_ns: Ints
    #: Device time; of an op of the host, that of what it launched itself.
    device_ns: Ints
    #: Device time of kernels whose occupancy was estimated.
    estimated_ns: Ints
    #: That time multiplied by the occupancy.
    occupied_ns: Ints
    #: Device time of products on tensor cores.
    tensor_ns: Ints
    #: How many of the host's events are annotations, as ProfilerStep and Optimizer.step: they are no operators.
    annotated: Ints


class Blocking(ColumnTable, frozen=True, eq=False):
    """Calls of the recorded steps that block the host, one row per kind, call and op.

    For example:

        kind  call                   op           own                      module    count  blocked_ns  lost_ns
        SYNC  cudaStreamSynchronize  aten::item   "train.py(41): step"     ""           24    31000000  9000000
        ALLOC cudaMalloc             aten::empty  "model.py(88): forward"  "Net_0"       3     2100000  1900000
    """

    #: A `LaunchDelay`: ALLOC, COPY or SYNC.
    kind: Annotated[Indices, LaunchDelay]
    #: The runtime call.
    call: Indices
    #: The innermost op around it, "" outside of all.
    op: Indices
    #: The innermost function of the user's code around the call that leaves the device idle longest; "" without stacks.
    own: Indices
    #: The path of the module that makes that call, as "layers.3.mlp", or "layer 4" where layers are guessed; "" outside
    #: of all.
    module: Indices
    count: Ints
    #: Host time in them, all steps together.
    blocked_ns: Ints
    #: The device's idle time that they are charged with, all steps together.
    lost_ns: Ints
    #: Start of the call that leaves the device idle longest.
    worst_start_ns: Ints
    #: End of the device's idle time after that call.
    worst_end_ns: Ints


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


class HostTimes(ColumnTable, frozen=True, eq=False):
    """How long the host works on what in the rows of a `Track`, by kind, then by row; shape (times,).

    Only times that are not zero are here; most rows have one kind of time.
    """

    #: What the host works on: a `CpuTime`.
    kind: Annotated[Indices, CpuTime]
    row: TrackRow
    ns: Ints

    def by_row(self) -> dict[int, dict[CpuTime, int]]:
        """For each row with any host time, that time by kind, ns."""
        rows: dict[int, dict[CpuTime, int]] = {}
        kinds = [*CpuTime]
        for kind, row, ns in zip(self.kind.tolist(), self.row.tolist(), self.ns.tolist(), strict=True):
            rows.setdefault(row, {})[kinds[kind]] = ns
        return rows


class Track(ColumnTable, frozen=True, eq=False):
    """What a rank does between the points at which it may have to wait, in order of time; see `track`.

    A row is a stretch of the host's time, and the device work that the host launched in it. Shape (rows,) unless a
    comment says more. Here a host launches forward, backward and an AllReduce, then waits for the device; times in ms:

        host    |work 10  |work 4|blocked in cudaStreamSynchronize 17 ...|
        device     |forward, backward 17 ...|AllReduce ..................|
                 row 0     row 1  row 2

        row  step  host     blocked_by  blocked_ns  waits  device_ns  launches  needs  awaits
          0     0  WORK 10           -           0  no            17         0      0       -
          1     0  WORK 4            -           0  no             0         -      -       -
          2     0                 SYNC           0  yes            0         -      -       0

    Row 0 ends with the launch of the AllReduce, collective 0, which arrives once the device work of row 0 is done that
    it `needs`. Row 2 `waits`: its call is over as soon as the device is done, and so the AllReduce that it `awaits`.
    """

    #: Index of the step in whose host window the row lies.
    step: StepRow
    #: What the host works on before something blocks it at the row's end.
    host: HostTimes
    #: A `names.Phase`: where the host is for most of the row; OTHER if the trace does not show it.
    phase: Annotated[Indices, Phase]
    #: A `CpuTime`: what blocks the host at the row's end; -1 if nothing does.
    blocked_by: Annotated[Indices, CpuTime]
    #: How long it blocks the host: from the row's issue, or in a row that `waits` from when the device is done.
    blocked_ns: Ints
    #: Whether the blocking call waits until the device is done with all that was launched.
    waits: NDArray[np.bool_]
    #: The earlier row whose device work has to leave the launch queue before this row can be issued; `track.BEFORE` for
    #: work that was launched before the record; -1 if none. In a row that is `synced`, the work that its end waits for.
    queue_row: TrackRow
    #: How long before the end of that row's device work this happens.
    queue_tail_ns: Ints
    #: The same as `queue_row` for a collective that has to be over; -1 if none.
    queue_part: CollectiveRow
    #: How long after that the row is issued at the earliest; in a row that is `synced`, ends at the earliest.
    queue_ns: Ints
    #: Whether the row's end, not its issue, waits for `queue_row` or `queue_part`: a call that waits for an event.
    synced: NDArray[np.bool_]
    #: How long the device needs for what the row launched.
    device_ns: Ints
    #: The least time from the row's issue until the device is done; `track.LONG_AGO` if the row launches nothing.
    lead_ns: Ints
    #: For how long, until it was done, the device had its launches in time; -1 if it always had.
    fed_ns: Ints
    #: The collective that the row's first device event waits for; -1 if none.
    awaits: CollectiveRow
    #: How long after the end of that collective the event starts; a little before it where times are rounded.
    delay_ns: Ints
    #: Whether only that collective can have delayed the event: it starts as soon as the collective ends, and later than
    #: its launch would let it. A launch-bound kernel may start then by chance.
    awaits_for_certain: NDArray[np.bool_]
    #: The collective that the host launches at the row's end, or enters if it is one of `HostMeetings`; -1 if none.
    launches: CollectiveRow
    #: The collective before the launched one on its stream; -1 if none.
    after: CollectiveRow
    #: The collective on another stream that the launched one waits for: it ended right before the launched one arrived;
    #: -1 if none.
    follows: CollectiveRow
    #: The row whose device work the launched collective waits for; -1 if none.
    needs: TrackRow
    #: How long after its launch, and after all that it waits for, the launched collective arrives.
    ready_ns: Ints


class GpuTime(IntEnum):
    """Classes of operators by what their kernels do: what a device's time goes to (see `operator_work`)."""

    GEMM = 0
    CONVOLUTION = 1
    ATTENTION = 2
    #: Normalisation, softmax and reduction.
    NORM = 3
    ELEMENTWISE = 4
    #: Copies, casts, concatenations.
    COPY = 5
    OPTIMIZER = 6
    #: Embeddings, gather and scatter.
    EMBEDDING = 7
    OTHER = 8
    #: Kernels whose work is not known: without shapes, or of no operator in the table.
    NOT_MODELLED = 9
    #: Reads of what the kernel before wrote: an amount beside the classes, part of their time.
    AVOIDABLE = 10
    #: The writes of the same, which go too where nothing else needs them.
    POSSIBLE = 11


class RooflineCalls(ColumnTable, frozen=True, eq=False):
    """Calls of operators in the recorded steps, with all kernels that each launched: one row per operator, inputs and
    longest kernel. A kernel of no operator of the table is a call of its own. Copies and memsets count as kernels.

        name           operator     inputs                count  kernels  total_ns  flops of one call
        sgemm_128x64   aten::addmm  "64x512, 512x30"         24       24   1200000            1966080
        elementwise..  aten::gelu   "64x512"                 24       24    120000                  0
    """

    #: The call's longest kernel.
    name: Indices
    #: The operator; "" for a kernel of no operator.
    operator: Indices
    #: Sizes of the operator's first tensors, such as "16x5185x64, 16x64x5185"; "" if the trace has none.
    inputs: Indices
    #: Type of the first of these tensors; "" if the trace has none.
    dtype: Indices
    #: The precision in which it multiplies, the value of a `names.Precision`; "" for what multiplies nothing.
    precision: Indices
    #: A `GpuTime`.
    kind: Annotated[Indices, GpuTime]
    #: How many calls there are.
    count: Ints
    #: How many kernels these calls launched.
    kernels: Ints
    #: Time of these kernels on the device, summed over kernels.
    total_ns: Ints
    #: The part of it in GEMMs that make or multiply attention scores (see `digest.attention`).
    score_products_ns: Ints
    #: The part of it in other kernels that read or write attention scores.
    score_passes_ns: Ints
    #: The part of it in an optimizer's updates of single tensors (see `digest.optimizer`).
    updates_ns: Ints
    #: The part of it in kernels that autotuning launches to time them (see `digest.compiled`).
    tuned_ns: Ints
    #: The least work of one call in floating-point operations; 0 if unknown.
    flops: Ints
    #: The most operations that one call may be, where lengths that are not recorded leave a range; else as many.
    most_flops: Ints
    #: The least that one call reads, bytes; 0 if unknown.
    read_bytes: Ints
    #: The least that one call writes, bytes; 0 if unknown.
    written_bytes: Ints
    #: Start of the longest call: of its first kernel.
    longest_start_ns: Ints
    #: End of the longest call: of its last kernel.
    longest_end_ns: Ints


class RooflineRows(ColumnTable, frozen=True, eq=False):
    """The calls that each row of the track launches: rows of `RooflineStretches`, one after the other.

    For example, where the host launches the same in steps 0 and 1, but rows begin elsewhere:

        row  first  end      ns  repeats
          0      0    3  400000        2     step 0
          1      3    4  100000        2     step 0
          2      0    2  300000        2     step 1
          3      2    4  200000        2     step 1
    """

    #: Row of `Track`.
    row: Indices
    #: The first row of `RooflineStretches`, and the one behind the last.
    first: Indices
    end: Indices
    #: Time of its calls' kernels on the device.
    ns: Ints
    #: Of how many steps these rows of `RooflineStretches` are the sums.
    repeats: Ints


class RooflineStretches(ColumnTable, frozen=True, eq=False):
    """Calls from one place at which a row of the track begins up to the next, summed over the steps that launch the
    same operators in the same order; one row per stretch and row of `RooflineCalls`, in the order of the stretches.

    A row of `Track` that takes longer than the mean of those steps is taken to have longer kernels, all in proportion:

        call  count      ns
           0      8  600000     in the two steps, each launches four of the calls of `RooflineCalls` row 0
           1      8   40000     the same stretch: all rows of the track have both, or none
           0      2  160000     the next stretch
    """

    #: Row of `RooflineCalls`.
    call: Indices
    #: How many of these calls the stretch has, all steps together.
    count: Ints
    #: Time of their kernels on the device.
    ns: Ints


class Avoidable(ColumnTable, frozen=True, eq=False):
    """What rows of `Track` would not read and write if loops over elements were fused (see `digest.fusion`)."""

    #: Row of `Track`.
    row: Indices
    #: Bytes that its kernels read although a kernel before had them in registers when it wrote them.
    read_bytes: Ints
    #: Bytes that its kernels write for such reads. Fusion avoids these writes only where nothing else reads them.
    written_bytes: Ints
    #: How many of its calls have such reads: a fused call would do their work as well.
    calls: Ints
    #: Time of these reads: the share of their kernels' time that they have of the kernels' bytes.
    read_ns: Ints
    #: Time of those of these writes that hardly anything else reads.
    temporary_ns: Ints
    #: Time of all of these writes.
    written_ns: Ints


class Roofline(msgspec.Struct, frozen=True, eq=False):
    """The work of a rank's kernels."""

    calls: RooflineCalls
    rows: RooflineRows
    stretches: RooflineStretches
    avoidable: Avoidable


class Gradients(ColumnTable, frozen=True, eq=False):
    """Gradients of parameters in the order in which backward completes them; empty if autograd is not recorded.

    For example:

        step  backward  elements  ready_ns   done_ns  launching_ns  module
           0         0      4096  21000000  23000000             0  "head"
           0         0   2359296  21400000  24100000         90000  "layers.11.mlp"     launches an AllReduce
    """

    #: Index of the step.
    step: Indices
    #: Number of the backward pass in the trace, as in `Collectives`.
    backward: Indices
    #: Elements of the parameter, -1 if shapes are not recorded.
    elements: Ints
    #: When the host has the gradient and could launch its transfer.
    ready_ns: Ints
    #: When the device is done with all that was launched before `ready_ns`.
    done_ns: Ints
    #: How long the host takes from `ready_ns` on to launch a collective with the gradient; 0 if it launches none.
    launching_ns: Ints
    #: Module whose forward used the parameter (with_stack=True), "" if unknown.
    module: Indices


class Stalled(ColumnTable, frozen=True, eq=False):
    """What the host does while it is outside any op for long and the device idles; empty without stacks.

    For example:

        doing                own                    total_ns    longest_start_ns  longest_end_ns
        "pickle.py: dump"    "train.py(60): save"   410000000           70000000       480000000
    """

    #: The innermost Python function or annotation whose name shows an activity (`names.activity`), else the innermost
    #: of all.
    doing: Indices
    #: The innermost of the user's own functions, "" if none.
    own: Indices
    #: All steps together.
    total_ns: Ints
    #: Start of the longest stall.
    longest_start_ns: Ints
    #: End of the longest stall.
    longest_end_ns: Ints


class OpStalls(ColumnTable, frozen=True, eq=False):
    """Stalls of the host inside one op or launch call, by time: the longest of the recorded steps.

    For example:

        step  op           call              kernel        module      is_first_use  start_ns    end_ns  idle_ns
           0  aten::addmm  cudaLaunchKernel  sgemm_128x64  "layers.0"  yes            5000000  21000000  15000000
    """

    #: Index of the step.
    step: Indices
    #: The innermost op, "" if none.
    op: Indices
    #: The runtime call within it, "" if the host is in none.
    call: Indices
    #: The kernel that this call launches, or the next one that is launched; "" if none is.
    kernel: Indices
    #: The path of the module that the host is in, as in `Blocking`; "" outside of all.
    module: Indices
    #: Whether the trace shows the first use of something: the first launch of a kernel, or the first call of an op, of
    #: which later ones are quick; the loading of a module; compilation.
    is_first_use: NDArray[np.bool_]
    start_ns: Ints
    end_ns: Ints
    #: GPU idle during the stall.
    idle_ns: Ints


class GapOps(ColumnTable, frozen=True, eq=False):
    """The ops around the longest stretches of each step in which the device idles and the host is outside any op.

    For example:

        step  start_ns  before                 after        kernel
           0  29000000  Optimizer.step#AdamW   aten::copy_  Memcpy HtoD     between two steps
    """

    #: Index of the step.
    step: Indices
    #: When the stretch begins, as in `Pieces`.
    start_ns: Ints
    #: The last op that ended before it, "" if none.
    before: Indices
    #: The first op that starts after it, "" if none.
    after: Indices
    #: The next kernel that is launched, "" if none is.
    kernel: Indices


class CodeOf(IntEnum):
    """What a stretch of `Code` is of."""

    HOST = 0
    #: Kernels and copies.
    COMPUTE = 1
    COMMUNICATION = 2


class Code(ColumnTable, frozen=True, eq=False):
    """The user's own function that the host is in, or was in when it launched what the device runs.

    A row is a stretch of time with one function; of one kind they are in order of time. Empty without stacks.

        of       function                start_ns    end_ns
        HOST     "train.py(41): step"           0   9000000
        COMPUTE  "model.py(88): forward"  1200000  17000000
    """

    #: A `CodeOf`.
    of: Annotated[Indices, CodeOf]
    #: "train.py(41): step"; without one, of kernels of torch.compile's, "ab/cab.py(1): triton_mul_0".
    function: Indices
    start_ns: Ints
    end_ns: Ints


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


class LargestBlocks(ColumnTable, frozen=True, eq=False):
    """The largest allocations at the peak of the whole trace, the largest first.

        bytes  category    phase     op           module  own
    201326592  ACTIVATION  FORWARD   aten::gelu   "mlp"   "model.py(88): forward"
    154389504  PARAMETER   OTHER     aten::empty  ""      ""
    """

    #: Size of the block.
    bytes: Ints
    #: What it is for: a `MemoryCategory`.
    category: Annotated[Indices, MemoryCategory]
    #: The `names.Phase` in which it was allocated.
    phase: Annotated[Indices, Phase]
    #: The innermost op around the allocation that does more than allocate, "" if the trace does not show it.
    op: Indices
    #: The innermost module around it (with_stack=True), "" likewise.
    module: Indices
    #: The innermost of the user's own functions around it, "" likewise.
    own: Indices


class KeptBlocks(ColumnTable, frozen=True, eq=False):
    """Allocations of the steps that are never released in the recording, by op and function: where memory may leak.

    Without marked steps, those between two updates.

        op           own                   count    bytes  steps
        aten::clone  "train.py(52): log"      12  4915200     12     one more in each of 12 steps
    """

    #: The innermost op around the allocation.
    op: Indices
    #: The innermost of the user's own functions around it.
    own: Indices
    count: Ints
    #: Bytes of all steps together.
    bytes: Ints
    #: In how many steps there are such allocations.
    steps: Ints


class ModuleMemory(ColumnTable, frozen=True, eq=False):
    """Activations at the peak by class of module, with all that is within it (with_stack=True), the largest first.

    For example:

        module   count       bytes  largest_bytes  output_bytes  forward_ns
        "Block"     12  2415919104      201326592     301989888    14000000
    """

    #: The class: "Block" of Block_0, Block_1, ...
    module: Indices
    #: How many modules of the class have activations.
    count: Ints
    #: Activations of all of them.
    bytes: Ints
    #: Activations of the largest one.
    largest_bytes: Ints
    #: The activations that each module allocates last, which is its output.
    output_bytes: Ints
    #: The host's time in their forward pass of one step.
    forward_ns: Ints


class ModulePaths(ColumnTable, frozen=True, eq=False):
    """The tree of the model's modules; shape (M,). The first is the whole model; parents come before children.

    The paths of `layers.0.mlp` and `layers.1.mlp`:

        index      0      1       2      3      4      5
        name      ""    layers    0     mlp     1     mlp
        parent    -1      0       1      2      1      4
        p99_ns  9e7     7e7     4e7    2e7    3e7    1e7
    """

    #: Index of the module around; -1 for the whole model alone.
    parent: Indices
    #: The module's name within its parent: "mlp", or "Block_0" where only a stack names it.
    name: Indices
    #: Time of a step in it, with all modules within it: the 99th percentile over steps.
    p99_ns: Ints


class ModuleTime(IntEnum):
    """What a rank does in a module's time: every nanosecond of its steps has one of these."""

    COMPUTE = 0
    COPY = 1
    COMMUNICATION = 2
    #: No device event runs; the time is of the module that launches the next one.
    IDLE = 3


class ModuleTimes(ColumnTable, frozen=True, eq=False):
    """Times of the modules themselves, without their children, over all steps; shape (rows,), one row a kind of time.

    The sum of the rows of a `ModuleTime` is the budget's time of it: of device events that run beside each other, the
    first to start has the time (a kernel before a copy, a copy before communication).

        module  phase     recomputed  kind     total_ns  events  beside_ns  longer_ns
             3  BACKWARD           0  COMPUTE   6000000      36    4000000     700000
             3  BACKWARD           0  IDLE       400000       0          0          0
    """

    #: Index into `ModulePaths`.
    module: Indices
    #: A `names.Phase`.
    phase: Annotated[Indices, Phase]
    #: 1 for forward that is computed again within backward.
    recomputed: Indices
    #: A `ModuleTime`.
    kind: Annotated[Indices, ModuleTime]
    #: Time in all steps.
    total_ns: Ints
    #: Device events that run in them (operators on a CPU); 0 for idle times.
    events: Ints
    #: The part of the time of kernels in which communication runs beside them (`digest.beside`).
    beside_ns: Ints
    #: How much longer these kernels take than the same ones alone; 0 where that is not known.
    longer_ns: Ints


class ModuleKernels(ColumnTable, frozen=True, eq=False):
    """What runs in the times of modules: the kernel, the operator that launched it, the user's function; shape (rows,).

    The rows of a row of `ModuleTimes` sum to it, in ns and in events. Rows with little time are summed in one without
    names for each row of `ModuleTimes`. On a CPU, operators are the events, and `kernel` is "".

        of  operator    kernel           function                total_ns  events   p99_ns  slowest_ns  median_ns
         0  aten::mm    "sgemm_128x64"   "model.py(88): forward"  5000000      12  1800000     1800000    1600000
         0  ""          ""               ""                       1000000      24   360000      340000     330000
    """

    #: Index into `ModuleTimes`.
    of: Indices
    #: The innermost operator that launched it, "" where none is recorded.
    operator: Indices
    #: The device's event; of idle times, the one that follows.
    kernel: Indices
    #: "model.py(88): forward", the innermost function of the user's code that launched it, in backward that of its
    #: forward; "" without stacks. Of a kernel of torch.compile's the file that holds it: "ab/cab.py(1): triton_mul_0".
    function: Indices
    #: Time in all steps.
    total_ns: Ints
    #: Device events (operators on a CPU) that run in it; 0 for idle times.
    events: Ints
    #: Time in a step: the 99th percentile over steps.
    p99_ns: Ints
    #: Time in the steps `Modules.slowest_step` and `Modules.median_step`; zeros where there are none.
    slowest_ns: Ints
    median_ns: Ints


class ModuleWork(ColumnTable, frozen=True, eq=False):
    """The calls of operators in the rows of `ModuleKernels`, from which their FLOPs and bytes follow; shape (rows,).

    A call counts for the row of its longest kernel. Calls whose kernels have no time (they run beside earlier ones) are
    in none, and neither are the rows with least time of more than `module_kernels.MOST_WORK`.

        of  call  count       ns
         0     3     12  5000000    row 0 of ModuleKernels has 12 calls that are row 3 of RooflineCalls
    """

    #: Index into `ModuleKernels`.
    of: Indices
    #: Index into `RooflineCalls`.
    call: Indices
    #: Calls in all steps.
    count: Ints
    #: Time of all kernels of these calls, summed over kernels.
    ns: Ints


class ModuleSegments(ColumnTable, frozen=True, eq=False):
    """Where in a step the modules' kernels run, by the collectives around them (`digest.module_segments`).

    segment  of  total_ns
          0   3   5000000    of row 3 of ModuleKernels, what was launched before a step's first collective, all steps
          1   3    700000
          1  82     40000    of 80 rows of ModuleKernels: kernels of row 2 of ModuleTimes that have no row here
    """

    #: How many collectives its step launches before it.
    segment: Indices
    #: Row of `ModuleKernels`, or behind these of `ModuleTimes`, for its kernels with little time.
    of: Indices
    #: Time in all steps.
    total_ns: Ints


class ModuleBytes(ColumnTable, frozen=True, eq=False):
    """Memory that modules themselves allocate, without their children; only of traces with profile_memory=True.

    `peak_bytes` of all modules sum to the most that is allocated at once. What no module allocates (the optimizer), and
    what was there before the recording, is the whole model's.

        module  peak_bytes  allocated_bytes
             0  3221225472        268435456
             3   201326592        603979776
    """

    #: Index into `ModulePaths`.
    module: Indices
    #: Allocated when most is, in all steps.
    peak_bytes: Ints
    #: Sum of all allocations in all steps.
    allocated_bytes: Ints


class ModuleGradients(ColumnTable, frozen=True, eq=False):
    """Elements of the gradients of parameters that modules themselves use, without their children; with shapes only.

    module    elements
         0    19660800
         3     2362368
    """

    #: Index into `ModulePaths`.
    module: Indices
    #: In all steps; a parameter counts for each backward pass that adds to its gradient.
    elements: Ints


class Modules(msgspec.Struct, frozen=True, eq=False):
    """Which part of the model the time of a rank's steps is of (`digest.modules`)."""

    #: What names the modules: "Doctor.watch", "NVTX ranges", "stacks", "annotations" that are paths, "repeats" where
    #: layers are guessed from what repeats, "torch.compile" where its regions stand for modules, "CUDA graph
    #: annotations" where nothing but the capture of graphs names parts, or "" if nothing does.
    named_by: str
    paths: ModulePaths
    times: ModuleTimes
    kernels: ModuleKernels
    #: Numbers (`Steps.number`) of the rank's longest step and of its median one; a first step that is far longer than
    #: the others counts for neither. -1 for a rank with one step.
    slowest_step: int
    median_step: int
    #: Empty on a CPU.
    work: ModuleWork
    #: Empty without a track.
    segments: ModuleSegments
    #: Empty where the trace has no events of the allocator.
    memory: ModuleBytes
    #: Empty where the trace has no shapes, and where it names no modules.
    gradients: ModuleGradients


class StateBytes(msgspec.Struct, frozen=True):
    """Bytes of the model's states, from the gradients of a backward pass; -1 if unknown.

    The allocator may not count all of them: some may have been allocated before the recording.
    """

    gradients: int
    parameters: int
    optimizer: int
    #: Bytes of a gradient's element; 0 if unknown.
    element: int
    #: Name of the optimizer's class, "" if unknown.
    optimizer_name: str


class AllocatorMemory(msgspec.Struct, frozen=True, eq=False):
    """How much of the device's memory the rank's allocator holds, and what for, bytes.

    Only traces that were recorded with profile_memory=True tell it: of others, columns of steps are -1 or 0, and those
    of A points in time are empty. A is at most `memory.POINTS`.
    """

    #: Whether it is the CPU's memory, of a trace without a device: it counts from the beginning of the recording.
    on_host: bool
    #: Most bytes allocated in each step, shape (S,); -1 where the step has no event of the allocator.
    peak_allocated: Ints
    #: Bytes reserved at that moment, shape (S,); -1 likewise.
    reserved_at_peak: Ints
    #: That moment, shape (S,); -1 likewise.
    peak_ns: Ints
    #: What the host is at then, shape (S,); -1 likewise.
    peak_phase: Annotated[Ints, Phase]
    #: What `peak_allocated` is made of, shape (S, len(MemoryCategory)): rows sum to it, or are zero.
    categories: Annotated[Ints, MemoryCategory]
    #: Most bytes of each category by itself, at any moment of the step; shape (S, len(MemoryCategory)).
    category_peaks: Annotated[Ints, MemoryCategory]
    #: Bytes allocated at the end of each phase less those at its beginning, shape (S, len(Phase)).
    phase_change: Annotated[Ints, Phase]
    #: Most bytes allocated within each phase, shape (S, len(Phase)); -1 where the phase has no event of the allocator.
    phase_peak: Annotated[Ints, Phase]
    #: Bytes allocated at the end of each step of the trace, in order of time; of a trace without steps, before each
    #: update of the optimizer but the first. Shape (N,).
    end_allocated: Ints
    #: Most bytes reserved in each step, shape (S,); -1 where the step has no event of the allocator.
    peak_reserved: Ints
    #: Bytes that the allocator asked the device for although as many were free, in pieces too small; shape (S,).
    scattered: Ints
    #: Most bytes that were free in such pieces when it asked, shape (S,).
    unusable: Ints
    #: Bytes that it gave back to the device, shape (S,).
    released: Ints
    #: Points in time over the trace, ascending, the peaks among them; shape (A,).
    time_ns: Ints
    #: Bytes allocated at each point, shape (A,).
    allocated: Ints
    #: Bytes reserved at each point, shape (A,).
    reserved: Ints
    #: What `allocated` is made of, shape (A, len(MemoryCategory)): rows sum to it.
    series: Annotated[Ints, MemoryCategory]
    #: Parameters, gradients and states of the optimizer.
    states: StateBytes
    #: The largest blocks at the peak of the whole trace.
    largest: LargestBlocks
    #: Blocks of the steps that are never released.
    kept: KeptBlocks
    #: Activations at the peak, by class of module.
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

    #: Number of copies from or to pageable memory.
    pageable_copies: Ints
    #: Their bytes.
    pageable_bytes: Ints
    #: Their time on the device.
    pageable_ns: Ints
    #: The part of it in which nothing else runs on the device.
    pageable_exposed_ns: Ints
    #: Host time in those of them to the device, which block the host, and in the synchronisation after each.
    pageable_blocked_ns: Ints
    #: Number of copies whose names do not say which memory they use.
    unnamed_copies: Ints
    #: Bytes of copies from or to pinned memory.
    pinned_bytes: Ints
    #: Their time on the device.
    pinned_ns: Ints
    #: The part of it in which nothing else runs on the device.
    pinned_exposed_ns: Ints


class GemmWork(msgspec.Struct, frozen=True, eq=False):
    """Products of matrices, convolutions and attention (`names.Product`), shape (S,)."""

    #: Time on tensor cores.
    tensor_ns: Ints
    #: Number of those in float32 that run off the tensor cores.
    float32_products: Ints
    #: Their time.
    float32_ns: Ints
    #: Number of those in half precision that run off the tensor cores, since their dimensions do not fit these.
    misaligned_products: Ints
    #: Their time.
    misaligned_ns: Ints
    #: Start of the longest one off the tensor cores.
    slow_product_start_ns: Ints
    #: Its end; equal to its start if there is none.
    slow_product_end_ns: Ints


class ServingWork(msgspec.Struct, frozen=True, eq=False):
    """What a server's iterations work on, shape (S,); zeros for other programs.

    For example, without marks, where decode is replayed as one CUDA graph, and the prompts of the second step are not:

        iterations  prefills  decodes  reads  writes
                 0         0        0      0       1
                 0         0        0      1       1
    """

    #: Number of iterations that the server marks; zeros without marks.
    iterations: Ints
    #: Number of requests whose prompt is read, in whole or in part; by marks.
    prefills: Ints
    #: Number of requests that get a token each; by marks.
    decodes: Ints
    #: 1 where prompts are read, by marks or else by kernels. Where neither tells, `reads` and `writes` are zeros.
    reads: Ints
    #: 1 where requests get tokens. Kernels may not tell it of a step that reads prompts: then it counts as 1.
    writes: Ints
    #: Time in which the host does each of `ServerWork` while the device idles, shape (S, len(ServerWork)), ns.
    idle_ns: Annotated[Ints, ServerWork]


class CompiledWork(msgspec.Struct, frozen=True, eq=False):
    """What CUDA graphs and torch.compile do in a step, by its host window, shape (S,); times of the host, ns."""

    #: Launches of captured graphs.
    graph_launches: Ints
    #: Captures of graphs.
    captures: Ints
    #: Time of captures, and of making what they captured ready to be launched.
    capture_ns: Ints
    #: Number of compilations.
    compilations: Ints
    #: Their time, with that of autotuning, but not when the host waits for the device.
    compile_ns: Ints
    #: Time of autotuning alone.
    tune_ns: Ints
    #: Time in which autotuning waits for the device, and that of the kernels that it launches, on the device.
    tune_sync_ns: Ints
    tune_device_ns: Ints
    #: Number of graph breaks.
    breaks: Ints
    #: Time from the compiled region before a graph break to the one after it.
    break_ns: Ints
    #: The part of that time in which the host waits for the device.
    break_sync_ns: Ints
    #: All of the time in which the host waits for the device.
    sync_ns: Ints
    #: Time in which the host looks up compiled code and evaluates guards for it.
    guard_ns: Ints


class FlopWork(msgspec.Struct, frozen=True, eq=False):
    """Operations of products, convolutions and attention (`digest.flops`), shape (S,)."""

    #: Those that the model needs.
    model_flops: Ints
    #: Those that are done again, as activation checkpointing does.
    repeated_flops: Ints


class OptimizerWork(msgspec.Struct, frozen=True, eq=False):
    """Calls of a torch optimizer's step, shape (S,)."""

    #: Number of calls.
    optimizer_steps: Ints
    #: Host time in them, without that in which the host is blocked or stalled.
    optimizer_host_ns: Ints
    #: Number of kernels that they launch for one tensor each, not for a list of tensors.
    optimizer_kernels: Ints
    #: Time of these kernels.
    optimizer_ns: Ints
    #: Start of the first of these kernels.
    optimizer_start_ns: Ints
    #: End of the last one; equal to the start if there is none.
    optimizer_end_ns: Ints


class AttentionWork(msgspec.Struct, frozen=True, eq=False):
    """Attention by separate operations (`digest.attention`), shape (S,): zeros where shapes are not recorded."""

    #: Calls of scaled_dot_product_attention that fell back to them.
    attention_fallbacks: Ints
    #: Time of the GEMMs that make or multiply attention scores.
    score_products_ns: Ints
    #: Number of the other kernels that read or write scores.
    score_passes: Ints
    #: Time of these other kernels.
    score_passes_ns: Ints
    #: Start of the longest of them.
    score_pass_start_ns: Ints
    #: Its end.
    score_pass_end_ns: Ints


class RedundantWork(msgspec.Struct, frozen=True, eq=False):
    """Compute kernels whose result was there before (`digest.redundant`), shape (S,).

    Three kinds: forward that is computed again within backward (activation checkpointing), casts of parameters that
    were cast since their last update, and copies of a tensor for other strides.
    """

    #: Time of forward that is computed again.
    recomputed_ns: Ints
    #: Number of its kernels.
    recomputed_kernels: Ints
    #: Start of the longest of these kernels.
    recomputed_start_ns: Ints
    #: Its end; equal to its start if there is none.
    recomputed_end_ns: Ints
    #: Time of casts of parameters that were cast before.
    recast_ns: Ints
    #: Number of these casts.
    recast_kernels: Ints
    #: Start of the longest of these casts.
    recast_start_ns: Ints
    #: Its end; equal to its start if there is none.
    recast_end_ns: Ints
    #: Time of copies for other strides.
    layout_ns: Ints
    #: Number of these copies.
    layout_kernels: Ints
    #: Start of the longest of these copies.
    layout_start_ns: Ints
    #: Its end; equal to its start if there is none.
    layout_end_ns: Ints


class GraphWalkWork(msgspec.Struct, frozen=True, eq=False):
    """DDP's walks of the autograd graph for unused parameters, shape (S,)."""

    #: Number of walks.
    graph_walks: Ints
    #: Host time in them.
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
    serving: ServingWork
    compiled: CompiledWork
    #: Shape (S, len(LaunchDelay)): device idle that an earlier launch would have shortened, by what delayed the launch.
    late_launch_ns: Annotated[Ints, LaunchDelay]


def zeros(kind: type[T], steps: int) -> T:
    """A table of `StepWork` whose columns have shape (S,), all zero."""
    return kind(*(np.zeros(steps, np.int64) for _ in kind.__struct_fields__))


class TraceContents(msgspec.Struct, frozen=True):
    """What a trace records, and what it shows to have been left out (see `digest.trace_contents`)."""

    #: Work of accelerators that are not known here, by category: events and busy time, ns (-1 if not read).
    unknown_work: dict[str, tuple[int, int]]
    #: What shows that a device worked, in a trace without any event of one, as words; "" if nothing does.
    hidden_work: str
    #: Value of a `program_names.Program`.
    program: str
    #: Host time that marks and functions give to each role of reinforcement learning, ns, by the value of a
    #: `program_names.Role`.
    roles: dict[str, int]
    #: What marks the steps: "ProfilerStep", an annotation that repeats, "graph launch", rounds of RL
    #: (`digest.rounds`), round trips of copies (`digest.round_trips`); "" if nothing does.
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
    #: Whether the rank's clock was set back within the record, so that steps on one side of that are left out.
    clock_set_back: bool = False
    #: From the first event of the CPU to the end of the last, ns: `roles` are of all of it, steps of a part.
    recorded_ns: int = 0


class EventModules(msgspec.Struct, frozen=True, eq=False):
    """The modules that N events of a trace are of (`digest.event_modules`); no part of a digest."""

    #: Paths of those that have any event, as "layers.0.mlp", or "layer 3" where layers are guessed.
    paths: tuple[str, ...]
    #: Index into `paths` of each event; -1 outside of all modules. Shape (N,).
    module: Indices

    def of_rows(self, row: Ints) -> EventModules:
        """Those of some of the events, given by their rows (-1: a Python function, which has none)."""
        module = np.full(len(row), -1, np.int32)
        if not self.paths:
            return EventModules((), module)
        module[row >= 0] = self.module[row[row >= 0]]
        inside = np.flatnonzero(module >= 0)
        used, module[inside] = np.unique(module[inside], return_inverse=True)
        return EventModules(tuple(self.paths[index] for index in used.tolist()), module)


class RankDigest(msgspec.Struct, frozen=True, eq=False):
    """One rank, digested."""

    file: str
    header: Header
    strings: tuple[str, ...]
    #: Whether the budget is a device's; False for traces of CPUs alone.
    has_device: bool
    device: str
    #: The device's number on its host; -1 without one.
    device_number: int
    #: What the device has of memory, bytes; 0 if unknown.
    device_bytes: int
    #: Whether device events can be joined to their launches.
    has_launches: bool
    #: Kernels that were launched before the record: on their stream nothing runs before them whose launch it has.
    earlier_kernels: int
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
    memory: AllocatorMemory
    track: Track
    roofline: Roofline
    gradients: Gradients
    modules: Modules
    contents: TraceContents
    warnings: tuple[FileWarning, ...]
    #: What tells the trace from others (`discover.head.source`), in digest files; "" where nothing does.
    source: str = ""
