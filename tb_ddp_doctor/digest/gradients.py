"""When backward completes each parameter's gradient, on the host and on the device.

autograd runs a node for each parameter that adds to its gradient; DDP's hook runs within that node and launches the
AllReduce of a bucket with the last of its gradients. Shapes tell how large each is (record_shapes=True).
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.autograd_nodes import nodes
from tb_ddp_doctor.digest.collectives import backward_passes, count_elements
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.memory_places import CallsOfModules
from tb_ddp_doctor.digest.model import Gradients, Steps
from tb_ddp_doctor.digest.nesting import enclosing
from tb_ddp_doctor.digest.steps import within
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Indices, Ints


def gradients(host: HostCalls, device: DeviceEvents, steps: Steps, phase: Ints, words: Vocabulary) -> Gradients:
    """The gradients of the steps; `phase` is what launched each event of the device."""
    adds = np.flatnonzero(host.is_operator & host.named(names.accumulates_gradient))
    if not len(adds):
        return empty(Gradients)
    adds = adds[np.argsort(host.start_ns[adds], kind="stable")]
    step = within(host.start_ns[adds], steps)
    adds, step = adds[step >= 0], step[step >= 0]
    ready, launching = _ready(host, device, adds)
    passes = backward_passes(device, phase == names.Phase.BACKWARD)
    return Gradients(
        step=step.astype(np.int32),
        backward=(searchsorted(passes, host.start_ns[adds], side="right") - 1).astype(np.int32),
        elements=_elements(host, adds),
        ready_ns=ready,
        done_ns=_done(device, ready),
        launching_ns=launching,
        module=_modules(host, adds, words),
    )


def _ready(host: HostCalls, device: DeviceEvents, adds: Ints) -> tuple[Ints, Ints]:
    """When each gradient could be sent, and for how long its node goes on after that, if it launches a collective.

    What DDP's hook does with every gradient, such as a copy to its bucket, takes as long in nodes without a collective.
    """
    node = np.where(host.is_nested[adds], host.parent[adds], adds)
    node = np.where(host.is_operator[node] & host.named(names.is_backward)[node], node, adds)
    sends = _send(host, device, node)
    after = host.end_ns[node] - host.end_ns[adds]
    median = int(np.median(after[~sends])) if (~sends).any() else 0
    after = np.where(sends, np.minimum(after, median), after)
    ready: Ints = host.end_ns[adds] + after
    return ready, np.where(sends, host.end_ns[node] - ready, 0)


def _send(host: HostCalls, device: DeviceEvents, node: Ints) -> Mask:
    """Which of some calls have the launch of a collective within them."""
    chosen, sends = np.zeros(len(host), np.bool_), np.zeros(len(host), np.bool_)
    chosen[node] = True
    around = host.around(device.launch[device.communicates & device.is_launched], chosen)
    sends[around[around >= 0]] = True
    return sends[node]


def _done(device: DeviceEvents, instant: Ints) -> Ints:
    """When the device is done with all but communication that was launched before each instant, which is the least."""
    launched = np.flatnonzero(device.is_launched & ~device.communicates)
    launched = launched[np.argsort(device.launch_ns[launched], kind="stable")]
    if not len(launched):
        return instant
    reach = np.maximum.accumulate(device.end_ns[launched])
    last = searchsorted(device.launch_ns[launched], instant) - 1
    return np.maximum(np.where(last >= 0, reach[np.maximum(last, 0)], instant), instant)


def _elements(host: HostCalls, adds: Ints) -> Ints:
    """Elements of what each call is given; -1 where shapes are not recorded."""
    shape = host.shape[adds]
    used, which = np.unique(shape, return_inverse=True)
    texts = (host.trace.strings[index] if index >= 0 else "" for index in used.tolist())
    return np.array([count_elements(text) for text in texts], np.int64)[which.reshape(-1)]


def _modules(host: HostCalls, adds: Ints, words: Vocabulary) -> Indices:
    """The module whose forward used each parameter, "" where stacks are not recorded."""
    if not len(host.trace.frames):
        return np.full(len(adds), words.index(""), np.int32)
    calls = CallsOfModules.of(host)
    node, operator = nodes(host)
    by_start = np.argsort(host.start_ns[node], kind="stable")
    node, operator = node[by_start], operator[by_start]
    at = searchsorted(host.start_ns[node], host.start_ns[adds], side="right") - 1
    made = np.where(at >= 0, np.append(operator, -1)[at], -1)
    call = np.full(len(adds), -1, np.int64)
    known = np.flatnonzero(made >= 0)
    when, thread = host.start_ns[made[known]], host.thread[made[known]]
    call[known] = enclosing(calls.start_ns, calls.end_ns, calls.thread, when, thread)
    name = np.append(calls.name, -1)[call]
    return words.indices(names.module_name(host.trace.strings[i]) if i >= 0 else "" for i in name.tolist())
