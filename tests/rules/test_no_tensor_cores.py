"""Matrix products off the tensor cores."""

from __future__ import annotations

from typing import Any

import pytest
from traces import MS, check, finding, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor.findings import Finding

RULE = "no-tensor-cores"
FLOAT32 = """
    rank# step     |1
          host     [fwd]         [sync............................]
          autograd       [sgemm]
          gpu      [fwd.......][sgemm.......................]
          nccl                                               [ar..]
"""
TENSOR = """
    rank# step     |1
          host     [fwd]
          autograd       [nvjet]
          gpu      [fwd.......][nvjet..]
          nccl                    [ar..]
"""
TINY = FLOAT32.replace("[sgemm.......................]", "[sgemm*1000..................]")
HALF = """
    rank# step     |1
          host     [fwd]
          gpu      [fwd.......][volta_fp16_sgemm............]
          nccl                                               [ar..]
"""
FASTER = """
    rank# step     |1
          host     [fwd]
          autograd       [nvjet]
          gpu      [fwd.......][nvjet.]
          nccl                         [ar........................]
"""
#: 30 ms, of which an eighth stays.
SAVED_MS = 30 * 7 / 8
OLD = {"name": "Tesla V100-SXM2-32GB", "computeMajor": 7}


def test_products_in_float32_are_found_with_what_tensor_cores_would_save() -> None:
    found = finding(RULE, ranks(FLOAT32, FLOAT32))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(SAVED_MS, rel=0.1)
    assert found.severity == "critical"
    assert found.cause == "float32"
    assert found.confidence == "high"
    assert "sgemm_kernel" in found.why
    assert "torch.bfloat16" in found.fix and "set_float32_matmul_precision" in found.fix


def test_misaligned_gemms_are_taken_to_be_as_fast_as_the_jobs_other_gemms() -> None:
    """An odd vocabulary of a GPT on an H100: cuBLAS took a kernel of Turing's for it, at an eighth of the peak."""
    text = """
        rank# step |1
              host [fwd][addmm][mm][sync............................]
              gpu  [fwd][addmm][mm..........................]
              nccl                                            [ar..]
    """
    square = [[11_400, 11_400], [11_400, 11_400]]
    options = {
        "device": {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9},
        "dims": {"mm": [[11_401, 11_401]] * 2, "addmm": [[11_400], *square]},
        "types": {"mm": ["c10::BFloat16"] * 2, "addmm": ["c10::BFloat16"] * 3},
        "kernels": {
            "mm": "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>()",
            "addmm": "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT",
        },
    }
    found = finding(RULE, ranks(text, text), **options)
    assert found.cause == "misaligned"
    # As many FLOPs as the other one has.
    assert found.cost_ms == pytest.approx(len("[mm..........................]") - len("[addmm]"), rel=0.05)


def test_evidence_is_the_longest_such_kernel() -> None:
    text = ranks(FLOAT32, FLOAT32)
    for window in finding(RULE, text).evidence:
        assert window.end_ns - window.start_ns == 30 * MS
        assert lies_in_its_step(window, text)


def test_products_on_tensor_cores_are_clear() -> None:
    assert outcome(RULE, ranks(TENSOR, TENSOR)).status == "clear"


def test_products_that_are_short_anyway_gain_nothing() -> None:
    # 30 us each: a floor of 30 us leaves nothing to gain, one of 5 us leaves 25 of them.
    assert outcome(RULE, ranks(TINY, TINY), settings={"shortest": 30.0}).status == "clear"
    assert finding(RULE, ranks(TINY, TINY)).cost_ms == pytest.approx(25, rel=0.1)


def test_a_saving_below_the_threshold_is_clear() -> None:
    share = finding(RULE, ranks(FLOAT32, FLOAT32)).cost_ms / step_ms(ranks(FLOAT32, FLOAT32))
    assert outcome(RULE, ranks(FLOAT32, FLOAT32), settings={"min_cost": share * 1.02}).status == "clear"
    assert finding(RULE, ranks(FLOAT32, FLOAT32), settings={"min_cost": share * 0.98}).cause == "float32"


def test_communication_that_hides_behind_them_is_bared() -> None:
    hiding = FLOAT32.replace("[ar..]", "[bc..]") + "          comm                  [ar.................]\n"
    assert finding(RULE, ranks(hiding, hiding)).cost_ms < SAVED_MS * 0.9


def test_a_device_that_waits_for_its_host_gains_little() -> None:
    starved = """
        rank# step     |1
              host     [sgemm][data.........................................]
              gpu      [sgemm.......................]
    """
    assert outcome(RULE, ranks(starved, starved)).status == "clear"


def test_dimensions_that_do_not_fit_are_told_apart() -> None:
    found = finding(RULE, ranks(HALF, HALF))
    assert found.cause == "misaligned"
    assert found.cost_ms == pytest.approx(30 / 2, rel=0.02)
    assert "multiple of 8" in found.fix


def test_shapes_tell_which_dimension_does_not_fit() -> None:
    text = HALF.replace("host     [fwd]", "host     [fwd][volta_fp16_sgemm]")
    found = finding(RULE, ranks(text, text), dims={"volta_fp16_sgemm": [[512, 768], [768, 50257]]})
    assert "volta_fp16_sgemm_kernel (of 512x768, 768x50257)" in found.why
    assert " (of " not in finding(RULE, ranks(text, text)).why
    vast = finding(RULE, ranks(text, text), dims={"volta_fp16_sgemm": [[512, 10**15], [768, 50257], [-1, 2], [1] * 99]})
    assert "volta_fp16_sgemm_kernel (of 768x50257)" in vast.why


def test_only_ranks_with_such_products_are_named() -> None:
    assert finding(RULE, ranks(FASTER, FASTER, FLOAT32)).ranks == (2,)


def test_volta_is_told_to_use_float16() -> None:
    found = finding(RULE, ranks(FLOAT32, FLOAT32), device=OLD)
    assert "torch.float16" in found.fix and "GradScaler" in found.fix
    assert "bfloat16" not in found.fix.split("\n\n")[1]


def test_amds_matrix_cores_have_no_tf32_switch() -> None:
    fix = finding(RULE, ranks(FLOAT32), device={"name": "AMD Instinct MI300X", "computeMajor": 9}).fix
    assert "torch.bfloat16" in fix and "allow_tf32" not in fix


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ({"name": "Tesla P100-PCIE-16GB", "computeMajor": 6}, "no tensor cores (Tesla P100"),
        ({"name": "NVIDIA GeForce GTX 1660", "computeMajor": 7, "computeMinor": 5}, "no tensor cores"),
        ({"name": "AMD Radeon Graphics", "computeMajor": 9}, "do not show whether"),
        ({}, "do not show whether"),
    ],
)
def test_devices_without_tensor_cores_are_not_judged(device: dict[str, Any], reason: str) -> None:
    result = outcome(RULE, ranks(FLOAT32, FLOAT32), device=device)
    assert result.status == "not-applicable"
    assert reason in result.reason


def test_a_kernel_on_tensor_cores_proves_that_there_are_some() -> None:
    both = FLOAT32.replace("[fwd.", "[nvjet.").replace("[fwd]", "[nvjet]")
    assert isinstance(check(RULE, ranks(both, both), device={}), Finding)


def test_cpus_have_none() -> None:
    text = """
        rank# step |1
              host [a....][b....]
    """
    result = outcome(RULE, ranks(text, text))
    assert result.status == "not-applicable"
    assert "CPU only" in result.reason


def test_one_rank_alone_is_enough() -> None:
    assert finding(RULE, ranks(FLOAT32), world_size=2).ranks == (0,)


def test_a_device_gains_no_more_than_its_peaks_allow() -> None:
    found = finding(RULE, ranks(FLOAT32, FLOAT32), device={"name": "NVIDIA GeForce RTX 4090", "computeMajor": 8})
    assert found.cost_ms == pytest.approx(30 / 2, rel=0.1)


#: Square GEMMs with PyTorch: device, rows, TFLOPS in float32, and on tensor cores. A100, A40 and 3090 Ti in tables
#: of `busy_pytorch_blas.py`; GA100 in the notes on TF32 in PyTorch's documentation (0.11 s, then 0.016 s).
PUBLISHED = (
    ("NVIDIA A100-SXM4-40GB", 8_000, 14.1, 153.0),
    ("NVIDIA A100-SXM4-40GB", 8_000, 14.1, 108.0),
    ("NVIDIA A100-SXM4-40GB", 10_240, 19.5, 134.2),
    ("NVIDIA A40", 8_000, 18.9, 40.0),
    ("NVIDIA GeForce RTX 3090 Ti", 8_000, 21.0, 66.0),
    ("NVIDIA GeForce RTX 3090 Ti", 8_000, 21.0, 33.0),
)


@pytest.mark.parametrize(("device", "rows", "float32", "tensor"), PUBLISHED)
def test_the_interval_holds_what_published_gemms_save(device: str, rows: int, float32: float, tensor: float) -> None:
    taken_ms = round(2 * rows**3 / float32 / 1e9)
    drawing = f"""
        rank# step |1
              host [mm][sync{"." * (taken_ms - 10)}]
              gpu  [mm{"." * (taken_ms - 4)}]
    """
    named = {"mm": "ampere_sgemm_128x128_tn"}
    found = finding(RULE, ranks(drawing), device={"name": device, "computeMajor": 8}, kernels=named)
    least, most = found.range_ms
    assert least <= taken_ms * (1 - float32 / tensor) <= most
    assert least <= found.cost_ms <= most
