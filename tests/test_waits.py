"""Each straggler wait is attributed to the rank that caused it, through ranks that waited themselves."""

from __future__ import annotations

import numpy as np
import pytest
from traces import MS, job, ranks

from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.waits import waits

#: Pairs meet first, then the first and the second ranks of both.
PAIRS = """
    rank0 step |1
          gpu  [fwd]
          nccl      [ar/left.......][bc/even..............]
    rank1 step |1
          gpu  [fwd......]
          nccl            [ar/left.][bc/odd...............]
    rank2 step |1
          gpu  [fwd]
          nccl      [ar/right...................][bc/even.]
    rank3 step |1
          gpu  [fwd..................]
          nccl                        [ar/right.][bc/odd..]
"""


def caused(text: str, waiters: tuple[int, ...]) -> list[float]:
    """What these ranks wait for each rank, ms a step."""
    made = job(text)
    found = waits(Facts(made)).caused_ns(np.arange(len(made.ranks)), np.array(waiters))
    return [round(value / MS, 1) for value in found]


def test_a_wait_for_a_rank_that_waited_is_for_whom_that_one_waited() -> None:
    # Rank 0 waits 6 for rank 1, then 13 for rank 2, which waited 18 for rank 3.
    assert caused(PAIRS, (0,)) == [0.0, 6.0, 0.0, 13.0]
    assert caused(PAIRS, (2,)) == [0.0, 0.0, 0.0, 18.0]


def test_parts_of_a_wait_sum_to_no_more_than_all_of_it() -> None:
    for waiter in range(4):
        whole = float(job(PAIRS).budget.of("wait")[waiter].mean()) / MS
        assert sum(caused(PAIRS, (waiter,))) == pytest.approx(whole, abs=0.2)


def test_after_a_collective_of_all_ranks_nobody_is_late_for_an_earlier_one() -> None:
    first = """
        rank# step |1
              gpu  {}
              nccl {}
    """
    usual = first.format("[a..]            [b..]", "     [ar........]     [ar........]")
    early = first.format("[a..........]    [b..]", "             [ar]     [ar........]")
    late = first.format("[a..]            [b.........]", "     [ar........]            [ar.]")
    found = caused(ranks(usual, early, late), (0,))
    assert found[0] == 0 and found[1] == pytest.approx(8, abs=0.1) and found[2] == pytest.approx(7, abs=0.1)


def test_collectives_that_run_at_once_share_the_wait() -> None:
    usual = """
        rank# step |1
              gpu  [a..]
              nccl      [ar............]
              comm      [bc............]
    """
    late = """
        rank# step |1
              gpu  [a.........]
              nccl             [ar.....]
              comm             [bc.....]
    """
    assert caused(ranks(usual, late, usual), (0, 2)) == [0.0, 7.0, 0.0]
