"""Medians of many values, by selection, by sampling and by counting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.digest.numbering import RankRuns, different
from tb_ddp_doctor.replay.cells import lower_median, lower_medians, most_of_most

SEEDS = st.integers(0, 2**32 - 1)
#: Of how many kinds values are: where there are few, most of them are equal.
KINDS = st.sampled_from([1, 2, 3, 50, 10**6])


@given(SEEDS, KINDS, st.sampled_from([1, 2, 255, 256, 257, 258, 1000, 1001]))
def test_the_lower_median_is_the_same_whatever_a_sample_shows(seed: int, kinds: int, size: int) -> None:
    values = np.random.default_rng(seed).integers(0, kinds, size)
    assert lower_median(values) == sorted(values.tolist())[(size - 1) // 2]


@given(SEEDS, KINDS, st.integers(1, 40))
def test_counting_tells_whether_the_median_of_medians_is_below_a_limit(seed: int, kinds: int, size: int) -> None:
    drawn = np.random.default_rng(seed)
    values, of = drawn.integers(0, kinds, size), drawn.integers(0, 5, size)
    limit = int(drawn.integers(0, kinds + 1))
    assert most_of_most(values < limit, of) == (lower_median(lower_medians(values, of)) < limit)


def test_runs_of_families_on_ranks() -> None:
    runs = RankRuns.of(np.array([1, 0, 0, 1, 0, 1, 1]), np.array([0, 0, 0, 0, 1, 1, 1], np.int32))
    assert runs.order.tolist() == [1, 2, 4, 0, 3, 5, 6]
    assert runs.ordinal.tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert (runs.start.tolist(), runs.length.tolist()) == ([0, 2, 3, 5], [2, 1, 2, 2])
    assert (runs.first.tolist(), runs.ranks.tolist(), runs.as_many.tolist()) == ([0, 3], [2, 2], [False, True])


@given(st.lists(st.integers(0, 10**4)))
def test_different_numbers(numbers: list[int]) -> None:
    assert different(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))
