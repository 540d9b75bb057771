"""What each operator, call and kernel of the recorded steps takes by itself, summed by name.

The host's own time of an event is its length without the events directly inside it, so that the own times of a thread
sum to what the thread was seen to do. What an operator takes on the device is what was launched directly inside it.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import Operators, Steps
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: Names kept of the host's and of the device's, the rest is summed: a rank of 4,096 may not cost a megabyte.
MOST = 96
#: The name of all steps: what they spend outside of operators, calls and annotations.
STEP = "ProfilerStep"


def operators(host: HostCalls, device: DeviceEvents, steps: Steps, words: Vocabulary) -> Operators:
    """Sums by name of the steps' calls and events."""
    on_host, on_device = _on_host(host, device, steps, words), _on_device(device, words)
    names = Operators.__struct_fields__
    return Operators(*(np.concatenate((getattr(on_host, name), getattr(on_device, name))) for name in names))


def _on_host(host: HostCalls, device: DeviceEvents, steps: Steps, words: Vocabulary) -> Operators:
    chosen, size = np.zeros(len(host), np.bool_), len(host.trace.strings)
    if len(steps):
        chosen = (host.start_ns >= steps.host_start_ns[0]) & (host.start_ns < steps.host_end_ns[-1])
    within = host.length_ns.copy()
    # An end may lie a rounding beyond that of what is around.
    outermost = np.flatnonzero((host.parent >= 0) & ~host.is_nested)
    within[outermost] = host.end_ns[host.parent[outermost]] - host.start_ns[outermost]
    own = np.maximum(host.length_ns - total(host.parent, chosen, within, len(host)), 0)
    launched = np.flatnonzero((device.step >= 0) & device.is_launched)
    launched = launched[chosen[device.launch[launched]]]
    by = host.parent[device.launch[launched]]
    launches = (by >= 0) & chosen[by]
    return _ranked(
        host.trace,
        words,
        on_device=0,
        count=count(host.name, chosen, size),
        host_ns=total(host.name, chosen, own, size),
        device_ns=total(host.name[by], launches, device.length_ns[launched], size),
        annotated=count(host.name, chosen & (host.category == Category.ANNOTATION), size),
    )


def _on_device(device: DeviceEvents, words: Vocabulary) -> Operators:
    chosen, size, length = device.step >= 0, len(device.trace.strings), device.length_ns
    occupancy = np.clip(device.occupancy, 0, 100)
    occupied = np.rint(length * (occupancy / 100)).astype(np.int64)
    on_tensor_cores = device.kinds(names.product) == names.Product.TENSOR
    return _ranked(
        device.trace,
        words,
        on_device=1,
        count=count(device.name, chosen, size),
        device_ns=total(device.name, chosen, length, size),
        estimated_ns=total(device.name, chosen & (occupancy > 0), length, size),
        occupied_ns=total(device.name, chosen, occupied, size),
        tensor_ns=total(device.name, chosen & on_tensor_cores, length, size),
    )


def _ranked(trace: RankTrace, words: Vocabulary, on_device: int, **sums: Ints) -> Operators:
    """The table of columns by name, each of shape (strings,); columns that are not given are 0."""
    occur = np.flatnonzero(sums["count"])
    # All ProfilerSteps have one name.
    numbers: dict[str, int] = {}
    named = (trace.strings[index] for index in occur.tolist())
    which = np.array([numbers.setdefault(STEP if names.is_step(text) else text, len(numbers)) for text in named], int)
    merged = {column: np.zeros(len(numbers), np.int64) for column in Operators.__struct_fields__[2:]}
    for column, values in sums.items():
        np.add.at(merged[column], which, values[occur])
    # Ranked by the greater of both times, so that neither a busy host nor a busy device is lost; then by name, since
    # readers number a trace's strings in other orders.
    every, longer = [*numbers], np.maximum(merged["host_ns"], merged["device_ns"]).tolist()
    order = np.array(sorted(range(len(every)), key=lambda index: (-longer[index], every[index])), int)
    kept, rest = order[:MOST], order[MOST:]
    texts, columns = [every[name] for name in kept.tolist()], [values[kept] for values in merged.values()]
    if len(rest):
        texts.append("")
        columns = [np.append(values[kept], values[rest].sum()) for values in merged.values()]
    return Operators(words.indices(texts), np.full(len(texts), on_device, np.int32), *columns)
