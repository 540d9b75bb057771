"""A process group that moves the same data slower than its peers."""

from __future__ import annotations

import numpy as np
import pytest
from traces import MS, finding, in_row, job, lies_in_its_step, outcome, ranks

from tb_ddp_doctor.calibration.model import Calibration, Point, curve
from tb_ddp_doctor.facts.links import Link, excess_ns, links
from tb_ddp_doctor.facts.traffic import communication
from tb_ddp_doctor.view.details import _slowest

RULE = "slow-link"


def drawn(*lengths: int, steps: int = 3, beside: bool = False) -> str:
    """Groups of two ranks, whose AllReduce of 32 MB takes so many ms; then one of all ranks, which wait for the last.

    `beside` is compute beside the first one.
    """
    texts = []
    for group, length in enumerate(lengths):
        texts += 2 * [
            f"""
            rank# step |1
                  gpu  {"[fwd" + "." * length + "]" if beside else "[fwd]" + " " * length}[bwd]
                  nccl      {f"[ar/g{group}@8".ljust(length - 1, ".")}]     [ar{"." * (max(lengths) - length)}]
            """
        ]
    return ranks(*texts, steps=steps)


def of(text: str, **options: object) -> tuple[Link, ...]:
    made = job(text, **options)
    return links(made, communication(made))


def test_a_group_is_compared_with_its_peers() -> None:
    slowdown = {link.traffic.group: link.slowdown for link in of(drawn(10, 10, 25))}
    assert slowdown == {"g0": 1, "g1": 1, "g2": 2.5}


def test_of_two_groups_the_faster_one_is_usual() -> None:
    assert sorted(link.slowdown for link in of(drawn(10, 25))) == [1, 2.5]


def test_what_it_would_move_as_its_peers_do() -> None:
    slow = max(of(drawn(10, 10, 25)), key=lambda link: link.slowdown)
    assert slow.traffic.bus_rate == pytest.approx(32e6 / 25e-3)
    assert slow.peer_bus_rate == pytest.approx(32e6 / 10e-3)
    assert slow.peers == 2


def test_waiting_is_no_slow_link() -> None:
    text = drawn(10, 10, 10).replace("  [ar/g0@8.]", "[ar/g0@8...]", 1)
    assert "[ar/g0@8...]" in text
    assert {link.slowdown for link in of(text)} == {1}


def test_groups_on_more_nodes_are_no_peers() -> None:
    text = drawn(10, 25)
    assert of(text, nodes={0: "a", 1: "a", 2: "b", 3: "b"})
    assert not of(text, nodes={0: "a", 1: "a", 2: "b", 3: "c"})


def test_groups_of_ranks_further_apart_are_no_peers() -> None:
    """Tensor-parallel groups are neighbours, data-parallel ones are not."""
    near, far = drawn(10), drawn(10).replace("g0", "g1").replace("rank1", "rank3").replace("rank0", "rank2")
    assert of(near + "\n" + far)
    assert not of(near + "\n" + far.replace("rank3", "rank4"), world_size=5)


def test_messages_of_other_sizes_are_not_compared() -> None:
    assert not of(drawn(10, 10).replace("g1@8", "g1@9"))


def test_what_slow_links_cost_is_charged_to_their_ranks() -> None:
    made = job(drawn(10, 10, 25))
    slow = [link for link in links(made, communication(made)) if link.is_slow(1.5, 0.75)]
    excess = excess_ns(slow, 6, 3)
    assert (excess[4:] == 15 * MS).all()
    assert not excess[:4].any()


def test_a_slow_link_is_found_with_its_ranks_and_its_cost() -> None:
    found = finding(RULE, drawn(10, 10, 25))
    assert found.ranks == (4, 5)
    assert found.cost_ms == pytest.approx(15)
    assert "The link between ranks 4 and 5 is slow" in found.title
    assert "2.5 times as long" in found.title
    assert "has a busbw of 1.3 GB/s, comparable groups 3.2 GB/s" in found.why
    assert "where ranks 4,5 run" in found.fix


def test_a_slow_transfer_that_delays_the_next_one_costs_what_compute_hides_of_it_too() -> None:
    """Of 25 ms, 10 are hidden; the second transfer of the group begins when the first one is over."""

    def text(length: int) -> str:
        sent = f"[ar/g{{}}@8{'.' * (length - 9)}]"
        return f"""
            rank# step |1
                  host [fwd][bwd]
                  gpu  [fwd][bwd.....]
                  nccl      {sent}{sent}[ar{"." * (2 * (25 - length))}]
        """

    pair = [text(length).format(group, group) for group, length in enumerate((10, 10, 25)) for _ in range(2)]
    drawn_job = ranks(*pair, steps=3)
    assert finding(RULE, drawn_job).cost_ms == pytest.approx(2 * 15, rel=0.02)


def test_a_node_that_all_slow_ranks_share_is_named() -> None:
    nodes = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    assert "ranks 4 and 5, all of c, is slow" in finding(RULE, drawn(10, 10, 25), nodes=nodes).title


def test_evidence_is_the_exposed_transfer() -> None:
    text = drawn(10, 10, 25)
    (window,) = finding(RULE, text).evidence
    assert window.rank in (4, 5)
    assert window.end_ns - window.start_ns == 25 * MS
    assert lies_in_its_step(window, text)


def test_a_link_that_costs_nothing_informs() -> None:
    found = finding(RULE, drawn(10, 10, 25, beside=True))
    assert (found.severity, found.cost_ms) == ("info", 0)


def test_groups_as_fast_as_each_other_are_clear() -> None:
    assert outcome(RULE, drawn(10, 11, 10)).status == "clear"


def test_the_thresholds_decide() -> None:
    text = drawn(10, 10, 20)
    assert outcome(RULE, text, settings={"min_slowdown": 2.01}).status == "clear"
    assert finding(RULE, text, settings={"min_slowdown": 2.0})


def test_a_link_that_is_slow_now_and_then_is_clear() -> None:
    text = in_row(drawn(10, 10, 25, steps=2), drawn(10, 10, 10, steps=1))
    assert outcome(RULE, text, settings={"min_steps": 0.75}).status == "clear"
    assert finding(RULE, text, settings={"min_steps": 0.66})


def test_where_all_ranks_are_in_one_group_it_is_not_applicable() -> None:
    text = """
        rank# step |1
              gpu  [fwd]
              nccl      [ar......]
    """
    result = outcome(RULE, ranks(text, text))
    assert result.status == "not-applicable"
    assert "tb_ddp_doctor.check" in result.reason


#: Two pipelines of two stages, each on a node of its own, whose activations take so many ms.
TWO_NODES = {0: "a", 1: "a", 2: "b", 3: "b"}


def pipelines(*lengths: int, sizes: tuple[int, ...] = (8, 8)) -> str:
    longest = max(lengths)
    texts = []
    for length, (stage, size) in zip(lengths, enumerate(sizes), strict=True):
        rest = "." * (longest - length)
        for peer, way in ((2 * stage + 1, "s"), (2 * stage, "r")):
            texts.append(
                f"""
                rank# step |1
                      gpu  [fwd]
                      nccl      {f"[{way}{peer}@{size}".ljust(length - 1, ".")}][ar/all{rest}]
                """
            )
    return ranks(*texts, steps=3)


def test_a_pair_of_ranks_is_compared_with_the_same_places_of_other_nodes() -> None:
    found = finding(RULE, pipelines(10, 25), nodes=TWO_NODES)
    assert found.ranks == (2, 3)
    assert found.cost_ms == pytest.approx(15)
    assert "is slow: a send of the same size takes 2.5 times as long as between other pairs of ranks." in found.title
    assert "1 of 2 comparable pairs of ranks are slow." in found.why


def test_the_communication_of_sends_and_receives_has_its_slowest_pair() -> None:
    made = job(pipelines(10, 25), nodes=TWO_NODES)
    measured = communication(made)
    slowest = _slowest(made, measured, links(made, measured))
    assert {measured[index].kind: link.slowdown for index, link in slowest.items()} == {"send": 2.5}


def test_links_between_nodes_are_compared_whatever_their_places() -> None:
    apart = {0: "a", 1: "b", 2: "c", 3: "a"}
    assert finding(RULE, pipelines(10, 25), nodes=apart).ranks == (2, 3)


def test_two_gpus_may_be_further_apart_than_two_others_of_a_node() -> None:
    assert outcome(RULE, pipelines(10, 25), nodes=dict.fromkeys(range(4), "a")).status == "not-applicable"
    # Nor is a link within a node compared with one between nodes.
    assert outcome(RULE, pipelines(10, 25), nodes=TWO_NODES | {3: "c"}).status == "not-applicable"


def test_sends_of_other_sizes_are_not_compared() -> None:
    assert outcome(RULE, pipelines(10, 25, sizes=(8, 9)), nodes=TWO_NODES).status == "not-applicable"


def test_who_waits_for_a_late_sender_has_no_slow_link() -> None:
    waits = pipelines(10, 10).replace("     [r2@8....]", "[r2@8.........]", 1)
    assert "[r2@8.........]" in waits
    assert outcome(RULE, waits, nodes=TWO_NODES).status == "clear"


#: A ring in which 0 sends to 1 for 20 ms, others for 8 ms. Ranks 2 and 3 are early, and wait for these.
SLOW_RING = """
    rank0 step |1
          host [fwd]
          gpu  [fwd...........]
          nccl                 [s1r3@8............][ar/all]
    rank1 step |1
          host [fwd]
          gpu  [fwd...........]
          nccl                 [s2r0@8............][ar/all]
    rank2 step |1
          host [fwd]
          gpu  [fwd]
          nccl      [s3r1@8...........][ar/all............]
    rank3 step |1
          host [fwd]
          gpu  [fwd]
          nccl      [s0r2@8...........][ar/all............]
    """


def test_a_slow_link_of_a_ring_costs_what_its_kernels_take_longer() -> None:
    """Each kernel sends and receives: those of 0 and 1 end when the slow send does, the others after 8 ms."""
    found = finding(RULE, in_row(SLOW_RING, SLOW_RING, SLOW_RING), nodes=TWO_NODES)
    assert found.ranks == (0, 1)
    assert "takes 2.5 times as long" in found.title
    assert found.cost_ms == pytest.approx(12)


def test_a_rank_that_all_slow_links_share_is_named() -> None:
    """Rank 1's card: it receives and sends for 20 ms, between any two nodes."""
    slow = SLOW_RING.replace("[s3r1@8...........][ar/all............]", "[s3r1@8.......................][ar/all]")
    nodes = {rank: f"n{rank}" for rank in range(4)}
    found = finding(RULE, in_row(slow, slow, slow), nodes=nodes)
    assert found.ranks == (0, 1, 2)
    assert "All of these are links of rank 1." in found.why


def test_without_sizes_it_is_not_applicable() -> None:
    assert outcome(RULE, drawn(10, 25), metadata="nowhere").status == "not-applicable"


def test_no_group_means_no_excess() -> None:
    assert not np.any(excess_ns([], 2, 3))


#: 32 MB among all ranks in 22 ms.
ALL = """
    rank# step |1
          gpu  [fwd][bwd]
          nccl          [ar/world@8..........]
"""


def calibrated(time_ms: float, size: int = 4) -> Calibration:
    us = time_ms * 1e3
    points = [Point(bytes=scale * 1000, count=9, time_us=us, low_us=us, high_us=us) for scale in (1, 100_000)]
    return Calibration(
        source="check", world_size=size, curves=(curve("all_reduce", "world", range(size), size, points),)
    )


def test_with_a_calibration_links_that_are_all_slow_are_found() -> None:
    found = finding(RULE, ranks(*[ALL] * 4), calibration=calibrated(5))
    assert (found.ranks, found.cause) == ((0, 1, 2, 3), "below_calibration")
    assert found.cost_ms == pytest.approx(22 - 5, rel=0.1)
    assert "4.4 times as long as it did when nothing else ran" in found.title
    assert "the calibration gave 9.6 GB/s at these sizes" in found.why


def test_links_as_fast_as_their_calibration_are_no_fault() -> None:
    assert outcome(RULE, ranks(*[ALL] * 4), calibration=calibrated(18)).status == "not-applicable"


def test_without_a_calibration_of_as_many_ranks_nothing_is_known_of_one_group() -> None:
    ended = outcome(RULE, ranks(*[ALL] * 4), calibration=calibrated(1, size=8))
    assert ended.status == "not-applicable" and "tb_ddp_doctor.check" in ended.reason
