"""Elementwise kernels that read what the one before wrote."""

from __future__ import annotations

import pytest
from traces import finding, lies_in_its_step, outcome, ranks

RULE = "unfused-elementwise"
FAULTY = """
    rank# step |1
          host [gelu][silu][fwd][sync...................]
          gpu  [gelu.....][silu......][fwd..............]
          nccl                               [ar]
"""
HEALTHY = """
    rank# step |1
          host [gelu][fwd]
          gpu  [gelu.....][fwd..........................]
          nccl                               [ar]
"""
#: 3.072 billion values of 4 bytes take 3.67 ms to read at 3.35 TB/s, and as long to write.
VALUES = [[30_000, 102_400], []]
READ_MS = 4 * 3.072e9 / 3.35e12 * 1e3
OPTIONS = {
    "device": {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9},
    "dims": {"gelu": VALUES, "silu": VALUES},
    "types": {"gelu": ["float", ""], "silu": ["float", ""]},
}


def test_reads_of_what_was_just_written_are_found() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text, **OPTIONS)
    assert found.cost_ms == pytest.approx(READ_MS, rel=0.01)
    assert found.range_ms[1] == pytest.approx(2 * READ_MS, rel=0.03)
    assert "are elementwise kernels that fusion would shorten by" in found.headline
    assert found.headline.endswith("(torch.compile).")
    assert "gelu" in found.why and "silu" in found.why
    assert all(lies_in_its_step(window, text, **OPTIONS) for window in found.evidence)


def test_one_kernel_has_nothing_to_fuse_with() -> None:
    assert outcome(RULE, ranks(HEALTHY, HEALTHY), **OPTIONS).status == "clear"


def test_kernels_of_other_sizes_do_not_read_each_other() -> None:
    other = {**OPTIONS, "dims": {"gelu": VALUES, "silu": [[1_000, 102_400], []]}}
    assert outcome(RULE, ranks(FAULTY, FAULTY), **other).status == "clear"
