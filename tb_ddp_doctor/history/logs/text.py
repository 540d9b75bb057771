"""Step times in the lines that Megatron-LM (and its kin) and torchtitan print.

Megatron-LM, `training_log` (the time in brackets is missing in old versions, the mean time of an iteration never):

     [2024-03-14 23:07:56] iteration      100/  500000 | ... | elapsed time per iteration (ms): 3453.1 | ...

torchtitan, `MetricsProcessor.log`, by its logger (coloured on a terminal); steps take the time between lines:

    [rank0]:[titan] 2025-06-01 12:00:00,123 - root - INFO - step: 10  loss:  7.1234  ...  tps: 3,234  ...
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tb_ddp_doctor.history.logs.points import LoggedStep
from tb_ddp_doctor.storage.plain_file import open_plain

#: Of a file that is no such log so much is looked at; of one that is, this much is read. Longer lines are cut.
_LOOKED_AT, _MOST_BYTES, _LONGEST_LINE = 1 << 24, 1 << 32, 1 << 14

_TIME = rb"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_MEGATRON = re.compile(
    rb"(?:\[" + _TIME + rb"\] )?iteration +(\d{1,15})/ *\d+ \|.*?elapsed time per iteration \(ms\): ([0-9.]{1,20})"
)
_TITAN = re.compile(_TIME + rb".*? step: +(\d{1,15}) +.*?\btps: *[0-9,]+")
#: Megatron's list of arguments, and what it says first.
_RANKS = re.compile(rb"(?:world_size \.+ |using world size: )(\d{1,7})\b")


class TextLog(NamedTuple):
    """What a text file says of step times."""

    program: str
    points: list[LoggedStep]
    #: 0 where it does not say.
    ranks: int


def read_text(path: Path) -> TextLog | None:
    """The step times in a text; None where none of these programs wrote it. Raises OSError."""
    points: list[LoggedStep] = []
    program, ranks, done = "", 0, 0
    for line in _lines(path):
        done += len(line)
        if b"elapsed time per iteration" in line and (found := _MEGATRON.search(line)):
            seconds = float(found[3]) / 1000 if found[3].count(b".") < 2 and found[3] != b"." else math.nan
            program, point = "Megatron-LM", LoggedStep(int(found[2]), _seconds(found[1]), seconds)
        elif b"tps:" in line and (found := _TITAN.search(_COLOUR.sub(b"", line))):
            program, point = "torchtitan", LoggedStep(int(found[2]), _seconds(found[1]))
        else:
            if not ranks and b"world" in line and (found := _RANKS.search(line)):
                ranks = int(found[1])
            if not points and done > _LOOKED_AT:
                return None
            continue
        points.append(point)
    return TextLog(program, points, ranks) if points else None


def _lines(path: Path) -> Iterator[bytes]:
    with open_plain(path) as file:
        while file.tell() < _MOST_BYTES and (line := file.readline(_LONGEST_LINE)):
            yield line


def _seconds(written: bytes | None) -> float:
    """A local time as s since 1970; NaN for what is none."""
    if written is None:
        return math.nan
    try:
        return datetime.fromisoformat(written.decode().replace(",", ".")).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan
