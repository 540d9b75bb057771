"""What the step would take without a fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import MS, in_row, job, ranks, repeat

from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay import native_library
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf

LOADED = """
    rank# step |1
          host [load][fwd][bwd][ar][sync.....]
          gpu         [fwd...][bwd...]
          nccl                        [ar....]
"""


def budget(**ranks_by_owner: list[list[int]]) -> Budget:
    """A budget from some owners, each with shape (R, S)."""
    shape = np.array(next(iter(ranks_by_owner.values()))).shape
    owner_ns = np.zeros((*shape, len(OWNERS)), np.int64)
    for owner, values in ranks_by_owner.items():
        owner_ns[:, :, OWNERS.index(owner)] = values
    return Budget(owner_ns, np.zeros(shape, np.int64), owner_ns.sum(axis=2))


def on_device(values: list[list[int]]) -> Change:
    return Change(device_ns=np.array(values))


def test_own_time_is_the_step_without_the_waiting() -> None:
    whatif = WhatIf(budget(compute=[[10], [14]], wait=[[4], [0]]))
    assert whatif.busy_ns.tolist() == [[10], [14]]


def test_a_cost_is_the_fall_of_the_slowest_ranks_time() -> None:
    whatif = WhatIf(budget(compute=[[10], [14], [12]]))
    assert whatif.cost_ns(on_device([[0], [4], [0]])) == 2
    assert whatif.cost_ns(on_device([[0], [4], [4]])) == 4


def test_what_only_faster_ranks_lose_costs_nothing() -> None:
    whatif = WhatIf(budget(compute=[[10], [14]], input=[[3], [0]], wait=[[1], [0]]))
    assert whatif.cost_ns(whatif.without(CpuTime.INPUT)) == 0


def test_a_cost_is_the_mean_over_steps_each_with_its_slowest_rank() -> None:
    whatif = WhatIf(budget(compute=[[10, 20], [20, 10]]))
    assert whatif.slowest.tolist() == [1, 0]
    assert whatif.cost_ns(on_device([[0, 10], [0, 0]])) == 5


def test_transfers_that_waiting_exposed_are_not_a_ranks_own() -> None:
    whatif = WhatIf(budget(compute=[[10], [20]], wait=[[4], [0]], transfer=[[9], [3]]))
    assert whatif.busy_ns.tolist() == [[13], [23]]


def test_values_at_the_slowest_rank_are_taken_step_by_step() -> None:
    whatif = WhatIf(budget(compute=[[10, 20], [20, 10]]))
    assert whatif.at_slowest(np.array([[1, 2], [3, 4]])).tolist() == [3, 2]


def test_one_rank_and_one_step_are_enough() -> None:
    assert WhatIf(budget(compute=[[10]])).cost_ns(on_device([[4]])) == 4


def test_part_of_an_owner_can_go() -> None:
    whatif = WhatIf(budget(compute=[[10]], input=[[8]]))
    assert whatif.cost_ns(Change({CpuTime.INPUT: np.array([[0.25]])})) == 2


def test_what_two_fixes_take_from_the_same_time_is_taken_once() -> None:
    whatif = WhatIf(budget(compute=[[10]], input=[[8]]))
    quarter, half = (Change({CpuTime.INPUT: np.array([[share]])}) for share in (0.25, 0.5))
    assert whatif.cost_ns(quarter | half) == 4
    assert whatif.cost_ns(on_device([[1]]) | on_device([[2]])) == 3


def test_several_costs_share_what_fixing_all_of_them_gives() -> None:
    whatif = WhatIf(budget(compute=[[10], [16], [14]]))
    one, other = on_device([[0], [6], [0]]), on_device([[0], [0], [4]])
    # The slower one alone brings 2, the other one nothing; but it is what is left once the slower one is mended.
    assert whatif.costs_ns([one, other]) == pytest.approx([3.6, 2.4])
    assert whatif.costs_ns([one]) == [2]


def test_several_costs_that_give_nothing_are_nothing() -> None:
    assert WhatIf(budget(compute=[[10]])).costs_ns([Change(), Change()]) == [0, 0]


def test_the_median_rank_stays_as_it_is() -> None:
    whatif = WhatIf(budget(compute=[[10], [14], [12]]))
    assert whatif.cost_ns(whatif.at_the_median(np.array([[False], [True], [False]]))) == 2
    assert whatif.cost_ns(whatif.at_the_median(np.array([[True], [False], [True]]))) == 0


SHAPED = st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=1, max_size=4)


@given(SHAPED, st.data())
def test_a_cost_is_between_nothing_and_what_is_removed(compute: list[list[int]], data: st.DataObject) -> None:
    whatif = WhatIf(budget(compute=compute))
    change = [[data.draw(st.integers(0, most)) for most in row] for row in compute]
    cost = whatif.cost_ns(on_device(change))
    assert 0 <= cost <= np.array(change).max(axis=0).mean()


def test_the_cost_of_a_drawn_straggler_is_its_excess() -> None:
    found = job(
        repeat(
            """
            rank0 step |1
                  gpu  [work....]
                  nccl           [ar......]
            rank1 step |1
                  gpu  [work........]
                  nccl               [ar..]
            """,
            3,
        )
    )
    whatif = WhatIf.of(found)
    slow = np.zeros(whatif.shape, np.bool_)
    slow[1] = True
    assert whatif.cost_ns(whatif.at_the_median(slow)) == 4 * MS


@pytest.mark.skipif(not native_library.is_available(), reason="the native library was not built")
def test_what_is_foreseen_is_played_once_and_saves_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = job(ranks(LOADED, LOADED, steps=1))
    fixes = [Change({CpuTime.INPUT: np.full((2, 1), share)}) for share in (0.3, 0.6, 1.0, 0.6)]
    expected = [WhatIf.of(drawn).cost_ns(fix) for fix in fixes]
    monkeypatch.setattr("tb_ddp_doctor.replay.replay._LARGE", 0)
    whatif = WhatIf.of(drawn)
    assert whatif.replay
    plays, step_ns = [], whatif.replay.step_ns
    monkeypatch.setattr(whatif.replay, "step_ns", lambda change, **how: plays.append(change) or step_ns(change, **how))
    whatif.foresee(fixes)
    assert [whatif.cost_ns(fix) for fix in fixes] == expected
    assert len(plays) == 4  # three different ones, and the recorded steps
    assert expected[2] > expected[1] > expected[0] > 0


def test_without_a_replay_the_slowest_rank_no_longer_waits_for_missing_ranks() -> None:
    whatif = WhatIf(budget(compute=[[10], [14]], wait=[[8], [4]]), absent_ns=np.array([[4], [4]]))
    assert whatif.cost_ns(Change(absent=True)) == 4


def test_on_top_of_a_fix_another_saves_what_it_removes_of_the_rest() -> None:
    later = WhatIf(budget(compute=[[100], [100]])).after(on_device([[50], [50]]))
    assert later.busy_ns.tolist() == [[50], [50]]
    assert later.cost_ns(on_device([[30], [30]])) == 30
    assert later.after(on_device([[30], [20]])).busy_ns.tolist() == [[20], [30]]


@given(SHAPED, st.data())
def test_without_a_replay_a_fix_on_top_of_another_saves_what_both_save_more(
    compute: list[list[int]], data: st.DataObject
) -> None:
    whatif = WhatIf(budget(compute=compute))

    def drawn() -> Change:
        chosen = [[data.draw(st.booleans()) for _ in row] for row in compute]
        some = data.draw(st.sampled_from([None, np.array(chosen)]))
        return on_device([[data.draw(st.integers(0, 1000)) for _ in row] for row in compute]) | Change(
            device_at_median=some
        )

    one, other = drawn(), drawn()
    more = whatif.saving(one | other).by_step_ns - whatif.saving(one).by_step_ns
    assert whatif.after(one).saving(other).by_step_ns.tolist() == pytest.approx(more.tolist())
    assert (whatif.after(one).busy_ns == whatif.alone_ns(one)).all()


def test_a_rank_that_is_mended_has_no_excess_over_the_median_left() -> None:
    whatif = WhatIf(budget(compute=[[10], [14], [12]]))
    slow = np.array([[False], [True], [False]])
    assert whatif.alone_ns(on_device([[0], [4], [0]]) | whatif.at_the_median(slow)).tolist() == [[10], [10], [12]]


def test_what_a_rank_always_loads_longer_is_not_shared() -> None:
    whatif = WhatIf(budget(compute=[[20], [20], [20]], input=[[10], [16], [11]]))
    assert whatif.shared(CpuTime.INPUT).of_host[CpuTime.INPUT].ravel().tolist() == [1, 11 / 16, 1]


def test_what_all_ranks_of_a_role_need_is_shared_by_them_and_no_fault_of_each() -> None:
    of_engines_and_trainers = budget(compute=[[20]] * 5, input=[[16], [17], [1], [1], [1]])
    whatif = WhatIf(of_engines_and_trainers, roles=[np.arange(2), np.arange(2, 5)])
    assert whatif.shared(CpuTime.INPUT).of_host[CpuTime.INPUT].ravel().tolist() == [1] * 5
    # Among all ranks, and among those of one role alone.
    assert WhatIf(of_engines_and_trainers).shared(CpuTime.INPUT).of_host[CpuTime.INPUT].ravel().tolist() != [1] * 5
    trainers = np.arange(5) >= 2
    assert whatif.shared(CpuTime.INPUT, trainers).of_host[CpuTime.INPUT].ravel().tolist() == [1] * 5


def test_groups_of_a_job_that_only_trains_are_no_roles() -> None:
    """Ranks that meet in groups of their own, as those of several tensor-parallel groups without data parallelism."""
    apart = [LOADED.replace("[ar....]", f"[ar/{group}..]") for group in "aabb"]
    assert WhatIf.of(job(ranks(*apart)))._roles == []


def stalling(fast_ms: int, slow_ms: int) -> str:
    """A step in which the CPU of rank 1 is outside any op for longer than that of the others."""

    def rank(stall_ms: int) -> str:
        wait = "." * (slow_ms - stall_ms)
        return f"""
            rank# step |1
                  host [fwd]{"":{stall_ms}}[bwd]
                  gpu  [fwd]{"":{stall_ms}}[bwd]
                  nccl      {"":{stall_ms}}     [ar{wait}..]
        """

    return ranks(rank(fast_ms), rank(slow_ms), rank(fast_ms), steps=1)


def test_what_all_ranks_share_is_taken_once_from_a_rank_that_stalls_longer() -> None:
    whatif = WhatIf.of(job(in_row(*[stalling(2, 8)] * 2, stalling(22, 28), *[stalling(2, 8)] * 2)))
    in_one_step = whatif.shared_in(np.arange(5) == 2)
    taken = (in_one_step | whatif.shared(CpuTime.STALL)).of_host[CpuTime.STALL] * whatif.host_ns(CpuTime.STALL)
    assert taken[1, 2] / MS == pytest.approx(22, abs=0.1)


@pytest.mark.parametrize("size", [10, 100_000])
def test_changes_with_other_values_or_places_have_other_keys(size: int) -> None:
    amount = np.arange(size)
    swapped, further, last = amount.copy(), amount.copy(), amount.copy()
    swapped[[3, 4]] = amount[[4, 3]]
    further[[3, size // 2]] = amount[[size // 2, 3]]
    last[-1] = 0
    keys = [Change(row_ns=one).key() for one in (amount, swapped, further, last, amount.astype(np.float64))]
    assert len(set(keys)) == 5
    assert Change(row_ns=amount.copy()).key() == keys[0]
    assert Change(row_ns=np.broadcast_to(np.int64(7), size)).key() != Change(row_ns=np.full(size, 8)).key()
