"""Reductions over segments give what a table with a row for each segment gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tb_ddp_doctor.job.segments import Segments, joined_by

SEGMENTS = st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=7), max_size=6)


def joined(lists: list[list[int]]) -> tuple[Segments, NDArray[np.int64]]:
    """Lists as segments, and their values one after the other."""
    sizes = np.array([len(one) for one in lists], np.int64)
    return Segments.of_sizes(sizes), np.array([value for one in lists for value in one], np.int64)


REDUCTIONS = {
    "max": max,
    "min": min,
    "sum": sum,
    "argmax": lambda values: int(np.argmax(values)),
    "argmin": lambda values: int(np.argmin(values)),
    "median": lambda values: float(np.median(values)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@given(lists=SEGMENTS)
def test_a_segment_is_reduced_as_it_is_alone(name: str, lists: list[list[int]]) -> None:
    segments, values = joined(lists)
    found = getattr(segments, name)(values)
    if name.startswith("arg"):
        found = found - segments.first[:-1]
    assert found.tolist() == [REDUCTIONS[name](one) for one in lists]


@pytest.mark.parametrize(("name", "alone"), [("count", sum), ("any", any), ("all", all)])
@given(lists=SEGMENTS)
def test_flags_of_a_segment_are_reduced_as_they_are_alone(
    name: str, alone: Callable[[list[bool]], int], lists: list[list[int]]
) -> None:
    segments, values = joined(lists)
    found = getattr(segments, name)(values > 0)
    assert found.tolist() == [alone([value > 0 for value in one]) for one in lists]


@given(SEGMENTS)
def test_the_median_of_chosen_values_is_that_of_these_alone(lists: list[list[int]]) -> None:
    segments, values = joined(lists)
    chosen = [[value for value in one if value > 0] for one in lists]
    expected = [float(np.median(one)) if one else np.inf for one in chosen]
    assert segments.median(values, values > 0).tolist() == expected


@given(SEGMENTS)
def test_each_value_gets_what_its_segment_has(lists: list[list[int]]) -> None:
    segments, _ = joined(lists)
    assert segments.index.tolist() == [i for i, one in enumerate(lists) for _ in one]
    assert segments.each(np.array([len(one) for one in lists], np.int64)).tolist() == [len(x) for x in lists for _ in x]


@given(SEGMENTS, st.data())
def test_selected_segments_have_their_values_in_the_order_given(lists: list[list[int]], data: st.DataObject) -> None:
    segments, values = joined(lists)
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True) if lists else st.just([]))
    selected, part = segments.select(np.array(chosen, np.int64))
    assert [one.tolist() for one in np.split(values[part], selected.first[1:-1])][: len(chosen)] == [
        lists[i] for i in chosen
    ]


@given(st.lists(st.integers(0, 9)))
def test_equal_numbers_make_a_segment(numbers: list[int]) -> None:
    segments, order = Segments.grouped(np.array(numbers, np.int64))
    assert order.tolist() == sorted(range(len(numbers)), key=lambda i: (numbers[i], i))
    assert segments.length.tolist() == [numbers.count(one) for one in sorted(set(numbers))]


@given(SEGMENTS.map(lambda lists: [[abs(value) for value in one] for one in lists]))
def test_members_are_joined_to_the_first_that_a_chain_of_segments_reaches(lists: list[list[int]]) -> None:
    segments, member = joined(lists)
    first = list(range(6))
    for one in lists * len(lists):
        least = min(first[value] for value in one)
        reached = {first[value] for value in one}
        first = [least if value in reached else value for value in first]
    assert joined_by(segments, member, 6).tolist() == first
