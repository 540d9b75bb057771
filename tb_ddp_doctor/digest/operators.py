"""What each operator, call and kernel of the recorded steps takes by itself, summed by name.

The host's own time of an event is its length without the events directly inside it, so that the own times of a thread
sum to what the thread was seen to do. What an operator takes on the device is what was launched directly inside it.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import Operators, Steps
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Indices, Ints, RankTrace

#: Names kept of the host's and of the device's, the rest is summed: a rank of 4,096 may not cost a megabyte.
MOST = 96
#: The name of all steps: what they spend outside of operators, calls and annotations.
STEP = "ProfilerStep"


def operators(host: HostCalls, device: DeviceEvents, steps: Steps, words: Vocabulary) -> Operators:
    """Sums by name of the steps' calls and events."""
    on_host, on_device = _on_host(host, device, steps, words), _on_device(device, words)
    columns = (np.concatenate((getattr(on_host, name), getattr(on_device, name))) for name in Operators.__slots__)
    return Operators(*columns)


def _on_host(host: HostCalls, device: DeviceEvents, steps: Steps, words: Vocabulary) -> Operators:
    chosen = np.zeros(len(host), np.bool_)
    if len(steps):
        chosen = (host.start_ns >= steps.host_start_ns[0]) & (host.start_ns < steps.host_end_ns[-1])
    own, within = host.length_ns.copy(), host.length_ns.copy()
    inner = np.flatnonzero(chosen & (host.parent >= 0))
    # An end may lie a rounding beyond that of what is around.
    beyond = inner[~host.is_nested[inner]]
    within[beyond] = host.end_ns[host.parent[beyond]] - host.start_ns[beyond]
    np.subtract.at(own, host.parent[inner], within[inner])
    on_device = np.zeros(len(host), np.int64)
    launched = np.flatnonzero((device.step >= 0) & device.is_launched)
    launched = launched[chosen[device.launch[launched]]]
    by = host.parent[device.launch[launched]]
    np.add.at(on_device, by[by >= 0], device.length_ns[launched[by >= 0]])
    calls = np.flatnonzero(chosen)
    nothing = np.zeros(len(calls), np.int64)
    times = (np.maximum(own[calls], 0), on_device[calls], nothing, nothing, nothing)
    return _summed(host.trace, host.name[calls], words, 0, *times)


def _on_device(device: DeviceEvents, words: Vocabulary) -> Operators:
    events = np.flatnonzero(device.step >= 0)
    length = device.length_ns[events]
    occupancy = np.clip(device.occupancy[events], 0, 100)
    estimated = np.where(occupancy > 0, length, 0)
    tensor = np.where(device.kinds(names.product)[events] == names.Product.TENSOR, length, 0)
    occupied = np.rint(length * (occupancy / 100)).astype(np.int64)
    times = (np.zeros(len(events), np.int64), length, estimated, occupied, tensor)
    return _summed(device.trace, device.name[events], words, 1, *times)


def _summed(
    trace: RankTrace,
    name: Indices,
    words: Vocabulary,
    on_device: int,
    host_ns: Ints,
    device_ns: Ints,
    estimated_ns: Ints,
    occupied_ns: Ints,
    tensor_ns: Ints,
) -> Operators:
    used, which = _named(trace, name)
    sums = np.zeros((6, len(used)), np.int64)
    columns = (np.ones(len(name), np.int64), host_ns, device_ns, estimated_ns, occupied_ns, tensor_ns)
    for summed, values in zip(sums, columns, strict=True):
        np.add.at(summed, which, values)
    # Ranked by the greater of both times, so that neither a busy host nor a busy device is lost.
    order = np.argsort(-np.maximum(sums[1], sums[2]), kind="stable")
    kept, rest = order[:MOST], order[MOST:]
    texts = [used[name] for name in kept]
    told = sums[:, kept]
    if len(rest):
        texts.append("")
        told = np.concatenate((told, sums[:, rest].sum(axis=1, keepdims=True)), axis=1)
    return Operators(
        np.array([words.index(text) for text in texts], np.int32),
        np.full(len(texts), on_device, np.int32),
        *told,
    )


def _named(trace: RankTrace, name: Indices) -> tuple[list[str], Ints]:
    """The different names of some events, and the index of each one's; all ProfilerSteps have one name."""
    distinct = np.flatnonzero(np.bincount(name, minlength=len(trace.strings)))
    numbers: dict[str, int] = {}
    merged = np.zeros(len(trace.strings), np.int64)
    for index in distinct.tolist():
        text = trace.strings[index]
        merged[index] = numbers.setdefault(STEP if names.is_step(text) else text, len(numbers))
    return list(numbers), merged[name]
