"""Which collectives two ranks share is told by when they end, before anything else is known of the ranks together."""

from __future__ import annotations

import numpy as np
import pytest
from traces import digests, ranks

from tb_ddp_doctor.job.shared_calls import Calls, StreamCalls, calls_of, latest, shared
from tb_ddp_doctor.trace.model import Floats

MS = 1_000_000
#: When the collectives of one group end: four weights in each round.
ENDS = np.array([begin + call for begin in (0, 103, 198, 305, 401) for call in (0, 1, 2, 3.5)])


def calls(ends_ms: Floats) -> Calls:
    """Calls of one kind, each of which begins a millisecond before it ends."""
    ends = np.rint(ends_ms * MS).astype(np.int64)
    return {("", "", -1, "broadcast"): [StreamCalls(ends - MS, ends)]}


@pytest.mark.parametrize("ahead_ms", [0, 7, -2_000])
@pytest.mark.parametrize("cut", [slice(0, None), slice(3, None), slice(0, -5), slice(6, -1)])
def test_records_that_begin_and_end_at_other_calls_share_the_rest(ahead_ms: int, cut: slice) -> None:
    noise = np.random.default_rng(1).uniform(0, 0.05, len(ENDS))
    mine, its = shared(calls(ENDS), calls((ENDS + noise + ahead_ms)[cut]))
    assert mine.tolist() == np.rint((ENDS[cut] - 1) * MS).astype(np.int64).tolist()
    assert np.abs(its - mine - ahead_ms * MS).max() <= 0.05 * MS


def test_calls_that_are_lost_in_between_are_passed_over() -> None:
    mine, its = shared(calls(ENDS), calls(np.delete(ENDS, 9)))
    assert len(mine) == len(ENDS) - 1 and np.array_equal(mine, its)


def test_groups_that_run_the_same_calls_at_other_times_share_none() -> None:
    others = np.cumsum(np.random.default_rng(2).uniform(1, 40, 20))
    assert not len(shared(calls(ENDS), calls(others))[0])
    # Many calls, of which some end beside each of the few.
    assert not len(shared(calls(ENDS), calls(np.arange(0, 500, 0.4)))[0])


def test_streams_tell_groups_apart_that_have_no_name() -> None:
    text = """
        rank# host [ar][ar][bc][ar]
              gpu  [a...................]
              nccl [ar..][ar..]    [ar..]
              comm              [bc..]
    """
    found = calls_of(digests(ranks(text, text, steps=1), metadata="nowhere")[0])
    assert sorted((kind, len(each)) for *_, kind in found for each in [found["", "", -1, kind]]) == [
        ("all_reduce", 1),
        ("broadcast", 1),
    ]


def test_the_latest_shared_call_ends_a_round_on_the_other_rank() -> None:
    mine, its = np.array([10, 20, 30]), np.array([11, 19, 31])
    assert latest(mine, its, np.array([5, 10, 29, 99])).tolist() == [-1, 11, 19, 31]
