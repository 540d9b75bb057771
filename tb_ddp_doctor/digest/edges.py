"""Where a record without ProfilerSteps begins and ends: its edges belong to no step.

When recording starts, the device is still busy with what was launched before, and none of that is in the record. A
host that syncs meanwhile, or copies, is blocked for the sake of work that nobody sees:

    host   [copy_............................][view][mul][sync................]
    gpu      (launched before the record)    [copy]       [mul...............]
                                              ^ the step   ^

A sync after the last launch ends the record, and the last launches may have no kernel, where recording stopped before
the device ran them. On the device the step lasts until its last event ends.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.collectives import enqueues
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: A device that has nothing to do starts a kernel 5 to 20 µs after its launch, and an idle one's sync returns as soon:
#: from here on they waited, ns.
_WAITED_NS = 1_000_000
#: So many launches wait then, at least: a host that runs ahead launches one every 5 to 50 µs.
_PILED_UP = 16
_LAST = int(np.iinfo(np.int64).max)


class Edges(msgspec.Struct, frozen=True):
    """Where a record begins and ends, ns."""

    #: The host: when it is no longer blocked by work from before the record; and when it begins the sync that ends the
    #: record, or makes the first of the last launches that have no kernel.
    host_ns: int
    host_end_ns: int
    #: The device: when it has finished what was launched before the record.
    device_ns: int

    @classmethod
    def whole(cls) -> Edges:
        """All that is recorded."""
        return cls(0, _LAST, 0)

    def cut(self, steps: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints, Ints]:
        """Steps, as numbers, starts and ends (ns), without what lies outside; all of them if nothing would be left."""
        number, start, end = steps
        start, end = np.maximum(start, self.host_ns), np.minimum(end, self.host_end_ns)
        kept = end > start
        return (number[kept], start[kept], end[kept]) if kept.any() else steps

    def whole_steps(self, steps: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints, Ints]:
        """Steps, as numbers, starts and ends (ns), that lie inside; as cut where none does."""
        number, start, end = steps
        whole = (start >= self.host_ns) & (end <= self.host_end_ns)
        return (number[whole], start[whole], end[whole]) if whole.any() else self.cut(steps)


def edges(host: HostCalls, device: DeviceEvents) -> Edges:
    """The edges of a record that nothing marks; all of it where no device event can be joined to its launch."""
    launched = device.by_start[device.is_launched[device.by_start]]
    if not len(launched):
        return Edges.whole()
    awaits = _awaiting(device)
    begins = int(device.start_ns[launched[0] if awaits < 0 else awaits])
    blocks = host.is_runtime & host.trains & host.named(names.is_sync)
    syncs = blocks.copy()
    # A copy may block its own call.
    blocks[device.launch[launched[device.is_copy[launched]]]] = True
    # Before the first device event there is nothing in the record to wait for.
    before = (host.end_ns <= begins) & syncs | (blocks & (awaits >= 0))
    before &= (host.start_ns < begins) & (np.minimum(host.end_ns, begins) - host.start_ns > _WAITED_NS)
    last = int(device.launch_ns[launched].max())
    ending = syncs & (host.length_ns > _WAITED_NS) & (host.start_ns > last)
    return Edges(
        host_ns=int(np.minimum(host.end_ns[before], begins).max(initial=0)),
        host_end_ns=min(int(host.start_ns[ending].min(initial=_LAST)), _first_lost(host, device)),
        device_ns=begins if awaits >= 0 else 0,
    )


def _first_lost(host: HostCalls, device: DeviceEvents) -> int:
    """When the host makes the first of the last launches that have no kernel; far ahead if the last ones have one.

    Communication is looked at by itself: it may still wait for other ranks when later kernels have run.
    """
    calls = np.flatnonzero(host.is_runtime & host.named(names.launches_kernel))
    ran = np.zeros(len(host), np.bool_)
    ran[device.launch[device.is_launched]] = True
    communicates = host.around(calls, enqueues(host)) >= 0
    first = _LAST
    for kind in (calls[communicates], calls[~communicates]):
        if len(done := kind[ran[kind]]):
            late = host.start_ns[kind]
            first = min(first, int(late[late > host.start_ns[done].max()].min(initial=_LAST)))
    return first


def busy_until_ns(device: DeviceEvents) -> int:
    """Until when the device does what was launched before the record, and is not in it; 0 if launches do not pile up.

    A single launch may be late for another reason: a copy from pageable memory is staged by the host. A device that has
    done more of the record than waits was not busy: its clock was set.
    """
    awaits = _awaiting(device)
    if awaits < 0:
        return 0
    begins = int(device.start_ns[awaits])
    waiting = int((device.is_launched & (device.launch_ns < begins) & (device.start_ns >= begins)).sum())
    done = int((device.is_launched & (device.start_ns < begins)).sum())
    return begins if waiting >= max(_PILED_UP, done) else 0


def _awaiting(device: DeviceEvents) -> int:
    """The first device event that awaited work from before the record; -1 if none did.

    It begins long after its launch although the record shows an idle device, which has done little in it until then.
    """
    launched = device.by_start[device.is_launched[device.by_start]]
    start, end = device.start_ns[device.by_start], device.end_ns[device.by_start]
    busy_until = np.maximum.accumulate(np.concatenate(([0], end)))[:-1]
    done_ns = np.concatenate(([0], np.cumsum(end - start)))[:-1]
    known = device.is_launched[device.by_start]
    # A copy's call may return only when it has run.
    called = device.launch_ns[launched] + np.where(device.is_copy[launched], 0, device.launch_length_ns[launched])
    idle = start[known] - np.maximum(called, busy_until[known])
    awaits = np.flatnonzero((idle > _WAITED_NS) & (idle > done_ns[known]))
    return int(launched[awaits[0]]) if len(awaits) else -1
