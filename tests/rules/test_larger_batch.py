"""What of a step a larger batch does not lengthen."""

from __future__ import annotations

from typing import Any

import pytest
from traces import finding, lies_in_its_step, outcome, ranks

RULE = "larger-batch"
#: An optimizer of 14 ms after a GEMM of 14 ms.
FAULTY = """
    rank# step |1
          host [mm][_fused_adamw_]
          gpu  [mm..........][_fused_adamw_]
          nccl       [ar]
"""
#: All of the step grows with the batch.
HEALTHY = """
    rank# step |1
          host [mm][fwd]
          gpu  [mm..........][fwd..........]
          nccl       [ar]
"""
OPTIMIZER_MS = 15
H100 = {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132}
LISTS = [[[1_000_000_000]]] * 4
OPTIONS: dict[str, Any] = {
    "device": H100,
    "dims": {"mm": [[12_288, 24_576], [24_576, 16_896]], "_fused_adamw_": LISTS},
    "types": {"mm": ["c10::BFloat16"] * 2, "_fused_adamw_": ["TensorList"] * 4},
    "kernels": {
        "mm": "nvjet_tst_128x128",
        "_fused_adamw_": "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>",
    },
}


def test_what_comes_once_a_step_comes_half_as_often() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text, **OPTIONS)
    assert found.severity == "opportunity"
    assert found.cost_ms == pytest.approx(OPTIMIZER_MS / 2, rel=0.02)
    assert "A batch 2 times as large would shorten the time for the same samples by" in found.headline
    assert "profile_memory=True" in found.why
    assert all(lies_in_its_step(window, text, **OPTIONS) for window in found.evidence)


def test_a_step_that_grows_with_its_batch_is_clear() -> None:
    result = outcome(RULE, ranks(HEALTHY, HEALTHY), **OPTIONS)
    assert result.status == "clear" and "would save" in result.reason


def test_without_known_peaks_it_says_so() -> None:
    result = outcome(RULE, ranks(FAULTY), **{**OPTIONS, "device": {"name": "Drawn GPU"}})
    assert result.status == "not-applicable" and "Drawn GPU" in result.reason
