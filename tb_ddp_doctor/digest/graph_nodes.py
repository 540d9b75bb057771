"""What each replay of a CUDA graph lacks beside its other replays.

Recorders number the nodes of a graph, and a graph runs the same ones in each replay, whatever else the host does:

    replays of graph 2, by nodes   0 1 2 3 4    0 1 2 3 4    0 1 . . 4    0 1 2 3 4
                                                             lacks 2 of 5

That the record has lost some kernels of a graph, nothing else tells: one call launches all of them, and another graph,
as of another batch size, may have fewer.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.steps import step_of
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.trace.model import Ints

#: Where a recorder writes graph and node as one number, the graph stands above this many bits.
_NODE_BITS = 32


def lost_nodes(device: DeviceEvents, host_start_ns: Ints, host_end_ns: Ints) -> tuple[Ints, Ints]:
    """By step: how many events its replays of graphs have and lack, and how many of them they lack, shape (S,).

    A replay lacks those that most replays of its graph have: what a condition in the graph skips is not lost.
    """
    size = len(host_start_ns)
    rows, graph, node = _replayed(device)
    if not len(rows):
        return np.zeros(size, np.int64), np.zeros(size, np.int64)
    # A graph within another one has a number of its own, and a node within a loop runs several times.
    replay, of_replay = np.unique(device.launch[rows] << _NODE_BITS | graph, return_inverse=True)
    each, which = np.unique(graph << _NODE_BITS | node, return_inverse=True)
    ran = np.unique(of_replay * len(each) + which)
    ran_in, ran_node = np.divmod(ran, len(each))
    graphs, of_graph = np.unique(replay & ((1 << _NODE_BITS) - 1), return_inverse=True)
    graph_of_node = np.searchsorted(graphs, each >> _NODE_BITS)
    runs = np.bincount(ran_node, minlength=len(each))
    is_common = 2 * runs > np.bincount(of_graph)[graph_of_node]
    common = np.bincount(graph_of_node[is_common], minlength=len(graphs))[of_graph]
    there = np.bincount(ran_in[is_common[ran_node]], minlength=len(replay))
    first = rows[np.unique(of_replay, return_index=True)[1]]
    launched = device.launch_ns[first]
    step = np.where(launched < host_end_ns[-1], step_of(launched, host_start_ns), -1)
    return summed(step, common, size), summed(step, common - there, size)


def _replayed(device: DeviceEvents) -> tuple[Ints, Ints, Ints]:
    """The events that graphs replay, whose launches are recorded; the graph and the node of each."""
    events = device.trace.events
    node, graph = events.sequence[device.row], events.graph[device.row].astype(np.int64)
    graph = np.where(node >> _NODE_BITS > 0, node >> _NODE_BITS, graph)
    rows = np.flatnonzero((node >= 0) & (graph > 0) & device.is_launched)
    return rows, graph[rows], node[rows] & ((1 << _NODE_BITS) - 1)
