"""What an allocator did on one device, and the blocks of memory that follow from it: when each was born, and died.

Blocks are joined by address: what is released at an address was the last one allocated there. Torch's CUDA allocator
tells of all blocks; that of the CPU counts from the beginning of the recording, and does not know blocks from before.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.model import Steps
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.trace.model import Indices, Ints, RankTrace

#: c10's number of the CPU among the kinds of device.
CPU = 0
#: In place of a device's number: the CPU.
ON_CPU = -1
#: Born before the recording.
BEFORE = -1


class AllocatorEvents(ColumnTable, frozen=True, eq=False):
    """Allocations and releases on one device, by time; shape (events,)."""

    time_ns: Ints
    #: Negative where they are released.
    bytes: Ints
    #: Allocated and reserved afterwards, bytes; the CPU reserves no more than is allocated.
    allocated: Ints
    reserved: Ints
    address: Ints
    thread: Indices

    @classmethod
    def of(cls, trace: RankTrace, device: int) -> AllocatorEvents:
        """Those of a device, or of the CPU (`ON_CPU`), that say what is allocated."""
        events = trace.memory
        chosen = events.allocated >= 0
        if device == ON_CPU:
            chosen &= events.device_type == CPU
        else:
            chosen &= (events.device_type != CPU) & (events.reserved >= 0)
            numbers = np.unique(events.device[chosen])
            # Of ROCm, kernels have another number of the same device.
            chosen &= events.device == (numbers[0] if len(numbers) == 1 else device)
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(events.time_ns[rows], kind="stable")]
        reserved = events.allocated if device == ON_CPU else events.reserved
        return cls(
            time_ns=events.time_ns[rows],
            bytes=events.bytes[rows],
            allocated=events.allocated[rows],
            reserved=reserved[rows],
            address=events.address[rows],
            thread=events.thread[rows],
        )


class Blocks(ColumnTable, frozen=True, eq=False):
    """Blocks that were allocated or released while the trace was recorded; shape (blocks,)."""

    bytes: Ints
    #: The event that allocates it, ascending; `BEFORE` of what was allocated before the recording.
    born: Ints
    #: The event that releases it; the number of events for what the recording does not see released.
    died: Ints


def blocks(events: AllocatorEvents) -> Blocks:
    """The blocks of a device. An address that is allocated twice was released between, unseen: there the first dies."""
    known = np.flatnonzero((events.address != -1) & (events.bytes != 0))
    order = known[np.argsort(events.address[known], kind="stable")]
    allocates = events.bytes[order] > 0
    same = events.address[order[1:]] == events.address[order[:-1]]
    following = np.where(np.append(same, False), np.append(order[1:], 0), len(events))
    ends = np.concatenate(([False], same & allocates[:-1])) if len(order) else np.empty(0, np.bool_)
    from_before = ~allocates & ~ends
    born = np.concatenate((np.full(int(from_before.sum()), BEFORE), order[allocates]))
    died = np.concatenate((order[from_before], following[allocates[: len(order)]]))
    size = np.concatenate((-events.bytes[order[from_before]], events.bytes[order[allocates]]))
    by_birth = np.argsort(born, kind="stable")
    return Blocks(size[by_birth], born[by_birth], died[by_birth])


class Allocations(msgspec.Struct, frozen=True, eq=False):
    """What a rank's allocator did, and when most was allocated."""

    events: AllocatorEvents
    blocks: Blocks
    #: The step of each event by the host's windows, -1 outside of all; shape (events,).
    step: Ints
    #: The event at each step's peak of allocated memory, -1 for none; shape (S,).
    peak: Ints
    #: The event with most allocated of all steps, of the whole trace if no step has any; -1 without events.
    top: int

    @classmethod
    def of(cls, trace: RankTrace, device: int, steps: Steps) -> Allocations:
        """Those of a device (`ON_CPU`: of the CPU)."""
        events = AllocatorEvents.of(trace, device)
        if not len(steps):
            outside = np.full(len(events), -1, np.int64)
            return cls(events, blocks(events), outside, np.empty(0, np.int64), -1)
        step = searchsorted(steps.host_start_ns, events.time_ns, side="right") - 1
        step[(step >= 0) & (events.time_ns >= steps.host_end_ns[step])] = -1
        peak = _peaks(step, events.allocated, events.reserved, len(steps))
        seen = peak[peak >= 0]
        if not len(events):
            return cls(events, blocks(events), step, peak, -1)
        top = int(seen[events.allocated[seen].argmax()]) if len(seen) else int(events.allocated.argmax())
        return cls(events, blocks(events), step, peak, top)

    def alive(self) -> Ints:
        """The blocks that are allocated when most is."""
        return np.flatnonzero((self.blocks.born <= self.top) & (self.blocks.died > self.top))


def _peaks(step: Ints, allocated: Ints, reserved: Ints, steps: int) -> Ints:
    """The event at each step's peak of allocated memory, of equal ones that with the least reserved; -1 for none."""
    inside = np.flatnonzero(step >= 0)
    peak = np.full(steps, -1, np.int64)
    # The last of each step in the order of what is allocated is its peak.
    order = inside[np.lexsort((-reserved[inside], allocated[inside], step[inside]))]
    last = order[np.flatnonzero(np.diff(step[order], append=steps))]
    peak[step[last]] = last
    return peak
