"""Step times in the lines that Megatron-LM (and its kin) and torchtitan print.

Megatron-LM, `training_log` (the time in brackets is missing in old versions, the mean time of an iteration never):

     [2024-03-14 23:07:56] iteration      100/  500000 | ... | elapsed time per iteration (ms): 3453.1 | ...

and by its StragglerDetector (--log-straggler) the times of the fastest and the slowest rank, each with its number:

     INFO:megatron.core.utils:[...] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | MnPwr/Rnk: 601796W/8 | ...

NVIDIA's resiliency extension (NVRx), in the logs of whatever trains with its straggler detection, scores of ranks, the
slowest first; 1.0 is as fast as the fastest:

     GPU relative performance:
      Worst performing 5/512 ranks:
       Rank=76 Node=h100-001-253-012 Score=0.94
      Best performing 5/512 ranks:
       Rank=123 Node=h100-001-273-026 Score=1.00

torchtitan, `MetricsProcessor.log`, by its logger (coloured on a terminal); steps take the time between lines:

    [rank0]:[titan] 2025-06-01 12:00:00,123 - root - INFO - step: 10  loss:  7.1234  ...  tps: 3,234  ...
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tb_ddp_doctor.history.job import SlowestRank
from tb_ddp_doctor.history.logs.points import LoggedStep
from tb_ddp_doctor.storage.plain_file import open_plain

#: Of a file that is no such log so much is looked at; of one that is, this much is read. Longer lines are cut.
_LOOKED_AT, _MOST_BYTES, _LONGEST_LINE = 1 << 24, 1 << 32, 1 << 14

_TIME = rb"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
#: What comes one after the other in a line: one pattern for all would look from each clock for each step's end.
_MEGATRON = (
    re.compile(rb"(?:\[" + _TIME + rb"\] )?iteration +(\d{1,15})/ *\d+ \|"),
    re.compile(rb"elapsed time per iteration \(ms\): ([0-9.]{1,20})"),
)
_TITAN = re.compile(_TIME), re.compile(rb" step: +(\d{1,15}) "), re.compile(rb"\btps: *[0-9,]+")
_STRAGGLER = re.compile(rb"MnRtt/Rnk: ([0-9.]{1,20})ms/\d+ \| MxRtt/Rnk: ([0-9.]{1,20})ms/(\d{1,7})\b")
_SCORE = re.compile(rb"Rank=(\d{1,7}) Node=\S{1,256} Score=([0-9.]{1,20})")
#: One rank is the slowest in so many reports at least, in this share of all, and slower than the fastest by this share.
_LEAST_REPORTS, _LEAST_SHARE, _LEAST_SLOWER = 5, 0.5, 0.02
#: Megatron's list of arguments, and what it says first.
_RANKS = re.compile(rb"(?:world_size \.+ |using world size: )(\d{1,7})\b")


class TextLog(NamedTuple):
    """What a text file says of step times."""

    program: str
    points: list[LoggedStep]
    #: 0 where it does not say.
    ranks: int
    slowest: SlowestRank | None


def read_text(path: Path) -> TextLog | None:
    """The step times in a text; None where none of these programs wrote it. Raises OSError."""
    points: list[LoggedStep] = []
    reports = _StragglerReports()
    program, ranks, done = "", 0, 0
    for line in _lines(path):
        done += len(line)
        if b"elapsed time per iteration" in line and (parts := _in_turn(_MEGATRON, line)):
            (clock, step), (mean_ms,) = parts
            program, point = "Megatron-LM", LoggedStep(int(step), _seconds(clock), _number(mean_ms) / 1000)
        elif b"tps:" in line and (parts := _in_turn(_TITAN, _COLOUR.sub(b"", line))):
            (clock,), (step,), _ = parts
            program, point = "torchtitan", LoggedStep(int(step), _seconds(clock))
        else:
            reports.take(line)
            if not ranks and b"world" in line and (line_match := _RANKS.search(line)):
                ranks = int(line_match[1])
            if not points and done > _LOOKED_AT:
                return None
            continue
        points.append(point)
    return TextLog(program, points, ranks, _slowest(reports.taken())) if points else None


class _StragglerReports:
    """Reports of straggler detectors: of each the slowest rank, and by which share it is slower than the fastest."""

    def __init__(self) -> None:
        self._reports: list[tuple[int, float]] = []
        #: NVRx's scores of ranks, while they are listed.
        self._scores: list[tuple[float, int]] = []
        self._are_listed = False

    def take(self, line: bytes) -> None:
        """Read one line of a log."""
        if b"MxRtt/Rnk" in line and (match := _STRAGGLER.search(line)):
            self._add(_number(match[1]), _number(match[2]), int(match[3]))
        elif self._are_listed and (match := _SCORE.search(line)):
            self._scores.append((_number(match[2]), int(match[1])))
        elif b" performing " not in line:
            self._end_list()
            self._are_listed = b"GPU relative performance" in line

    def taken(self) -> list[tuple[int, float]]:
        """All reports."""
        self._end_list()
        return self._reports

    def _end_list(self) -> None:
        if scores := [each for each in self._scores if each[0] > 0]:
            self._add(1 / max(scores)[0], 1 / min(scores)[0], min(scores)[1])
        self._scores, self._are_listed = [], False

    def _add(self, fastest: float, slowest: float, rank: int) -> None:
        if fastest > 0 and slowest > 0:
            self._reports.append((rank, slowest / fastest - 1))


def _slowest(reports: list[tuple[int, float]]) -> SlowestRank | None:
    """The rank that most reports name as the slowest; None where they do not agree. Reports: rank, and by how much."""
    if not reports:
        return None
    rank, count = Counter(rank for rank, _ in reports).most_common(1)[0]
    slower = median(slower for one, slower in reports if one == rank)
    if count < max(_LEAST_REPORTS, _LEAST_SHARE * len(reports)) or slower < _LEAST_SLOWER:
        return None
    return SlowestRank(rank, count, len(reports), slower)


def _in_turn(patterns: Sequence[re.Pattern[bytes]], line: bytes) -> list[tuple[bytes, ...]]:
    """The groups of each pattern, each found after the one before; nothing where one is not there."""
    groups, at = [], 0
    for pattern in patterns:
        match = pattern.search(line, at)
        if match is None:
            return []
        groups.append(match.groups())
        at = match.end()
    return groups


def _number(written: bytes) -> float:
    try:
        return float(written)
    except ValueError:
        return math.nan


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
