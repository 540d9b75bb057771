"""Buckets as DistributedDataParallel builds them, and which limit explains recorded ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.planning.buckets import MIB, BucketLimits, explaining_caps, last_of_buckets

SIZES = st.lists(st.integers(1, 40 * MIB), min_size=1, max_size=60)


def lasts(*mib: float, cap: float) -> list[int]:
    return last_of_buckets((np.array(mib) * MIB).astype(np.int64), BucketLimits.of_cap(cap)).tolist()


def test_a_bucket_closes_with_the_gradient_that_reaches_its_limit() -> None:
    assert lasts(1, 1, 1, 1, 1, cap=2) == [1, 3, 4]


def test_a_gradient_larger_than_the_limit_closes_the_bucket_that_it_is_in() -> None:
    assert lasts(1, 9, 1, 1, cap=2) == [1, 3]


def test_a_limit_beyond_all_gradients_gives_one_bucket() -> None:
    assert lasts(1, 9, 1, cap=100) == [2]


def test_by_default_the_first_bucket_is_smaller() -> None:
    sizes = np.full(30, MIB)
    assert last_of_buckets(sizes, BucketLimits.default()).tolist() == [0, 25, 29]


@given(SIZES, st.floats(0.001, 100))
def test_every_gradient_is_in_one_bucket_and_only_the_last_is_below_its_limit(sizes: list[int], cap: float) -> None:
    limits, each = BucketLimits.of_cap(cap), np.array(sizes)
    found = last_of_buckets(each, limits)
    totals = np.diff(np.cumsum(each)[found], prepend=0)
    assert found[-1] == len(sizes) - 1
    assert totals.sum() == each.sum()
    assert (totals[:-1] >= limits.each).all()
    assert (totals - each[found] < max(limits.each, 1)).all()


@given(SIZES, st.floats(0.001, 100))
def test_caps_that_explain_buckets_give_them_again(sizes: list[int], cap: float) -> None:
    each = np.array(sizes)
    found = last_of_buckets(each, BucketLimits.of_cap(cap))
    caps = explaining_caps(each, found)
    assert caps is not None
    for size in (caps[0] + 1 / MIB, min(caps[1], 1e6)):
        if size <= caps[1]:
            assert last_of_buckets(each, BucketLimits.of_cap(size)).tolist() == found.tolist()


def test_buckets_that_no_limit_gives_have_none() -> None:
    sizes = (np.array([4, 1, 1, 1]) * MIB).astype(np.int64)
    assert explaining_caps(sizes, np.array([1, 2, 3])) is None
