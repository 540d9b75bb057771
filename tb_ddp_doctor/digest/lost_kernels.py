"""What each ProfilerStep launched and did on the host, and what of it the trace lacks, or has at the wrong time."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.collectives import enqueues
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.compiled import captured
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.graph_nodes import lost_nodes
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import LostKernels
from tb_ddp_doctor.digest.order import by_step, out_of_turn
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.digest.sums import count
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints


def lost_kernels(
    host: HostCalls, device: DeviceEvents, odd: Mask, number: Ints, host_start_ns: Ints, host_end_ns: Ints
) -> LostKernels:
    """Of the steps with these numbers and host windows. `odd` says which events of the trace are out of order.

    What is launched inside `record_param_comms` is communication: where none of its kernels has the name of such a one,
    the launches count as lost. Launches of CUDA graphs are not counted, nor those that a graph captures; what a graph
    replays counts by its nodes.
    """
    correlation = host.trace.events.correlation
    calls = np.flatnonzero(host.is_runtime & host.named(names.launches_kernel))
    calls = calls[(correlation[host.row[calls]] >= 0) & ~captured(host).covers(host.start_ns[calls])]
    start = host.start_ns[calls]
    step = np.where(start < host_end_ns[-1], step_of(start, host_start_ns), -1)
    around = host.around(calls, enqueues(host))
    communicates = around >= 0
    lost, met = np.ones(len(calls), np.bool_), np.zeros(len(host), np.bool_)
    if len(device):
        wanted, order = correlation[host.row[calls]], np.argsort(correlation[device.row], kind="stable")
        there = correlation[device.row[order]]
        place = np.minimum(searchsorted(there, wanted), len(there) - 1)
        lost = there[place] != wanted
        met[around[communicates & ~lost & device.communicates[order[place]]]] = True
    size = len(number)
    known = number >= 0
    nodes, missing_nodes = lost_nodes(device, host_start_ns, host_end_ns)
    return LostKernels(
        number=number[known],
        launches=count(step, np.ones(len(calls), np.bool_), size)[known],
        lost=count(step, lost, size)[known],
        communications=count(step, communicates, size)[known],
        lost_communications=count(step, communicates & ~met[around], size)[known],
        graph_nodes=nodes[known],
        lost_graph_nodes=missing_nodes[known],
        unlaunched=_unlaunched(device, host_start_ns, host_end_ns)[known],
        calls=_calls(host, host_start_ns, host_end_ns)[known],
        out_of_order=by_step(device.launch_ns[odd[device.row]], host_start_ns, host_end_ns)[known],
        out_of_turn=out_of_turn(host, host_start_ns, host_end_ns)[known],
    )


def _unlaunched(device: DeviceEvents, host_start_ns: Ints, host_end_ns: Ints) -> Ints:
    """Kernels of each step without a launch: on a stream, what runs before them was launched before them."""
    before = _last_launched(device)
    return by_step(device.launch_ns[before[before >= 0]], host_start_ns, host_end_ns)


def launched_earlier(device: DeviceEvents) -> int:
    """Kernels that were launched before the record, if it has launches: on their stream none that it has ran before."""
    before = _last_launched(device)
    return int(np.count_nonzero(before < 0)) if device.is_launched.any() else 0


def _last_launched(device: DeviceEvents) -> Ints:
    """For each kernel without a launch the last event with one that begins before it on its stream, -1 for none."""
    stream = device.trace.events.stream[device.row]
    order = np.lexsort((device.start_ns, stream))
    launched = device.is_launched[order]
    before = np.maximum.accumulate(np.where(launched, np.arange(len(order)), -1))
    some = np.flatnonzero(~launched & (device.computes | device.communicates)[order] & (stream[order] >= 0))
    last = np.where(before[some] >= 0, order[np.maximum(before[some], 0)], -1)
    last[stream[last] != stream[order[some]]] = -1
    return last


def _calls(host: HostCalls, host_start_ns: Ints, host_end_ns: Ints) -> Ints:
    """Calls of the training threads that start in each step, without those that ask whether work is done.

    How often the allocator asks depends on how late that work is: a thousand times in a step of one stage of a
    pipeline, and forty times in that of another which does the same.
    """
    edges = np.minimum(np.append(host_start_ns, host_end_ns[-1]), host_end_ns[-1])
    asks = np.flatnonzero(host.is_runtime & host.trains & host.named(names.is_query))
    asked = np.sort(host.start_ns[asks], kind="stable")
    return np.diff(searchsorted(host.recorded_ns, edges)) - np.diff(searchsorted(asked, edges))


def without_device(number: Ints) -> LostKernels:
    """Of a trace without device events, in which no launch can be missed."""
    return LostKernels(number, *(np.zeros(len(number), np.int64) for _ in range(10)))
