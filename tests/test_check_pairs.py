"""Pairs, turns, cores, and outliers among ranks and pairs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.calibration.model import Measure, Pair
from tb_ddp_doctor.check.cores import compact, expanded, quota
from tb_ddp_doctor.check.outliers import is_clear, of_measure, of_pairs, worse
from tb_ddp_doctor.check.pairs import rounds, schedule
from tb_ddp_doctor.check.turns import at_once, neighbours, turns


@given(st.integers(2, 300))
def test_after_log2_rounds_every_member_was_in_a_pair(members: int) -> None:
    found = rounds(members)
    assert len(found) == math.ceil(math.log2(members))
    for pairs in found:
        inside = [member for pair in pairs for member in pair]
        assert len(inside) == len(set(inside))
    assert {member for pairs in found for pair in pairs for member in pair} == set(range(members))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_pairs_are_within_nodes_first_then_between_them(places: list[int]) -> None:
    nodes = [f"node{place}" for place in places]
    found = schedule(nodes)
    inside = [{nodes[a] == nodes[b] for a, b in pairs} for pairs in found]
    assert all(len(kinds) == 1 for kinds in inside)
    assert inside == sorted(inside, key=lambda kinds: kinds == {False})
    everywhere = [pair for pairs in found for pair in pairs]
    assert len(everywhere) == len(set(everywhere)) and all(a < b for a, b in everywhere)
    alone = {node for node in nodes if nodes.count(node) == 1}
    paired = {rank for pair in everywhere for rank in pair}
    assert {rank for rank, node in enumerate(nodes) if node not in alone} <= paired


def test_64_nodes_of_8_ranks_take_9_rounds() -> None:
    found = schedule([f"node{rank // 8}" for rank in range(512)])
    assert [len(pairs) for pairs in found] == [256] * 9
    assert found[3][0] == (0, 8)


def repeats(*rates: float, noise: float = 0.03, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.array(rates)[:, None] * (1 + noise * random.standard_normal((len(rates), 12)))


def test_a_slow_rank_is_named_with_how_much() -> None:
    share = worse(repeats(10, 10, 8.2, 10), more_is_better=True, least=0.1)
    assert np.flatnonzero(share).tolist() == [2]
    assert share[2] == pytest.approx(0.18, abs=0.03)


def test_for_times_more_is_worse() -> None:
    assert np.flatnonzero(worse(repeats(5, 9, 5, 5), more_is_better=False, least=0.1)).tolist() == [1]
    assert not worse(repeats(5, 1, 5, 5), more_is_better=False, least=0.1).any()


def test_a_slow_node_is_named_rank_by_rank() -> None:
    share = worse(repeats(*[10] * 24, *[7] * 8), more_is_better=True, least=0.1)
    assert np.flatnonzero(share).tolist() == list(range(24, 32))


@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_differ_by_chance_are_not_named(seed: int) -> None:
    random = np.random.default_rng(seed)
    assert not worse(
        repeats(*10 * (1 + 0.04 * random.standard_normal(64)), seed=seed), more_is_better=True, least=0.1
    ).any()


def test_a_rank_that_is_slow_now_and_then_is_not_named() -> None:
    drawn = repeats(10, 10, 10, 10)
    drawn[1, :6] *= 0.3
    assert not worse(drawn, more_is_better=True, least=0.1).any()


def test_of_two_ranks_none_is_the_usual_one() -> None:
    assert not worse(repeats(10, 5), more_is_better=True, least=0.1).any()


def test_ranks_that_measured_nothing_are_left_out() -> None:
    drawn = repeats(10, 10, 10, 5, 10)
    drawn[0] = np.nan
    assert np.flatnonzero(worse(drawn, more_is_better=True, least=0.1)).tolist() == [3]


def test_an_outlier_is_said_with_its_node() -> None:
    drawn = repeats(10, 10, 8.2, 10, noise=0.001)
    values = tuple(np.median(drawn, axis=1).tolist())
    measure = Measure(name="GEMM float32", unit="TFLOPS", more_is_better=True, values=values, spreads=(None,) * 4)
    (found,) = of_measure(measure, drawn, ["a", "a", "node3", "b"], 0.1)
    assert found.sentence == "rank 2 on node3: GEMM float32 18 % below the median (8.2 against 10 TFLOPS)."


def test_a_slow_pair_is_compared_with_pairs_as_far_apart() -> None:
    def pair(a: int, b: int, gbs: float, within: bool) -> Pair:
        return Pair(ranks=(a, b), within_node=within, latency_us=10, gbs=gbs)

    nodes = ["a", "a", "b", "b", "c", "c", "d", "d"]
    pairs = [pair(i, i + 1, 300, True) for i in (0, 2, 4, 6)]
    pairs[1] = pair(2, 3, 30, True)
    pairs += [pair(0, 2, 50, False), pair(1, 3, 50, False), pair(4, 6, 20, False), pair(5, 7, 50, False)]
    (found,) = of_pairs(pairs, nodes, of_cpus=True)
    assert (found.ranks, found.node, found.measure) == ((4, 6), "c and d", "pair bandwidth")
    assert "ranks 4 and 6 on c and d: pair bandwidth 60 % below the median" in found.sentence
    assert {one.ranks for one in of_pairs(pairs, nodes, of_cpus=False)} == {(2, 3), (4, 6)}


@pytest.mark.parametrize("seed", range(20))
def test_on_a_shared_machine_more_rounds_tell_a_slow_rank_from_healthy_ones(seed: int) -> None:
    """Whoever has the core does all that it can, the others half of it or less."""
    random = np.random.default_rng(seed)

    def drawn(*rates: float, rounds: int) -> np.ndarray:
        return np.array(rates)[:, None] * random.choice([1, 0.5, 0.33], (len(rates), rounds), p=[0.6, 0.2, 0.2])

    def named(*rates: float) -> list[int]:
        rounds = 8
        repeats = drawn(*rates, rounds=rounds)
        while not is_clear(repeats, more_is_better=True, least=0.33) and rounds < 24:
            repeats = np.hstack([repeats, drawn(*rates, rounds=8)])
            rounds += 8
        return np.flatnonzero(worse(repeats, more_is_better=True, least=0.33)).tolist()

    assert named(10, 10, 10, 10, 10, 10, 10, 10) == []
    assert named(10, 10, 4, 10, 10, 10, 10, 10) == [2]


def test_what_differs_from_repeat_to_repeat_is_not_clear() -> None:
    assert is_clear(repeats(10, 10, 5, 10), more_is_better=True, least=0.33)
    assert not is_clear(repeats(10, 10, 6.5, 10, noise=0.1), more_is_better=True, least=0.33)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 50))
def test_each_rank_has_one_turn_of_a_round(count: int, together: int, number: int) -> None:
    found = turns(range(count), together, number)
    assert sorted(rank for turn in found for rank in turn) == list(range(count))
    assert max(map(len, found)) <= together and len(found) == math.ceil(count / together)


@given(st.integers(2, 20))
def test_each_rank_meets_each_other_one_once(count: int) -> None:
    rounds_of_all = count - 1 + count % 2
    met = [pair for number in range(rounds_of_all) for pair in neighbours(range(count), number)]
    assert sorted(tuple(sorted(pair)) for pair in met) == [(a, b) for a in range(count) for b in range(a + 1, count)]


def test_ranks_take_turns_where_cores_are_few() -> None:
    assert at_once(8, cores=64, threads=1) == 8
    assert at_once(4, cores=2, threads=1) == 2
    assert at_once(4, cores=8, threads=8) == 1
    # More than four turns take too long.
    assert at_once(64, cores=1, threads=1) == 16


@given(st.sets(st.integers(0, 300), min_size=1))
def test_numbers_of_cpus_are_told_as_ranges(numbers: set[int]) -> None:
    assert expanded(compact(sorted(numbers))) == sorted(numbers)


def test_the_quota_of_control_groups_is_the_least_of_those_around(tmp_path: Path) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "fs"
    (groups / "job/rank0").mkdir(parents=True)
    own.write_text("0::/job/rank0\n")
    assert quota(own, groups) == math.inf
    (groups / "job/cpu.max").write_text("150000 100000\n")
    (groups / "job/rank0/cpu.max").write_text("max 100000\n")
    assert quota(own, groups) == 1.5


def test_the_quota_of_control_groups_of_version_1_is_known(tmp_path: Path) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "fs"
    (groups / "cpu/job").mkdir(parents=True)
    own.write_text("3:memory:/\n2:cpu,cpuacct:/job\n")
    (groups / "cpu/job/cpu.cfs_period_us").write_text("100000\n")
    (groups / "cpu/job/cpu.cfs_quota_us").write_text("50000\n")
    assert quota(own, groups) == 0.5
    (groups / "cpu/job/cpu.cfs_quota_us").write_text("-1\n")
    assert quota(own, groups) == math.inf
