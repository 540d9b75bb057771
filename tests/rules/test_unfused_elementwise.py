"""Elementwise kernels that read what the one before wrote."""

from __future__ import annotations

from typing import Any

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
MOVE_MS = 4 * 3.072e9 / 3.35e12 * 1e3
GELU_MS, SILU_MS = 11, 12
OPTIONS = {
    "device": {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9},
    "dims": {"gelu": VALUES, "silu": VALUES},
    "types": {"gelu": ["float", ""], "silu": ["float", ""]},
}


def between(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """The same with an operator between the two."""
    text = FAULTY.replace("[silu][fwd]", f"[{name}][silu][fwd]").replace("[silu......]", f"[{name}...][silu......]")
    options = {**OPTIONS, "dims": {**OPTIONS["dims"], name: more["dims"]}}
    return text, {**options, "types": {**OPTIONS["types"], name: more["types"]}}


def test_reads_of_what_was_just_written_are_found() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text, **OPTIONS)
    # A kernel that reads as much as it writes spends half of its time on reading.
    assert found.cost_ms == pytest.approx(SILU_MS / 2, rel=0.01)
    assert found.range_ms[0] == pytest.approx(SILU_MS / 2, rel=0.05)
    # At the speed of memory, one read and one write remain.
    assert found.range_ms[1] == pytest.approx(GELU_MS + SILU_MS - 2 * MOVE_MS, rel=0.05)
    assert "are elementwise kernels that fusion would shorten by" in found.headline
    assert found.headline.endswith("(torch.compile).")
    assert "gelu" in found.why and "silu" in found.why
    assert all(lies_in_its_step(window, text, **OPTIONS) for window in found.evidence)


def test_what_runs_between_the_two_does_not_matter() -> None:
    """Autocast casts a weight between a norm and the cast of what it wrote."""
    text, options = between("copy_", dims=[[300, 1_024], [300, 1_024]], types=["c10::BFloat16", "float"])
    assert finding(RULE, ranks(text, text), **options).cost_ms == pytest.approx(SILU_MS / 2, rel=0.01)


def test_nothing_is_handed_over_across_a_gemm() -> None:
    text, options = between("mm", dims=[[1_024, 1_024], [1_024, 1_024]], types=["float", "float"])
    assert outcome(RULE, ranks(text, text), **options).status == "clear"


def test_what_is_cast_at_once_need_not_be_written() -> None:
    text = FAULTY.replace("silu", "copy_").replace("[copy_......]", "[copy_.....]")
    options = {
        **OPTIONS,
        "dims": {"gelu": VALUES, "copy_": [VALUES[0], VALUES[0]]},
        "types": {"gelu": ["float", ""], "copy_": ["c10::BFloat16", "float"]},
    }
    found = finding(RULE, ranks(text, text), **options)
    # Two thirds of the cast's bytes are read; half of gelu's are written.
    assert found.cost_ms == pytest.approx(SILU_MS * 2 / 3 + GELU_MS / 2, rel=0.05)
    assert found.range_ms[0] < SILU_MS * 3 / 4


def test_one_kernel_has_nothing_to_fuse_with() -> None:
    assert outcome(RULE, ranks(HEALTHY, HEALTHY), **OPTIONS).status == "clear"


def test_kernels_of_other_sizes_do_not_read_each_other() -> None:
    other = {**OPTIONS, "dims": {"gelu": VALUES, "silu": [[1_000, 102_400], []]}}
    assert outcome(RULE, ranks(FAULTY, FAULTY), **other).status == "clear"


def test_modules_that_run_them_are_named() -> None:
    text = FAULTY.replace("host [gelu]", "python [block....]\n          host [gelu]")
    assert "Of their time on rank 0, most is in Block_3 (12.0 ms)." in finding(RULE, ranks(text, text), **OPTIONS).why
    assert "Of their time" not in finding(RULE, ranks(FAULTY, FAULTY), **OPTIONS).why


def test_modules_are_data_of_a_finding_too() -> None:
    text = FAULTY.replace("host [gelu]", "python [block....]\n          host [gelu]")
    assert finding(RULE, ranks(text, text), **OPTIONS).modules == ("Block_3",)
