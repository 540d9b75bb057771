"""The columns of one rank's trace: a struct of arrays, one row per complete event ("ph": "X").

Rows stand in file order, which is no order in time. Strings are interned: a column of names holds indices into
`RankTrace.strings`. Missing is -1 in every integer column, and "" in text.

Kept: operators, annotations, runtime and driver calls, kernels, copies and memsets, profiler overhead; of instant
events, the allocator's; of Python functions, those that last.
Dropped at the reader, since no rule needs them: flow, other instant, counter and metadata events, short Python
functions, device-side copies of annotations.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.findings import FileWarning, Workload
from tb_ddp_doctor.storage.column_table import ColumnTable

Ints: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Bytes8: TypeAlias = NDArray[np.int8]


class Category(IntEnum):
    """What an event is, whatever its torch version or vendor calls it (see `names.CATEGORIES`)."""

    OP = 0
    ANNOTATION = 1
    #: A runtime or driver call on the host: launches, copies, synchronisation, allocation.
    RUNTIME = 2
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    #: The profiler's own work.
    OVERHEAD = 6
    #: Work of accelerators that the doctor does not know: it counts for no owner, and is said.
    MTIA = 7
    MTIA_INSIGHT = 8
    MTIA_WORKLOADD = 9
    HPU = 10


class TraceError(Exception):
    """A file that is no trace. Its text is a sentence for users, without the path."""


class NotJsonError(TraceError):
    """A file that does not begin as JSON does, so that more of it makes it no trace."""


class Events(ColumnTable, frozen=True, eq=False):
    """One row per complete event; every column has the same length."""

    #: Index into `RankTrace.strings`.
    name: Indices
    #: A `Category`.
    category: Bytes8
    #: ns since the epoch; since the trace's own zero in files that have no epoch.
    start_ns: Ints
    #: ns, never negative.
    duration_ns: Ints
    #: Index into `RankTrace.threads`: the host thread, or the device's stream as the file names it.
    thread: Indices
    #: Device number of device events; -1 on the host.
    device: Indices
    #: Stream number of device events; -1 on the host.
    stream: Ints
    #: Joins a device event with the runtime call that launched it.
    correlation: Ints
    #: Size of a copy or memset in bytes.
    bytes: Ints
    #: Index into `RankTrace.strings` of the raw JSON of "Input Dims" (operators) or "grid" (kernels).
    shape: Indices
    #: Estimated occupancy of a kernel, percent; 0 also where Kineto could not estimate it. Of an operator that launches
    #: a kernel of torch.compile's, the index into `RankTrace.strings` of its function (`names.kernel_function`).
    occupancy: Indices
    #: "Sequence number": joins an operator of forward with the autograd node that it made. Each thread counts for
    #: itself; operators that make no node have the number of the next one that does. Of device events that a CUDA graph
    #: replays, "graph node id": which node of the graph they are, below the graph's number in the upper 32 bits where
    #: the recorder writes both as one.
    sequence: Ints
    #: Indices into `RankTrace.strings` of the raw JSON of an operator's "Input type" and "Concrete Inputs"; of device
    #: events, "autograd_phase" and what `mark_kernels` of torch.cuda called the part of a CUDA graph ("annotation").
    types: Indices
    values: Indices
    #: "graph id" of device events: the CUDA graph that replays them; 0 or -1 for none.
    graph: Indices


class CommArgs(ColumnTable, frozen=True, eq=False):
    """Metadata of communication, sparse: one row per event that carries some, on the kernel or on the host.

    A host-side `record_param_comms` has a row even if it carries nothing, since it encloses the launch.
    Text columns are indices into `RankTrace.strings`.
    """

    #: Row of the event in `Events`.
    event: Ints
    #: "Collective name", as the file spells it.
    collective: Indices
    #: "Process Group Name".
    group: Indices
    #: "Process Group Ranks", as the file spells it: may be shortened ("[64, 65, ...]").
    group_ranks: Indices
    group_size: Ints
    #: "In msg nelems" and "Out msg nelems".
    elements_in: Ints
    elements_out: Ints
    dtype: Indices
    #: "Seq", or the number in "Concrete Inputs"[1] that Megatron-era traces carry: equal on all ranks.
    sequence: Ints
    #: "Dst Rank" of sends, "Src Rank" of receives: the other one's rank in the job.
    peer: Ints
    #: What NCCL's profiler plugin says of the call: "count", elements that one rank gives, of a reduce_scatter gets;
    #: "algo" and "proto", as NCCL spells them ("RING", "LL"); "n_channels".
    count: Ints
    algorithm: Indices
    protocol: Indices
    channels: Ints


class MemoryEvents(ColumnTable, frozen=True, eq=False):
    """What torch's allocators did ("[memory]", with profile_memory=True): one row per allocation or release."""

    #: ns, as `Events.start_ns`.
    time_ns: Ints
    #: c10's number of the kind of device, 0 for the CPU; and the device's number, often -1 for the CPU.
    device_type: Indices
    device: Indices
    #: Bytes asked for, negative where they are given back. Any number may be a real one: -1 is missing only elsewhere.
    bytes: Ints
    #: Bytes in use, and bytes that the allocator holds of the device, afterwards. Traces of 2021 do not say.
    allocated: Ints
    reserved: Ints
    #: Where the block is: what is freed at an address was the last one allocated there.
    address: Ints
    #: Index into `RankTrace.threads`: the thread that allocates or frees.
    thread: Indices


#: Python functions that last less are dropped, ns: whatever blocks for long is in one that lasts. Calls of modules are
#: kept, since they say whose the operators are.
SHORTEST_FRAME_NS = 100_000
#: How the call of a module begins in stacks, and in the marks of `Doctor.watch`.
MODULE = "nn.Module: "


class Frames(ColumnTable, frozen=True, eq=False):
    """Python functions that last, and calls of modules of any length (with_stack=True): one row per call."""

    #: Index into `RankTrace.strings`: "train.py(41): step", with the function's first line (of one that runs
    #: already when recording begins, the line that it is at), or "<built-in ...>".
    name: Indices
    start_ns: Ints
    duration_ns: Ints
    #: Index into `RankTrace.threads`.
    thread: Indices


#: Of a text in a file's header: sentences repeat the names of devices and groups.
MOST_HEADER_LETTERS = 1024


class Header(msgspec.Struct, frozen=True):
    """What a file says about itself outside `traceEvents`; every field may be missing."""

    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    #: Ranks of each process group, by its name ("pg_config").
    groups: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    #: What those say of themselves that say something, as "mesh_tp" ("pg_desc").
    group_descriptions: dict[str, str] = msgspec.field(default_factory=dict)
    #: Name of each device by its number ("deviceProperties").
    devices: dict[int, str] = msgspec.field(default_factory=dict)
    #: Bytes of memory that each device has.
    device_bytes: dict[int, int] = msgspec.field(default_factory=dict)
    #: Multiprocessors that each device has, or that part of it that the job sees.
    multiprocessors: dict[int, int] = msgspec.field(default_factory=dict)
    #: Compute capability of each device that says it, as 8.6 for major 8 and minor 6. AMD's tell their GFX version.
    capabilities: dict[int, float] = msgspec.field(default_factory=dict)
    #: Host name where the file has one, else "".
    host: str = ""
    #: "baseTimeNanoseconds": already added to `Events.start_ns`.
    base_ns: int = 0
    has_shapes: bool = False
    has_stacks: bool = False
    #: The NVTX range that was taken for a step, with "#" for numbers; "" where steps are marked as such.
    step_range: str = ""
    #: "nsys" for what Nsight Systems recorded; "" for Kineto.
    recorder: str = ""
    #: What a step does, as the user told the `Doctor` that captured it ("ddp_doctor").
    workload: Workload = Workload()

    def listed(self, number: int) -> int:
        """The number by which `devices` has the device that events call `number`; `number` itself where none fits.

        ROCm counts a node's CPUs before its GPUs in events, and lists GPUs alone, from 0. Those of one kind are alike.
        """
        if number in self.devices or len(set(self.devices.values())) != 1:
            return number
        return next(iter(self.devices))


class RankTrace(msgspec.Struct, frozen=True, eq=False):
    """One file, read."""

    file: str
    header: Header
    #: The vocabulary: what name, shape and metadata columns index.
    strings: tuple[str, ...]
    #: (pid, tid) of each thread, as text: files mix numbers and strings.
    threads: tuple[tuple[str, str], ...]
    events: Events
    comms: CommArgs
    memory: MemoryEvents
    frames: Frames
    #: Events that were dropped on purpose, by their category's name.
    dropped: dict[str, int]
    warnings: tuple[FileWarning, ...]
