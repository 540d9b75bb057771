"""Benchmarks whose inputs are made by hand still fit the code."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_made_up_ranks_are_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(BENCHMARKS / "many_ranks.py"))["main"](["--mesh", "dp=4,tp=4,pp=2", "--steps", "4"])
    printed = capsys.readouterr().out
    assert "24 collectives matched" in printed
    # With groups of three dimensions each of these collectives is one for each group.
    assert "224 collectives matched" in printed and "mesh dp 4 pp 2 tp 4" in printed
    for found in ("critical straggler host", "straggler slow_device"):
        assert printed.count(found) == 2


def test_a_simulated_mesh_is_graded() -> None:
    grade = runpy.run_path(str(BENCHMARKS / "simulated_mesh.py"))
    of, rng = grade["Draw"], random.Random(1)
    shape = grade["Shape"](grade["Mesh"](dp=2, pp=2), micro_batches=4, attention_us=1000, mlp_us=1500)
    slow = grade["of_place"](shape, "pp", rng)
    row = grade["grade"](of("slow_stage", shape, "mesh", [slow[0]], [slow[1]]), rng, None)
    assert (row.groups, row.right_groups, row.false) == (4, 4, ())
    assert row.found and row.named and row.true_ms > 0.08 * row.step_ms
    assert abs(row.cost_error) < 10
    assert all(reached for *_, reached in grade["bars"]([row]))


def test_a_stall_behind_a_slow_stage_is_no_sync() -> None:
    """Without the sync at the end of its step, the CPU of rank 1 would stall while its GPU works. It is a straggler."""
    grade = runpy.run_path(str(BENCHMARKS / "simulated_mesh.py"))
    shape = grade["Shape"](grade["Mesh"](dp=2, pp=2), micro_batches=8, layers=1, sharding="zero1")
    pause_us = 1.35 * grade["work_us"](shape)
    faults = [
        grade["Faults"](kernel=lambda rank, *_: 1.8 if rank in (2, 3) else 1.0),
        grade["Faults"](pause=lambda rank, _: pause_us if rank == 1 else 0.0),
    ]
    truths = [grade["Truth"](("straggler",), (2, 3), "pp 1"), grade["Truth"](("straggler",), (1,), "dp 1")]
    row = grade["grade"](grade["Draw"]("two", shape, "mesh", faults, truths), random.Random(1), None)
    assert row.found and row.named and row.false == ()
    assert abs(row.cost_error) < 1


def test_large_meshes_have_every_kind_of_fault() -> None:
    grade = runpy.run_path(str(BENCHMARKS / "simulated_mesh.py"))
    for number, kind in enumerate(grade["KINDS"]):
        drawn = grade["draw"](kind, random.Random(number), large=True)
        of = drawn.shape.mesh
        assert 64 <= of.size <= 512
        assert all(truth.ranks and set(truth.ranks) <= set(range(of.size)) for truth in drawn.truths)
        assert bool(drawn.truths) == (kind != "healthy")
        # Every group has the ranks of its dimension, and each rank is in one of them.
        for name, size in of.dimensions.items():
            groups = of.groups(name)
            assert {len(group) for group in groups} == {size}
            assert sorted(rank for group in groups for rank in group) == list(range(of.size))


def test_a_slow_link_of_one_stage_is_no_bubble() -> None:
    """The fix of a bubble shortens what is exposed, of which the AllReduces over the slow link are most."""
    grade = runpy.run_path(str(BENCHMARKS / "simulated_mesh.py"))
    shape = grade["Shape"](grade["Mesh"](tp=2, pp=4), micro_batches=4, layers=1, transfer=0.013)

    def transfer(ranks: tuple[int, ...], _: int, operation: Any) -> float:
        return 20.0 if operation.dimension == "tp" and set(ranks) <= {2, 3} else 1.0

    truth = grade["Truth"](("slow-link",), (2, 3), "pp 1")
    drawn = grade["Draw"]("tp_link", shape, "mesh", [grade["Faults"](transfer=transfer)], [truth])
    row = grade["grade"](drawn, random.Random(1), None)
    assert row.found and row.named and row.false == ()
    assert abs(row.cost_error) < 2


def test_a_watched_model_costs_next_to_nothing_between_captures(capsys: pytest.CaptureFixture[str]) -> None:
    """Hooks that stayed would take 10 µs a call, at depth 4 1.7 % of a step."""
    pytest.importorskip("torch")
    benchmark = runpy.run_path(str(BENCHMARKS / "watch.py"))
    assert benchmark["main"](["--calls", "200", "--repeats", "20", "--steps", "0"]) == 0
    assert capsys.readouterr().out.count("calls of modules") == 2
    assert benchmark["costs"](4, 200, 20).module_ns < 500
