"""What a rank's track is cut from: its device's events, its collectives, and what its host spends its time on."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest import track
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals
from tb_ddp_doctor.digest.launch_queue import HostStalls
from tb_ddp_doctor.digest.model import Steps, Track
from tb_ddp_doctor.digest.owners import LONG_STALL_NS, Layers
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.starvation import BLOCKING, BlockingCalls, recording_ns
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.trace.names import Phase


def rank_track(
    host: HostCalls,
    device: DeviceEvents,
    steps: Steps,
    layers: Layers,
    blocked: HostStalls,
    calls: BlockingCalls,
    op_stalls: Intervals,
    phases: HostPhases,
) -> Track:
    """The rank's track; none where the trace does not show what the host does when it launches.

    `op_stalls` is when the host is stalled inside an op.
    """
    if not len(steps) or not _launched_by_operators(host, device):
        return track.no_track()
    # A call that a step ends with is of that step.
    within = step_of(device.launch_ns, steps.host_start_ns)
    until = np.append(steps.host_start_ns[1:], steps.host_end_ns[-1])[within]
    ended = device.launch_ns + device.launch_length_ns
    ended = np.where(device.launch_ns < until, np.minimum(ended, until - 1), ended)
    launched = np.where(device.is_launched, ended, -1)
    blocking = np.zeros(len(host), np.bool_)
    blocking[device.launch[device.is_pageable & device.is_launched]] = True
    waits = device.is_launched & blocking[device.launch]
    launched = np.where(waits, device.launch_ns, launched)
    of_comm = device.communicates[device.by_start]
    work, comm = device.by_start[~of_comm], device.by_start[of_comm]
    stream = device.trace.events.stream[device.row[comm]].astype(np.int64)
    return track.track(
        steps,
        track.Device(device.start_ns[work], device.end_ns[work], launched[work]),
        track.Communication(device.start_ns[comm], device.end_ns[comm], launched[comm], stream),
        _host_time(host, device, steps, layers, blocked, calls, op_stalls),
        [phases.of(phase) for phase in Phase if phase is not Phase.OTHER],
    )


def _launched_by_operators(host: HostCalls, device: DeviceEvents) -> bool:
    """Whether most launches lie within operators, if there are any: outside of them the host seems to do nothing."""
    launch = device.launch[device.is_launched & ~device.communicates]
    if not host.is_operator.any():
        return len(launch) > 0
    return 2 * int((host.around(launch, host.is_operator) >= 0).sum()) > len(launch)


def _host_time(
    host: HostCalls,
    device: DeviceEvents,
    steps: Steps,
    layers: Layers,
    blocked: HostStalls,
    calls: BlockingCalls,
    op_stalls: Intervals,
) -> track.HostTime:
    """What holds the host."""
    window = Intervals.span(int(steps.host_start_ns[0]), int(steps.host_end_ns[-1]))
    idle = window - layers.host_busy
    long = idle.end - idle.start >= LONG_STALL_NS
    taken = EMPTY
    disjoint = []
    for part in (
        *(calls.over(kind) for kind in BLOCKING),
        layers.input & window,
        Intervals(idle.start[long], idle.end[long]),
        op_stalls & window,
        blocked.profiler,
        blocked.full_queue,
    ):
        disjoint.append(part - taken)
        taken = taken | part
    return track.HostTime(tuple(disjoint[:-1]), disjoint[-1], host.recorded_ns, recording_ns(device))
