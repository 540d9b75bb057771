"""What ranks hand over to other roles of reinforcement learning without a collective, and when."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import MS, boxes, in_row, job, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.together import Pause
from tb_ddp_doctor.replay import hand_overs
from tb_ddp_doctor.replay.asynchronous import asynchronous
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.critical_path import stretches
from tb_ddp_doctor.replay.rank_rows import RankRows, rows_of_ranks
from tb_ddp_doctor.replay.replay import Replay
from tb_ddp_doctor.replay.schedule import _schedule, schedule
from tb_ddp_doctor.replay.whatif import WhatIf

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


def rows_of(*drawings: str) -> list[RankRows]:
    drawn = job(ranks(*drawings, steps=4))
    role = np.array([0, 0, 1, 1])
    return rows_of_ranks(_schedule(drawn, None), role)


def test_a_wait_for_another_role_is_a_collective_with_it() -> None:
    rows = rows_of(GENERATES, GENERATES, TRAINS, TRAINS)
    waits = hand_overs._Tying(rows, [], np.zeros(4, np.bool_), np.zeros(4, np.bool_))._waits
    # What ranks of a role wait for each other is none, though the host is blocked meanwhile.
    assert [len(waits[0]), len(rows[0].meets)] == [4, 8]


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
        # The last pause ends after the record of the one that generates.
        ((30, 90, 135, 190, 260), [26, 78, 130, 182, None]),
        # Not a generation a round.
        ((30, 60, 70, 190), None),
    ],
)
def test_pauses_await_generations_that_are_as_many_rounds_old(
    instants: tuple[int, ...], awaited: list[int | None] | None
) -> None:
    rows = rows_of(IN_ROUNDS, IN_ROUNDS, PAUSES, PAUSES)
    tying, its = hand_overs._Tying(rows, [], np.zeros(4, np.bool_), np.zeros(4, np.bool_)), rows[0]
    tying._waits[0] = its.pauses.tolist()
    begin = int(its.issued_ns[0])
    found = tying.generated(0, begin + MS * np.array(instants))
    ended = found and [row and round((int(its.ended_ns[row]) - begin) / MS) for row in found]
    assert ended == awaited


def generates(until: int, sync: int = 4) -> str:
    """An engine that generates for so many ms, pauses until it meets the sender of the weights, and gets them."""
    return f"""
    rank# step |1{" " * 60}
          host   {boxes((0, until, "own_generate_sequences"))}
          within {boxes((0, 8, "attend"), (8, until, "sync"), (45, 49, "bc"), (49, 55 + sync, "sync"))}
          gpu    {boxes((1, until, "attend*16"))}
          nccl   {boxes((46, 55 + sync, "bc/sync"))}
    """


def trains(*, sends: bool, sync: int = 4) -> str:
    """A trainer of 26 ms that pauses until all weights are sent; or the one that sends them to all engines."""
    sending = [(45, 49, "bc"), (49, 55 + sync, "sync")] * sends
    return f"""
    rank# step |1{" " * 60}
          host   {boxes((0, 26, "own_update_actor"))}
          within {boxes((0, 5, "fwd"), (5, 12, "sync"), (13, 26, "sync"), *sending)}
          gpu    {boxes((1, 12, "fwd"))}
          nccl   {boxes((13, 26, "ar/dp"), *[(46, 55 + sync, "bc/sync")] * sends)}
    """


def found(text: str) -> list[tuple[str, str | None, tuple[int, ...]]]:
    return [(one.rule, one.cause, one.ranks) for one in engine.examine(job(text)).findings]


def test_the_rank_that_sends_for_all_awaits_the_slow_engine_alone() -> None:
    """The slow engine hardly pauses itself, and the sender's peers wait on until the weights are sent."""
    text = ranks(generates(44), generates(24), generates(24), trains(sends=True), trains(sends=False), steps=4)
    assert found(text) == [("straggler", "slow_device", (0,))]
    # It takes 20 ms longer; 18 of them the others wait.
    assert engine.examine(job(text)).findings[0].cost_ms == pytest.approx(18, rel=0.1)


def test_a_sender_that_stalls_after_all_were_done_is_slow_itself() -> None:
    text = ranks(*[generates(24)] * 3, trains(sends=True), trains(sends=False), steps=4)
    assert found(text)[0] == ("straggler", "host", (3,))


def test_ranks_that_pause_while_weights_are_sent_to_others_wait_for_that() -> None:
    """Else the sync would cost nothing, since they stall as long themselves."""
    text = ranks(*[generates(44, 18)] * 3, trains(sends=True, sync=18), trains(sends=False), steps=4)
    assert ("role-bubble", "weight_sync", (0, 1, 2, 3, 4)) in found(text)


def in_turn(until: int) -> str:
    """A rank that generates for so many ms, of 44, awaits its driver, and trains."""
    return f"""
    rank# step |1
          host   {boxes((0, until, "own_generate_sequences"), (46, 68, "own_update_actor"))}
          within {boxes((0, 8, "attend"), (8, until, "sync"), (46, 51, "fwd"), (51, 59, "sync"), (60, 68, "sync"))}
          gpu    {boxes((1, until, f"attend*{until // 2}"), (47, 59, "fwd"))}
          nccl   {boxes((60, 68, "ar"))}
    """


def test_the_driver_of_ranks_that_do_all_in_turn_awaits_the_last_of_them() -> None:
    long, short = in_turn(44), in_turn(24)
    one = engine.examine(job(ranks(long, short, short, steps=4))).findings[0]
    assert (one.rule, one.cause, one.ranks) == ("straggler", "more_work", (0,))
    orders = ([long, short, short], [short, long, short], [short, short, long])
    moving = engine.examine(job(in_row(*[ranks(*order, steps=1) for order in orders * 2]))).findings[0]
    assert (moving.rule, moving.cause) == ("load-imbalance", "moving")
    assert min(one.cost_ms, moving.cost_ms) == pytest.approx(18, rel=0.1)


def test_ranks_that_pause_as_long_each_wait_for_nobody() -> None:
    """Rewards that all of them compute on their CPUs."""
    assert [rule for rule, _, _ in found(ranks(*[in_turn(24)] * 3, steps=4))] == ["host-stall"]


def test_a_slow_engine_is_compared_with_engines_though_most_ranks_train() -> None:
    text = ranks(generates(44), generates(24), trains(sends=True), *[trains(sends=False)] * 3, steps=4)
    assert ("straggler", "slow_device", (0,)) in found(text)


#: An engine that generates for 29 ms, then a trainer whose kernels take 15, in turn. What the trainer calls first after
#: its wait launches nothing, and what it launched last before it was a collective.
IN_TURN_WITH_IT = f"""
    rank# step |1{" " * 62}
          host   {boxes((0, 30, "own_generate_sequences"))}
          within {boxes((0, 8, "attend"), (8, 30, "sync"))}
          gpu    {boxes((1, 30, "attend*16"))}
"""
BEGINS_ON_CPU = f"""
    rank# step |1{" " * 62}
          host   {boxes((31, 60, "own_update_actor"))}
          within {boxes((31, 33, "sync"), (36, 40, "fwd"), (40, 60, "sync"))}
          gpu    {boxes((37, 52, "fwd"))}
          nccl   {boxes((52, 60, "ar/dp"))}
"""


def test_what_a_role_computes_after_its_wait_needs_the_samples() -> None:
    """However soon CPUs launch it: a round stays as long as the kernels of both roles."""
    replay = Replay(schedule(job(ranks(*[IN_TURN_WITH_IT] * 2, *[BEGINS_ON_CPU] * 2, steps=4))))
    took = replay.step_ns(Change(no_host=True))[2:, 1:] / MS
    assert took == pytest.approx(29 + 16, rel=0.01)


def waits_and_trains(pause: int) -> str:
    """A trainer that pauses for so long, and trains until the weights are sent, 88 ms after its last pause began."""
    return f"""
    rank# step   |1
          host   {boxes((pause, 88, "own_update_actor"))}
          within {boxes((pause, pause + 5, "fwd"), (pause + 5, 80, "sync"), (80, 84, "bc"), (84, 88, "sync"))}
          gpu    {boxes((pause + 1, 80, "fwd"))}
          nccl   {boxes((81, 88, "bc/sync"))}
"""


def asynchronous_job(pause: int) -> Job:
    """Rounds of 88 ms in which two engines generate all the time and stop for the weights only, and two trainers pause
    for so long and then train.
    """
    sync, answers = [(80, 84, "bc"), (84, 88, "sync")], range(0, 80, 10)
    calls = [box for at in answers for box in ((at, at + 3, "a"), (at + 3, at + 10, "sync"))]
    engines = f"""
    rank# step   |1
          host   {boxes((0, 88, "own_generate_sequences"))}
          within {boxes(*calls, *sync)}
          gpu    {boxes(*[(at + 1, at + 10, "a") for at in answers])}
          nccl   {boxes((81, 88, "bc/sync"))}
"""
    trainers = waits_and_trains(pause)
    return job(ranks(engines, engines, trainers, trainers, steps=12))


def saved_by_faster(role: str, pause: int) -> float:
    """What 20 ms less of device work of a role saves of such rounds, ms a round."""
    is_faster = np.arange(4) < 2 if role == "engines" else np.arange(4) >= 2
    less = Change(device_ns=np.where(is_faster, 20 * MS, 0)[:, None] * np.ones((4, 12), np.int64))
    return WhatIf.of(asynchronous_job(pause)).cost_ns(less) / MS


def test_trainers_that_pause_for_long_wait_for_engines_that_generate_all_the_time() -> None:
    assert saved_by_faster("engines", pause=41) == pytest.approx(20, rel=0.1)


def test_nobody_waits_for_engines_that_generate_while_others_hardly_pause() -> None:
    """A short pause is how long it takes to hand the samples over; with faster trainers engines answer less a round."""
    assert saved_by_faster("engines", pause=3) < 1
    assert saved_by_faster("trainers", pause=3) == pytest.approx(20, rel=0.1)
    bindings = WhatIf.of(asynchronous_job(3)).bindings
    assert bindings and {stretch.rank for stretch in stretches(bindings)} <= {2, 3}


@pytest.mark.parametrize(("length", "waits"), [(29, True), (2, False)])
def test_a_short_pause_at_the_end_of_the_last_record_is_no_wait(length: int, waits: bool) -> None:
    """Of the last round it is not known who else pauses: it may be for engines that generate all the time, if long."""
    calls = [box for at in range(0, 64, 8) for box in ((at, at + 3, "attend"), (at + 3, at + 8, "sync"))]
    engine = f"""
    rank# step |1
          host   {boxes((0, 64, "own_generate_sequences"))}
          within {boxes(*calls)}
          gpu    {boxes(*[(at + 1, at + 8, "attend") for at in range(0, 64, 8)])}
"""
    rows = rows_of(engine, engine, PAUSES, PAUSES)
    its, row = rows[2], int(rows[2].pauses[3])
    # The peer's record ends before that pause does.
    rows[3] = replace(rows[3], ended_ns=its.ended_ns[:row], done_ns=its.done_ns[:row])
    tying = hand_overs._Tying(rows, [], np.zeros(4, np.bool_), np.arange(4) < 2)
    end_ns, since_ns = its.ended_ns[its.pauses[[3, 2]]].tolist()
    last = Pause(end_ns - length * MS, end_ns, 2, row)
    found = tying._before_its_end(hand_overs._Role(np.array([2, 3]), np.array([0, 1]), []), last, since_ns)
    assert set(found) == ({0, 1} if waits else set())


#: One rank, whose kernels tell no role, scores for 12 ms what two others have generated, before two more train on it.
OF_EACH = (
    ((2, 20, "attend"), "own_generate_sequences"),
    ((2, 20, "attend"), "own_generate_sequences"),
    ((22, 34, "score"), "own_work"),
    ((39, 53, "fwd"), "own_update_actor"),
    ((39, 53, "fwd"), "own_update_actor"),
)
SCORED = [
    f"""
    rank# step |1{" " * 62}
          host   {boxes((start, end + 2, mark))}
          within {boxes((start, start + 2, kernel[:2]), (start + 2, end + 2, "sync"))}
          gpu    {boxes((start + 1, end + 1, kernel[:2]))}
    """
    for (start, end, kernel), mark in OF_EACH
]


def test_roles_wait_for_a_rank_that_nothing_tells_the_role_of() -> None:
    replay = Replay(schedule(job(ranks(*SCORED, steps=4))))
    shorter = np.zeros(replay.recorded_ns.shape, np.int64)
    shorter[2] = 8 * MS
    saved = (replay.recorded_ns - replay.step_ns(Change(device_ns=shorter))) / MS
    # What a role waits for in the first round came before the record.
    assert saved[:, 1] == pytest.approx(8, rel=0.01)


def stalls(every: int) -> str:
    """An engine whose CPU stalls for 2 ms after each answer, until there are weights."""
    answers = range(0, 80 - every, every)
    calls = [box for at in answers for box in ((at, at + 3, "a"), (at + 3, at + every - 2, "sync"))]
    return f"""
    rank# step   |1
          host   {boxes((0, 88, "own_generate_sequences"))}
          within {boxes(*calls, (80, 84, "bc"), (84, 88, "sync"))}
          gpu    {boxes(*[(at + 1, at + every - 2, "a") for at in answers])}
          nccl   {boxes((81, 88, "bc/sync"))}
"""


def generate_all_the_time(*engines: str) -> bool:
    """Whether two engines do, beside those that train: in four rounds."""
    rows = rows_of(*engines, waits_and_trains(41), waits_and_trains(41))
    groups = [hand_overs._together(rows, np.array(ranks)) for ranks in ((0, 1), (2, 3))]
    return bool(asynchronous(rows, np.array([1, 1, 2, 2]), groups, np.arange(4) < 2, 4).any())


def test_stalls_after_each_answer_are_no_waits_though_some_end_together() -> None:
    assert generate_all_the_time(stalls(10), stalls(11))
    assert not generate_all_the_time(stalls(39), stalls(39))


def test_a_wait_with_which_a_record_ends_holds_nobody() -> None:
    """The last trainer's record ends when the other one sends the weights, since it has nothing to send."""
    rows = rows_of(GENERATES, GENERATES, PAUSES, PAUSES)
    last = rows[3]
    end = int(last.pauses[-1])
    columns = {name: getattr(last, name)[: end + 1] for name in ("issued_ns", "ended_ns", "done_ns", "free_ns")}
    rows[3] = replace(last, **columns, pauses=last.pauses[:-1], cut=last.pauses[-1:])
    (*_, group) = hand_overs._together(rows, np.array([2, 3]))
    assert {one.rank for one in group} == {2, 3}
    waits = [*rows[3].pauses.tolist(), end]
    # What it had done by then is what came before that wait.
    assert rows[3].done_for(int(last.ended_ns[end]) + MS, LONG_AGO, waits, hand_overs._SOON[0]) == end - 1
    assert hand_overs._together(rows[3:], np.array([0]))[-1][0].row != end
