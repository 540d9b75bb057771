"""What devices can compute at most."""

from __future__ import annotations

import pytest

from tb_ddp_doctor.facts.peaks import peak, speedup
from tb_ddp_doctor.trace.names import Precision


@pytest.mark.parametrize(
    ("device", "multiprocessors", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 132, Precision.HALF, 989),
        ("NVIDIA H100 PCIe", 114, Precision.HALF, 756),
        ("NVIDIA H200", 33, Precision.HALF, 989 / 4),
        ("NVIDIA H200", 0, Precision.FLOAT32, 67),
        ("NVIDIA H20", 78, Precision.HALF, 148),
        ("NVIDIA A100-SXM4-80GB", 108, Precision.TF32, 156),
        ("NVIDIA H200 NVL", 132, Precision.HALF, 835),
        ("NVIDIA A10", 72, Precision.HALF, 125),
        ("NVIDIA A10G", 80, Precision.HALF, 70),
        ("NVIDIA B200", 148, Precision.HALF, 2250),
        ("NVIDIA GB200", 152, Precision.HALF, 2500),
        ("Tesla V100-SXM2-32GB", 80, Precision.HALF, 125),
        ("AMD Instinct MI300X", 304, Precision.HALF, 1307),
        ("AMD Instinct MI350X", 256, Precision.HALF, 2307),
        ("AMD Instinct MI250X", 110, Precision.HALF, 191),
    ],
)
def test_peaks_of_devices(device: str, multiprocessors: int, precision: Precision, tera: float) -> None:
    assert peak(device, multiprocessors, precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(("device", "precision"), [("Drawn GPU", Precision.HALF), ("Tesla V100", Precision.TF32)])
def test_what_is_not_known_is_no_peak(device: str, precision: Precision) -> None:
    assert peak(device, 80, precision) is None


@pytest.mark.parametrize(
    ("device", "times"), [("NVIDIA H200", 14.8), ("Tesla V100-SXM2-32GB", 8.0), ("NVIDIA GeForce RTX 4090", 2.0)]
)
def test_how_much_faster_half_precision_is(device: str, times: float) -> None:
    assert speedup(device) == pytest.approx(times, rel=0.01)
    assert speedup("Drawn GPU") is None
