"""Steps are cut on the host by annotations and on the device by launches."""

from __future__ import annotations

import numpy as np
import pytest
from traces import MS, digests

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


def test_windows_follow_each_other_though_launches_end_out_of_order() -> None:
    numbers = np.arange(3)
    host = np.array([0, 100, 200])
    steps, index = device_windows(numbers, host, host + 100, np.array([300, 250, 400]), np.array([0, 1, 2]))
    assert steps.number.tolist() == [0, 2]
    assert list(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)) == [(0, 300), (300, 400)]
    assert index.tolist() == [0, -1, 1]
