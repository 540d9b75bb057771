"""Kernels that would be faster in a narrower type."""

from __future__ import annotations

from typing import Any

import pytest
from traces import finding, lies_in_its_step, outcome, ranks

RULE = "lower-precision"
FAULTY = """
    rank# step |1
          host [gelu][fwd][sync...................]
          gpu  [gelu....][fwd...................]
          nccl            [ar]
"""
HEALTHY = """
    rank# step |1
          host [gelu][fwd]
          gpu  [gelu....][fwd...................]
          nccl            [ar]
"""
GEMM = FAULTY.replace("gelu....", "mm......").replace("gelu", "mm..")
LENGTH_MS = 10
H100 = {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108}


def gelu(kind: str) -> dict[str, Any]:
    """3.07 billion values: in float32 they take 7.3 ms to read and to write at 3.35 TB/s."""
    return {"device": H100, "dims": {"gelu": [[30_000, 102_400], []]}, "types": {"gelu": [kind, ""]}}


WIDE, NARROW = gelu("float"), gelu("c10::BFloat16")
M, K = 20_480, 8_192


def gemm(kind: str, kernel: str, device: dict[str, Any] = H100) -> dict[str, Any]:
    return {
        "device": device,
        "dims": {"mm": [[M, K], [K, M]]},
        "types": {"mm": [kind] * 2},
        "kernels": {"mm": kernel},
    }


def test_half_of_the_bytes_take_half_of_the_time() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text, **WIDE)
    assert (found.cause, found.severity) == ("bfloat16", "opportunity")
    assert found.cost_ms == pytest.approx(0.75 * LENGTH_MS / 2, rel=0.01)
    assert found.range_ms == pytest.approx((0.25 * LENGTH_MS / 2, LENGTH_MS / 2), rel=0.05)
    assert "has three digits" in found.why
    assert all(lies_in_its_step(window, text, **WIDE) for window in found.evidence)


def test_bfloat16_is_clear() -> None:
    assert outcome(RULE, ranks(FAULTY, FAULTY), **NARROW).status == "clear"


def test_a_gemm_in_tf32_has_twice_the_peak_in_half_precision() -> None:
    text = ranks(GEMM, GEMM)
    found = finding(RULE, text, **gemm("float", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32"))
    assert found.cause == "bfloat16"
    # 494 to 989 TFLOPS.
    assert found.cost_ms == pytest.approx(0.75 * LENGTH_MS * (1 - 494 / 989), rel=0.01)


def test_8_bit_floats_count_their_casts() -> None:
    text = ranks(GEMM, GEMM)
    found = finding(RULE, text, **gemm("c10::BFloat16", "nvjet_tst_128x256"))
    assert found.cause == "fp8"
    flops = 2 * M * K * M
    now, then = flops / 989e12, flops / 1979e12 + 3 * 2 * M * K / 3.35e12
    assert found.cost_ms == pytest.approx(0.75 * LENGTH_MS * (1 - then / now), rel=0.01)
    assert "casts of both inputs are counted" in found.why


def test_a_gpu_without_8_bit_floats_has_nothing_narrower() -> None:
    given = gemm("c10::BFloat16", "ampere_bf16_s16816gemm_bf16_128x128", A100)
    assert outcome(RULE, ranks(GEMM, GEMM), **given).status == "clear"


def test_without_known_peaks_it_says_so() -> None:
    result = outcome(RULE, ranks(FAULTY), **{**WIDE, "device": {"name": "Drawn GPU"}})
    assert result.status == "not-applicable" and "Drawn GPU" in result.reason
