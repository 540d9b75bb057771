"""One rank of a trace into which those of several were merged (`discover.merged` says how they are told apart)."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_ddp_doctor.discover import merged
from tb_ddp_doctor.trace.model import RankTrace

T = TypeVar("T", bound=msgspec.Struct)


def only(trace: RankTrace, part: str, name: str) -> RankTrace:
    """The events of one part, with its own numbers of processes. The file's header is of no rank.

    `name` is what warnings call the part.
    """
    mine = np.array([merged.part(pid) == part for pid, _ in trace.threads] + [False], np.bool_)
    chosen = mine[trace.events.thread]
    row = np.cumsum(chosen) - 1
    comms = _rows(trace.comms, chosen[trace.comms.event])
    return replace(
        trace,
        file=name,
        header=replace(trace.header, rank=merged.rank(part), world_size=None),
        threads=tuple((merged.own_pid(pid), tid) for pid, tid in trace.threads),
        events=_rows(trace.events, chosen),
        comms=replace(comms, event=row[comms.event]),
        memory=_rows(trace.memory, mine[trace.memory.thread]),
        frames=_rows(trace.frames, mine[trace.frames.thread]),
        warnings=tuple(replace(warning, file=name) for warning in trace.warnings),
    )


def _rows(table: T, chosen: NDArray[np.bool_]) -> T:
    """Some rows of a table of columns."""
    return type(table)(*(getattr(table, name)[chosen] for name in table.__struct_fields__))
