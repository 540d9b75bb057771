"""What is advised to programs that do not train is nothing of a training loop."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import test_allocator_churn
import test_host_sync
import test_lower_precision
import test_no_tensor_cores
import test_op_stall
import test_pageable_memcpy
import test_profiler_overhead
import test_recompilation
import test_role_bubble
import test_slow_kernels
import test_small_gemms
import test_unfused_elementwise
from traces import finding, job, outcome, ranks

from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.frame import frame
from tb_ddp_doctor.rules.support import straggler_fixes

#: A kernel that only a server has, and one of a diffusion model.
SERVES = "void paged_attention_v1_kernel<1>"
DENOISES = "denoise_kernel"
OF_TRAINING = re.compile(
    r"optimizer|loss|backward|DataLoader|loader\b|train|vocabulary|torch\.nn\.Linear|recompute activations|torchrun|"
    r"profiler\.schedule"
)
GEMM = test_lower_precision.gemm("c10::BFloat16", "nvjet_tst_128x256")
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "elementwise": ("slow-kernels", test_slow_kernels.FAULTY, test_slow_kernels.SLOW),
    "fusion": ("unfused-elementwise", test_unfused_elementwise.FAULTY, test_unfused_elementwise.OPTIONS),
    "bfloat16": ("lower-precision", test_lower_precision.FAULTY, test_lower_precision.WIDE),
    "fp8": ("lower-precision", test_lower_precision.GEMM, GEMM),
    "freed": ("allocator-churn", test_allocator_churn.CHURNS, {}),
    "allocated": ("allocator-churn", test_allocator_churn.GROWS, {}),
    "float32": ("no-tensor-cores", test_no_tensor_cores.HALF, {"kernels": {"volta_fp16_sgemm": "ampere_sgemm_128"}}),
    "misaligned": ("no-tensor-cores", test_no_tensor_cores.HALF, {}),
    "sizes": (
        "small-gemms",
        test_small_gemms.FAULTY,
        test_small_gemms.options(1000, 1000, "nvjet_tst_128x128_64x6_2x1_v_bz_NNT"),
    ),
    "waves": ("small-gemms", test_small_gemms.FAULTY, test_small_gemms.FEW),
    "first use": ("op-stall", test_op_stall.FIRST_USE, {}),
    "stalled op": ("op-stall", test_op_stall.ONE_OP, {}),
    "recording": ("profiler-overhead", test_profiler_overhead.STALLED.replace("[b]  ", "[fwd]"), {}),
}


def named(kernel: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with such a kernel, whatever it is called in the drawing."""
    return {**options, "kernels": {**options.get("kernels", {}), "fwd": kernel, "b": kernel, "a": kernel}}


@pytest.mark.parametrize("kernel", [SERVES, DENOISES])
@pytest.mark.parametrize("name", CASES)
def test_advice_fits_what_does_not_train(name: str, kernel: str) -> None:
    rule, text, options = CASES[name]
    advised = finding(rule, ranks(text, text), **named(kernel, options)).fix
    assert not OF_TRAINING.search(advised), advised
    trains = finding(rule, ranks(text, text), **options).fix
    assert trains == advised or OF_TRAINING.search(trains) or "torch.compile" in trains


def test_a_server_is_told_how_to_record_itself_with_less() -> None:
    rule, text, options = CASES["recording"]
    assert "start_profile" in finding(rule, ranks(text, text), **named(SERVES, options)).fix
    assert "prof.step()" in finding(rule, ranks(text, text), **named(DENOISES, options)).fix


@pytest.mark.parametrize("kernel", [SERVES, DENOISES])
def test_large_copies_of_what_does_not_train_are_no_batches(kernel: str) -> None:
    text = ranks(*[test_pageable_memcpy.PAGEABLE] * 2)
    assert not OF_TRAINING.search(finding("offload-copies", text, **named(kernel, {})).fix)
    assert outcome("pageable-memcpy", text, **named(kernel, {})).status == "clear"


@pytest.mark.parametrize("text", [test_host_sync.READS, test_host_sync.EXPLICIT])
def test_syncs_of_a_pipeline_are_found_and_those_of_a_server_are_its_gaps(text: str) -> None:
    advised = finding("host-sync", ranks(text, text), **named(DENOISES, {})).fix
    assert not OF_TRAINING.search(advised), advised
    ended = outcome("host-sync", ranks(text, text), **named(SERVES, {}))
    assert ended.status == "not-applicable" and "iteration-gap" in ended.reason


def test_gemms_of_a_server_read_fewer_bytes_or_serve_more_requests() -> None:
    inputs = [[8192, 2048], [2048, 4096]]
    kernels = {"op12": "sm90_xmma_gemm_bf16bf16_tn", "fwd": SERVES}
    found = test_slow_kernels.kernels_of("aten::mm", inputs, kernels=kernels)
    assert "--quantization fp8 --max-num-seqs 512" in found.fix and not OF_TRAINING.search(found.fix)


def test_what_compiles_is_told_by_no_command_of_training() -> None:
    text = test_recompilation.job_of([test_recompilation.COMPILES] * 2).replace("autograd ", "thread2  ")
    names = {"kernels": {"fwd": SERVES, "bwd": "gemm"}}
    assert not OF_TRAINING.search(finding("recompilation", text, **test_recompilation.OPTIONS, **names).fix)


def test_servers_are_told_to_record_shapes_where_they_lack() -> None:
    fix = finding(
        "trace-quality", ranks(test_op_stall.ONE_OP, test_op_stall.ONE_OP), kernels={"a": SERVES}, shapes=False
    ).fix
    assert '"record_shapes": true' in fix and '"torch_profiler_record_shapes": true' in fix


def test_ranks_that_generate_beside_others_that_train_have_advice_of_servers() -> None:
    """Of reinforcement learning: an engine schedules and answers requests, and loads no batch."""
    made = Facts(job(ranks(*test_role_bubble.FAULTY)))
    of = made.get(frame)
    assert "scheduling, tokenizing" in straggler_fixes.fix("host", [1], of)
    assert "logging, evaluating" in straggler_fixes.fix("host", [2], of)
    assert [of.program_of(np.array(some)) for some in ([0, 1], [1, 2], [3])] == ["serving", "rl", "rl"]
