"""A slice of a job: what chosen ranks did in a window of time, on the job's clock, ready to be drawn.

N = events of a rank. Times are int64 ns on the common clock (`job.clock`); missing is -1.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.discover.own_files import OwnFile
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.trace.model import Category, CommArgs, Indices, Ints
from tb_ddp_doctor.trace.own_slice import RankOfSlice


class SliceError(ValueError):
    """A slice that cannot be had. Its text is a sentence for users."""


#: The category of a Python function; the others are `trace.model.Category`.
FRAME = len(Category)
#: What a category is called in a trace, Kineto's words.
CATEGORY_NAMES = (
    "cpu_op",
    "user_annotation",
    "cuda_runtime",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "overhead",
    "mtia_ccp_events",
    "mtia_insight",
    "mtia_workloadd",
    "hpu_op",
    "python_function",
)


class LaneRole(IntEnum):
    """What a lane is, in the order in which lanes stand."""

    MAIN = 0
    AUTOGRAD = 1
    THREAD = 2
    STREAM = 3


class SliceLane(msgspec.Struct, frozen=True):
    """A host thread, or a stream of a device."""

    role: LaneRole
    title: str


class SliceMemory(ColumnTable, frozen=True, eq=False):
    """The device's memory in the window, as the allocator has it, bytes."""

    time_ns: Ints
    allocated: Ints
    reserved: Ints


class SliceGpu(msgspec.Struct, frozen=True, eq=False):
    """The device's clock and power in the window, as a capture saw them; shape (looks,), NaN where unknown."""

    time_ns: Ints
    sm_mhz: NDArray[np.float64]
    power_w: NDArray[np.float64]


class SliceArgs(ColumnTable, frozen=True, eq=False):
    """What the reader kept of the arguments of N events, as `trace.model.Events` has it; -1 for a Python function."""

    device: Ints
    stream: Ints
    correlation: Ints
    bytes: Ints
    shape: Ints
    occupancy: Ints
    sequence: Ints
    types: Ints
    values: Ints
    graph: Ints
    #: Row in `RankSlice.comms`.
    comm: Ints


class SliceAllocations(ColumnTable, frozen=True, eq=False):
    """What the allocators did in the window, as `trace.model.MemoryEvents` has it; none in a slice with gaps."""

    lane: Indices
    time_ns: Ints
    device_type: Ints
    device: Ints
    bytes: Ints
    allocated: Ints
    reserved: Ints
    address: Ints


class RankSlice(msgspec.Struct, frozen=True, eq=False):
    """One rank's part: events by lane, then start, the outer ones first; each lies wholly within those around it."""

    rank: int
    node: str
    lanes: tuple[SliceLane, ...]
    #: The trace's vocabulary, which `name`, some of `args` and the words of `comms` index.
    strings: tuple[str, ...]
    #: Shape (N,): index into `lanes`, and how many events of the lane lie around it.
    lane: Indices
    depth: Indices
    start_ns: Ints
    end_ns: Ints
    name: Indices
    #: A `Category`, or FRAME.
    category: Indices
    #: A `RankOwner`: what a nanosecond of it belongs to if nothing else holds.
    owner: Indices
    #: Joins a device event with the call that launched it, if both are here.
    correlation: Ints
    args: SliceArgs
    comms: CommArgs
    #: Row in the job's matched collectives.
    collective: Ints
    #: Paths of the model's modules; and the one that each event is of, by its launch if it is the device's, -1 outside.
    modules: tuple[str, ...]
    module: Indices
    memory: SliceMemory
    gpu: SliceGpu
    allocations: SliceAllocations
    #: What makes of the events here those of the rank's trace again, but for the numbers that a format gives to the
    #: process and its threads.
    declared: RankOfSlice
    #: When the host's last step ends: a call that synchronises after that is the profiler's own.
    steps_end_ns: int
    #: Events of the window that are not here, the shortest ones.
    left_out: int

    def __len__(self) -> int:
        return len(self.name)


class Label(msgspec.Struct, frozen=True):
    """A part of the window that the doctor has something to say about."""

    title: str
    rank: int
    start_ns: int
    end_ns: int
    what: str
    #: "train.py:41 step", the user's own function there; "" where stacks do not tell.
    source: str


class Collective(msgspec.Struct, frozen=True):
    """A matched collective: who kept the others waiting."""

    kind: str
    group: str
    bytes: int
    last_rank: int
    #: When the last rank arrived.
    last_ns: int
    #: From then to its end, as `facts.traffic` has it; and the ranks of its group.
    transfer_ns: int
    size: int
    #: The first and the last to arrive of the ranks that are shown.
    shown_first: int
    shown_last: int


class Slice(msgspec.Struct, frozen=True):
    """What to draw of a run."""

    run: str
    start_ns: int
    end_ns: int
    #: Made when asked for, so that a whole job goes rank by rank through memory; to be gone through once.
    ranks: Iterable[RankSlice]
    labels: tuple[Label, ...]
    #: By their row among the job's matched collectives.
    collectives: dict[int, Collective]
    #: What the file says first.
    own: OwnFile
