"""Device events find the calls that launched them, and calls the operators that enclose them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from traces import columns

from tb_ddp_doctor.digest.launches import enclosing, launch_rows
from tb_ddp_doctor.trace.model import Category

RUNTIME, KERNEL = Category.RUNTIME, Category.KERNEL


def test_a_kernel_is_joined_to_the_call_of_its_correlation() -> None:
    events = columns(category=[RUNTIME, RUNTIME, KERNEL, KERNEL], correlation=[7, 5, 5, 7])
    assert launch_rows(events, np.array([2, 3])).tolist() == [1, 0]


def test_a_kernel_without_a_recorded_call_has_none() -> None:
    events = columns(category=[RUNTIME, KERNEL, KERNEL, KERNEL], correlation=[5, 4, 6, -1])
    assert launch_rows(events, np.array([1, 2, 3])).tolist() == [-1, -1, -1]


def test_without_any_call_nothing_is_joined() -> None:
    events = columns(category=[KERNEL, KERNEL], correlation=[-1, 3])
    assert launch_rows(events, np.array([0, 1])).tolist() == [-1, -1]


def test_a_call_without_correlation_launches_nothing() -> None:
    events = columns(category=[RUNTIME, KERNEL], correlation=[-1, -1])
    assert launch_rows(events, np.array([1])).tolist() == [-1]


def test_one_call_may_launch_many_kernels() -> None:
    events = columns(category=[KERNEL, RUNTIME, KERNEL], correlation=[9, 9, 9])
    assert launch_rows(events, np.array([0, 2])).tolist() == [1, 1]


def inside(outer: list[tuple[int, int, int]], asked: list[tuple[int, int]]) -> list[int]:
    starts, ends, threads = np.array(outer, np.int64).reshape(-1, 3).T
    instants, on = np.array(asked, np.int64).reshape(-1, 2).T
    return enclosing(starts, ends, threads.astype(np.int32), instants, on.astype(np.int32)).tolist()


def test_an_instant_is_enclosed_from_the_start_up_to_the_end() -> None:
    assert inside([(10, 20, 0)], [(9, 0), (10, 0), (19, 0), (20, 0)]) == [-1, 0, 0, -1]


def test_another_thread_encloses_nothing() -> None:
    assert inside([(10, 20, 1)], [(15, 0), (15, 1), (15, 2)]) == [-1, 0, -1]


def test_after_an_inner_interval_the_outer_one_encloses() -> None:
    outer_and_inner = [(0, 100, 0), (10, 20, 0), (12, 14, 0)]
    assert inside(outer_and_inner, [(5, 0), (13, 0), (16, 0), (50, 0), (100, 0)]) == [0, 2, 1, 0, -1]


def test_times_anywhere_in_an_int64_are_kept_apart() -> None:
    late = 6 * 10**18
    assert inside([(0, 5, 0), (late, late + 5, 9)], [(3, 0), (late + 3, 9), (late + 3, 0)]) == [0, 1, -1]


def test_nothing_encloses_where_there_is_nothing() -> None:
    assert inside([], [(1, 0)]) == [-1]
    assert inside([(0, 5, 0)], []) == []


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 2)), max_size=12),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2)), max_size=12),
)
def test_the_latest_start_that_still_runs_encloses(
    outer: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    found = inside(outer, asked)
    for (instant, thread), index in zip(asked, found, strict=True):
        holding = [start for start, end, on in outer if on == thread and start <= instant < end]
        assert (index >= 0) == bool(holding)
        if holding:
            start, end, on = outer[index]
            assert on == thread and start <= instant < end and start == max(holding)
