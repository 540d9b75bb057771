"""Lanes: whose time it is on each rank, from digests."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import MS, job

from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.slices.cut import SliceWindow, whole
from tb_ddp_doctor.slices.lanes import MOST_RANKS, joined, lanes
from tb_ddp_doctor.slices.model import SliceError

#: The second rank is late, since its CPU is in no op.
JOB = """
    rank0 step   |1                   |2
          host   [fwd][bwd]           [fwd][bwd]
          gpu    [fwd....][bwd]       [fwd....][bwd]
          nccl                 [ar..]               [ar..]
    rank1 step   |1                   |2
          host   [fwd]   [bwd]        [fwd]   [bwd]
          gpu    [fwd]    [bwd]       [fwd]    [bwd]
          nccl                   [ar]                 [ar]
"""


def test_a_lane_has_a_ranks_time_by_owner_on_the_common_clock() -> None:
    drawn = job(JOB, clock_ms={1: 500.0})
    told = lanes(drawn, whole(drawn))
    assert told["owners"] == list(OWNERS)
    for i, lane in enumerate(told["ranks"]):
        names = [OWNERS[owner] for owner in lane["owner"]]
        spent = {
            owner: sum(us for name, us in zip(names, lane["length_us"], strict=True) if name == owner)
            for owner in OWNERS
        }
        for owner in ("compute", "wait", "transfer", "host"):
            assert spent[owner] == pytest.approx(drawn.budget.of(owner)[i].sum() / 1e3, abs=300), owner
    first, second = told["ranks"]
    assert "wait" in [OWNERS[owner] for owner in first["owner"]]
    assert "host" in [OWNERS[owner] for owner in second["owner"]]
    # Both ranks' collectives end together, though one's clock is half a second ahead.
    assert first["start_us"][-1] + first["length_us"][-1] == pytest.approx(
        second["start_us"][-1] + second["length_us"][-1], abs=50
    )


def test_lanes_are_of_a_window_and_of_ranks_that_there_are() -> None:
    drawn = job(JOB)
    start = whole(drawn).start_ns
    told = lanes(drawn, SliceWindow((1,), start, start + 3 * MS))
    (lane,) = told["ranks"]
    assert all(at < 3000 for at in lane["start_us"])
    for window, words in (
        (SliceWindow((7,), start, start + 1), "no rank 7"),
        (SliceWindow((0,), start, start), "ends before"),
        (SliceWindow(tuple(range(MOST_RANKS + 1)), start, start + 1), "at most"),
    ):
        with pytest.raises(SliceError, match=words):
            lanes(drawn, window)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 60)), max_size=60), st.integers(1, 100))
def test_joined_pieces_cover_the_same_time_in_fewer(drawn: list[tuple[int, int, int]], least: int) -> None:
    owner = np.array([one for one, _, _ in drawn], np.int64)
    length = np.array([one for _, _, one in drawn], np.int64)
    start = np.cumsum([gap for _, gap, _ in drawn], dtype=np.int64) + np.cumsum(length) - length
    end = start + length
    owners, starts, ends = joined(owner, start, end, least)
    assert (starts[1:] >= ends[:-1]).all() and (ends > starts).all()
    covered = set(
        itertools.chain.from_iterable(range(a, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True))
    )
    assert covered >= set(
        itertools.chain.from_iterable(range(a, b) for a, b in zip(start.tolist(), end.tolist(), strict=True))
    )
    # Long pieces stay what they are.
    found = {(at, which) for at, which in zip(starts.tolist(), owners.tolist(), strict=True)}
    assert all(
        (at, which) in found
        for at, which, long in zip(start.tolist(), owner.tolist(), length.tolist(), strict=True)
        if long >= least
    )
    short = int((length < least).sum())
    assert (
        len(starts) <= len(drawn) and len(starts) - (len(drawn) - short) <= (int(end.max(initial=0)) // least + 1) * 2
    )
