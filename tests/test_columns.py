"""Searches and sums over columns, with the native library and without it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.digest import columns, native
from tb_ddp_doctor.digest.columns import distinct, searchsorted
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.digest.sums import count, longest_of, total

FAR = [np.iinfo(np.int64).min, np.iinfo(np.int64).max]
TIMES = st.lists(st.integers(0, 40) | st.sampled_from(FAR), max_size=60)
#: Index, whether it is chosen, and a value.
ROWS = st.lists(st.tuples(st.integers(-1, 5), st.booleans(), st.integers(-9, 9)), max_size=40)


@given(TIMES, TIMES, st.sampled_from(["left", "right"]), st.booleans())
def test_places_are_those_of_numpy(times: list[int], asked: list[int], side: str, ascend: bool) -> None:
    ascending, wanted = np.array(sorted(times), np.int64), np.array(sorted(asked) if ascend else asked, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_FEW", 0)
        found = searchsorted(ascending, wanted, side)  # type: ignore[arg-type]
    assert found.tolist() == np.searchsorted(ascending, wanted, side).tolist()  # type: ignore[call-overload]


@pytest.mark.parametrize("library", [native.library(), None], ids=["native", "numpy"])
@given(rows=ROWS)
def test_sums_are_of_what_is_chosen_and_has_an_index(library: object, rows: list[tuple[int, bool, int]]) -> None:
    index, chosen, values = np.array(rows, np.int64).reshape(-1, 3).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: library)
        summed, counted = total(index, chosen > 0, values, 6), count(index, chosen > 0, 6)
    assert summed.tolist() == [sum(value for at, takes, value in rows if takes and at == step) for step in range(6)]
    assert counted.tolist() == [sum(takes and at == step for at, takes, _ in rows) for step in range(6)]


@given(ROWS)
def test_of_the_longest_the_last_is_found(rows: list[tuple[int, bool, int]]) -> None:
    index, chosen, length = np.array(rows, np.int64).reshape(-1, 3).T
    expected = []
    for step in range(6):
        mine = [(value, row) for row, (at, takes, value) in enumerate(rows) if takes and at == step]
        expected += [max(mine)[1]] if mine else []
    assert longest_of(index, chosen > 0, length, 6).tolist() == expected


@given(st.lists(st.integers(0, 30), max_size=20), st.sampled_from([31, 10**9]))
def test_distinct_numbers_are_those_of_numpy(numbers: list[int], limit: int) -> None:
    found, which = distinct(np.array(numbers, np.int64), limit)
    assert found.tolist() == sorted(set(numbers))
    assert found[which].tolist() == numbers


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**9), st.integers(0, 5)), max_size=20))
def test_rows_of_columns_are_numbered_in_their_order(rows: list[tuple[int, int, int]]) -> None:
    number = numbered(*np.array(rows, np.int64).reshape(-1, 3).T)
    assert number.tolist() == [sorted(set(rows)).index(row) for row in rows]
