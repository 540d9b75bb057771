"""nccl-tests' (and rccl-tests') own output as a calibration.

Taken are the lines of results, out of place, of any of its programs:

    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
         1048576        262144     float     sum      -1    45.12   23.24   43.57      0    44.87   23.37   43.82      0

with the ranks of "#  Rank  0 Group  0 Pid 4242 on  node1 device  0 [0x01] NVIDIA H100 80GB HBM3". Which collective it
was is said by "Collective test starting: all_reduce_perf" (since 2.15), by the file's name, or by redop, root and busbw
over algbw. In-place results and everything else is passed over. Sizes are bytes, times µs; rccl-tests prints the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from statistics import median
from typing import TypeAlias

from tb_ddp_doctor.calibration.model import Calibration, Point, curve

_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}
_NAME = re.compile(rf"({'|'.join(_KINDS)})_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+(\d{1,6})\s.*?\bon\s+(\S{1,255})\s+device\s+\d+\s+\[[^\]]*\]\s+(.{1,100}?)\s*$")
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"
_RESULT = re.compile(
    rf"^\s*(\d{{1,18}})\s+\d{{1,18}}\s+\w{{1,16}}\s+(\w{{1,16}}\s+)?(-?\d{{1,9}}\s+)?{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s"
)
_MOST_RANKS = 1 << 17
#: Name of the collective, "" where it is not told; whether it reduces, and whether it has a root.
_Program: TypeAlias = tuple[str, bool, bool]


def parse(text: str, name: str = "") -> Calibration | None:
    """What the output says; None where it holds no results. `name` is the file's, which may name the program."""
    ranks: dict[int, tuple[str, str]] = {}
    times: defaultdict[_Program, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    ratios: defaultdict[_Program, list[float]] = defaultdict(list)
    program = _program(name)
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            program = _program(line) or program
            if (fields := _RANK.match(line)) and int(fields[1]) < _MOST_RANKS:
                ranks[int(fields[1])] = (fields[2], fields[3])
        elif fields := _RESULT.match(line):
            size, time_us, algbw, busbw = int(fields[1]), float(fields[4]), float(fields[5]), float(fields[6])
            key = (program, (fields[2] or "").strip() not in ("", "none"), int(fields[3] or -1) >= 0)
            if size > 0 and time_us > 0:
                times[key][size].append(time_us)
                if algbw > 0:
                    ratios[key].append(busbw / algbw)
    if not times:
        return None
    world = max(ranks, default=-1) + 1
    points: defaultdict[tuple[str, int], list[Point]] = defaultdict(list)
    for key, by_size in times.items():
        ratio = median(ratios[key] or [1.0])
        kind = key[0] or _kind(ratio, reduces=key[1], rooted=key[2])
        for size, measured in by_size.items():
            point = Point(
                bytes=size, count=len(measured), time_us=median(measured), low_us=min(measured), high_us=max(measured)
            )
            points[kind, world or _size(kind, ratio)].append(point)
    nodes = tuple(ranks[rank][0] for rank in sorted(ranks)) if len(ranks) == world else ()
    return Calibration(
        source="nccl-tests",
        backend="nccl",
        device=next((device for _, device in ranks.values()), ""),
        world_size=world or max((size for _, size in points), default=0),
        nodes=nodes,
        curves=tuple(curve(kind, "world", range(world), size, fields) for (kind, size), fields in points.items()),
    )


def _program(text: str) -> str:
    named = _NAME.search(text)
    return _KINDS[named[1]] if named else ""


def _kind(ratio: float, *, reduces: bool, rooted: bool) -> str:
    """The collective whose busbw is so many times its algbw, where no name is given."""
    if rooted:
        return "reduce" if reduces else "broadcast"
    if reduces:
        # Of two ranks and more, 2 (n - 1) / n is at least 1, and (n - 1) / n is less.
        return "all_reduce" if ratio > 0.99 else "reduce_scatter"
    return "all_gather"


def _size(kind: str, ratio: float) -> int:
    """How many ranks give that ratio; 0 where it does not depend on them."""
    share = ratio / 2 if kind == "all_reduce" else ratio
    return round(1 / (1 - share)) if 0 < share < 0.9999 else 0
