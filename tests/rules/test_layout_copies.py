"""Copies of tensors for another layout."""

from __future__ import annotations

import pytest
from traces import finding, lies_in_its_step, outcome, ranks

RULE = "layout-copies"
FAULTY = """
    rank# step |1
          host [fwd][contiguous][bwd][sync........................]
          gpu  [fwd.........][contiguous][bwd.................]
          nccl                                                 [ar]
"""
HEALTHY = FAULTY.replace("contiguous", "add.......")
COPY_MS = 12


def test_copies_for_strides_are_found() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text)
    assert found.cost_ms == pytest.approx(0.75 * COPY_MS, abs=0.05)
    assert found.range_ms == pytest.approx((0.5 * COPY_MS, COPY_MS), abs=0.3)
    assert all(lies_in_its_step(window, text) for window in found.evidence)


def test_other_kernels_are_clear() -> None:
    assert outcome(RULE, ranks(HEALTHY, HEALTHY)).status == "clear"


def test_the_share_that_goes_can_be_set() -> None:
    found = finding(RULE, ranks(FAULTY, FAULTY), settings={"removed": 1.0})
    assert found.cost_ms == pytest.approx(COPY_MS, abs=0.05)
