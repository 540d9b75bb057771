"""What the optimizer's step does on the device."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import OptimizerWork, Steps
from tb_ddp_doctor.digest.owners import Layers
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names


def of_single_tensors(host: HostCalls, device: DeviceEvents) -> Mask:
    """The device events of the steps with which an optimizer updates single tensors."""
    # Products of matrices, as of optimizers that orthogonalise, are no loop of small operations.
    alone = device.computes & device.is_launched & (device.step >= 0) & ~device.named(_takes_many)
    alone[alone] = host.around(device.launch[alone], _is_update(host)) >= 0
    return alone


def optimizer(
    host: HostCalls, device: DeviceEvents, steps: Steps, layers: Layers, blocked: Intervals, alone: Mask
) -> OptimizerWork:
    """The optimizer of the steps, and the kernels that it launches; `alone` are those `of_single_tensors`.

    The host does not launch while it is `blocked`, nor while it waits, allocates, or is outside of any call for long.
    """
    size, step, start = len(steps), device.step, device.start_ns
    updates = _is_update(host)
    update_start, update_end = host.start_ns[updates], host.end_ns[updates]
    # One optimizer may call another: ZeRO's, or one for each group of parameters.
    launching = Intervals.union(update_start, update_end) - (blocked | layers.input | layers.sync | layers.alloc)
    launching -= layers.stalls(launching)
    first, last = steps.end_ns.copy(), steps.start_ns.copy()
    np.minimum.at(first, step[alone], start[alone])
    np.maximum.at(last, step[alone], device.end_ns[alone])
    # Of steps without such kernels an empty stretch stays; kernels may begin before the window of their step.
    first, last = np.minimum(np.maximum(first, steps.start_ns), last), np.maximum(last, steps.start_ns)
    return OptimizerWork(
        optimizer_steps=count(within(update_start, steps), np.ones(len(update_start), np.bool_), size),
        optimizer_host_ns=launching.measure(steps.host_start_ns, steps.host_end_ns),
        optimizer_kernels=count(step, alone, size),
        optimizer_ns=total(step, alone, device.length_ns, size),
        optimizer_start_ns=first,
        optimizer_end_ns=last,
    )


def _is_update(host: HostCalls) -> Mask:
    return host.is_annotation & host.named(names.is_optimizer_step)


def _takes_many(kernel: str) -> bool:
    return names.updates_many_tensors(kernel) or names.product(kernel) is not names.Product.NONE
