"""Finds where a device idles although it has work to do: time that nothing of its own record explains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.findings import FileWarning

#: Shorter idle times are of streams that wait for each other by what the trace does not show.
_LEAST_NS = 100_000_000


def idle_with_work(host: HostCalls, device: DeviceEvents, busy: Intervals) -> Iterator[FileWarning]:
    """A sentence where a device idles for long before an event that was launched before.

    CPU     [launch a][launch b]
    GPU               [a]  1,300 ms idle  [b]
    """
    idle = np.flatnonzero(busy.start[1:] - busy.end[:-1] >= _LEAST_NS)
    if not len(idle):
        return
    order = np.argsort(device.start_ns, kind="stable")
    following = order[searchsorted(device.start_ns[order], busy.start[1:][idle])]
    known = device.is_launched[following]
    idle, following = idle[known], following[known]
    launched_ns = host.end_ns[device.launch[following]]
    waited = busy.start[1:][idle] - np.maximum(busy.end[:-1][idle], launched_ns)
    if len(waited) and waited.max() >= _LEAST_NS:
        yield FileWarning(
            host.trace.file,
            f"The GPU idles for {wording.ms(float(waited.max()))} although work for it is launched: a clock was set, "
            "another process had the GPU, or it waited for something that the trace lacks.",
        )
