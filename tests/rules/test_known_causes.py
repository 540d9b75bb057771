"""What the CPU is known to do is the cause: in headline, cause, fix and a capture's line, whatever rule finds it."""

from __future__ import annotations

import pytest
from test_headline import TWO_NODES, USUAL
from test_slow_step import SAVING, WITH_HOST, once
from traces import findings, in_row, job, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.capture.verdict import line
from tb_ddp_doctor.findings import Diagnosis, Finding

LATE = """
    rank# step |1
          host             [fwd]
          gpu              [fwd....][bwd.]
          nccl                            [ar]
          inner [gc.......]
"""
#: A checkpoint on one rank, without stacks.
SAVES = """
    rank# step |1
          host [note.....] [fwd]
          gpu              [fwd....][bwd.]
          nccl                            [ar]
"""
NOBODY_KNOWS = LATE.replace("          inner [gc.......]\n", "")
ALL_COLLECT = """
    rank# step |1
          host             [fwd]
          gpu              [fwd....][bwd.]
          nccl                            [ar]
          inner [gc.......]
"""


def diagnosed(text: str) -> Diagnosis:
    return engine.examine(job(text, nodes=TWO_NODES))


def only(rule: str, text: str) -> Finding:
    (found,) = findings(rule, text)
    assert isinstance(found, Finding)
    return found


def test_a_straggler_that_collects_garbage() -> None:
    diagnosis = diagnosed(ranks(USUAL, LATE, USUAL))
    found = diagnosis.findings[0]
    assert (found.rule, found.cause, found.ranks) == ("straggler", "garbage_collection", (1,))
    assert found.headline.startswith("Garbage collection on rank 1 (node0) costs ")
    assert "gc.freeze()" in found.fix and "py-spy" not in found.fix
    assert "garbage collection" in line(diagnosis).lower()


def test_the_annotation_of_a_phase_is_nothing_to_move_out_of_the_training_loop() -> None:
    found = only("straggler", ranks(USUAL, SAVES.replace("[note.....] [fwd]", "[ddp......] [fwd]"), USUAL))
    assert (found.cause, "py-spy" in found.fix) == ("host", True)
    assert "Move" not in found.fix.split()[0] and "DistributedDataParallel" not in found.fix


def test_an_annotation_tells_it_as_well() -> None:
    found = only("straggler", ranks(USUAL, SAVES, USUAL))
    assert (found.cause, "async_save" in found.fix) == ("checkpoint", True)
    assert found.headline.startswith("Saving a checkpoint on rank 1 ")


def test_ranks_that_do_other_things_are_other_findings() -> None:
    found = findings("straggler", ranks(USUAL, LATE, USUAL, SAVES, USUAL))
    assert not isinstance(found, tuple) or {each.cause: each.ranks for each in found} == {
        "garbage_collection": (1,),
        "checkpoint": (3,),
    }


def test_what_is_not_known_stays_the_host() -> None:
    found = only("straggler", ranks(USUAL, NOBODY_KNOWS, USUAL))
    assert (found.cause, "py-spy" in found.fix) == ("host", True)


def test_garbage_that_the_other_ranks_collect_as_long_is_not_the_cause() -> None:
    """All collect for 3 ms; rank 1 is late by 12 more of which nothing is known."""
    usual = """
        rank# step |1
              host      [fwd]
              gpu       [fwd....][bwd.]
              nccl                     [ar............]
              inner [gc]
    """
    late = """
        rank# step |1
              host                  [fwd]
              gpu                   [fwd....][bwd.]
              nccl                                 [ar]
              inner [gc]
    """
    assert only("straggler", ranks(usual, late, usual)).cause == "host"


@pytest.mark.parametrize("steps", [4])
def test_ranks_that_collect_in_some_steps(steps: int) -> None:
    usual, one = ranks(USUAL, USUAL, USUAL, steps=1), ranks(USUAL, LATE, USUAL, steps=1)
    found = only("load-imbalance", in_row(*[usual, one] * (steps // 2)))
    assert (found.cause, found.ranks) == ("garbage_collection", (1,))
    assert found.headline.startswith("Garbage collection on rank 1 (host1) costs ")
    assert "gc.freeze()" in found.fix and "async_save" not in found.fix
    assert "garbage collection" in found.why


def test_a_rank_that_computes_longer_now_and_then_is_no_collector() -> None:
    heavy = USUAL.replace("[fwd....][bwd.]", "[fwd............][bwd.]").replace(
        "                [ar............]", "                        [ar....]"
    )
    usual, one = ranks(USUAL, USUAL, USUAL, steps=1), ranks(USUAL, heavy, USUAL, steps=1)
    assert only("load-imbalance", in_row(usual, one, usual, one)).cause == "recurring"


def test_steps_in_which_all_ranks_collect() -> None:
    collects = SAVING + "          inner     [gc.......]\n"
    found = only("slow-step", once(WITH_HOST, collects, at=(3,)))
    assert (found.cause, "gc.freeze()" in found.fix) == ("garbage_collection", True)
    assert found.headline.startswith("Garbage collection costs ")


def test_all_ranks_that_collect_in_every_step() -> None:
    found = only("host-stall", ranks(ALL_COLLECT, ALL_COLLECT))
    assert found.headline.startswith("Garbage collection costs ")
