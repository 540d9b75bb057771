"""How much memory each of a rank's modules allocates: at the peak, and in all."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.allocator import BEFORE, Allocations
from tb_ddp_doctor.digest.model import ModuleBytes
from tb_ddp_doctor.digest.module_paths import ROOT, ModuleCalls
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace.model import Ints


def module_memory(allocations: Allocations, calls: ModuleCalls, place: Ints, modules: int) -> ModuleBytes:
    """The memory of the modules that are kept; `place` is which of them each module of `calls` counts for.

    A block is of the innermost module that is called, forward or backward, when it is allocated.
    """
    events, blocks = allocations.events, allocations.blocks
    if allocations.top < 0:
        return empty(ModuleBytes)
    allocates = np.flatnonzero((events.bytes > 0) & (allocations.step >= 0))
    alive = allocations.alive()
    alive = alive[blocks.born[alive] != BEFORE]
    born = blocks.born[alive]
    whole = events.allocated[[allocations.top]]
    peak = summed(place[calls.at(events.time_ns[born], events.thread[born])], blocks.bytes[alive], modules)
    # What was allocated before the recording is seen in the allocator's own count alone.
    peak[[ROOT]] += whole - peak.sum(keepdims=True)
    module = place[calls.at(events.time_ns[allocates], events.thread[allocates])]
    allocated = summed(module, events.bytes[allocates], modules)
    used = np.flatnonzero((peak != 0) | (allocated != 0))
    return ModuleBytes(used.astype(np.int32), peak[used], allocated[used])
