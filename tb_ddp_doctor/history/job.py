"""A job's hours: the pyramid of its step times, and the time that lies between steps."""

from __future__ import annotations

import msgspec

from tb_ddp_doctor.history.grid import Restart
from tb_ddp_doctor.history.pyramid import Pyramid
from tb_ddp_doctor.history.read import MarkedTime


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
