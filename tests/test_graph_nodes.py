"""Kernels that the record of a replayed CUDA graph lacks are told by the numbers of the graph's nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from test_completeness import Damage, joined, on_device, said_of, without
from torch_events import READERS
from traces import ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import LostKernels
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.model import Ints, RankTrace

SERVED = """
    rank# step |1
          host [fwd]
          gpu      [graph*10..........][graph*4...]
          nccl                                     [ar@1]
"""


def lacks(nodes: slice, replays: slice) -> Damage:
    """Some nodes of some replays of the larger graph, by the order of both."""

    def damage(trace: RankTrace) -> RankTrace:
        rows = np.flatnonzero(on_device(trace) & (trace.events.graph == 10))
        lost = np.zeros(len(trace.events), np.bool_)
        lost[rows.reshape(-1, 10)[replays, nodes].ravel()] = True
        return without(trace, lost)

    return damage


def numbered(trace: RankTrace, node: Ints) -> RankTrace:
    """The trace with other numbers of nodes."""
    return replace(trace, events=replace(trace.events, sequence=node))


def lost(trace: RankTrace) -> LostKernels:
    return digest(trace).lost_kernels


def test_a_replay_lacks_what_most_replays_of_its_graph_have() -> None:
    trace = read(ranks(SERVED, steps=6))[0]
    whole, damaged = lost(trace), lost(lacks(slice(3, 7), slice(2, 3))(trace))
    assert whole.graph_nodes.tolist() == damaged.graph_nodes.tolist() == [14] * 6
    assert not whole.lost_graph_nodes.any()
    assert damaged.lost_graph_nodes.tolist() == [0, 0, 4, 0, 0, 0]


def test_what_few_replays_run_is_a_condition_and_not_lost() -> None:
    trace = read(ranks(SERVED, steps=6))[0]
    assert not lost(lacks(slice(3, 7), slice(0, 4))(trace)).lost_graph_nodes.any()


def test_nodes_are_of_their_graph_where_the_recorder_writes_their_count_alone() -> None:
    trace = lacks(slice(3, 7), slice(2, 3))(read(ranks(SERVED, steps=6))[0])
    node = trace.events.sequence
    alone = np.where(node > 0, node & 0xFFFFFFFF, node)
    assert lost(numbered(trace, alone)).lost_graph_nodes.tolist() == [0, 0, 4, 0, 0, 0]


def test_without_numbers_of_nodes_nothing_is_told() -> None:
    trace = read(ranks(SERVED, steps=3))[0]
    assert not lost(numbered(trace, np.full(len(trace.events), -1))).graph_nodes.any()


def test_steps_in_which_a_rank_lost_kernels_of_a_graph_do_not_count() -> None:
    job = joined(ranks(*[SERVED] * 3, steps=6), lacks(slice(3, 9), slice(2, 3)), 1)
    assert 3 not in job.steps.tolist()
    assert "6 of 14 nodes of replayed CUDA graphs have no kernel" in said_of(job, 1)


@pytest.mark.parametrize("by", READERS)
def test_graph_and_node_are_read(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_DOCTOR_READER", by)
    events = read(ranks(SERVED, steps=1))[0].events
    of_graph = events.graph > 0
    assert events.graph[of_graph].tolist() == [10] * 10 + [4] * 4
    assert (events.sequence[of_graph] & 0xFFFFFFFF).tolist() == [*range(10), *range(4)]


@pytest.mark.parametrize("by", READERS)
def test_nodes_of_a_real_trace_are_told(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_DOCTOR_READER", by)
    table = lost(reader.read(Path(__file__).parent / "pftrace" / "hello_world_with_cuda_graphs.pftrace"))
    assert (table.graph_nodes.sum(), table.lost_graph_nodes.sum()) == (32, 0)
