"""Kernels far below the speed that the device allows."""

from __future__ import annotations

from typing import Any

import pytest
from traces import finding, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.findings import Finding

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


def kernels_of(operator: str, inputs: list[list[int]], **more: Any) -> Finding:
    """What is found of a slow kernel of that operator, 20 ms long."""
    text = FAULTY.replace("gelu", "op12")
    drawn: dict[str, Any] = {
        "device": H100,
        "dims": {"op12": inputs},
        "types": {"op12": ["c10::BFloat16"] * len(inputs)},
    }
    return finding(RULE, ranks(text, text), names={"aten::op12": operator}, **drawn, **more)


def test_attention_gets_a_backend_that_it_does_not_use() -> None:
    heads = [[4, 16, 2048, 128]] * 3
    flash = kernels_of("aten::_scaled_dot_product_flash_attention", heads)
    assert flash.cause == "fused_attention"
    assert "[SDPBackend.CUDNN_ATTENTION]" in flash.fix and "FLASH_ATTENTION" not in flash.fix
    cudnn = kernels_of("aten::_scaled_dot_product_cudnn_attention", heads)
    assert "[SDPBackend.FLASH_ATTENTION]" in cudnn.fix and "CUDNN_ATTENTION" not in cudnn.fix


@pytest.mark.parametrize(("rows", "padded"), [(8192, False), (8190, True)])
def test_gemms_whose_sizes_fit_are_not_to_be_padded(rows: int, padded: bool) -> None:
    found = kernels_of("aten::mm", [[rows, 2048], [2048, 4096]], kernels={"op12": "sm90_xmma_gemm_bf16bf16_tn"})
    assert (found.cause, "50_304" in found.fix or "50,304" in found.fix) == ("gemm", padded)


def test_what_is_compiled_is_not_to_be_compiled() -> None:
    name = "triton_poi_fused_gelu_0"
    found = kernels_of(name, [[4000, 102_400], [4000, 102_400]], kernels={"op12": name})
    assert (found.cause, "coordinate_descent" in found.fix, "torch.compile(" in found.fix) == ("compiled", True, False)
