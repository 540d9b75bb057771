"""A job's hours: the pyramid of its step times, and the time that lies between steps."""

from __future__ import annotations

from typing import Any

import msgspec
from numpy.typing import NDArray

from tb_ddp_doctor.history.grid import Restart
from tb_ddp_doctor.history.pyramid import Pyramid
from tb_ddp_doctor.history.read import MarkedTime


class SlowestRank(msgspec.Struct, frozen=True):
    """The rank that was the slowest in most reports of a straggler detector."""

    rank: int
    #: In how many of how many reports, and by how much of the fastest rank's time it was slower in those (median).
    reports: int
    of: int
    slower_share: float


class LoggedBy(msgspec.Struct, frozen=True):
    """The log of another program that step times were taken from."""

    program: str
    path: str
    #: Steps from one line of it to the next: a column of the job's steps stands for so many, with their time in all.
    steps_a_line: int
    #: Ranks of the job; 0 where the log does not say.
    ranks: int
    slowest: SlowestRank | None = None


class JobHistory(msgspec.Struct, frozen=True):
    """All that is summarised and drawn of a job's hours."""

    pyramid: Pyramid
    phases: tuple[MarkedTime, ...]
    restarts: tuple[Restart, ...]
    #: Time of steps that were trained once more later, s.
    trained_again_s: float
    #: Bytes of files that belong to no whole block.
    lost_bytes: int
    #: Steps before the first of the pyramid, which are too far from it.
    left_out: int
    #: Rows of `SAMPLE_ROW` by rank, of up to 33 ranks: what was recorded on request.
    samples: dict[int, NDArray[Any]] = {}
    #: None where a `Doctor` recorded them.
    logged_by: LoggedBy | None = None

    @property
    def steps_a_column(self) -> int:
        """Steps that a column of the pyramid stands for."""
        return self.logged_by.steps_a_line if self.logged_by else 1
