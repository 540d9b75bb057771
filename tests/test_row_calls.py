"""Calls of operators in rows of tracks: the table that does not grow with equal steps, and sums over it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.digest.model import RankDigest, RooflineRows, RooflineStretches
from tb_ddp_doctor.digest.row_calls import calls_of_rows
from tb_ddp_doctor.job.row_calls import RowCalls
from tb_ddp_doctor.trace.model import Floats, Ints

#: One letter for each call, which takes 100 ns; rows are between "|", steps between "/".
Drawn = str


def drawn(record: Drawn, alike: str = "") -> tuple[RooflineRows, RooflineStretches]:
    """The tables of drawn calls; two letters of `alike` are calls that differ in their longest kernel alone."""
    row, step, signature = [], [], []
    rows = -1
    for number, one in enumerate(record.split("/")):
        for each in one.split("|"):
            rows += 1
            row += [rows] * len(each)
            step += [number] * len(each)
            signature += [ord(letter) - ord("a") for letter in each]
    same = [ord(alike[0]) - ord("a") if chr(one + ord("a")) in alike else one for one in signature]
    kind: Any = np.int64
    return calls_of_rows(
        np.array(row, kind),
        np.array(step, np.int32),
        np.array(signature, kind),
        np.array(same, kind),
        np.full(len(row), 100, kind),
    )


def listed(table: tuple[RooflineRows, RooflineStretches]) -> list[str]:
    """The calls of each row with their counts, as "2a b": sums over steps."""
    rows, stretches = table
    calls = [
        f"{count if count > 1 else ''}{chr(ord('a') + call)}"
        for call, count in zip(stretches.call.tolist(), stretches.count.tolist(), strict=True)
    ]
    return [" ".join(calls[first:end]) for first, end in zip(rows.first.tolist(), rows.end.tolist(), strict=True)]


def of_share(calls: RowCalls, share: Floats) -> Ints:
    """Of the rows one after the other."""
    rows = int(calls.begins[-1])
    return calls.of_share(share, np.arange(rows, dtype=np.int32), rows)


def test_the_calls_of_a_row_are_counted() -> None:
    rows, stretches = drawn("abab|c")
    assert listed((rows, stretches)) == ["2a 2b", "c"]
    assert rows.ns.tolist() == [400, 100]
    assert rows.repeats.tolist() == [1, 1]


def test_equal_steps_are_summed_where_rows_of_any_begin() -> None:
    rows, stretches = drawn("abab|c/ab|abc")
    assert listed((rows, stretches)) == ["2a 2b 2a 2b", "2c", "2a 2b", "2a 2b 2c"]
    assert rows.repeats.tolist() == [2, 2, 2, 2]
    assert stretches.ns.tolist() == [200, 200, 200, 200, 200]


def test_the_table_of_many_equal_steps_is_as_long_as_that_of_one() -> None:
    _, one = drawn("aab|bcd|ab")
    _, many = drawn("/".join(["aab|bcd|ab"] * 50))
    assert len(many) == len(one)


def test_a_step_with_another_call_is_a_table_of_its_own() -> None:
    rows, stretches = drawn("ab|c/abd|c/ab|c")
    assert listed((rows, stretches)) == ["2a 2b", "2c", "a b d", "c", "2a 2b", "2c"]
    assert rows.repeats.tolist() == [2, 2, 1, 1, 2, 2]


def test_calls_whose_longest_kernel_differs_are_the_same_step() -> None:
    rows, stretches = drawn("ab|c/ad|c", alike="bd")
    assert listed((rows, stretches)) == ["2a b d", "2c", "2a b d", "2c"]
    assert rows.repeats.tolist() == [2, 2, 2, 2]


STEPS = st.lists(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4), min_size=1, max_size=5)


@given(STEPS, st.integers(1, 3))
def test_rows_have_all_calls_and_their_time(steps: list[list[str]], times: int) -> None:
    rows, stretches = drawn("/".join("|".join(one) for one in steps * times))
    assert rows.ns.sum() == stretches.ns.sum()
    drawn_rows = [row for one in steps * times for row in one]
    for text, first, end, repeats in zip(
        drawn_rows, rows.first.tolist(), rows.end.tolist(), rows.repeats.tolist(), strict=True
    ):
        count = np.bincount(stretches.call[first:end], stretches.count[first:end], 3)
        assert count.tolist() == [text.count(letter) * repeats for letter in "abc"]


def joined(*records: Drawn, needs: float = 1.0) -> RowCalls:
    """Ranks whose devices need that share of the time of their calls, which run side by side if it is below 1."""
    ranks = []
    for record in records:
        rows, stretches = drawn(record)
        needed = np.rint(rows.ns * needs).astype(np.int64)
        roofline = SimpleNamespace(rows=rows, stretches=stretches, calls=range(4))
        ranks.append(cast("RankDigest", SimpleNamespace(track=Table(needed), roofline=roofline)))
    return RowCalls.of(ranks)


class Table:
    """The one column of a track that is asked."""

    def __init__(self, device_ns: Ints) -> None:
        self.device_ns = device_ns

    def __len__(self) -> int:
        return len(self.device_ns)


def test_a_share_of_a_call_is_taken_from_the_rows_that_have_it() -> None:
    calls = joined("abab|c/ab|abc", "a|c")
    share = np.array([0.5, 0, 0, 0, 0, 0, 1.0, 0])
    assert of_share(calls, share).tolist() == [100, 0, 50, 50, 0, 100]
    assert calls.begins.tolist() == [0, 4, 6]
    assert calls.calls_begin.tolist() == [0, 4, 8]


def test_calls_that_run_side_by_side_count_for_less() -> None:
    assert of_share(joined("ab|c", needs=0.5), np.array([1.0, 0, 1, 0])).tolist() == [50, 50]


def test_time_beyond_the_least_of_calls_is_that_of_their_rows() -> None:
    """Of 100 ns, a needs 30 at least and c all; of b that is not known."""
    calls = joined("ab|c/a|bc", "a")
    least = np.array([30.0, np.nan, 100, 100] * 2)
    excess = calls.excess(least, np.ones(8))
    assert excess.above.tolist() == [70, 0, 70, 0, 70]
    assert excess.unknown.tolist() == [100, 0, 0, 100, 0]
    assert not excess.gone.any()


def test_calls_of_which_less_remains_are_less_beyond_their_least() -> None:
    calls = joined("ab|c/ab|c")
    least, half = np.array([30.0, np.nan, 100, 0]), np.array([0.5, 0.25, 0.5, 1])
    excess = calls.excess(least, half)
    assert [excess.above.tolist(), excess.unknown.tolist()] == [[20, 0, 20, 0], [25, 0, 25, 0]]
    assert excess.gone.tolist() == [125, 50, 125, 50]


@given(STEPS, STEPS)
def test_all_calls_of_a_row_take_as_long_as_its_device(one: list[list[str]], other: list[list[str]]) -> None:
    calls = joined(*("/".join("|".join(rows) for rows in steps * 2) for steps in (one, other)))
    texts = [row for steps in (one, other) for rows in steps * 2 for row in rows]
    assert of_share(calls, np.ones(8)).tolist() == [100 * len(text) for text in texts]


def test_no_ranks_have_no_calls() -> None:
    assert len(of_share(RowCalls.of([]), np.empty(0))) == 0
