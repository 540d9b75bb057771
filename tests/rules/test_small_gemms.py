"""GEMMs whose sizes do not fit their tiles, or that have too few tiles for the GPU."""

from __future__ import annotations

from typing import Any

import pytest
from traces import finding, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.rules.support.gemm_tiles import Gemm, TileUse, fit, is_misaligned

RULE = "small-gemms"
#: Three GEMMs of 10 ms.
FAULTY = """
    rank# step |1
          host [mm][mm][mm][fwd][sync......................]
          gpu  [mm......][mm......][mm......][fwd..........]
          nccl            [ar]
"""
HEALTHY = """
    rank# step |1
          host [mm][mm][mm][fwd]
          gpu  [mm......][mm......][mm......][fwd..........]
          nccl            [ar]
"""
#: The same GEMM once.
ONE = """
    rank# step |1
          host [mm][fwd][sync.......]
          gpu  [mm......][fwd.......]
          nccl          [ar]
"""
H100 = {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132}
K, LENGTH_MS = 2_000_000, 10


def options(m: int, n: int, kernel: str) -> dict[str, Any]:
    """An H100 that multiplies (m, K) and (K, n) in bfloat16."""
    return {
        "device": H100,
        "dims": {"mm": [[m, K], [K, n]]},
        "types": {"mm": ["c10::BFloat16"] * 2},
        "kernels": {"mm": kernel},
    }


#: 64 tiles of 128 x 128 for 132 multiprocessors; 12 x 11 tiles for all of them.
FEW = options(1024, 1024, "nvjet_tst_128x128_64x6_2x1_v_bz_NNT")
FULL = options(1536, 1408, "nvjet_tst_128x128_64x6_2x1_v_bz_NNT")


def test_too_few_tiles_are_found_with_the_part_of_the_gpu_that_idles() -> None:
    text = ranks(FAULTY, FAULTY)
    found = finding(RULE, text, **FEW)
    assert (found.cause, found.severity) == ("waves", "opportunity")
    saved = 3 * LENGTH_MS * (1 - 64 / 132)
    assert found.cost_ms == pytest.approx(saved, rel=0.01)
    assert found.range_ms == pytest.approx((saved / 2, saved), rel=0.05)
    assert "mm of (1,024, 2,000,000) x (2,000,000, 1,024) has 64 tiles for 132 multiprocessors: 48 %" in found.why
    assert all(lies_in_its_step(window, text, **FEW) for window in found.evidence)


def test_tiles_for_all_multiprocessors_are_clear() -> None:
    assert outcome(RULE, ranks(FAULTY, FAULTY), **FULL).status == "clear"


def test_one_gemm_has_none_to_be_batched_with() -> None:
    assert outcome(RULE, ranks(ONE, ONE), **FEW).status == "clear"


def test_dimensions_that_leave_tiles_partly_empty_are_found() -> None:
    # 1,032 are 5 tiles of 256 and 9 of 128.
    given = options(1032, 1032, "nvjet_tst_256x128_64x4_2x1_v_bz_NNT")
    found = finding(RULE, ranks(ONE, ONE), **given)
    assert found.cause == "sizes"
    assert found.cost_ms == pytest.approx(LENGTH_MS * (1 - 1032 / 1280 * 1032 / 1152), rel=0.01)
    assert "fills 72 % of its tiles" in found.why


def test_rows_that_are_not_aligned_take_twice_as_long() -> None:
    given = options(1024, 1001, "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_tn_align1")
    found = finding(RULE, ranks(ONE, ONE), **given)
    assert found.cause == "sizes"
    assert found.cost_ms == pytest.approx(LENGTH_MS / 2, rel=0.01)
    assert "rows that are no multiple of 16 bytes" in found.why


def test_no_more_is_saved_than_is_above_attainable() -> None:
    # 9.3 of 10 ms are attainable: padding cannot save half of it.
    given = options(1024, 2251, "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_tn_align1")
    found = outcome(RULE, ranks(ONE, ONE), **given)
    assert found.status == "clear"


def test_without_known_peaks_it_says_so() -> None:
    result = outcome(RULE, ranks(FAULTY), **{**FEW, "device": {"name": "Drawn GPU"}})
    assert result.status == "not-applicable" and "Drawn GPU" in result.reason


@pytest.mark.parametrize(
    ("kernel", "sizes", "expected"),
    [
        # 8 x 3 tiles hold 1,024 x 384 elements.
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", (1, 1000, 300), (0.763, 24 / 132, 24)),
        # The other way round 300 are 3 tiles of 128 as well, and 1,000 are 4 of 256.
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64", (1, 300, 1000), (0.763, 12 / 132, 12)),
        # Two waves of 132, the second one with 12 tiles.
        ("Cijk_Alik_Bljk_BBS_BH_MT128x128x64_MI32x32x8", (36, 256, 256), (1.0, 144 / 264, 144)),
        ("sm80_xmma_gemm_f16f16_tilesize64x64x64_splitK_kernel", (1, 64, 64), (1.0, 1.0, 1)),
        ("gemv2T_kernel_val<int, int, float>", (1, 1000, 300), (1.0, 1.0, 0)),
    ],
)
def test_tiles_and_waves_by_hand(kernel: str, sizes: tuple[int, int, int], expected: tuple[float, float, int]) -> None:
    batch, m, n = sizes
    found = fit(kernel, Gemm(batch, m=m, n=n, k=64), 132)
    assert (found.tiles, found.waves, found.count) == pytest.approx(expected, abs=0.001)


def test_of_an_unknown_number_of_multiprocessors_waves_are_not_told() -> None:
    assert fit("gemm_128x128", Gemm(1, 128, 128, 64), 0) == TileUse(1.0, 1.0, 1)


@pytest.mark.parametrize(
    ("kernel", "n", "dtype", "misaligned"),
    [
        ("nvjet", 50257, "bfloat16", True),
        ("nvjet", 50304, "bfloat16", False),
        ("gemm_align8", 50257, "bfloat16", False),
        ("gemm_align4", 50304, "float32", False),
        ("gemm", 50260, "float32", False),
        ("gemm", 50260, "int8", False),
    ],
)
def test_alignment_is_told_by_the_kernel_else_by_rows(kernel: str, n: int, dtype: str, misaligned: bool) -> None:
    assert is_misaligned(kernel, Gemm(1, 1024, n, 64), dtype) is misaligned
