"""`nvidia-smi -q`, of drivers since 2015: each GPU's clocks, power, temperature and why it is throttled."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tb_ddp_doctor.evidence.model import GpuState, SeenGpu
from tb_ddp_doctor.evidence.throttling import SMI_REASONS

MARKS = (b"NVSMI LOG",)
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*")
_LINE = re.compile(r"( *)([^:]{1,60}?) *(?:: (.{0,120}?)\s*)?")
_NUMBER = re.compile(r"(\d{1,7}(?:\.\d{1,6})?) (?:MHz|W|C)")
#: Lower-case names of sections and lines, as drivers spelled them over the years; the first with a number counts.
_SM = (("clocks", "sm"), ("clocks", "graphics"))
_MAX_SM = (("max clocks", "sm"), ("max clocks", "graphics"))
_POWER = tuple(
    (section, line)
    for section in ("gpu power readings", "power readings")
    for line in ("average power draw", "instantaneous power draw", "power draw")
)
_LIMIT = tuple(
    (section, line)
    for section in ("gpu power readings", "power readings")
    for line in ("enforced power limit", "current power limit", "requested power limit", "power limit")
)
_TEMPERATURE = (("temperature", "gpu current temp"), ("temperature", "gpu"))
_THROTTLING = ("clocks event reasons", "clocks throttle reasons")
#: Of one file; a node has 16.
_MOST_GPUS = 64


def parse(text: str, source: str) -> Iterator[SeenGpu]:
    """The GPUs in the order of the file, whatever sections of them it has."""
    number, lines = -1, list[str]()
    for line in text.splitlines():
        if _GPU.fullmatch(line):
            if number >= 0:
                yield _gpu(number, lines, source)
            number, lines = number + 1, []
            if number >= _MOST_GPUS:
                return
        elif number >= 0:
            lines.append(line)
    if number >= 0:
        yield _gpu(number, lines, source)


def _gpu(number: int, lines: list[str], source: str) -> SeenGpu:
    values: dict[tuple[str, str], str] = {}
    pids = []
    section = ""
    for line in lines:
        fields = _LINE.fullmatch(line)
        if fields is None:
            continue
        indent, name, value = fields[1], fields[2].strip().lower(), fields[3]
        if value is None and len(indent) == 4:
            section = name
        elif value is not None:
            values.setdefault((section, name), value)
            if name == "process id" and value.isdecimal():
                pids.append(value)
    throttled = [
        words for name, words in SMI_REASONS.items() if any(values.get((one, name)) == "Active" for one in _THROTTLING)
    ]
    state = GpuState(
        source=source,
        sm_mhz=_first(values, _SM),
        max_sm_mhz=_first(values, _MAX_SM),
        power_w=_first(values, _POWER),
        power_limit_w=_first(values, _LIMIT),
        temperature_c=_first(values, _TEMPERATURE),
        throttled=tuple(throttled),
    )
    return SeenGpu(state, number, "", frozenset(pids))


def _first(values: dict[tuple[str, str], str], places: tuple[tuple[str, str], ...]) -> float | None:
    for place in places:
        if first := _NUMBER.match(values.get(place, "")):
            return float(first[1])
    return None
