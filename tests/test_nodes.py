"""Nodes against each other."""

from __future__ import annotations

import pytest
from traces import MS, job, ranks

from tb_ddp_doctor.facts.links import links
from tb_ddp_doctor.facts.traffic import communication
from tb_ddp_doctor.view.nodes import NodeTraffic, nodes

EARLY = """
    rank# step |1
          gpu  [work]
          nccl       [ar............]
"""
LATE = """
    rank# step |1
          gpu  [work...........]
          nccl                  [ar.]
"""
TWO_BY_TWO = {0: "a", 1: "a", 2: "b", 3: "b"}


def of(text: str, named: dict[int, str]) -> tuple[NodeTraffic, ...]:
    made = job(text, nodes=named)
    return nodes(made, links(made, communication(made)))


def test_what_others_wait_for_a_node_is_counted() -> None:
    a, b = of(ranks(EARLY, EARLY, EARLY, LATE), TWO_BY_TWO)
    assert (a.name, a.ranks.tolist(), a.calls, a.last) == ("a", [0, 1], 3, 0)
    assert (b.name, b.ranks.tolist(), b.calls, b.last) == ("b", [2, 3], 3, 3)
    # Both ranks of a wait for b; of b only one does, and not for another node.
    assert (a.waited_for_ns, b.waited_for_ns) == (0, pytest.approx(11 * MS))
    assert (a.waits_ns, b.waits_ns) == (pytest.approx(11 * MS), pytest.approx(5.5 * MS))
    assert a.slowdown is None


def test_a_node_stands_out_only_if_all_its_ranks_are_late() -> None:
    later = """
        rank# step |1
              gpu  [work........]
              nccl               [ar....]
    """
    for drawn, stands_out in (((EARLY, LATE), False), ((later, LATE), True), ((LATE, LATE), True)):
        a, b = of(ranks(EARLY, EARLY, *drawn), TWO_BY_TWO)
        assert (a.stands_out, b.stands_out) == (False, stands_out)


def test_nodes_that_take_turns_do_not_stand_out() -> None:
    text = """
        rank{0} step |1                         |2
              gpu  [work..........]           [work]
              nccl                 [ar.]            [ar............]
        rank{1} step |1                         |2
              gpu  [work]                     [work..........]
              nccl       [ar...........]                      [ar.]
    """
    drawn = "".join(text.format(rank, rank + 1) for rank in (0, 2))
    found = of(drawn, {0: "a", 2: "a", 1: "b", 3: "b"})
    assert all(node.waited_for_ns > MS for node in found)
    assert not any(node.stands_out for node in found)


def test_a_node_whose_group_is_slow_stands_out() -> None:
    def group(name: str, length: int) -> str:
        return f"""
            rank# step |1
                  gpu  [fwd]                              [bwd]
                  nccl      {f"[ar/{name}@8".ljust(length - 1, ".")}]
        """

    fast, slow = group("g0", 10), group("g1", 25)
    found = of(ranks(fast, fast, slow, slow), TWO_BY_TWO)
    assert [node.slowdown for node in found] == [1, 2.5]
    assert [node.stands_out for node in found] == [False, True]


def test_one_node_is_compared_with_none() -> None:
    assert not of(ranks(EARLY, LATE), {0: "a", 1: "a"})
    assert not of(ranks(EARLY, LATE), {0: "", 1: "a"})
