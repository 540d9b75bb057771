"""Copies between host and device, by the memory that the host's side is in."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import CopyWork, Steps
from tb_ddp_doctor.digest.owners import Layers
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.trace import names


def copies(device: DeviceEvents, steps: Steps, layers: Layers, blocked: Intervals) -> CopyWork:
    """The copies of the steps; `blocked` is when those from pageable memory hold the host."""
    size, step = len(steps), device.step
    memory = device.kinds(names.host_memory)
    pageable, pinned = device.is_pageable, device.is_copy & (memory == names.HostMemory.PINNED)
    copied = np.flatnonzero(pageable | pinned)
    exposed_ns = np.zeros(len(device), np.int64)
    exposed_ns[copied] = (layers.copy - layers.compute).measure(device.start_ns[copied], device.end_ns[copied])
    return CopyWork(
        pageable_copies=count(step, pageable, size),
        pageable_bytes=total(step, pageable, device.bytes, size),
        pageable_ns=total(step, pageable, device.length_ns, size),
        pageable_exposed_ns=total(step, pageable, exposed_ns, size),
        pageable_blocked_ns=blocked.measure(steps.host_start_ns, steps.host_end_ns),
        unnamed_copies=count(step, device.is_copy & (memory == names.HostMemory.UNNAMED), size),
        pinned_bytes=total(step, pinned, device.bytes, size),
        pinned_ns=total(step, pinned, device.length_ns, size),
        pinned_exposed_ns=total(step, pinned, exposed_ns, size),
    )
