"""The replay's tables as text, for `tb_ddp_doctor/replay/README.md`: times in ms, "-" for none."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.replay.model import Parts

#: Beyond this, a time is on the clock of the job, which begins with the first step.
_EPOCH_NS = 10**15
_PARTS = ("awaits", "after", "queue_part")


def shown(table: Struct, columns: str, begin_ns: int, nothing: int = -1) -> str:
    """Some columns of a table, a line for each row; `nothing` is the index of the part that was over long ago."""
    names = columns.split()
    count = len(table.rank) - isinstance(table, Parts)  # type: ignore[attr-defined]
    cells = [["row", *(name.removesuffix("_ns") for name in names)]]
    cells += [
        [str(row), *(_cell(name, getattr(table, name)[row], begin_ns, nothing) for name in names)]
        for row in range(count)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in cells)


def _cell(name: str, value: Any, begin_ns: int, nothing: int) -> str:
    if name == "blocked_by":
        return "-" if value < 0 else CpuTime(value).name.lower()
    if isinstance(value, np.bool_):
        return "yes" if value else "-"
    if not name.endswith("_ns"):
        return "-" if value < 0 or (name in _PARTS and value == nothing) else str(value)
    if value <= LONG_AGO // 2:
        return "-"
    return f"{(value - begin_ns if value > _EPOCH_NS else value) / 1e6:.0f}"
