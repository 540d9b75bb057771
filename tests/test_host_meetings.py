"""Collectives that the CPUs of ranks with devices carry out: CPUs wait there for each other."""

from __future__ import annotations

import numpy as np
import pytest
from traces import MS, finding, job, repeat

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf

#: Rank 1's CPU is outside any op for 20 ms before the barrier of each step, and the CPU of rank 0 waits there.
LATE = repeat(
    """
    rank0 step |1
          host [fwd][bwd]
          gpu  [fwd...][bwd...]
          nccl                 [ar]
          gloo             [meet......................]
    rank1 step |1
          host [fwd][bwd]
          gpu  [fwd...][bwd...]
          nccl                 [ar]
          gloo                                     [m.]
    """,
    4,
)


def test_without_what_delays_the_last_rank_nobody_waits() -> None:
    drawn = job(LATE)
    whatif = WhatIf.of(drawn)
    assert whatif.plays
    assert (whatif.recorded_ns == drawn.budget.window_ns).all()
    assert [len(digest.host_meetings) for digest in drawn.digests] == [4, 4]

    def saved(rank: int) -> float:
        share = np.zeros(whatif.shape)
        share[rank] = 1
        left = whatif.step_ns(Change({CpuTime.STALL: share}))
        return float((drawn.budget.window_ns - left)[:, 1:].mean()) / MS

    # The device is then what the step takes: 20 of 40 ms.
    assert saved(1) == pytest.approx(20, abs=1)
    # Rank 0 has nothing of its own to lose there.
    assert saved(0) == 0


def test_the_late_rank_is_the_straggler() -> None:
    found = finding("straggler", LATE)
    assert found.ranks == (1,)
