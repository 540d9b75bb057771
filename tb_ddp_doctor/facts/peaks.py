"""What devices can compute at most: dense products, as their makers' data sheets state them.

A part of a device (MIG) has that part of its multiprocessors and of its peak.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tb_ddp_doctor.trace.names import Precision


@dataclass(frozen=True, slots=True)
class _Peak:
    """TFLOPS by precision, 0 where there is none; and multiprocessors (AMD: compute units)."""

    multiprocessors: int
    fp8: float
    half: float
    tf32: float
    float32: float

    def of(self, precision: Precision) -> float:
        return float(getattr(self, precision.name.lower()))


#: By a pattern of the device's name; the first that matches.
_PEAKS: tuple[tuple[str, _Peak], ...] = (
    (r"GB[23]00", _Peak(148, 5000, 2500, 1250, 80)),
    (r"B[23]00", _Peak(148, 4500, 2250, 1125, 75)),
    (r"B100", _Peak(148, 3500, 1750, 875, 60)),
    (r"H20\b", _Peak(78, 296, 148, 74, 44)),
    (r"H100.*PCIe", _Peak(114, 1513, 756, 378, 51)),
    (r"H[12]00 NVL", _Peak(132, 1671, 835, 418, 60)),
    (r"H[128]00|GH200", _Peak(132, 1979, 989, 494, 67)),
    (r"A[18]00", _Peak(108, 0, 312, 156, 19.5)),
    (r"A30\b", _Peak(56, 0, 165, 82, 10.3)),
    (r"L40S", _Peak(142, 733, 362, 183, 91.6)),
    (r"L40\b", _Peak(142, 362, 181, 90.5, 90.5)),
    (r"L4\b", _Peak(58, 242, 121, 60, 30.3)),
    (r"A40\b|RTX A6000", _Peak(84, 0, 150, 75, 37.4)),
    (r"A10G\b", _Peak(80, 0, 70, 35, 35)),
    (r"A10\b", _Peak(72, 0, 125, 62.5, 31.2)),
    (r"RTX 6000 Ada", _Peak(142, 728, 364, 182, 91.1)),
    (r"RTX 5090", _Peak(170, 419, 209.5, 104.8, 104.8)),
    (r"RTX 4090", _Peak(128, 330, 165, 82.6, 82.6)),
    (r"RTX 3090", _Peak(82, 0, 71, 35.6, 35.6)),
    (r"V100", _Peak(80, 0, 125, 0, 15.7)),
    (r"\bT4\b", _Peak(40, 0, 65, 0, 8.1)),
    (r"MI355X", _Peak(256, 5033, 2516, 0, 157)),
    (r"MI350X", _Peak(256, 4614, 2307, 0, 144)),
    (r"MI3(00|25)X", _Peak(304, 2615, 1307, 653, 163)),
    (r"MI300A", _Peak(228, 1961, 980, 490, 122)),
    # Each half is a device of its own.
    (r"MI250X?", _Peak(110, 0, 191, 0, 47.9)),
    (r"MI210", _Peak(104, 0, 181, 0, 45.3)),
    (r"MI100", _Peak(120, 0, 185, 0, 46.1)),
)


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


def _known(device: str) -> _Peak | None:
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, device)), None)
