"""Which module of the model each event of a slice is of, as the digest has it: forward, backward, and what they launch.

It is worked out again from the trace's columns whenever a slice is cut, which takes milliseconds: a digest has a
module's time and not when that was.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.graph_parts import GraphParts
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.module_paths import MOST_LETTERS, ROOT, ModuleCalls
from tb_ddp_doctor.digest.phases import host_phases
from tb_ddp_doctor.trace.model import Indices, Ints, RankTrace


class EventModules(msgspec.Struct, frozen=True, eq=False):
    """The modules that some events are of."""

    #: Paths of those that have any event, as "layers.0.mlp", or "layer 3" where layers are guessed.
    paths: tuple[str, ...]
    #: Index into `paths` of each event; -1 outside of all modules. Shape (N,).
    module: Indices


def event_modules(trace: RankTrace, digest: RankDigest, row: Ints) -> EventModules:
    """The module of each of some events, given by their rows in the trace (-1: a Python function, which has none)."""
    module = np.full(len(row), -1, np.int32)
    if not digest.modules.named_by:
        return EventModules((), module)
    host, rows = HostCalls.of(trace), DeviceRows.of(trace.events)
    device = DeviceEvents.of(host, digest.device_number, rows)
    parts = GraphParts.of(device)
    calls = parts.calls(ModuleCalls.of(host, host_phases(host, device), digest.steps))
    of_row = np.full(len(host.index), ROOT, np.int64)
    rows_of_calls = np.flatnonzero(host.index >= 0)
    call = host.index[rows_of_calls]
    of_row[rows_of_calls] = calls.at(host.start_ns[call], host.thread[call])
    of_row[device.row] = parts.modules(calls, device)
    known = np.flatnonzero(row >= 0)
    of_event = of_row[row[known]]
    inside = of_event != ROOT
    used, place = np.unique(of_event[inside], return_inverse=True)
    module[known[inside]] = place
    return EventModules(calls.table.paths(used.tolist(), MOST_LETTERS), module)
