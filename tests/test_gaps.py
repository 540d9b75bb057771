"""How long the gaps of ranks are, by owner (`view.gaps`)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from random_jobs import FaultyJob, faulty_jobs
from traces import MS, job

from tb_ddp_doctor.step_parts import IDLE
from tb_ddp_doctor.view.gaps import gaps

#: Rank 1 idles 30 ms, 8 ms and 3 ms, while its CPU is outside any op.
TWO_RANKS = """
    rank0 step |1                                                           |2
          host [a][b][c]                                                    [a]
          gpu  [a][b][c]                                                    [a]
    rank1 step |1                                                           |2
          host [a]                              [b]        [c]   [d]        [a]
          gpu  [a]                              [b]        [c]   [d]        [a]
"""


def test_gaps_are_counted_by_length() -> None:
    host = gaps(job(TWO_RANKS)).lengths([1], [1])["host"]
    assert [(one.from_ms, one.to_ms, one.count, round(one.sum_ms)) for one in host.bins if one.count] == [
        (2, 5, 1, 3),
        (5, 10, 1, 8),
        (20, 50, 1, 30),
    ]


def test_of_other_ranks_and_steps_there_are_none() -> None:
    known = gaps(job(TWO_RANKS))
    assert known.lengths([], [1]) == {} and known.lengths([1], [7]) == {}
    other = known.lengths([0], [1]).get("host")
    assert other is None or not any(one.to_ms > 1 for one in other.bins)


@settings(max_examples=15)
@given(faulty_jobs(), st.data())
def test_gaps_and_those_too_short_to_count_sum_to_the_budget(faulty: FaultyJob, data: st.DataObject) -> None:
    whole = job(faulty.drawing)
    ranks = data.draw(st.sets(st.sampled_from(whole.ranks.tolist()), min_size=1))
    found = gaps(whole).lengths(ranks, whole.steps.tolist())
    rows = [i for i, rank in enumerate(whole.ranks.tolist()) if rank in ranks]
    for owner in IDLE:
        total_ms = int(whole.budget.of(owner)[rows].sum()) / MS
        own = found.get(owner)
        told_ms = sum(one.sum_ms for one in own.bins) + own.shorter_ms if own else 0.0
        assert abs(told_ms - total_ms) < 0.01
        assert own is None or own.shorter_ms >= 0
