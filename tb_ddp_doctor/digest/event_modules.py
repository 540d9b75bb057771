"""Which module of the model each event of a trace is of, as the digest has it: forward, backward, and what they launch.

It is worked out from the trace's columns for those who show single events: a digest has a module's time and not when
that was.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.graph_parts import GraphParts
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.model import EventModules, RankDigest
from tb_ddp_doctor.digest.module_paths import MOST_LETTERS, ROOT, ModuleCalls
from tb_ddp_doctor.digest.phases import host_phases
from tb_ddp_doctor.trace.model import RankTrace


def event_modules(trace: RankTrace, digest: RankDigest) -> EventModules:
    """The module of each event of a trace, by its row."""
    if not digest.modules.named_by:
        return EventModules((), np.empty(0, np.int32))
    host, rows = HostCalls.of(trace), DeviceRows.of(trace.events)
    device = DeviceEvents.of(host, digest.device_number, rows)
    parts = GraphParts.of(device)
    calls = parts.calls(ModuleCalls.of(host, host_phases(host, device), digest.steps))
    of_row = np.full(len(trace.events), ROOT, np.int64)
    rows_of_calls = np.flatnonzero(host.index >= 0)
    call = host.index[rows_of_calls]
    of_row[rows_of_calls] = calls.at(host.start_ns[call], host.thread[call])
    of_row[device.row] = parts.modules(calls, device)
    inside = of_row != ROOT
    used, place = np.unique(of_row[inside], return_inverse=True)
    module = np.full(len(of_row), -1, np.int32)
    module[inside] = place
    return EventModules(calls.table.paths(used.tolist(), MOST_LETTERS), module)
