"""The edges of a record that no ProfilerStep marks belong to no step."""

from __future__ import annotations

import msgspec
import pytest
from traces import MS, check, digests, draw

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.findings import RuleOutcome
from tb_ddp_doctor.trace.reader import decode

EPOCH = 1_700_000_001_000_000_000


def windows(rank: RankDigest) -> list[tuple[float, float]]:
    """Device windows of the steps, ms from the drawing's left edge."""
    edges = ([((edge - EPOCH) / MS) for edge in column.tolist()] for column in (rank.steps.start_ns, rank.steps.end_ns))
    return list(zip(*edges, strict=True))


def host_window(rank: RankDigest) -> tuple[float, float]:
    """When the host is in the only step, ms."""
    return (rank.steps.host_start_ns[0] - EPOCH) / MS, (rank.steps.host_end_ns[0] - EPOCH) / MS


def changed(text: str, **names: str) -> RankDigest:
    """The only drawn rank, digested, with runtime calls of other names."""
    trace = msgspec.json.decode(draw(text)[0])
    for event in trace["traceEvents"]:
        event["name"] = names.get(event["name"], event["name"])
    return digest(decode([msgspec.json.encode(trace)], "rank0.json"))


def test_a_sync_that_awaits_what_was_launched_before_the_record_is_of_no_step() -> None:
    rank = digests("""
        host [sync................][a]    [b]
        gpu                         [a...] [b...]
    """)[0]
    assert windows(rank) == [(22, 36)]
    assert host_window(rank)[0] == 22


def test_a_copy_that_awaits_what_was_launched_before_the_record_begins_it() -> None:
    # As in a served model: the batch goes to the device behind the iteration before.
    rank = digests("""
        host [pinned][sync................][a]
        copy                       [pinned]
        gpu                                 [a..........]
    """)[0]
    assert windows(rank) == [(30, 44)]
    assert host_window(rank)[0] == 22


def test_a_copy_may_block_its_own_call() -> None:
    trace = msgspec.json.decode(
        draw("""
        host [pinned.......................][a]
        copy                       [pinned]
        gpu                                  [a.......]
    """)[0]
    )
    call = next(event for event in trace["traceEvents"] if event["name"] == "cudaMemcpyAsync")
    call["dur"] = 30_500
    rank = digest(decode([msgspec.json.encode(trace)], "rank0.json"))
    assert windows(rank) == [(30, 42)]
    assert host_window(rank)[0] == 22


def test_a_host_that_runs_ahead_of_work_from_before_the_record_is_in_the_step() -> None:
    rank = digests("""
        host [a][b][c]
        gpu              [a...][b...][c...]
    """)[0]
    assert windows(rank) == [(12, 30)]
    assert host_window(rank)[0] == 0


def test_what_runs_at_once_on_another_stream_does_not_hide_it() -> None:
    rank = digests("""
        host [a][b][sync.............][c]
        gpu2 [a]
        gpu                     [b...] [c...]
    """)[0]
    assert windows(rank) == [(25, 32)]
    assert host_window(rank)[0] == 19


def test_a_host_that_is_slow_at_the_beginning_is_in_the_step() -> None:
    rank = digests("""
        host [prepare.......][a]   [b]
        gpu                   [a]   [b...]
    """)[0]
    assert windows(rank) == [(0, 29)]


def test_a_sync_behind_recorded_work_is_in_the_step() -> None:
    rank = digests("""
        host [a][sync.......][b]
        gpu   [a...........]  [b...]
    """)[0]
    assert windows(rank) == [(0, 23)]


def test_the_sync_that_ends_the_record_is_not_in_the_step() -> None:
    rank = digests("""
        host [a][b][sync.............]
        gpu   [a........][b.........]
    """)[0]
    assert windows(rank) == [(0, 24)]
    assert host_window(rank) == (0, 6)


def test_the_last_launches_have_no_kernel() -> None:
    trace = msgspec.json.decode(
        draw("""
        host [a][b]     [c]   [d]
        gpu   [a....][b.....]  [c] [d]
    """)[0]
    )
    trace["traceEvents"] = [each for each in trace["traceEvents"] if each["name"] not in ("c_kernel", "d_kernel")]
    rank = digest(decode([msgspec.json.encode(trace)], "rank0.json"))
    assert windows(rank) == [(0, 16)]
    assert host_window(rank) == (0, 11)


def test_communication_that_still_waits_is_the_last_launch_without_a_kernel() -> None:
    trace = msgspec.json.decode(
        draw("""
        host [a][b][c][ar][d]  [e]
        gpu   [a....][b.....][c..][d..][e..]
        nccl   [ar1]           [ar]
    """)[0]
    )
    lost = max((each for each in trace["traceEvents"] if "nccl" in each["name"]), key=lambda each: each["ts"])
    trace["traceEvents"].remove(lost)
    rank = digest(decode([msgspec.json.encode(trace)], "rank0.json"))
    assert host_window(rank)[1] == pytest.approx(9, abs=0.1)
    assert not rank.lost_kernels.lost.any()


def test_a_marked_step_is_as_it_is_marked() -> None:
    rank = digests("""
        step |1                                   |2
        host [sync................][a]    [b]     [a]
        gpu                         [a...] [b...]  [a..]
    """)[0]
    assert windows(rank)[0] == (0, 36)


SERVED = """
    rank# host   [aten][sync.......................][a][b][d] [sync.................................................]
          gpu                                        [a........]               [b.......]
          nccl                                                  [ar.........]            [ar............]
"""


@pytest.mark.parametrize("rule", ["host-sync", "launch-bound", "pageable-memcpy"])
def test_the_edges_cost_nothing(rule: str) -> None:
    found = check(rule, SERVED.replace("#", "0") + SERVED.replace("#", "1"))
    assert isinstance(found, RuleOutcome), found
    assert found.status == "clear"


def test_nothing_says_that_a_step_like_it_came_before_an_unmarked_record() -> None:
    # Without the sync the host would end 40 ms ahead, but where it began it was not.
    drawn = """
        rank# host   [aten]                       [a][b] [sync..........................................][c]
              gpu                                  [a...........................................]         [c]
    """
    found = check("host-sync", drawn.replace("#", "0") + drawn.replace("#", "1"))
    assert isinstance(found, RuleOutcome) or found.cost_ms < 12, found


def graph(drawn: str, length_us: int) -> RankDigest:
    """The only drawn rank with all kernels named "g" launched by one call of such length, outside of all operators."""
    trace = msgspec.json.decode(draw(drawn)[0])
    events = trace["traceEvents"]
    own = {event["args"]["correlation"] for event in events if event["name"] == "g_kernel"}
    first = min(own)
    for event in events:
        if event["name"] == "g_kernel":
            event["args"]["correlation"] = first
        elif event["name"] == "cudaLaunchKernel" and event["args"]["correlation"] == first:
            event |= {"name": "cudaGraphLaunch", "dur": length_us}
    gone = own - {first}
    trace["traceEvents"] = [
        event for event in events if not (event["name"] == "cudaLaunchKernel" and event["args"]["correlation"] in gone)
    ]
    return digest(decode([msgspec.json.encode(trace)], "rank0.json"))


GRAPH = """
    host [a][b]                                              [c]
    gpu   [a]            [g*NUMBER..................................]  [c]
"""


def test_a_graph_is_one_launch_of_many() -> None:
    # Nearly all kernels are the graph's, which is launched outside of all operators.
    assert len(graph(GRAPH.replace("NUMBER", "2000"), 5).track)


@pytest.mark.parametrize(("kernels", "stalls"), [(20_000, 0), (2_000, 1)])
def test_a_launch_that_records_each_kernel_of_a_graph_is_no_stall(kernels: int, stalls: int) -> None:
    # 35 ms are 1.75 µs for each of 20,000 kernels, which recording them takes, but 17 µs for each of 2,000.
    assert len(graph(GRAPH.replace("NUMBER", str(kernels)), 35_000).op_stalls) == stalls


def test_what_recording_a_graph_takes_is_named() -> None:
    assert graph(GRAPH.replace("NUMBER", "20000"), 35_000).contents.graph_launches == 1
