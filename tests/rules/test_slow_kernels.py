"""Kernels far below the speed that the device allows."""

from __future__ import annotations

import pytest
from traces import finding, lies_in_its_step, outcome, ranks

RULE = "slow-kernels"
FAULTY = """
    rank# step |1
          host [gelu][fwd][sync...................]
          gpu  [gelu..............][fwd...........]
          nccl            [ar]
"""
HEALTHY = """
    rank# step |1
          host [gelu][fwd]
          gpu  [gelu..............][fwd...........]
          nccl            [ar]
"""
H100 = {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}
#: 409.6 million values of 4 bytes, read and written: 0.98 ms at 3.35 TB/s.
LEAST_MS = 2 * 4 * 409.6e6 / 3.35e12 * 1e3
TAKEN_MS = 20


def options(rows: int) -> dict[str, object]:
    """An H100 whose gelu has so many rows of 102,400 values."""
    return {"device": H100, "dims": {"gelu": [[rows, 102_400], []]}, "types": {"gelu": ["float", ""]}}


SLOW, FAST = options(4_000), options(80_000)


def test_a_slow_kernel_is_found_with_what_a_usual_one_takes() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text, **SLOW)
    assert (found.cause, found.severity) == ("elementwise", "opportunity")
    assert found.cost_ms == pytest.approx(TAKEN_MS - LEAST_MS / 0.75, rel=0.01)
    assert found.range_ms == pytest.approx((TAKEN_MS - LEAST_MS / 0.5, TAKEN_MS - LEAST_MS), rel=0.03)
    assert "gelu of 4000x102400, 20.0 ms in 1 call, 164 GB/s (4.9 %)" in found.why
    assert all(lies_in_its_step(window, text, **SLOW) for window in found.evidence)


def test_a_kernel_at_its_roof_is_clear() -> None:
    assert outcome(RULE, ranks(FAULTY, FAULTY), **FAST).status == "clear"


def test_without_known_peaks_it_says_so() -> None:
    unknown = {**SLOW, "device": {"name": "Drawn GPU", "computeMajor": 9}}
    result = outcome(RULE, ranks(FAULTY, FAULTY), **unknown)
    assert result.status == "not-applicable" and "Drawn GPU" in result.reason


def test_low_occupancy_at_the_roof_is_no_finding() -> None:
    assert finding("low-occupancy", ranks(FAULTY, FAULTY), occupancy={"gelu": 20}, **SLOW)
    assert outcome("low-occupancy", ranks(FAULTY, FAULTY), occupancy={"gelu": 20}, **FAST).status == "clear"
