"""One rank's Flight Recorder dump as columns.

PyTorch records each collective and each send or receive that a rank enqueues in a ring buffer (TORCH_FR_BUFFER_SIZE)
and writes it when a collective times out, or on request. Times are ns since 1970 on the rank's own clock; -1 stands for
a time that was not recorded. Of NCCL's collectives, the times of start and end are those at which the CPU's watchdog
saw them, which is late by up to its period (100 ms and more): nothing here is concluded from them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tb_ddp_doctor.storage.column_table import ColumnTable

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: States of an entry.
SCHEDULED, STARTED, COMPLETED = range(3)
#: Where libraries are: frames there are not the user's own.
_LIBRARIES = ("site-packages", "dist-packages", f"torch{os.sep}", "multiprocessing", "<string>", "<frozen")


class ProcessGroup(NamedTuple):
    """A process group, as the dump's `pg_config` has it."""

    name: str
    #: What the job calls it: "TENSOR_MODEL_PARALLEL_GROUP", "mesh_dp"; "" where it has no description.
    description: str
    #: Global ranks; empty where the dump does not list them (gloo).
    ranks: tuple[int, ...]


class GroupStatus(NamedTuple):
    """The newest sequence numbers of a group on this rank; -1: none yet. Sends and receives count in them too."""

    enqueued: int
    completed: int


class Operation(NamedTuple):
    """What an entry is, from its `profiling_name`."""

    #: "nccl", "gloo" ...
    backend: str
    #: "all_reduce", "send", "recv", "coalesced" ...
    kind: str
    #: Sender and receiver by their place in the group; -1 for collectives.
    source: int
    target: int


class Shape(NamedTuple):
    """Sizes and element types of an entry's tensors."""

    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]


class StackFrame(NamedTuple):
    """A place in Python code."""

    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        return any(part in self.file for part in _LIBRARIES)


class Entries(ColumnTable, frozen=True, eq=False):
    """What was recorded, in the order in which it was enqueued; each column has shape (E,)."""

    #: Counts all that the rank ever recorded: larger than 0 at first where the ring buffer was overrun, or where only
    #: what is not completed was written.
    record: Ints
    #: Index into the dump's `group_names`, `operations`, `shapes` and `stacks`; -1: not recorded, or not kept, as the
    #: shapes and stacks of what has completed.
    group: Ints
    operation: Ints
    shape: Ints
    stack: Ints
    #: Counts a group's collectives, or its sends and receives, on this rank; members of one coalesced call share it.
    sequence: Ints
    is_p2p: Flags
    #: SCHEDULED, STARTED or COMPLETED.
    state: Ints
    created_ns: Ints
    started_ns: Ints
    completed_ns: Ints
    #: -1 where it is not recorded.
    timeout_ms: Ints


class Dump(msgspec.Struct, frozen=True, dict=True):
    """What one rank recorded."""

    #: Its path.
    file: str
    #: -1 until it is known.
    rank: int
    #: "" where neither file nor folder names it.
    host: str
    #: Of the format.
    version: str
    #: "NCCL 2.27.3"; "" where it is not recorded.
    library: str
    groups: Mapping[str, ProcessGroup]
    #: By name of the group, as far as it is known to which the numbers belong.
    status: Mapping[str, GroupStatus]
    entries: Entries
    group_names: tuple[str, ...]
    operations: tuple[Operation, ...]
    shapes: tuple[Shape, ...]
    stacks: tuple[tuple[StackFrame, ...], ...]
    #: When the file was written, as the file system has it; after a copy it is later than that.
    modified_ns: int
    #: Whether what it was read from has left out older entries.
    is_cut: bool = False

    @cached_property
    def keeps_completed(self) -> bool:
        """Whether what had completed was written too; else an entry that is not here may have completed."""
        return bool((self.entries.state == COMPLETED).any())

    @cached_property
    def is_overrun(self) -> bool:
        """Whether the oldest entries are lost, as a rule because the ring buffer was too short."""
        return self.is_cut or (self.keeps_completed and bool(self.entries.record[0] > 0))

    @cached_property
    def last_sign_ns(self) -> int:
        """The newest time in the dump; -1 where there is none."""
        times = (self.entries.created_ns, self.entries.started_ns, self.entries.completed_ns)
        return max((int(column.max(initial=-1)) for column in times), default=-1)
