"""Device events find the calls that launched them."""

from __future__ import annotations

import numpy as np
from traces import columns

from tb_ddp_doctor.digest.launches import launch_rows
from tb_ddp_doctor.trace.model import Category

RUNTIME, KERNEL = Category.RUNTIME, Category.KERNEL


def test_a_kernel_is_joined_to_the_call_of_its_correlation() -> None:
    events = columns(category=[RUNTIME, RUNTIME, KERNEL, KERNEL], correlation=[7, 5, 5, 7])
    assert launch_rows(events, np.array([2, 3])).tolist() == [1, 0]


def test_a_kernel_without_a_recorded_call_has_none() -> None:
    events = columns(category=[RUNTIME, KERNEL, KERNEL, KERNEL], correlation=[5, 4, 6, -1])
    assert launch_rows(events, np.array([1, 2, 3])).tolist() == [-1, -1, -1]


def test_without_any_call_nothing_is_joined() -> None:
    events = columns(category=[KERNEL, KERNEL], correlation=[-1, 3])
    assert launch_rows(events, np.array([0, 1])).tolist() == [-1, -1]


def test_a_call_without_correlation_launches_nothing() -> None:
    events = columns(category=[RUNTIME, KERNEL], correlation=[-1, -1])
    assert launch_rows(events, np.array([1])).tolist() == [-1]


def test_one_call_may_launch_many_kernels() -> None:
    events = columns(category=[KERNEL, RUNTIME, KERNEL], correlation=[9, 9, 9])
    assert launch_rows(events, np.array([0, 2])).tolist() == [1, 1]
