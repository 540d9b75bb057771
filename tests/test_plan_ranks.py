"""Steps of other numbers of ranks: links within and between nodes, algorithms, efficiency and where it breaks."""

from __future__ import annotations

import pytest
import traces

from tb_ddp_doctor.calibration.model import Calibration, Point, curve
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.planning.answer import answer
from tb_ddp_doctor.planning.costs import collectives
from tb_ddp_doctor.planning.costs.collectives import MessageLink
from tb_ddp_doctor.planning.costs.links import Links, Scope, links
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Backward hides the AllReduce of the first half; what the second takes is exposed.
STEP = """
    rank# step     |2
          host     [fwd]                                            [opt][sync....................................]
          autograd      [bwd_a][grad@4][ar1][bwd_b][grad@4][ar2]
          gpu      [fwd......][bwd_a......][bwd_b..................]                                         [opt...]
          nccl                             [ar1@4............]      [ar2@4...........]
"""
TWO = traces.ranks(STEP, STEP, steps=3)
#: 1 us and 100 GB/s within a node, 10 us and 10 GB/s between nodes.
WITHIN, BETWEEN = MessageLink(1_000.0, 0.01), MessageLink(10_000.0, 0.1)
KNOWN = Links(Scope(WITHIN, "measured", ""), Scope(BETWEEN, "measured", ""), 8)


def planner(**options: object) -> Planner:
    return Planner(PlanRecord(Facts(traces.job(TWO, **options))))


def test_within_a_node_its_links_count_and_beyond_it_those_between_nodes() -> None:
    size = 1e8
    assert KNOWN.time_ns("all_reduce", 8, size) == ("ring", collectives.ring("all_reduce", 8, size, WITHIN))
    assert KNOWN.time_ns("all_gather", 16, size)[1] == collectives.ring("all_gather", 16, size, BETWEEN)


def test_large_messages_of_many_nodes_go_hierarchically() -> None:
    name, takes = KNOWN.time_ns("all_reduce", 64, 1e8)
    assert name == "hierarchical"
    assert takes == collectives.hierarchical(8, 8, 1e8, WITHIN, BETWEEN)
    assert takes < collectives.ring("all_reduce", 64, 1e8, BETWEEN)


def test_the_quickest_algorithm_goes_by_size() -> None:
    flat = Links(None, Scope(BETWEEN, "measured", ""), 1)
    found = flat.algorithms(64)
    assert [name for name, _ in found] == ["tree", "ring"]
    # A tree takes 12 a + 2 m b, a ring 126 a + 126/64 m b: as long where 114 a is m b / 32.
    assert found[1][1] == pytest.approx(114 * BETWEEN.step_ns * 32 / BETWEEN.byte_ns, rel=1.0)
    assert flat.algorithms(1) == ()


def test_links_between_nodes_show_in_groups_that_span_them() -> None:
    apart, together = planner().record, planner(nodes={0: "a", 1: "a"}).record
    assert (links(apart, "all_reduce", "likely").within, links(together, "all_reduce", "likely").between) == (
        None,
        None,
    )
    found = links(apart, "all_reduce", "likely").between
    assert found is not None
    # Both AllReduces of 16 MB take about 18.5 ms.
    assert collectives.ring("all_reduce", 2, 16e6, found.link) == pytest.approx(18.5e6, rel=0.05)


def test_one_node_is_refused_beyond_eight_ranks_and_answered_up_to_them() -> None:
    job = traces.job(TWO, nodes={0: "a", 1: "a"})
    found = answer(job, lambda: Planner(PlanRecord(Facts(job))), Question(), {"ranks": (2, 4, 8, 16, 64)})
    (ranks,), (refusal,) = found.curves, found.refusals
    assert ranks.values == (2, 4, 8)
    assert (refusal.question, refusal.values) == ("ranks", (16, 64))
    assert "tb_ddp_doctor.check" in refusal.reason
    assert ranks.breaks is not None
    assert ranks.breaks.searched_to == 8


def test_a_calibration_of_several_nodes_tells_their_links() -> None:
    points = [Point(bytes=size, count=3, time_us=50 + size / 1e4, low_us=1, high_us=1) for size in (10**6, 10**8)]
    world = curve("all_reduce", "world", range(16), 16, points)
    known = Calibration(source="check", world_size=16, nodes=("a",) * 8 + ("b",) * 8, curves=(world,))
    plan = planner(nodes={0: "a", 1: "a"}, calibration=known)
    assert plan.predict(Question(ranks=64)).step_ms > 0
    asked = Planner(planner(nodes={0: "a", 1: "a"}).record, calibrations={"of.json": known})
    assert asked.predict(Question(ranks=64, links_of="of.json")).step_ms > 0
    with pytest.raises(CannotPlanError, match="one node"):
        asked.predict(Question(ranks=64))


def test_efficiency_is_that_of_one_rank() -> None:
    plan = planner()
    one, many = (plan.predict(Question(ranks=ranks)) for ranks in (1, 64))
    assert one.scaling is not None and many.scaling is not None
    assert one.scaling.efficiency == pytest.approx(1)
    assert many.scaling.efficiency == pytest.approx(one.step_ms / many.step_ms)
    strong = plan.predict(Question(ranks=64, strong=True))
    alone = plan.predict(Question(ranks=1, strong=True))
    assert strong.scaling is not None
    assert strong.scaling.efficiency == pytest.approx(alone.step_ms / (64 * strong.step_ms))


def test_scaling_breaks_where_the_efficiency_falls_below_a_share() -> None:
    plan = planner()
    found = plan.breaks(Question())
    assert found.inefficient_from is not None
    for ranks, is_below in ((found.inefficient_from // 2, False), (found.inefficient_from, True)):
        one = plan.predict(Question(ranks=ranks))
        assert one.scaling is not None
        assert (one.scaling.efficiency < found.efficiency) is is_below
    # Two AllReduces of about 20 ms hide behind backward's 39 ms among two ranks; a ring of more sends twice the bytes.
    assert found.exposed_from == 4
    assert plan.breaks(Question(strong=True)).inefficient_from == 4
