"""What ranks hand over to other roles of reinforcement learning without a collective, and when."""

from __future__ import annotations

import numpy as np
import pytest
from traces import MS, job, ranks

from tb_ddp_doctor.replay import hand_overs
from tb_ddp_doctor.replay.schedule import _schedule

#: Ranks that generate, wait for each other, then for the weights; ranks that train, then send them.
GENERATES = """
    rank# step |1
          host   [own_generate_sequences..........................................]
          within [attend][sync..............] [sync...........]   [sync...........]
          gpu      [attend..................]
          comm                               [ar/tp...........]
          nccl                                                   [bc/sync.........]
"""
TRAINS = """
    rank# step |1
          host   [own_update_actor................................................]
          within [fwd][sync.........................................]
          gpu      [fwd.............................................]
          nccl                                                        [bc/sync....]
"""
#: Ranks that wait for samples in a pause, then train for 39 ms.
PAUSES = """
    rank# step |1
          host             [own_update_actor......................]
          within           [fwd][sync............................]
          gpu               [fwd..................................]
"""
WAITS = 29.0


def rows_of(*drawings: str) -> list[hand_overs._RankRows]:
    drawn = job(ranks(*drawings, steps=4))
    role = np.array([0, 0, 1, 1])
    return hand_overs._rows(_schedule(drawn, None), role)


def test_a_wait_for_another_role_is_a_collective_with_it() -> None:
    rows = rows_of(GENERATES, GENERATES, TRAINS, TRAINS)
    waits = hand_overs._Tying(rows, [], np.zeros(4, np.bool_))._waits
    # What ranks of a role wait for each other is none, though the host is blocked meanwhile.
    assert [len(waits[0]), len(rows[0].meets)] == [3, 7]


def when_done(instant_ms: float, *, since_ms: float = -100) -> float | None:
    """When a rank that trains had done what others waited for, who waited since `since_ms` until `instant_ms` of its
    second round: ms of that round, which begins when its own wait ends; None if unknown.
    """
    its = rows_of(GENERATES, GENERATES, PAUSES, PAUSES)[2]
    waits = its.pauses.tolist()
    begin = int(its.ended_ns[waits[1]])
    instant, since = (begin + round(ms * MS) for ms in (instant_ms, since_ms))
    row = its.done_for(instant, since, waits, hand_overs._SOON[0])
    return None if row is None else (int(its.ended_ns[row]) - begin) / MS


def test_who_has_begun_something_new_had_done_what_came_before_its_wait() -> None:
    # It waits for as long as its peers generate and send, and then works for 39 ms, until its next wait.
    assert when_done(20) == when_done(34) == pytest.approx(-WAITS, abs=0.1)
    # So soon before that it has done this, too.
    assert when_done(36) == pytest.approx(0, abs=0.1)


def test_what_was_consumed_before_is_no_hand_over() -> None:
    """Others went on with it when their wait before this one ended; since then it has nothing done."""
    assert when_done(20, since_ms=0) is None


#: A rank that generates for 24 ms, and waits for weights for as long.
IN_ROUNDS = """
    rank# step |1SPACE
          host   [own_generate_sequences]
          within [attend][sync..........]
          gpu     [attend...............]
""".replace("SPACE", " " * 40)


@pytest.mark.parametrize(
    ("instants", "awaited"),
    [
        ((30, 90, 135, 190), [26, 78, 130, 182]),
        # The second pause ends while it still generates: all await what is a round older.
        ((30, 70, 135, 190), [None, 26, 78, 130]),
        # Not a generation a round.
        ((30, 60, 70, 190), None),
    ],
)
def test_pauses_await_generations_that_are_as_many_rounds_old(
    instants: tuple[int, ...], awaited: list[int | None] | None
) -> None:
    rows = rows_of(IN_ROUNDS, IN_ROUNDS, PAUSES, PAUSES)
    tying, its = hand_overs._Tying(rows, [], np.zeros(4, np.bool_)), rows[0]
    tying._waits[0] = its.pauses.tolist()
    begin = int(its.issued_ns[0])
    found = tying.generated(0, begin + MS * np.array(instants))
    ended = found and [row and round((int(its.ended_ns[row]) - begin) / MS) for row in found]
    assert ended == awaited
