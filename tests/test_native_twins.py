"""Each function of the native library gives what its twin in numpy gives, whatever the columns look like in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.intervals import Intervals, long_gaps, partition
from tb_ddp_doctor.digest.nesting import around, first_chosen, outermost
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.facts import replay_library

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native library was not built")

#: Sizes on both sides of what the code treats differently: numpy's own search below 64 values (columns._FEW), insertion
#: into 16 sorted intervals (FEW in intervals.c), 8 unchosen intervals at once (nesting.c).
SIZES = st.sampled_from([0, 1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 130])
INTEGERS = st.sampled_from([np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64])
SEEDS = st.integers(0, 2**32 - 1)
#: How a column lies in memory: (every how many values, whether backwards).
LAYOUTS = st.sampled_from([(1, False), (2, False), (3, False), (1, True), (2, True)])


def laid_out(values: NDArray[Any], layout: tuple[int, bool]) -> NDArray[Any]:
    """The same values with other strides along the first axis."""
    every, backwards = layout
    room = np.empty((len(values) * every, *values.shape[1:]), values.dtype)
    view = room[::-every] if backwards else room[::every]
    view[...] = values
    return view


def as_lists(found: object) -> object:
    """Arrays as lists, however deep they lie."""
    if isinstance(found, Intervals):
        return found.start.tolist(), found.end.tolist()
    if isinstance(found, tuple):
        return tuple(as_lists(one) for one in found)
    assert isinstance(found, np.ndarray | np.integer)
    return found.shape, found.tolist()


def is_as_numpy(act: Callable[[], object]) -> None:
    """With the library and without it, a call gives the same values in the same shape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        expected = as_lists(act())
    assert as_lists(act()) == expected


@given(
    SEEDS,
    SIZES,
    st.sampled_from([(), (0,), (1,), (1, 1), (3,), (1, 3), (2, 2)]),
    SIZES,
    INTEGERS | st.sampled_from([np.float64, np.uint64, np.bool_]),
    INTEGERS | st.sampled_from([np.float64, np.uint64]),
    LAYOUTS,
    st.sampled_from(["left", "right"]),
)
def test_places_of_any_shape_and_type(
    seed: int,
    size: int,
    more: tuple[int, ...],
    wanted: int,
    asked: Any,
    held: Any,
    layout: tuple[int, bool],
    side: Any,
) -> None:
    draw = np.random.default_rng(seed)
    ascending = laid_out(np.sort(draw.integers(0, 100, size).astype(held)), layout)
    # Halves, too, where the type has them.
    values = laid_out((draw.integers(0, 200, (wanted, *more)) / 2).astype(asked), layout)
    for one in (values, values.T):
        is_as_numpy(lambda one=one: searchsorted(ascending, one, side))


def test_places_of_64_rows_of_three_steps() -> None:
    steps = np.arange(192).reshape(64, 3)
    assert searchsorted(np.arange(0, 400, 2), steps).tolist() == ((steps + 1) // 2).tolist()


def test_places_of_one_number() -> None:
    assert searchsorted(np.array([1, 3]), np.int64(2)) == 1  # type: ignore[arg-type]


@given(SEEDS, SIZES, INTEGERS, LAYOUTS)
def test_sums(seed: int, size: int, kind: Any, layout: tuple[int, bool]) -> None:
    draw = np.random.default_rng(seed)
    index = laid_out(draw.integers(-1 if np.iinfo(kind).min < 0 else 0, 6, size).astype(kind), layout)
    chosen = laid_out(draw.random(size) < 0.7, layout)
    values = laid_out(draw.integers(0, 100, size).astype(kind), layout)
    is_as_numpy(lambda: (total(index, chosen, values, 6), count(index, chosen, 6)))


@given(SEEDS, SIZES, SIZES, INTEGERS, LAYOUTS)
def test_sets_of_intervals(seed: int, size: int, other: int, kind: Any, layout: tuple[int, bool]) -> None:
    draw = np.random.default_rng(seed)

    def pairs(of: int) -> Intervals:
        start = draw.integers(0, 100, of)
        sides = (start, start + draw.integers(0, 20, of))
        return Intervals.union(*(laid_out(side.astype(kind), layout) for side in sides))

    def again() -> tuple[Intervals, ...]:
        nonlocal draw
        draw = np.random.default_rng(seed)
        one, two = pairs(size), pairs(other)
        strided = Intervals(laid_out(one.start, layout), laid_out(one.end, layout))
        return one, two, one | two, strided | two, long_gaps(laid_out(one.start, layout), 3)

    is_as_numpy(again)


@pytest.mark.parametrize("layers", [0, 1, 63, 64, 65])
@given(seed=SEEDS, size=SIZES, layout=LAYOUTS)
def test_partitions(layers: int, seed: int, size: int, layout: tuple[int, bool]) -> None:
    draw = np.random.default_rng(seed)
    sets = []
    for _ in range(layers):
        start = draw.integers(0, 100, 3)
        sets.append(Intervals.union(start, start + draw.integers(0, 20, 3)))
    edges = laid_out(np.unique(draw.integers(0, 130, size)), layout)
    is_as_numpy(lambda: partition(sets, edges))


@given(SEEDS, SIZES, SIZES, st.sampled_from([np.int8, np.int16, np.int32]), LAYOUTS, st.floats(0, 1))
def test_nesting(seed: int, size: int, asked: int, kind: Any, layout: tuple[int, bool], share: float) -> None:
    draw = np.random.default_rng(seed)
    start, on = draw.integers(0, 60, size), draw.integers(0, 2, size).astype(kind)
    order = np.lexsort((start, on))
    start, on = start[order], on[order]
    end = start + draw.integers(0, 30, size)
    start, end, on, chosen = (laid_out(one, layout) for one in (start, end, on, draw.random(size) < share))
    at = laid_out(draw.integers(-1, max(size, 1), asked) if size else np.full(asked, -1), layout)
    instant = laid_out(draw.integers(0, 90, asked), layout)

    def all_of_it() -> tuple[NDArray[Any], ...]:
        outer = around(start, end, on)
        return outer, first_chosen(at, instant, laid_out(outer, layout), end, chosen), outermost(end, outer, chosen)

    is_as_numpy(all_of_it)


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (np.zeros((64, 3), np.int64), np.int64),
        (np.array(1), np.int64),
        (np.array([0.5]), np.int64),
        (np.array([2**63], np.uint64), np.int64),
        (np.array([2]), np.bool_),
        (np.array([2**40]), np.int32),
    ],
    ids=["shape", "scalar", "float", "unsigned", "flag", "wide"],
)
def test_the_library_gets_no_column_that_it_would_read_otherwise(column: NDArray[Any], dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"column"):
        native.plain(column, dtype)


def test_a_column_for_the_replay_has_its_values_in_any_layout() -> None:
    for layout in [(1, False), (2, False), (1, True), (3, True)]:
        kept: list[Any] = []
        column = replay_library.column(laid_out(np.arange(5, dtype=np.int32), layout), np.int64, 5, kept)
        assert (kept[0].tolist(), column.step) == ([0, 1, 2, 3, 4], 1)
        assert kept[0].ctypes.data == column.at
    with pytest.raises(IndexError):
        replay_library.column(np.arange(4), np.int64, 5, [])


def test_every_function_of_columns_has_its_test_here() -> None:
    by_function = {
        "columns_search": searchsorted,
        "columns_add": total,
        "intervals_union": Intervals.union,
        "intervals_either": Intervals.__or__,
        "intervals_partition": partition,
        "intervals_cells": long_gaps,
        "nesting_around": around,
        "nesting_chosen": first_chosen,
        "nesting_outermost": outermost,
    }
    assert set(native._PROTOTYPES) == set(by_function)
