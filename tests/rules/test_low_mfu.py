"""What of the device's peak the model uses."""

from __future__ import annotations

from typing import Any

import pytest
from traces import finding, outcome, ranks

from tb_ddp_doctor.calibration.model import Calibration, Measure

RULE = "low-mfu"
#: 20 ms a step.
MODEL = """
    rank# step |1
          host [mm]
          gpu  [nvjet...............]
"""
H100 = {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132}


def of(tera: float, **options: Any) -> dict[str, Any]:
    """Options of a job whose product takes so many 1e12 operations."""
    return {"dims": {"mm": [[1000, 1000], [1000, round(tera * 500_000)]]}, "device": H100, **options}


def test_the_share_of_the_peak_is_told_for_information() -> None:
    # 2 TFLOP in 22 ms are 90.9 TFLOPS, of 989.
    found = finding(RULE, ranks(MODEL, MODEL), **of(2))
    assert (found.severity, found.cost_ms, found.ranks) == ("info", 0, (0, 1))
    assert "The MFU is 9.2 %" in found.title
    assert "90.9 of 989 TFLOPS in half precision" in found.why
    assert "HFU" not in found.why


def test_a_well_used_device_is_clear() -> None:
    result = outcome(RULE, ranks(MODEL), **of(10))
    assert result.status == "clear"
    assert "an MFU of 46 %" in result.reason


def test_part_of_a_device_has_part_of_its_peak() -> None:
    part = {**H100, "numSms": 33}
    assert "of 247 TFLOPS" in finding(RULE, ranks(MODEL), **of(0.5, device=part)).why


def test_the_precision_of_most_products_decides() -> None:
    text = ranks(MODEL.replace("[nvjet..", "[sgemm.."))
    assert "67 TFLOPS in float32" in finding(RULE, text, **of(0.1)).why


def test_an_unknown_device_needs_its_peak() -> None:
    unknown = of(1, device={"name": "Drawn GPU"})
    result = outcome(RULE, ranks(MODEL), **unknown)
    assert result.status == "not-applicable"
    assert "The peak of Drawn GPU in half precision is not known" in result.reason
    assert "of 500 TFLOPS" in finding(RULE, ranks(MODEL), settings={"peak": 500.0}, **unknown).why


@pytest.mark.parametrize("options", [{"shapes": False}, {"device": H100}])
def test_without_products_it_is_not_applicable(options: dict[str, Any]) -> None:
    result = outcome(RULE, ranks(MODEL), **options)
    assert result.status == "not-applicable"


def test_a_calibration_tells_what_gemms_reach() -> None:
    values = (400.0, 300.0)
    measure = Measure(name="GEMM bfloat16", unit="TFLOPS", more_is_better=True, values=values, spreads=(None, None))
    calibration = Calibration(source="check", world_size=2, measures=(measure,))
    unknown = finding(RULE, ranks(MODEL), calibration=calibration, **of(0.5, device={"name": "Drawn GPU"}))
    assert "of 350 TFLOPS" in unknown.why
    known = finding(RULE, ranks(MODEL), calibration=calibration, **of(2))
    assert "of 989 TFLOPS" in known.why and "Large GEMMs reach 350 TFLOPS on these GPUs" in known.why
