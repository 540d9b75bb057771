"""Which calls of a thread lie around which, and around an instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.nesting import around, enclosing, first_chosen, outermost

#: Start, length and thread.
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(0, 1)), max_size=40)

#: From which one, and when.
ASKED = st.lists(st.tuples(st.integers(-1, 40), st.integers(0, 90)))


@given(SPANS)
def test_what_is_around_is_the_latest_that_still_runs(spans: list[tuple[int, int, int]]) -> None:
    spans.sort(key=lambda one: (one[2], one[0], -one[1]))
    start, length, on = np.array(spans, np.int64).reshape(-1, 3).T
    end = start + length
    for i, found in enumerate(around(start, end, on.astype(np.int32)).tolist()):
        running = [j for j in range(i) if on[j] == on[i] and end[j] > start[i]]
        assert found == max(running, default=-1)


@pytest.mark.parametrize("library", [native.library(), None], ids=["native", "numpy"])
@given(
    spans=SPANS, asked=st.lists(st.tuples(st.integers(-1, 40), st.integers(0, 90))), some=st.sets(st.integers(0, 40))
)
def test_the_chosen_are_found_outwards(
    library: object, spans: list[tuple[int, int, int]], asked: list[tuple[int, int]], some: set[int]
) -> None:
    spans.sort(key=lambda one: (one[2], one[0], -one[1]))
    start, length, on = np.array(spans, np.int64).reshape(-1, 3).T
    end, chosen = start + length, np.array([row in some for row in range(len(spans))], np.bool_)
    asked = [(at, instant) for at, instant in asked if at < len(spans)]
    at, instant = np.array(asked, np.int64).reshape(-1, 2).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: library)
        outer = around(start, end, on.astype(np.int32))
        found, kept = first_chosen(at, instant, outer, end, chosen).tolist(), outermost(end, outer, chosen).tolist()
    for (row, when), answer in zip(asked, found, strict=True):
        while row >= 0 and not (chosen[row] and end[row] > when):
            row = int(outer[row])
        assert answer == row
    holds = [outer[row] >= 0 and chosen[outer[row]] and end[row] <= end[outer[row]] for row in range(len(spans))]
    assert kept == [row for row in range(len(spans)) if chosen[row] and not holds[row]]


@pytest.mark.skipif(native.library() is None, reason="the native library was not built")
@given(SPANS)
def test_without_the_native_library_the_same_is_around(spans: list[tuple[int, int, int]]) -> None:
    spans.sort(key=lambda one: (one[2], one[0], -one[1]))
    start, length, on = np.array(spans, np.int64).reshape(-1, 3).T
    columns = start, start + length, on.astype(np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        in_numpy = around(*columns)
    assert around(*columns).tolist() == in_numpy.tolist()


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
