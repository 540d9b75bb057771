"""What is advised to programs that do not train is nothing of a training loop."""

from __future__ import annotations

import re
from typing import Any

import pytest
import test_lower_precision
import test_profiler_overhead
import test_slow_kernels
import test_unfused_elementwise
from traces import finding, ranks

#: A kernel that only a server has.
SERVES = {"fwd": "void paged_attention_v1_kernel<1>"}
OF_TRAINING = re.compile(r"optimizer|loss|backward|DataLoader|loader\b|train|vocabulary|torch\.nn\.Linear")
GEMM = test_lower_precision.gemm("c10::BFloat16", "nvjet_tst_128x256")
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "elementwise": ("slow-kernels", test_slow_kernels.FAULTY, test_slow_kernels.SLOW),
    "fusion": ("unfused-elementwise", test_unfused_elementwise.FAULTY, test_unfused_elementwise.OPTIONS),
    "bfloat16": ("lower-precision", test_lower_precision.FAULTY, test_lower_precision.WIDE),
    "fp8": ("lower-precision", test_lower_precision.GEMM, GEMM),
    "recording": ("profiler-overhead", test_profiler_overhead.STALLED.replace("[b]  ", "[fwd]"), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_advice_fits_a_server(name: str) -> None:
    rule, text, options = CASES[name]
    serves = {**options, "kernels": {**options.get("kernels", {}), **SERVES, "b": SERVES["fwd"]}}
    advised = finding(rule, ranks(text, text), **serves).fix
    assert not OF_TRAINING.search(advised), advised
    trains = finding(rule, ranks(text, text), **options).fix
    assert trains == advised or OF_TRAINING.search(trains) or "torch.compile" in trains


def test_gemms_of_a_server_read_fewer_bytes_or_serve_more_requests() -> None:
    inputs = [[8192, 2048], [2048, 4096]]
    kernels = {"op12": "sm90_xmma_gemm_bf16bf16_tn", **SERVES}
    found = test_slow_kernels.kernels_of("aten::mm", inputs, kernels=kernels)
    assert "--quantization fp8 --max-num-seqs 512" in found.fix and not OF_TRAINING.search(found.fix)
