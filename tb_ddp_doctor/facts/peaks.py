"""What devices can do at most: dense products and memory bandwidth, as their makers' data sheets state them.

A part of a device (MIG) has that part of its multiprocessors and of its peak. What the user says goes before what a
calibration measured, and that before the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from tb_ddp_doctor.choices import refusal
from tb_ddp_doctor.findings import DevicePeaks
from tb_ddp_doctor.trace.names import Precision


class _Peak(msgspec.Struct, frozen=True):
    """Multiprocessors (AMD: compute units); TFLOPS by precision, 0 where there is none; memory bandwidth, TB/s."""

    multiprocessors: int
    fp8: float
    half: float
    tf32: float
    float32: float
    bandwidth: float
    #: The data sheet; "" where the maker publishes none, and resellers' numbers agree.
    source: str

    def of(self, precision: Precision) -> float:
        return float(getattr(self, precision.name.lower()))


#: Pages that have most of the data sheets. What each row was checked against stands in docs/roofline.md.
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_BLACKWELL = "https://resources.nvidia.com/en-us-blackwell-architecture"
_VOLTA = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_AMD = "https://www.amd.com/en/products/accelerators/instinct/"
#: By a pattern of the device's name; the first that matches.
_PEAKS: tuple[tuple[str, _Peak], ...] = (
    (r"GB[23]00", _Peak(148, 5000, 2500, 1250, 80, 8, _NVIDIA + "gb200-nvl72/")),
    (r"B[23]00", _Peak(148, 4500, 2250, 1125, 75, 8, _BLACKWELL)),
    (r"B100", _Peak(148, 3500, 1750, 875, 60, 8, _BLACKWELL)),
    (r"H20\b", _Peak(78, 296, 148, 74, 44, 4, "")),
    (r"H100.*PCIe", _Peak(114, 1513, 756, 378, 51, 2, _NVIDIA + "h100/")),
    (r"H100 NVL", _Peak(132, 1671, 835, 418, 60, 3.9, _NVIDIA + "h100/")),
    (r"H200 NVL", _Peak(132, 1671, 835, 418, 60, 4.8, _NVIDIA + "h200/")),
    (r"GH200.*144G", _Peak(132, 1979, 989, 494, 67, 4.9, _NVIDIA + "grace-hopper-superchip/")),
    (r"GH200", _Peak(132, 1979, 989, 494, 67, 4, _NVIDIA + "grace-hopper-superchip/")),
    (r"H200", _Peak(132, 1979, 989, 494, 67, 4.8, _NVIDIA + "h200/")),
    (r"H[18]00", _Peak(132, 1979, 989, 494, 67, 3.35, _NVIDIA + "h100/")),
    (r"A[18]00 80GB PCIe", _Peak(108, 0, 312, 156, 19.5, 1.935, _NVIDIA + "a100/")),
    (r"A[18]00.*80GB", _Peak(108, 0, 312, 156, 19.5, 2.039, _NVIDIA + "a100/")),
    (r"A[18]00", _Peak(108, 0, 312, 156, 19.5, 1.555, _NVIDIA + "a100/")),
    (r"A30\b", _Peak(56, 0, 165, 82, 10.3, 0.933, _NVIDIA + "products/a30-gpu/")),
    (r"L40S", _Peak(142, 733, 362, 183, 91.6, 0.864, _NVIDIA + "l40s/")),
    (r"L40\b", _Peak(142, 362, 181, 90.5, 90.5, 0.864, _NVIDIA + "l40/")),
    (r"L4\b", _Peak(58, 242, 121, 60, 30.3, 0.3, _NVIDIA + "l4/")),
    (r"A40\b", _Peak(84, 0, 150, 75, 37.4, 0.696, _NVIDIA + "a40/")),
    (
        r"RTX A6000",
        _Peak(84, 0, 155, 77, 38.7, 0.768, "https://www.nvidia.com/en-us/design-visualization/rtx-a6000/"),
    ),
    (
        r"A10G\b",
        _Peak(
            80,
            0,
            70,
            35,
            35,
            0.6,
            "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
        ),
    ),
    (r"A10\b", _Peak(72, 0, 125, 62.5, 31.2, 0.6, _NVIDIA + "products/a10-gpu/")),
    (
        r"RTX 6000 Ada",
        _Peak(142, 728, 364, 182, 91.1, 0.96, "https://www.nvidia.com/en-us/design-visualization/rtx-6000/"),
    ),
    (
        r"RTX 5090",
        _Peak(
            170,
            419,
            209.5,
            104.8,
            104.8,
            1.792,
            "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
        ),
    ),
    (
        r"RTX 4090",
        _Peak(
            128,
            330,
            165,
            82.6,
            82.6,
            1.008,
            "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
        ),
    ),
    (
        r"RTX 3090",
        _Peak(
            82,
            0,
            71,
            35.6,
            35.6,
            0.936,
            "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
        ),
    ),
    (r"V100S", _Peak(80, 0, 130, 0, 16.4, 1.134, _VOLTA)),
    (r"V100-PCIE", _Peak(80, 0, 112, 0, 14, 0.9, _VOLTA)),
    (r"V100", _Peak(80, 0, 125, 0, 15.7, 0.9, _VOLTA)),
    (r"\bT4\b", _Peak(40, 0, 65, 0, 8.1, 0.32, _NVIDIA + "tesla-t4/")),
    (r"MI355X", _Peak(256, 5033, 2516, 0, 157, 8, _AMD + "mi350/mi355x.html")),
    (r"MI350X", _Peak(256, 4614, 2307, 0, 144, 8, _AMD + "mi350/mi350x.html")),
    (r"MI325X", _Peak(304, 2615, 1307, 653, 163, 6, _AMD + "mi300/mi325x.html")),
    (r"MI300X", _Peak(304, 2615, 1307, 653, 163, 5.3, _AMD + "mi300/mi300x.html")),
    (r"MI300A", _Peak(228, 1961, 980, 490, 122, 5.3, _AMD + "mi300/mi300a.html")),
    # Each half is a device of its own.
    (r"MI250X", _Peak(110, 0, 191, 0, 47.9, 1.6, _AMD + "mi200/mi250x.html")),
    (r"MI250", _Peak(104, 0, 181, 0, 45.3, 1.6, _AMD + "mi200/mi250.html")),
    (r"MI210", _Peak(104, 0, 181, 0, 45.3, 1.6, _AMD + "mi200/mi210.html")),
    (r"MI100", _Peak(120, 0, 185, 0, 46.1, 1.23, _AMD + "mi100.html")),
)


#: Bandwidth of NVLink and Infinity Fabric in one direction, GB/s, of devices that have it by their name. Sources: the
#: same data sheets, which state both directions together.
_LINKS: tuple[tuple[str, float], ...] = (
    (r"GB[23]00|B[123]00", 900),
    (r"PCIe|PCIE|NVL\b", 0),
    (r"H800|A800.*SXM", 200),
    (r"GH200|H200|H100|H20\b", 450),
    (r"A100.*SXM", 300),
    (r"V100.*SXM", 150),
    (r"MI35[05]X", 538),
    (r"MI3[0-9]{2}[AX]", 448),
)
#: MiB of L2 cache by multiprocessors. Sources: whitepapers of NVIDIA's architectures, AMD's CDNA 3 (Infinity Cache).
_CACHES = {148: 126, 132: 50, 114: 50, 78: 60, 108: 40, 56: 24, 142: 96, 58: 48, 128: 72, 170: 96, 80: 6, 40: 4}
_CACHES |= {256: 256, 304: 256, 228: 256, 110: 8, 104: 8, 120: 8, 84: 6, 82: 6, 72: 6}


#: What devices are known by, as a user may name them.
DEVICES = (
    *("GB300", "GB200", "B300", "B200", "B100", "GH200", "H200", "H100", "H800", "H20"),
    *("A100", "A800", "A40", "A30", "A10G", "A10", "L40S", "L40", "L4", "V100", "T4"),
    *("RTX A6000", "RTX 6000 Ada", "RTX 5090", "RTX 4090", "RTX 3090"),
    *("MI355X", "MI350X", "MI325X", "MI300X", "MI300A", "MI250X", "MI250", "MI210", "MI100"),
)


#: What a user may set, and more than any device has.
_GIVEN = ("half", "tf32", "float32", "fp8", "memory", "link")
_MOST_GIVEN = 1e6
#: What was found by so many names of devices is kept: a job of thousands of ranks has few.
_MOST_NAMES = 64


class Peaks(msgspec.Struct, frozen=True):
    """What kernels of a device run at most at: TFLOPS in half precision and float32, and memory bandwidth, TB/s."""

    half: float
    float32: float
    bandwidth: float


class Roofs(msgspec.Struct, frozen=True):
    """What kernels of a device, or of the part of it that a job has, reach at most."""

    #: Operations per second by the value of a `Precision`; 0 where the device has none.
    flops: dict[str, float]
    #: Bytes per second of its memory, and of its links to other GPUs of the node in one direction; 0 if unknown.
    bandwidth: float
    #: Bytes of its L2 cache: tensors that fit in it may be read faster than memory lets; 0 if unknown.
    cache: int
    link: float
    #: Where the numbers come from, as "data sheet: https://...".
    source: str = ""
    #: The part of the device that the job has, 0 to 1, and its multiprocessors; 0 if unknown.
    part: float = 1.0
    multiprocessors: int = 0


def limits(device: str) -> Peaks | None:
    """Those of a whole device by its name; None if it is not known."""
    known = _known(device)
    return Peaks(known.half, known.float32, known.bandwidth) if known else None


def roofs(device: str, multiprocessors: int) -> Roofs | None:
    """What kernels can reach at most on a device, by its name; None if it is not known.

    `multiprocessors` is how many the job sees, 0 if the trace does not say. Of a shared device (MIG, MPS) the job has
    that part of the peak, and of the memory's bandwidth.
    """
    known = _known(device)
    if known is None:
        return None
    part = min(multiprocessors / known.multiprocessors, 1.0) if multiprocessors > 0 else 1.0
    flops = {precision.value: known.of(precision) * 1e12 * part for precision in Precision}
    return Roofs(
        flops=flops,
        bandwidth=known.bandwidth * 1e12 * part,
        cache=_CACHES.get(known.multiprocessors, 0) << 20,
        link=_link(device) * 1e9,
        source=f"data sheet: {known.source}" if known.source else "as resellers state them",
        part=part,
        multiprocessors=multiprocessors or known.multiprocessors,
    )


def given(peaks: Sequence[DevicePeaks], device: str) -> DevicePeaks | None:
    """What the user says of a device, by its name: the last that names it, or names none."""
    return next((one for one in reversed(peaks) if one.device.casefold() in device.casefold()), None)


def with_given(known: Roofs | None, user: DevicePeaks | None) -> Roofs | None:
    """Roofs with what the user says of them; None where neither says how fast memory is."""
    if user is None:
        return known
    base = known or Roofs({}, 0.0, 0, 0.0)
    flops = {one.value: rate * 1e12 for one in Precision if (rate := getattr(user, one.name.lower())) is not None}
    memory = base.bandwidth if user.memory is None else user.memory * 1e12
    link = base.link if user.link is None else user.link * 1e9
    source = f"as given; else {base.source}" if base.source else "as given"
    return replace(base, flops={**base.flops, **flops}, bandwidth=memory, link=link, source=source) if memory else None


def parsed(text: str) -> DevicePeaks:
    """What "H100: half=800, memory=3.0" says: TFLOPS by precision, memory in TB/s and links in GB/s.

    Without a name before the colon it is of every device. Raises ValueError with a sentence for anything else.
    """
    device, _, amounts = text.rpartition(":")
    rates: dict[str, float] = {}
    for part in amounts.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if name not in _GIVEN:
            raise ValueError(refusal("A peak", name, _GIVEN))
        try:
            rates[name] = float(value)
        except ValueError:
            raise ValueError(f"The peak {name} is a number, as in {name}=3.35, not {value or text!r}.") from None
        if not equals or not 0 < rates[name] < _MOST_GIVEN:
            raise ValueError(f"The peak {name} is a number above 0, not {value}.")
    return DevicePeaks(device.strip(), **rates)


def speedup(device: str) -> float | None:
    """How many times as much a device computes in half precision as in float32, at most; None if it is not known."""
    known = _known(device)
    return known.half / known.float32 if known else None


def peak(device: str, multiprocessors: int, precision: Precision) -> float | None:
    """Operations per second of a device by its name; None if it is not known, or computes nothing so.

    `multiprocessors` is how many the job sees, 0 if the trace does not say.
    """
    known = _known(device)
    if known is None or not known.of(precision):
        return None
    part = min(multiprocessors / known.multiprocessors, 1.0) if multiprocessors > 0 else 1.0
    return known.of(precision) * 1e12 * part


@lru_cache(maxsize=_MOST_NAMES)
def _known(device: str) -> _Peak | None:
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, device)), None)


@lru_cache(maxsize=_MOST_NAMES)
def _link(device: str) -> float:
    """Bandwidth to other GPUs of the node in one direction, GB/s; 0 if unknown."""
    return next((rate for pattern, rate in _LINKS if re.search(pattern, device)), 0.0)
