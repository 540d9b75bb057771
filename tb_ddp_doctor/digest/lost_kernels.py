"""Kernels that the host launched in each ProfilerStep, and those of them that the trace lacks."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.collectives import enqueues
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import LostKernels
from tb_ddp_doctor.digest.steps import NO_STEP, step_of
from tb_ddp_doctor.digest.sums import count
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints


def lost_kernels(
    host: HostCalls, device: DeviceEvents, number: Ints, host_start_ns: Ints, host_end_ns: Ints
) -> LostKernels:
    """Of the steps with these numbers and host windows.

    What is launched inside `record_param_comms` is communication. Launches of CUDA graphs are not counted.
    """
    correlation = host.trace.events.correlation
    calls = np.flatnonzero(host.is_runtime & host.named(names.launches_kernel))
    calls = calls[correlation[host.row[calls]] >= 0]
    start = host.start_ns[calls]
    step = np.where(start < host_end_ns[-1], step_of(start, host_start_ns), -1)
    communicates = host.around(calls, enqueues(host)) >= 0
    lost = np.ones(len(calls), np.bool_)
    if len(device):
        wanted, there = correlation[host.row[calls]], np.sort(correlation[device.row], kind="stable")
        lost = there[np.minimum(searchsorted(there, wanted), len(there) - 1)] != wanted
    size = len(number)
    known = number != NO_STEP
    return LostKernels(
        number=number[known],
        launches=count(step, np.ones(len(calls), np.bool_), size)[known],
        lost=count(step, lost, size)[known],
        communications=count(step, communicates, size)[known],
        lost_communications=count(step, communicates & lost, size)[known],
    )


def without_device(number: Ints) -> LostKernels:
    """Of a trace without device events, in which no launch can be missed."""
    return LostKernels(number, *(np.zeros(len(number), np.int64) for _ in range(4)))
