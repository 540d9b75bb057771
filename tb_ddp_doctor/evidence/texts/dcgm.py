"""DCGM's numbers: what its exporter serves to Prometheus, and the table of `dcgmi dmon`."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator

from tb_ddp_doctor.evidence.model import GpuState, SeenGpu
from tb_ddp_doctor.evidence.throttling import reasons

MARKS = (b"DCGM_FI_DEV_", b"#Entity")
_SAMPLE = re.compile(r"(DCGM_FI_DEV_\w{1,48})\{([^}]{0,2000})\} ([0-9.eE+-]{1,24})\b")
_LABEL = re.compile(r'(\w{1,32})="([^"\\]{0,255})"')
#: The fields that count, by the exporter's name and by the tags that `dcgmi dmon` has had for them.
_FIELDS = {
    "DCGM_FI_DEV_SM_CLOCK": "sm",
    "DCGM_FI_DEV_MAX_SM_CLOCK": "max_sm",
    "DCGM_FI_DEV_POWER_USAGE": "power",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "limit",
    "DCGM_FI_DEV_GPU_TEMP": "temperature",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "reasons",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "reasons",
}
_TAGS = {
    "SMCLK": "sm",
    "POWER": "power",
    "TMPTR": "temperature",
    "GPUTMP": "temperature",
    "DVCCTR": "reasons",
    "CLEVT": "reasons",
}
#: Of a file; a node has 16, seen many times.
_MOST_GPUS = 64


def parse(text: str, source: str) -> Iterator[SeenGpu]:
    """The GPUs that either of the two prints."""
    yield from _parse_exporter(text, source)
    yield from _parse_dmon(text, source)


def _parse_exporter(text: str, source: str) -> Iterator[SeenGpu]:
    """The GPUs of each host; of several samples of one, the lowest clock and the highest of the rest."""
    values: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, labels, value in _SAMPLE.findall(text):
        label = dict(_LABEL.findall(labels))
        if name in _FIELDS and label.get("gpu", "").isdecimal() and len(label["gpu"]) < 4 and len(values) < 4096:
            _note(values[label.get("Hostname", ""), int(label["gpu"])], _FIELDS[name], value)
    for (host, number), fields in values.items():
        yield SeenGpu(_state(fields, source), number, host)


def _parse_dmon(text: str, source: str) -> Iterator[SeenGpu]:
    """The GPUs of the one host that it ran on."""
    values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    columns: list[str] = []
    for line in text.splitlines():
        parts = line.split()
        if parts[:1] == ["#Entity"]:
            columns = parts[1:]
        elif len(parts) == len(columns) + 2 and parts[0] == "GPU" and parts[1].isdecimal():
            number = int(parts[1][:4])
            for column, value in zip(columns, parts[2:], strict=True):
                if column in _TAGS and (number in values or len(values) < _MOST_GPUS):
                    _note(values[number], _TAGS[column], value)
    for number, fields in values.items():
        yield SeenGpu(_state(fields, source), number, "")


def _note(fields: dict[str, list[float]], name: str, text: str) -> None:
    try:
        value = float(int(text, 16)) if text.startswith("0x") else float(text)
    except (ValueError, OverflowError):  # N/A, and nonsense
        return
    if math.isfinite(value):
        fields[name].append(value)


def _state(fields: dict[str, list[float]], source: str) -> GpuState:
    bits = 0
    for value in fields.get("reasons", ()):
        bits |= int(value) if 0 <= value < 1 << 16 else 0
    return GpuState(
        source=source,
        sm_mhz=min(fields.get("sm", ()), default=None),
        max_sm_mhz=max(fields.get("max_sm", ()), default=None),
        power_w=max(fields.get("power", ()), default=None),
        power_limit_w=min(fields.get("limit", ()), default=None),
        temperature_c=max(fields.get("temperature", ()), default=None),
        throttled=reasons(bits),
    )
