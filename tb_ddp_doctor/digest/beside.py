"""Kernels that run beside communication: for how long, and how much longer they take than alone.

Two kernels are alike if they have the same name and grid, and operators with the same name and sizes of inputs launched
them. What a kernel takes longer is its length less the mean length of those like it that run without communication
beside them:

    layer 1 backward   [gemm 1.0 ms]                             1.0 ms alone
    layer 2 backward                    [gemm 1.4 ms ...]        0.4 ms longer
    AllReduce                         [....................]
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.trace.model import Floats, Ints

#: Kernels like it that have to run alone, so that their mean says how long one takes.
_LEAST_ALONE = 3


def beside_communication(
    host: HostCalls, device: DeviceEvents, operator: Ints, communication: Intervals
) -> tuple[Floats, Floats]:
    """The share of each device event that runs beside communication, and how much longer it takes, ns; shape (events,).

    `operator` is the call of the operator that launched each, -1 for none. Copies, and kernels like which too few run
    alone, take nothing longer; a kernel may take less long than those alone do on average.
    """
    share, longer = np.zeros(len(device)), np.zeros(len(device))
    events = np.flatnonzero(device.computes & (device.step >= 0) & (device.length_ns > 0))
    length = device.length_ns[events]
    beside = communication.measure(device.start_ns[events], device.end_ns[events])
    if not beside.any():
        return share, longer
    share[events] = beside / length
    by = operator[events]
    given = [np.append(column, -1)[by] for column in (host.name, host.shape)]
    like = numbered(device.name[events], device.trace.events.shape[device.row[events]], *given)
    alone = beside == 0
    count = np.bincount(like, alone)
    takes = np.bincount(like, length * alone) / np.maximum(count, 1)
    known = (beside > 0) & (count[like] >= _LEAST_ALONE)
    longer[events[known]] = (length - takes[like])[known]
    return share, longer
