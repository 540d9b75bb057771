"""Why a GPU lowers its clock: NVML's reasons, as its bits and as `nvidia-smi -q` spells them."""

from __future__ import annotations

#: By NVML's bit. An idle GPU, and clocks that somebody set for applications or a display, are not throttled.
NVML_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}

#: By the name in `nvidia-smi -q`, in lower case.
SMI_REASONS = {
    "sw power cap": NVML_REASONS[0x4],
    "hw slowdown": NVML_REASONS[0x8],
    "sync boost": NVML_REASONS[0x10],
    "sw thermal slowdown": NVML_REASONS[0x20],
    "hw thermal slowdown": NVML_REASONS[0x40],
    "hw power brake slowdown": NVML_REASONS[0x80],
}


def reasons(bits: int) -> tuple[str, ...]:
    """NVML's reasons, in words."""
    return tuple(words for bit, words in NVML_REASONS.items() if bits & bit)
