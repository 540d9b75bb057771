"""Ranks of a role that wait for another role end their pauses together; what one rank stalls is its own."""

from __future__ import annotations

import pytest

from tb_ddp_doctor.job.together import Pause, together

MS = 1_000_000


def pause(rank: int, begin_ms: float, end_ms: float) -> Pause:
    return Pause(round(begin_ms * MS), round(end_ms * MS), rank)


def ended(pauses: list[Pause], peers: int) -> list[list[int]]:
    """The ranks of each wait."""
    return [[one.rank for one in group] for group in together(pauses, peers)]


def test_pauses_that_end_together_are_one_wait_however_they_begin() -> None:
    pauses = [pause(0, 0, 50), pause(1, 20, 51.5), pause(0, 100, 150), pause(1, 130, 150.5)]
    assert ended(pauses, 2) == [[0, 1], [0, 1]]


@pytest.mark.parametrize(("peers", "found"), [(1, [[0]]), (2, []), (3, []), (4, [])])
def test_what_one_rank_of_several_stalls_is_its_own(peers: int, found: list[list[int]]) -> None:
    assert ended([pause(0, 0, 50)], peers) == found


@pytest.mark.parametrize(("peers", "found"), [(4, [[0, 1]]), (5, [])])
def test_half_of_the_ranks_are_enough(peers: int, found: list[list[int]]) -> None:
    assert ended([pause(0, 0, 50), pause(1, 0, 50)], peers) == found


def test_far_shorter_pauses_are_the_roles_own() -> None:
    pauses = [pause(0, 0, 50), pause(1, 0, 50), pause(0, 60, 66), pause(1, 60, 66)]
    assert ended(pauses, 2) == [[0, 1]]
    assert not together([], 2)
    # Unless waits may be of any length.
    assert len(together(pauses, 2, 0)) == 2


def test_what_a_rank_stalls_in_each_iteration_is_its_own_whenever_it_ends() -> None:
    """Rank 2 stalls for 2 ms again and again, of which one stall happens to end when the ranks 0 and 1 go on."""
    waits = [pause(rank, begin, begin + 50) for rank in (0, 1) for begin in (0, 100)]
    stalls = [pause(2, 8 * number, 8 * number + 2) for number in range(19)]
    assert ended([*waits, *stalls], 3) == [[0, 1], [0, 1]]
    # A short wait beside others is one, where the rank does not stall else.
    assert ended([*waits, pause(2, 48, 50), pause(2, 148, 150)], 3) == [[0, 1, 2], [0, 1, 2]]


def test_short_pauses_of_all_ranks_make_no_wait_of_one_a_stall() -> None:
    """Rank 2 is the last to end its rollout, and waits for the driver's next call for 3 ms, as all do several times."""
    rollouts = [pause(0, 0, 50), pause(1, 2, 50), pause(2, 47, 50)]
    calls = [pause(rank, begin, begin + 3) for rank in range(3) for begin in (60, 70, 80)]
    assert ended([*rollouts, *calls], 3) == [[0, 1, 2]]


def test_a_rank_that_pauses_again_waits_for_something_else() -> None:
    """Rank 0 goes on first, sends the weights for all, and pauses until all have them, as the others do meanwhile."""
    pauses = [pause(0, 0, 260), pause(0, 270, 272.5), pause(1, 0, 272.4), pause(2, 0, 272.6)]
    assert ended(pauses, 3) == [[1, 0, 2]]


def test_a_save_before_each_wait_makes_no_wait_a_stall() -> None:
    waits = [pause(rank, begin + 5, begin + 10) for rank in (0, 1) for begin in (0, 100)]
    saves = [pause(0, begin, begin + 5) for begin in (0, 100, 200)]
    assert ended([*waits, *saves], 2) == [[0, 1], [0, 1]]
