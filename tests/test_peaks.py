"""What devices can compute at most."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from traces import job, ranks

from tb_ddp_doctor.calibration.model import Calibration, Measure
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.peaks import DEVICES, given, parsed, peak, roofs, speedup
from tb_ddp_doctor.facts.roofline import roofline
from tb_ddp_doctor.findings import DevicePeaks
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
        ("AMD Instinct MI250", 104, Precision.HALF, 181),
        ("Tesla V100-PCIE-16GB", 80, Precision.HALF, 112),
    ],
)
def test_peaks_of_devices(device: str, multiprocessors: int, precision: Precision, tera: float) -> None:
    assert peak(device, multiprocessors, precision) == pytest.approx(tera * 1e12)


#: Multiprocessors, GHz, and operations of one in a cycle: on tensor cores in half precision, and in float32.
ARCHITECTURE = (
    ("Tesla V100-SXM2-32GB", 80, 1.53, 1024, 128),
    ("Tesla V100-PCIE-16GB", 80, 1.38, 1024, 128),
    ("Tesla V100S-PCIE-32GB", 80, 1.597, 1024, 128),
    ("Tesla T4", 40, 1.59, 1024, 128),
    ("NVIDIA A100-SXM4-80GB", 108, 1.41, 2048, 128),
    ("NVIDIA A30", 56, 1.44, 2048, 128),
    ("NVIDIA A40", 84, 1.74, 1024, 256),
    ("NVIDIA RTX A6000", 84, 1.8, 1024, 256),
    ("NVIDIA A10", 72, 1.695, 1024, 256),
    ("NVIDIA A10G", 80, 1.71, 512, 256),
    ("NVIDIA GeForce RTX 3090", 82, 1.695, 512, 256),
    ("NVIDIA GeForce RTX 4090", 128, 2.52, 512, 256),
    ("NVIDIA GeForce RTX 5090", 170, 2.407, 512, 256),
    ("NVIDIA RTX 6000 Ada Generation", 142, 2.505, 1024, 256),
    ("NVIDIA L40S", 142, 2.52, 1024, 256),
    ("NVIDIA L40", 142, 2.49, 512, 256),
    ("NVIDIA L4", 58, 2.04, 1024, 256),
    ("NVIDIA H100 PCIe", 114, 1.62, 4096, 277),
    ("NVIDIA H100 80GB HBM3", 132, 1.83, 4096, 277),
    ("NVIDIA B200", 148, 1.855, 8192, 273),
    ("AMD Instinct MI100", 120, 1.502, 1024, 256),
    ("AMD Instinct MI210", 104, 1.7, 1024, 256),
    ("AMD Instinct MI250", 104, 1.7, 1024, 256),
    ("AMD Instinct MI250X", 110, 1.7, 1024, 256),
    ("AMD Instinct MI300A", 228, 2.1, 2048, 256),
    ("AMD Instinct MI300X", 304, 2.1, 2048, 256),
    ("AMD Instinct MI325X", 304, 2.1, 2048, 256),
    ("AMD Instinct MI350X", 256, 2.2, 4096, 256),
    ("AMD Instinct MI355X", 256, 2.4, 4096, 256),
)


@pytest.mark.parametrize(("device", "multiprocessors", "ghz", "half", "single"), ARCHITECTURE)
def test_peaks_are_what_the_architecture_computes_in_a_cycle(
    device: str, multiprocessors: int, ghz: float, half: int, single: int
) -> None:
    """Of Hopper and Blackwell float32 runs at a higher clock than tensor cores, so that `single` is above 256."""
    for precision, operations in ((Precision.HALF, half), (Precision.FLOAT32, single)):
        computed = multiprocessors * ghz * 1e9 * operations
        assert peak(device, multiprocessors, precision) == pytest.approx(computed, rel=0.015), precision


def test_docs_have_the_peaks_that_count() -> None:
    """The table in docs/roofline.md says of each device what its numbers were checked against."""
    text = (Path(__file__).parents[1] / "docs" / "roofline.md").read_text()
    rows = re.findall(
        r"^\| ([\w ]+) \| ([\d,.]+) \| ([\d.]+|-) \| ([\d.]+) \| ([\d.]+) \| ([^|]+) \|$", text, re.MULTILINE
    )
    assert {row[0] for row in rows} >= set(DEVICES)
    for device, half, fp8, single, memory, checked in rows:
        known = roofs(device, 0)
        assert known is not None and checked.strip(), device
        numbers = (half.replace(",", ""), fp8.replace("-", "0"), single)
        told = [known.flops[precision.value] / 1e12 for precision in (Precision.HALF, Precision.FP8, Precision.FLOAT32)]
        assert [float(number) for number in numbers] == pytest.approx(told), device
        assert float(memory) == pytest.approx(known.bandwidth / 1e12), device


@pytest.mark.parametrize(("device", "precision"), [("Drawn GPU", Precision.HALF), ("Tesla V100", Precision.TF32)])
def test_what_is_not_known_is_no_peak(device: str, precision: Precision) -> None:
    assert peak(device, 80, precision) is None


@pytest.mark.parametrize(
    ("device", "times"), [("NVIDIA H200", 14.8), ("Tesla V100-SXM2-32GB", 8.0), ("NVIDIA GeForce RTX 4090", 2.0)]
)
def test_how_much_faster_half_precision_is(device: str, times: float) -> None:
    assert speedup(device) == pytest.approx(times, rel=0.01)
    assert speedup("Drawn GPU") is None


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_has_its_source(device: str) -> None:
    known = roofs(device, 0)
    assert known is not None
    assert known.source.startswith("data sheet: https://") or (device == "H20" and "resellers" in known.source)


def test_what_the_user_says_of_peaks() -> None:
    assert parsed("half=800, memory=3.0") == DevicePeaks(half=800.0, memory=3.0)
    assert parsed("H100: fp8=1600,tf32=400,float32=60,link=400") == DevicePeaks(
        "H100", fp8=1600.0, tf32=400.0, float32=60.0, link=400.0
    )


@pytest.mark.parametrize(
    "text", ["", "half", "half=", "half=fast", "half=-1", "half=nan", "memory=inf", "bf16=3", "H100:"]
)
def test_what_is_no_peak_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"peak"):
        parsed(text)


def test_the_last_peaks_of_a_devices_name_count() -> None:
    said = [parsed("half=1"), parsed("h100: half=2"), parsed("A100: half=3")]
    assert [one and one.half for one in (given(said, "NVIDIA H100 80GB"), given(said, "T4"))] == [2, 1]
    assert given([], "T4") is None


DRAWN = """
    rank# step |1
          host [gelu]
          gpu  [gelu....]
"""


def test_the_users_peaks_beat_a_calibration_and_that_beats_the_table() -> None:
    def measure(name: str, unit: str, value: float) -> Measure:
        return Measure(name=name, unit=unit, more_is_better=True, values=(value,), spreads=(None,))

    measures = (measure("GEMM bfloat16", "TFLOPS", 700.0), measure("memory bandwidth", "GB/s", 3000.0))
    calibration = Calibration(source="check", world_size=1, measures=measures, backend="nccl")
    one = job(ranks(DRAWN), calibration=calibration, device={"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9})
    half = Precision.HALF.value
    for peaks, flops, memory in (((), 700, 3.0), (("memory=2.5",), 700, 2.5), (("half=650",), 650, 3.0)):
        found = Facts(msgspec.structs.replace(one, peaks=tuple(map(parsed, peaks)))).get(roofline).roofs
        assert found is not None
        assert (found.flops[half], found.bandwidth) == pytest.approx((flops * 1e12, memory * 1e12))
        assert found.flops[Precision.TF32.value] == pytest.approx(494e12)
        assert found.source.startswith("as given" if peaks else "as large GEMMs and copies")


def test_a_device_that_no_table_has_needs_its_memory() -> None:
    one = job(ranks(DRAWN))
    for peaks, known in ((("half=100",), False), (("half=100,memory=1",), True)):
        found = Facts(msgspec.structs.replace(one, peaks=tuple(map(parsed, peaks)))).get(roofline)
        assert (found.roofs is not None) is known
