"""When an optimizer works on the CPU, and the calls that wait for what it works on.

Parameters may live on the CPU (ZeRO-Offload, CPU offload of FSDP). Then gradients are copied to the host, the CPU waits
for these copies, and updates there; parameters are copied back, at once or by the next forward:

    stream 7  [bwd..........][DtoH..]                          [HtoD]
    CPU       [bwd][cudaStreamSynchronize][Optimizer.step.....]

The GPU idles meanwhile, but neither is the call a sync to be removed, since the update needs the gradients, nor is the
update a stall, or slow launching.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals
from tb_ddp_doctor.digest.late_launches import BlockingCalls
from tb_ddp_doctor.digest.model import LaunchDelay, Steps
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.trace import names

#: Copies of single values are smaller. All copies of gradients together are larger, or longer where no bytes are told.
_SMALL_BYTES, _LEAST_BYTES = 1 << 16, 1 << 20
_SMALL_NS, _LEAST_NS = 10_000, 100_000


class HostUpdates(msgspec.Struct, frozen=True, eq=False):
    """The work of optimizers on the CPU."""

    work: Intervals
    #: Which of the `BlockingCalls` wait for what is updated, shape (calls,).
    awaited: NDArray[np.bool_]


def host_updates(host: HostCalls, device: DeviceEvents, steps: Steps, calls: BlockingCalls) -> HostUpdates:
    """The work of optimizers on the CPU in the recorded steps.

    An optimizer works on the CPU if its step launches no kernel that computes, and large copies to the host were
    launched before it in the same step.
    """
    awaited = np.zeros(len(calls.call), np.bool_)
    annotated = host.outermost(host.is_annotation & host.trains & host.named(names.is_optimizer_step))
    copied = np.flatnonzero(device.is_copy & device.is_launched & device.named(names.is_to_host))
    copied = copied[(device.bytes[copied] >= _SMALL_BYTES) | (device.length_ns[copied] >= _SMALL_NS)]
    if not len(annotated) or not len(copied) or not len(steps):
        return HostUpdates(EMPTY, awaited)
    copied = copied[np.argsort(device.launch_ns[copied], kind="stable")]
    launched = device.launch_ns[copied]
    start, end = host.start_ns[annotated], host.end_ns[annotated]
    step = step_of(start, steps.host_start_ns)
    first = searchsorted(launched, steps.host_start_ns[np.maximum(step, 0)])
    until = searchsorted(launched, end)
    moved, took = (
        np.concatenate(([0], np.cumsum(amount[copied])))[[first, np.maximum(until, first)]]
        for amount in (device.bytes, device.length_ns)
    )
    is_large = (moved[1] - moved[0] >= _LEAST_BYTES) | (took[1] - took[0] >= _LEAST_NS)
    computing = np.sort(device.launch_ns[device.computes & device.is_launched])
    launches = searchsorted(computing, end) > searchsorted(computing, start)
    chosen = np.flatnonzero((step >= 0) & is_large & ~launches)
    if not len(chosen):
        return HostUpdates(EMPTY, awaited)
    waiting = Intervals.union(launched[first[chosen]], end[chosen])
    return HostUpdates(
        work=Intervals.union(start[chosen], end[chosen]) - host.over(host.is_runtime & host.trains),
        awaited=(calls.kind == LaunchDelay.SYNC) & waiting.covers(host.start_ns[calls.call]),
    )
