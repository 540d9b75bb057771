"""What of a step a larger batch does not lengthen."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from traces import draw, finding, job, lies_in_its_step, outcome, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import run
from tb_ddp_doctor.trace.reader import decode

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


#: GEMMs of an H100 in bfloat16: (m, k) x (k, n), TFLOPS with m rows, and with some times as many; each alone, by XLA
#: (`xla/service/gpu/model/matmul_interpolator_data.h`, sm_90). No number of the rule was chosen by them.
PUBLISHED = (
    (512, 512, 4096, 174.5, 2, 298.9),
    (512, 512, 4096, 174.5, 4, 451.2),
    (512, 1024, 1024, 138.7, 2, 236.3),
    (512, 2048, 512, 143.4, 4, 345.5),
    (512, 4096, 256, 134.2, 2, 209.7),
    (512, 4096, 2048, 522.2, 4, 715.4),
    (512, 4096, 4096, 644.1, 4, 753.6),
    (1024, 1024, 256, 82.0, 2, 141.6),
    (1024, 2048, 4096, 653.5, 2, 738.0),
    (1024, 4096, 2048, 634.2, 2, 715.4),
)


@pytest.mark.parametrize(("m", "n", "k", "now", "times", "then"), PUBLISHED)
def test_the_interval_holds_what_published_gemms_save(
    m: int, n: int, k: int, now: float, times: int, then: float
) -> None:
    played, found = weighed(m, n, k, now, times)
    share, largest = found.faults[0].between
    least, most = share * played.cost_ns(found.change), played.cost_ns(largest)
    step_ns = GEMMS * 2 * m * n * k / now / 1e3
    assert least <= step_ns * (1 - now / then) <= most
    assert played.cost_ns(found.change) <= most


GEMMS = 8


def weighed(m: int, n: int, k: int, tflops: float, times: float) -> tuple[Any, Any]:
    """What the rule finds in a step of GEMMs alone, whose CPU is ahead; a character is 0.1 us."""
    width = round(2 * m * n * k / tflops / 1e5)
    text = ranks(
        f"""
        rank# step |1
              host {"[mm]" * GEMMS}
              gpu      {("[mm" + "." * (width - 4) + "]") * GEMMS}
        """
    )
    tile = next(
        (tile for tile in ((128, 256), (128, 128), (128, 64)) if -(-m // tile[0]) * -(-n // tile[1]) >= 132), (64, 64)
    )
    options = {
        "device": H100,
        "dims": {"mm": [[m, k], [k, n]]},
        "types": {"mm": ["c10::BFloat16"] * 2},
        "kernels": {"mm": f"nvjet_tst_{tile[0]}x{tile[1]}"},
    }
    trace = msgspec.json.decode(draw(text, **options)[0])
    for event in trace["traceEvents"]:
        event.update({key: event[key] / 10_000 for key in ("ts", "dur") if key in event})
    digested = digest(decode([msgspec.json.encode(trace)], "rank0.json"))
    facts = Facts(build("drawn", {0: digested}, {0: "host0"}, 1))
    rule = dataclasses.replace(CATALOGUE[RULE], supposed=times, most=times, min_cost=0.0)
    _, found = run(rule, facts)
    assert found is not None
    return facts.get(whatif), found


#: Decode of a server: one GEMM, whose weights of 34 GB an H100 reads in 10.3 ms.
SERVED = """
    rank# host   [own_context_0_generation_8]
          within [mm][sync..................]
          gpu     [mm.......................]
"""
GEMM_MS = 27


def of_tokens(tokens: int) -> dict[str, Any]:
    return OPTIONS | {"dims": {"mm": [[tokens, 65_536], [65_536, 262_144]]}, "types": {"mm": ["c10::BFloat16"] * 2}}


#: Weights are read once for twice the tokens; with 256 tokens their FLOPs take 8.9 of the 10.3 ms already.
@pytest.mark.parametrize(("tokens", "share"), [(8, 0.5), (64, 0.5), (256, 1 - 8.9 / 10.3)])
def test_weights_that_a_server_reads_for_few_tokens_serve_more_at_once(tokens: int, share: float) -> None:
    text = ranks(SERVED, SERVED)
    found = finding(RULE, text, **of_tokens(tokens))
    assert found.severity == "opportunity"
    assert found.cost_ms == pytest.approx(share * GEMM_MS, rel=0.06)
    assert found.headline.startswith("2 times as many sequences in an iteration would shorten the time")
    assert f"{tokens}x65536, 65536x262144" in found.why
    assert "max-num-seqs" in found.fix and "speculative" in found.fix and "lr" not in found.fix
    assert all(lies_in_its_step(window, text, **of_tokens(tokens)) for window in found.evidence)


def test_a_server_whose_gemms_compute_is_clear() -> None:
    result = outcome(RULE, ranks(SERVED, SERVED), **of_tokens(512))
    assert result.status == "clear" and result.reason.startswith("No GEMM reads its weights")


def test_what_neither_trains_nor_serves_has_no_batch_to_advise_on() -> None:
    text = ranks(*[SERVED.replace("context_0_generation_8", "denoise...............")] * 2)
    outcomes = engine.examine(job(text, **of_tokens(8))).outcomes
    (reason,) = [one.reason for one in outcomes if one.rule == RULE]
    assert reason == "It is about training loops, and this program does not train."
