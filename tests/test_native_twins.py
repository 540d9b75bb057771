"""Each function of the native library gives what its twin in numpy gives, whatever the columns look like in memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray
from traces import job, ranks

from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.intervals import Intervals, long_gaps, partition
from tb_ddp_doctor.digest.model import CpuTime, RooflineStretches
from tb_ddp_doctor.digest.nesting import around, first_chosen, outermost
from tb_ddp_doctor.digest.sums import count, total
from tb_ddp_doctor.job.pair_sums import PairSums
from tb_ddp_doctor.nccl_logs import lines
from tb_ddp_doctor.replay import native_library
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.model import Played
from tb_ddp_doctor.replay.play import _Playing
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace import native as scanner
from tb_ddp_doctor.trace.pftrace import native as packets

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native library was not built")

ROOT = Path(__file__).parents[1]
#: A step whose host launches all of it and waits at its end.
LAUNCHED = """
    rank# step |1
          host [load..][fwd][bwd]     [sync...........]
          gpu          [fwd....][bwd..............]
          nccl                       [ar....]
"""
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
        column = native_library.column(laid_out(np.arange(5, dtype=np.int32), layout), np.int64, 5, kept)
        assert (kept[0].tolist(), column.step) == ([0, 1, 2, 3, 4], 1)
        assert kept[0].ctypes.data == column.at
    with pytest.raises(IndexError):
        native_library.column(np.arange(4), np.int64, 5, [])


@given(SEEDS, st.booleans())
def test_a_replay_in_any_layout(seed: int, cut: bool) -> None:
    """Lengths as views with strides, backwards, narrower, or of one value for all, as numpy broadcasts it."""
    draw = np.random.default_rng(seed)
    replay = WhatIf.of(job(ranks(LAUNCHED, LAUNCHED, steps=3))).replay
    assert replay is not None

    def other(values: NDArray[Any]) -> NDArray[Any]:
        if len(values) and draw.random() < 0.2:
            return np.broadcast_to(values[:1], values.shape)
        kind = np.int32 if len(values) and np.abs(values).max() < 2**31 and draw.random() < 0.5 else values.dtype
        return laid_out(values.astype(kind), (int(draw.integers(1, 4)), bool(draw.random() < 0.5)))

    change = Change({CpuTime.WORK: np.full((2, 3), 0.5)}) if cut else Change()
    lengths = replay.lengths(change)
    columns = {name: other(getattr(lengths, name)) for name in (*native_library.ROW_LENGTHS, "transfer_ns")}
    changed = replace(lengths, **columns)
    rows = replay.schedule.rows
    views = {name: laid_out(getattr(rows, name), (2, True)) for name in ("rank", "synced", "awaits", "delay_ns")}
    one, twin = (_Playing(replace(replay.schedule, rows=replace(rows, **views)), changed, 0, 0, True) for _ in range(2))
    one.natively()
    twin.with_numpy()
    for name in Played.__struct_fields__:
        assert getattr(one.played, name).tolist() == getattr(twin.played, name).tolist(), name


@given(SEEDS, st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=3))
def test_sums_over_the_calls_of_rows(seed: int, ranks: list[tuple[int, int, int]]) -> None:
    """Ranks of so many rows, calls and pairs."""
    draw = np.random.default_rng(seed)
    ranks = [(rows, calls, pairs if calls else 0) for rows, calls, pairs in ranks]
    first, end = np.concatenate(
        [np.empty((2, 0), np.int64), *(np.sort(draw.integers(0, pairs + 1, (2, rows)), 0) for rows, _, pairs in ranks)],
        axis=1,
    )
    rows, calls = (int(sum(one[number] for one in ranks)) for number in range(2))
    table = PairSums(
        begins=np.cumsum([0, *(one[0] for one in ranks)]),
        calls_begin=np.cumsum([0, *(one[1] for one in ranks)]),
        first=first.astype(np.int32),
        end=end.astype(np.int32),
        pairs=tuple(
            RooflineStretches(
                call=draw.integers(0, max(calls, 1), pairs).astype(np.int32),
                count=draw.integers(0, 9, pairs),
                ns=draw.integers(-2, 1000, pairs),
            )
            for _, calls, pairs in ranks
        ),
    )
    least = np.where(draw.random(calls) < 0.3, np.nan, draw.random(calls) * 300)
    share, of_row = draw.random(calls), draw.random(rows)
    place = draw.permutation(rows + 2)[:rows].astype(np.int32)

    def act() -> list[list[float]]:
        sums = table.excess(least, share)
        every = (sums.took, sums.least, sums.unknown, sums.gone)
        placed = table.placed(share, of_row, place, rows + 2)
        return [column.tolist() for column in (table.in_share(share), placed, *every)]

    natively = act()
    table.__dict__["_native"] = None
    assert natively == act()


def test_sums_over_calls_that_are_not_there_are_refused() -> None:
    one = np.array([1], np.int32)
    pairs = RooflineStretches(call=one, count=np.ones(1, np.int64), ns=np.ones(1, np.int64))
    for first, end, calls in ((0, 1, 1), (2, 1, 2), (0, 2, 2), (-1, 1, 2)):
        places = np.array([first], np.int32), np.array([end], np.int32)
        table = PairSums(np.array([0, 1]), np.array([0, calls]), *places, (pairs,))
        with pytest.raises(IndexError):
            table.in_share(np.ones(calls))
    table = PairSums(np.array([0, 1]), np.array([0, 2]), np.zeros(1, np.int32), one, (pairs,))
    for share in (np.ones(1), np.ones(3)):
        with pytest.raises(IndexError):
            table.in_share(share)


#: What tests that a function of the native library does what its twin does, over what either may be given.
TESTED = {
    "columns_search": "test_native_twins.py::test_places_of_any_shape_and_type",
    "columns_add": "test_native_twins.py::test_sums",
    **dict.fromkeys(
        ("calls_share", "calls_placed", "calls_sums"),
        "test_native_twins.py::test_sums_over_the_calls_of_rows",
    ),
    "intervals_union": "test_native_twins.py::test_sets_of_intervals",
    "intervals_either": "test_native_twins.py::test_sets_of_intervals",
    "intervals_partition": "test_native_twins.py::test_partitions",
    "intervals_cells": "test_native_twins.py::test_sets_of_intervals",
    "nesting_around": "test_native_twins.py::test_nesting",
    "nesting_chosen": "test_native_twins.py::test_nesting",
    "nesting_outermost": "test_native_twins.py::test_nesting",
    "nccl_lines": "test_nccl.py::test_the_native_reader_finds_what_python_finds_in_any_text",
    "replay_order": "test_replay.py::test_the_native_library_orders_any_job_as_numpy_does",
    "replay_play": "test_replay.py::test_the_native_library_plays_any_job_as_numpy_does",
    # The readers of packets and of JSON as a whole, whatever is fed to it, in blocks of any size.
    "perfetto_": "test_pftrace.py::test_both_readers_agree_on_any_packets",
    "scanner_": "test_native.py::test_both_readers_agree_on_what_is_json",
}


def exported() -> set[str]:
    """The functions that the native library's headers hand out; all others are hidden (`-fvisibility=hidden`)."""
    headers = [path.read_text() for path in (ROOT / "native").glob("*.h")]
    return {name for text in headers for name in re.findall(r"^NATIVE_API [^;(]*?(\w+)\(", text, re.MULTILINE)}


def test_every_function_of_the_library_has_a_test_against_its_twin() -> None:
    assert {re.sub("(scanner|perfetto)_.*", r"\1_", name) for name in exported()} == set(TESTED)
    for place in TESTED.values():
        module, _, test = place.partition("::")
        source = (ROOT / "tests" / module).read_text()
        decorators = source[: source.index(f"def {test}(")].rpartition("\n\n\n")[2]
        assert "@given(" in decorators, f"{place} tries no random columns"


def test_every_function_of_the_library_is_in_a_header_and_declared() -> None:
    declared = {name for module in (native, scanner, packets, lines, native_library) for name in module._PROTOTYPES}
    assert declared | {"scanner_version"} == exported()
    library = Path(scanner.__file__).with_name("_scanner.so")
    if library.exists() and shutil.which("nm"):
        listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
        # Beside these, linkers of old systems list some of their own (`_init`).
        assert {line.split()[-1] for line in listed.stdout.splitlines()} - {"_init", "_fini"} == exported()
