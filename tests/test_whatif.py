"""What the step would take without a fault."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from traces import MS, job, repeat

from tb_ddp_doctor.findings import OWNERS
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.job.whatif import WhatIf


def budget(**ranks_by_owner: list[list[int]]) -> Budget:
    """A budget from some owners, each with shape (R, S)."""
    shape = np.array(next(iter(ranks_by_owner.values()))).shape
    owner_ns = np.zeros((*shape, len(OWNERS)), np.int64)
    for owner, values in ranks_by_owner.items():
        owner_ns[:, :, OWNERS.index(owner)] = values
    return Budget(owner_ns, np.zeros(shape, np.int64), owner_ns.sum(axis=2))


def test_own_time_is_the_step_without_the_waiting() -> None:
    whatif = WhatIf.of(budget(compute=[[10], [14]], wait=[[4], [0]]))
    assert whatif.own_ns.tolist() == [[10], [14]]
    assert whatif.step_ns().tolist() == [14]


def test_a_cost_is_the_fall_of_the_slowest_ranks_time() -> None:
    whatif = WhatIf.of(budget(compute=[[10], [14], [12]]))
    assert whatif.cost_ns(np.array([[0], [4], [0]])) == 2
    assert whatif.cost_ns(np.array([[0], [4], [4]])) == 4


def test_what_only_faster_ranks_lose_costs_nothing() -> None:
    whatif = WhatIf.of(budget(compute=[[10], [14]], input=[[3], [0]], wait=[[1], [0]]))
    assert whatif.cost_ns(np.array([[3], [0]])) == 0


def test_a_cost_is_the_mean_over_steps_each_with_its_slowest_rank() -> None:
    whatif = WhatIf.of(budget(compute=[[10, 20], [20, 10]]))
    assert whatif.slowest.tolist() == [1, 0]
    assert whatif.cost_ns(np.array([[0, 10], [0, 0]])) == 5


def test_transfers_that_waiting_exposed_are_not_a_ranks_own() -> None:
    whatif = WhatIf.of(budget(compute=[[10], [20]], wait=[[4], [0]], transfer=[[9], [3]]))
    assert whatif.own_ns.tolist() == [[13], [23]]


def test_values_at_the_slowest_rank_are_taken_step_by_step() -> None:
    whatif = WhatIf.of(budget(compute=[[10, 20], [20, 10]]))
    assert whatif.at_slowest(np.array([[1, 2], [3, 4]])).tolist() == [3, 2]


def test_one_rank_and_one_step_are_enough() -> None:
    assert WhatIf.of(budget(compute=[[10]])).cost_ns(np.array([[4]])) == 4


SHAPED = st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=1, max_size=4)


@given(SHAPED, st.data())
def test_a_cost_is_between_nothing_and_what_is_removed(compute: list[list[int]], data: st.DataObject) -> None:
    whatif = WhatIf.of(budget(compute=compute))
    removed = np.array([[data.draw(st.integers(0, most)) for most in row] for row in compute])
    cost = whatif.cost_ns(removed)
    assert 0 <= cost <= removed.max(axis=0).mean()


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
    whatif = WhatIf.of(found.budget)
    excess = np.zeros_like(whatif.own_ns)
    excess[1] = 4 * MS
    assert whatif.cost_ns(excess) == 4 * MS
