"""What a rank's track is cut from: its device's events, its collectives, and what its host spends its time on."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest import track
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.host_updates import HostUpdates
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals
from tb_ddp_doctor.digest.late_launches import BLOCKING, BlockingCalls, recording_ns
from tb_ddp_doctor.digest.launch_queue import StalledCalls
from tb_ddp_doctor.digest.model import HostMeetings, LaunchDelay, Steps, Track
from tb_ddp_doctor.digest.owners import Layers
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase

#: A call that needs an event follows the synchronisation with it at once, ns.
_AT_ONCE_NS = 50_000


class HostUse(msgspec.Struct, frozen=True, eq=False):
    """What keeps a rank's host from launching."""

    layers: Layers
    blocked: StalledCalls
    calls: BlockingCalls
    updates: HostUpdates
    #: When it is stalled inside an op.
    op_stalls: Intervals


def rank_track(
    host: HostCalls,
    device: DeviceEvents,
    steps: Steps,
    use: HostUse,
    phases: HostPhases,
    meetings: HostMeetings,
) -> tuple[Track, Ints]:
    """The rank's track, and the row of it that launches each device event, shape (events,), -1 for none; no rows where
    the trace does not show what the host does when it launches.
    """
    if not len(steps) or not use.layers.shows_host:
        return empty(Track), np.full(len(device.launch_ns), -1)
    # A call that a step ends with is of that step.
    within = step_of(device.launch_ns, steps.host_start_ns)
    until = np.append(steps.host_start_ns[1:], steps.host_end_ns[-1])[within]
    ended = device.launch_ns + device.launch_length_ns
    ended = np.where(device.launch_ns < until, np.minimum(ended, until - 1), ended)
    launched = np.where(device.is_launched, ended, -1)
    blocking = np.zeros(len(host), np.bool_)
    blocking[device.launch[device.is_pageable & device.is_launched]] = True
    waits = device.is_launched & blocking[device.launch]
    launched = _one_by_one(np.where(waits, device.launch_ns, launched), device)
    of_comm = device.communicates[device.by_start]
    work, comm = device.by_start[~of_comm], device.by_start[of_comm]
    made, end_ns = track.track(
        steps,
        track.DeviceWork(device.start_ns[work], device.end_ns[work], launched[work], device.stream[work]),
        track.Communication(
            device.start_ns[comm],
            device.end_ns[comm],
            launched[comm],
            device.stream[comm],
            device.named(names.is_polled)[comm],
        ),
        _host_time(host, device, steps, use),
        [phases.of(phase) for phase in Phase if phase is not Phase.OTHER],
        track.Meetings(meetings.start_ns, meetings.end_ns),
    )
    row = searchsorted(end_ns, launched, side="right")
    return made, np.where((launched >= 0) & (row < len(end_ns)), row, -1)


def _one_by_one(launched_ns: Ints, device: DeviceEvents) -> Ints:
    """When events are launched, shape (events,), with those of a CUDA graph that communicates 1 ns apart.

    One call launches all of them. In the order of their starts, a collective comes after the kernels that it needs, and
    before those that await it:

        launched  [gemm][all-reduce][gemm]  ends with the call
        stream    [gemm.......][all-reduce......][gemm.......]
    """
    communicates = np.zeros(int(device.launch.max(initial=0)) + 1, np.bool_)
    communicates[device.launch[device.communicates & device.is_launched]] = True
    inside = device.by_start[(device.is_launched & communicates[device.launch])[device.by_start]]
    inside = inside[np.argsort(device.launch[inside], kind="stable")]
    last = np.flatnonzero(np.diff(device.launch[inside], append=-1))
    follow = np.repeat(last, np.diff(last, prepend=-1)) - np.arange(len(inside))
    launched: Ints = launched_ns.copy()
    launched[inside] = np.maximum(launched_ns[inside] - follow, device.launch_ns[inside])
    return launched


def _host_time(host: HostCalls, device: DeviceEvents, steps: Steps, use: HostUse) -> track.HostTime:
    """What holds the host.

    A long stretch outside any call that a call follows which needs an event to be over is a synchronisation with that
    event: not all recorders show cudaEventSynchronize.
    """
    window = Intervals.span(int(steps.host_start_ns[0]), int(steps.host_end_ns[-1]))
    idle = use.layers.stalls(window)
    needs_event = np.sort(host.start_ns[host.is_runtime & host.trains & host.named(names.needs_event)])
    following = searchsorted(needs_event, idle.end)
    syncs = np.append(needs_event, np.iinfo(np.int64).max)[following] - idle.end <= _AT_ONCE_NS
    unrecorded = Intervals(idle.start[syncs], idle.end[syncs])
    calls, updates = use.calls, use.updates
    removable, awaited = calls.chosen(~updates.awaited), calls.chosen(updates.awaited)
    taken = EMPTY
    disjoint = []
    for part in (
        *(removable.over(kind) | unrecorded if kind is LaunchDelay.SYNC else removable.over(kind) for kind in BLOCKING),
        awaited.over(LaunchDelay.SYNC),
        use.layers.input & window,
        idle - unrecorded - updates.work,
        use.op_stalls & window,
        updates.work & window,
        use.blocked.profiler,
        use.blocked.full_queue,
    ):
        disjoint.append(part - taken)
        taken = taken | part
    return track.HostTime(tuple(disjoint[:-1]), disjoint[-1], host.recorded_ns, recording_ns(device))
