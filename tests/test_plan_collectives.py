"""Times of collectives against the closed forms of the sources that `planning.collectives` cites."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.planning.costs.collectives import (
    MessageLink,
    all_reduce,
    expected_largest,
    hierarchical,
    link_of,
    ring,
    tree,
)
from tb_ddp_doctor.planning.costs.links import _of_all_kinds
from tb_ddp_doctor.planning.costs.messages import messages

#: 2 us, and 10 GB/s.
LINK = MessageLink(2_000.0, 0.1)
RANKS, SIZE = st.integers(2, 4096), st.floats(1, 1e10)


def test_a_ring_of_four_takes_six_steps_and_sends_one_and_a_half_times_the_message() -> None:
    assert ring("all_reduce", 4, 1e6, LINK) == pytest.approx(6 * 2_000 + 1.5 * 1e6 * 0.1)


def test_reduce_scatter_and_all_gather_are_half_of_a_ring_each() -> None:
    halves = ring("reduce_scatter", 8, 1e6, LINK) + ring("all_gather", 8, 1e6, LINK)
    assert halves == pytest.approx(ring("all_reduce", 8, 1e6, LINK))


def test_trees_of_four_take_two_steps_up_and_two_down() -> None:
    assert tree(4, 1e6, LINK) == pytest.approx(4 * 2_000 + 2 * 1e6 * 0.1)


def test_one_rank_sends_nothing() -> None:
    assert ring("all_reduce", 1, 1e6, LINK) == tree(1, 1e6, LINK) == 0


def test_among_many_ranks_trees_are_quicker_for_small_messages_and_rings_for_large_ones() -> None:
    assert all_reduce(512, 1e4, LINK)[0] == "tree"
    assert all_reduce(512, 1e10, LINK)[0] == "ring"


def test_between_nodes_only_a_part_of_the_message_is_sent() -> None:
    within, between = MessageLink(500.0, 0.005), LINK
    inside = 2 * (7 * 500 + 7 / 8 * 1e8 * 0.005)
    outside = 2 * (3 * 2_000 + 3 / 4 * 1e8 / 8 * 0.1)
    assert hierarchical(8, 4, 1e8, within, between) == pytest.approx(inside + outside)


def test_kinds_without_a_formula_are_refused() -> None:
    with pytest.raises(ValueError, match="no formula for broadcast"):
        ring("broadcast", 4, 1.0, LINK)


@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), RANKS, SIZE)
def test_the_link_of_a_ring_gives_its_alpha_and_beta_again(kind: str, ranks: int, size: float) -> None:
    link = link_of(kind, ranks, 250_000.0, 0.5)
    assert ring(kind, ranks, size, link) == pytest.approx(250_000.0 + 0.5 * size)


@given(RANKS, SIZE)
def test_a_ring_never_sends_more_than_twice_the_message(ranks: int, size: float) -> None:
    assert ring("all_reduce", ranks, size, MessageLink(0.0, 1.0)) < 2 * size


def test_the_largest_of_normal_values_grows_as_the_tables_have_it() -> None:
    # Expected largest of n standard normal values: 0.564, 1.029, 1.539, 2.508 (Harter 1961); Blom's are within 2 %.
    for count, expected in ((2, 0.564), (4, 1.029), (10, 1.539), (100, 2.508)):
        assert math.isclose(expected_largest(count), expected, rel_tol=0.05)
    assert expected_largest(1) == 0


def test_small_collectives_tell_the_latency_of_a_link_that_large_ones_hide() -> None:
    """AllReduces of 8 bytes among 4 ranks, and AllGathers of 2 MB: neither alone tells latency from bandwidth."""
    link = MessageLink(10_000.0, 0.2)
    loss = _traffic("all_reduce", 4, 8, tree(4, 8, link))
    gathers = _traffic("all_gather", 4, 2_000_000, ring("all_gather", 4, 2e6, link))
    found = _of_all_kinds([loss, gathers], "likely")
    assert found is not None and found.basis == "fitted"
    assert found.link.step_ns == pytest.approx(10_000, rel=0.01)
    assert found.link.byte_ns == pytest.approx(0.2, rel=0.01)
    assert _of_all_kinds([gathers], "likely") is None
    # No one link explains these: the small collective takes as long as the large one.
    assert _of_all_kinds([_traffic("all_reduce", 4, 8, 4e6), gathers], "likely") is None


def _traffic(kind: str, ranks: int, size: int, time_ns: float) -> Traffic:
    some = np.full(4, round(time_ns), np.int64)
    nothing = np.zeros(4, np.int64)
    return Traffic(
        kind,
        "g",
        "",
        np.arange(ranks),
        ranks,
        (),
        4,
        nothing,
        np.arange(4),
        nothing,
        np.full(4, size),
        some,
        some,
        nothing,
        None,
    )


@pytest.mark.parametrize(("within_node", "alpha_ns"), [(True, 6 * 5_000), (False, 6 * 40_000)])
def test_ranks_of_one_node_use_no_tcp(within_node: bool, alpha_ns: float) -> None:
    size, time = np.full(3, 2_000_000), np.full(3, 1_000_000)
    found = messages("all_reduce", 4, size, time, None, within_node=within_node)
    assert (found.basis, found.alpha_ns) == ("assumed", alpha_ns)
