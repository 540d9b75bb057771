"""Interval arithmetic agrees with sets of small integers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.intervals import EMPTY, Intervals, long_gaps, partition

#: Starts and ends, some of them empty or inverted.
PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)
EDGES = st.sets(st.integers(0, 40), min_size=2, max_size=8).map(sorted)


def intervals(pairs: list[tuple[int, int]]) -> Intervals:
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return Intervals.union(columns[:, 0], columns[:, 1])


def instants(pairs: list[tuple[int, int]]) -> set[int]:
    return {instant for start, end in pairs for instant in range(start, end)}


def held(found: Intervals) -> set[int]:
    return instants(list(zip(found.start.tolist(), found.end.tolist(), strict=True)))


@given(PAIRS)
def test_union_holds_what_any_interval_holds(pairs: list[tuple[int, int]]) -> None:
    assert held(intervals(pairs)) == instants(pairs)


@given(PAIRS)
def test_intervals_are_sorted_disjoint_and_do_not_touch(pairs: list[tuple[int, int]]) -> None:
    found = intervals(pairs)
    sides = np.stack((found.start, found.end), axis=1).ravel()
    assert (np.diff(sides) > 0).all()


@given(PAIRS, PAIRS)
def test_set_operations_are_those_of_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = intervals(one), intervals(other)
    assert held(a | b) == instants(one) | instants(other)
    assert held(a & b) == instants(one) & instants(other)
    assert held(a - b) == instants(one) - instants(other)


@given(PAIRS)
def test_total_is_the_number_of_instants(pairs: list[tuple[int, int]]) -> None:
    assert intervals(pairs).total == len(instants(pairs))


@given(PAIRS, PAIRS)
def test_measure_counts_what_a_query_covers(pairs: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    columns = np.array(queries, np.int64).reshape(-1, 2)
    measured = intervals(pairs).measure(columns[:, 0], columns[:, 1])
    assert measured.tolist() == [len(instants(pairs) & set(range(*query))) for query in queries]


@given(PAIRS, st.lists(st.integers(-5, 45)))
def test_covers_tells_the_start_from_the_end(pairs: list[tuple[int, int]], asked: list[int]) -> None:
    covered = intervals(pairs).covers(np.array(asked, np.int64))
    assert covered.tolist() == [instant in instants(pairs) for instant in asked]


@given(st.lists(PAIRS, max_size=4), EDGES)
def test_partition_tiles_its_edges_and_the_first_layer_wins(
    layers: list[list[tuple[int, int]]], edges: list[int]
) -> None:
    start, end, owner, _ = partition([intervals(layer) for layer in layers], np.array(edges, np.int64))
    assert start[0] == edges[0] and end[-1] == edges[-1]
    assert (start[1:] == end[:-1]).all() and (end > start).all()
    sets = [instants(layer) for layer in layers]
    for low, high, index in zip(start.tolist(), end.tolist(), owner.tolist(), strict=True):
        for instant in range(low, high):
            assert index == next((i for i, layer in enumerate(sets) if instant in layer), len(sets))


@given(st.lists(PAIRS, max_size=4), EDGES)
def test_pieces_never_cross_an_edge(layers: list[list[tuple[int, int]]], edges: list[int]) -> None:
    start, _, _, _ = partition([intervals(layer) for layer in layers], np.array(edges, np.int64))
    assert set(edges[:-1]) <= set(start.tolist())


@given(st.lists(PAIRS, max_size=4), EDGES)
def test_each_piece_has_the_edge_before_it(layers: list[list[tuple[int, int]]], edges: list[int]) -> None:
    start, end, _, edge = partition([intervals(layer) for layer in layers], np.array(edges, np.int64))
    for low, high, index in zip(start.tolist(), end.tolist(), edge.tolist(), strict=True):
        assert edges[index] <= low and high <= edges[index + 1]


@pytest.mark.skipif(native.library() is None, reason="the native library was not built")
@given(st.lists(PAIRS, max_size=4), EDGES, st.integers(1, 20))
def test_without_the_native_library_all_is_the_same(
    layers: list[list[tuple[int, int]]], edges: list[int], least: int
) -> None:
    pairs = np.array([pair for layer in layers for pair in layer] * 5, np.int64).reshape(-1, 2).T

    def all_of_it() -> list[list[int]]:
        sets = [intervals(layer) for layer in layers]
        union, gaps = Intervals.union(*pairs), long_gaps(pairs[0], least)
        either = union | gaps
        columns = (
            union.start,
            union.end,
            gaps.start,
            gaps.end,
            either.start,
            either.end,
            *partition(sets, np.array(edges, np.int64)),
        )
        return [column.tolist() for column in columns]

    found = all_of_it()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        assert all_of_it() == found


def test_partition_of_no_time_has_no_pieces() -> None:
    for edges in ([], [5]):
        assert [len(column) for column in partition([EMPTY], np.array(edges, np.int64))] == [0, 0, 0, 0]


def test_times_of_an_epoch_are_not_rounded() -> None:
    epoch = 1_700_000_000_000_000_000
    found = Intervals.span(epoch, epoch + 3) - Intervals.span(epoch + 1, epoch + 2)
    assert found.start.tolist() == [epoch, epoch + 2]
    assert found.total == 2


@given(st.lists(st.integers(0, 60), min_size=1), st.integers(1, 20), st.sampled_from([0, 1 << 60]))
def test_long_gaps_are_those_between_neighbours(instants: list[int], least: int, far: int) -> None:
    instants = [*instants, *([far] if far else [])]
    found = long_gaps(np.array(instants), least)
    edges = sorted(set(instants))
    gaps = [(start, end) for start, end in pairwise(edges) if end - start >= least]
    union = Intervals.union(*np.array(gaps, np.int64).reshape(-1, 2).T)
    assert (found.start.tolist(), found.end.tolist()) == (union.start.tolist(), union.end.tolist())


def test_no_instants_have_no_gaps() -> None:
    assert len(long_gaps(np.empty(0, np.int64), 5)) == 0
