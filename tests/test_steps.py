"""Steps are cut on the host by annotations and on the device by launches."""

from __future__ import annotations

import json

import numpy as np
import pytest
from traces import MS, digests, draw

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.digest.steps import device_windows
from tb_ddp_doctor.trace.reader import decode

EPOCH = 1_700_000_001_000_000_000


def windows(rank: RankDigest) -> dict[int, tuple[float, float]]:
    """Device window of each step by its number, ms from the drawing's left edge."""
    steps = rank.steps
    edges = [((steps.start_ns - EPOCH) / MS).tolist(), ((steps.end_ns - EPOCH) / MS).tolist()]
    return {number: (start, end) for number, start, end in zip(steps.number.tolist(), *edges, strict=True)}


def test_a_step_lasts_until_the_last_event_that_it_launched() -> None:
    rank = digests("""
        step |1        |2
        host [a]       [b]
        gpu   [a........][b....]
    """)[0]
    assert windows(rank) == {1: (0, 12), 2: (12, 19)}


def test_the_device_may_run_behind_by_more_than_a_step() -> None:
    rank = digests("""
        step |1   |2   |3
        host [a]  [b]  [c]
        gpu   [a.........][b......][c........]
    """)[0]
    assert windows(rank) == {1: (0, 13), 2: (13, 22), 3: (22, 33)}


def test_kernels_launched_before_the_trace_end_before_the_first_step() -> None:
    rank = digests("""
        step |1          |2
        host   [a]       [b]
        gpu  [?x...][a..] [b.......]
    """)[0]
    assert windows(rank)[1] == (7, 12)


def test_a_step_that_launches_nothing_is_no_step_of_the_device() -> None:
    rank = digests("""
        step |1     |2     |3
        host [a]           [b]
        gpu   [a..]         [b..]
    """)[0]
    assert windows(rank) == {1: (0, 6), 3: (6, 20)}


def test_a_step_whose_kernels_all_end_within_the_one_before_is_no_step() -> None:
    rank = digests("""
        step |1          |2    |3
        host [a]         [ar]  [c]
        gpu   [a..................][c.]
        nccl               [ar]
    """)[0]
    assert set(windows(rank)) == {1, 3}


def test_a_copy_on_a_stream_of_its_own_does_not_begin_the_first_step() -> None:
    rank = digests("""
        step |1               |2
        host [c][a]           [b]
        gpu  [?x...][?y..][a...][b.......]
        copy  [c]
    """)[0]
    assert windows(rank) == {1: (13, 19), 2: (19, 29)}


def test_a_trace_without_steps_is_one_step() -> None:
    rank = digests("""
        host [a]    [b]
        gpu   [a...] [b...]
    """)[0]
    assert not rank.has_steps
    assert windows(rank) == {0: (0, 14)}


def test_without_steps_and_launches_the_whole_trace_is_one_step() -> None:
    rank = digests("gpu [?a...]  [?b...]")[0]
    assert windows(rank) == {0: (0, 16)}
    assert any("No kernel can be joined" in warning.message for warning in rank.warnings)


def test_without_launches_steps_are_unknown_and_said_to_be() -> None:
    rank = digests("""
        step |1       |2
        gpu  [?a...]  [?b...]
    """)[0]
    assert not len(rank.steps)
    assert any("No kernel can be joined" in warning.message for warning in rank.warnings)


def test_what_is_launched_after_the_last_step_is_of_no_step() -> None:
    text = """
        step |1     |2
        host [a]    [b]       [late]
        gpu   [a...] [b...]    [late]
    """
    rank = digests(text, last_step_ms=6)[0]
    assert windows(rank) == {1: (0, 7), 2: (7, 14)}


def test_a_trace_without_events_has_no_steps() -> None:
    rank = digest(decode([b'{"schemaVersion": 1, "traceEvents": []}'], "empty.json"))
    assert not len(rank.steps)


def test_steps_of_a_cpu_are_those_of_the_host() -> None:
    rank = digests("""
        step |1      |2
        host [a...]   [b....]
    """)[0]
    assert windows(rank) == {1: (0, 8), 2: (8, 16)}


@pytest.mark.parametrize("lane", ["gpu", "gloo"])
def test_a_step_that_overruns_the_next_ends_where_that_one_starts(lane: str) -> None:
    text = f"""
        step |1      |2      |3
        host [a]     [b]     [c]
        {lane} [a.....][b.....][c....]
    """
    rank = digests(text, step_overrun_ns=1)[0]
    steps = rank.steps
    assert steps.host_end_ns[:-1].tolist() == steps.host_start_ns[1:].tolist()
    assert (steps.start_ns[1:] == steps.end_ns[:-1]).all()
    assert (rank.work.owner_ns.sum(axis=1) == steps.end_ns - steps.start_ns).all()


def test_two_steps_of_one_number_stay_two() -> None:
    rank = digests("""
        step |1        |1
        host [a]       [b]
        gpu   [a........][b....]
    """)[0]
    assert rank.steps.number.tolist() == [1, 1]


def marked_twice(text: str, shift_ms: float, by: int, last: int | None = None) -> RankDigest:
    """The drawn rank, whose steps a second profiler also marks: so much later, with other numbers, the last one cut."""
    trace = json.loads(draw(text)[0])
    marks = [event for event in trace["traceEvents"] if str(event.get("name")).startswith("ProfilerStep#")]
    stop = max(event["ts"] + event["dur"] for event in marks) + 100
    for event in marks[:last]:
        number = int(event["name"].removeprefix("ProfilerStep#"))
        start = event["ts"] + shift_ms * 1000
        length = min(event["dur"], stop - start)
        trace["traceEvents"].append({**event, "name": f"ProfilerStep#{number + by}", "ts": start, "dur": length})
    return digest(decode([json.dumps(trace).encode()], "rank0.json"))


_THREE = """
    step |20         |21         |22
    host   [a..][b.]   [a..][b.]   [a..][b.]
    gpu    [a..][b.]   [a..][b.]   [a..][b.]
"""


@pytest.mark.parametrize("by", [-1, 0, 1, 2, 80])
@pytest.mark.parametrize("shift_ms", [0.05, 6, 11.95])
@pytest.mark.parametrize("steps", [1, 3])
def test_steps_that_a_second_profiler_marks_are_no_steps(by: int, shift_ms: float, steps: int) -> None:
    text = _THREE if steps == 3 else "\n".join(line[:21] for line in _THREE.splitlines())
    alone, beside = digests(text)[0], marked_twice(text, shift_ms, by)
    assert beside.steps.number.tolist() == alone.steps.number.tolist()
    assert beside.steps.start_ns.tolist() == alone.steps.start_ns.tolist()
    # Where both have the same number, either may be taken.
    assert beside.steps.end_ns.tolist() == pytest.approx(alone.steps.end_ns.tolist(), abs=0.2 * MS if by == 0 else 0)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_step_with_a_damaged_end_takes_none_of_the_following_away(damaged: int) -> None:
    trace = json.loads(draw(_THREE)[0])
    marks = [event for event in trace["traceEvents"] if str(event.get("name")).startswith("ProfilerStep#")]
    marks[damaged]["dur"] *= 10
    rank = digest(decode([json.dumps(trace).encode()], "rank0.json"))
    assert rank.steps.number.tolist() == [20, 21, 22]


def test_numbers_that_begin_anew_are_steps() -> None:
    rank = digests("""
        step |7   |8   |0   |1
        host [a]  [b]  [c]  [d]
    """)[0]
    assert rank.steps.number.tolist() == [7, 8, 0, 1]


def test_windows_follow_each_other_though_launches_end_out_of_order() -> None:
    numbers = np.arange(3)
    host = np.array([0, 100, 200])
    ends, streams = np.array([300, 250, 400]), np.zeros(3, np.int64)
    steps, index = device_windows(numbers, host, host + 100, ends, np.array([0, 1, 2]), streams)
    assert steps.number.tolist() == [0, 2]
    assert list(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)) == [(0, 300), (300, 400)]
    assert index.tolist() == [0, -1, 1]


def test_updates_are_steps_where_nothing_marks_them() -> None:
    rank = digests("""
        host     [fwd]        [update][fwd]        [update][fwd]        [update]
        autograd      [grad@1]             [grad@1]             [grad@1]
        gpu       [fwd.] [b..] [up..] [fwd.] [b..] [up..] [fwd.] [b..] [up..]
    """)[0]
    assert rank.has_steps and rank.contents.steps_from == "Optimizer.step"
    assert rank.steps.number.tolist() == [0, 1]
    assert ((rank.steps.host_end_ns - rank.steps.host_start_ns) // MS).tolist() == [21, 21]


def test_optimizers_without_a_backward_pass_between_them_are_one_update() -> None:
    rank = digests("""
        host     [fwd]        [update][update][fwd]        [update][update]
        autograd      [grad@1]                     [grad@1]
        gpu       [fwd.] [b..] [up..]          [fwd.] [b..] [up..]
    """)[0]
    assert rank.steps.number.tolist() == [0]


def test_one_update_shows_no_step() -> None:
    rank = digests("""
        host     [fwd]        [update]
        autograd      [grad@1]
        gpu       [fwd.] [b..] [up..]
    """)[0]
    assert not rank.has_steps


GRAPHS = """
    host     [graph][graph][graph]                   [graph][graph]
    gpu       [graph*20..........][graph*20..........][graph*20..........][graph*20..........][graph*20..........]
"""


def test_graphs_that_replay_a_backward_pass_each_are_steps_however_far_the_host_is_ahead() -> None:
    rank = digests(GRAPHS, names={"graph_kernel": "flash_bwd_kernel"})[0]
    assert rank.has_steps and rank.contents.steps_from == "graph launch"
    assert rank.steps.number.tolist() == [0, 1, 2, 3]
    assert ((rank.steps.end_ns - rank.steps.start_ns) // MS).tolist() == [21, 20, 20, 20]


@pytest.mark.parametrize("shorter", ["[graph*20..........][graph", "[graph*19..........][graph"])
def test_graphs_of_parts_of_a_step_are_no_steps(shorter: str) -> None:
    """Forward has a graph of its own, or a graph has other kernels."""
    drawn = GRAPHS.replace("[graph*20..........][graph", shorter, 1)
    forward = {"names": {"graph_kernel": "flash_bwd_kernel"}} if "19" in shorter else {}
    trains = "\n    autograd                                                         [bwd]"
    rank = digests(drawn.rstrip() + trains, **forward)[0]
    assert not rank.has_steps


def test_a_step_that_compiles_is_as_regular_as_the_others() -> None:
    drawn = """
        rank0 host   [own_denoise..][own_denoise..][own_denoise................................][own_denoise..]
              within [a][b]         [a][b]         [compile......................][a][b]        [a][b]
              gpu     [a...][b...]   [a...][b...]                                  [a...][b...]  [a...][b...]
    """
    names = {"aten::compile": "_compile.compile_inner (dynamo_timed)"}
    assert digests(drawn, world_size=1, names=names)[0].steps.number.tolist() == [0, 1, 2, 3]
    assert not digests(drawn, world_size=1)[0].has_steps
