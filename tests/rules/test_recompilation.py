"""Compiling within steps is found with its cost, on the rank that compiles."""

from __future__ import annotations

import pytest
from traces import finding, in_row, job, outcome, ranks, step_ms

from tb_ddp_doctor import engine

RULE = "recompilation"
OPTIONS = {
    "names": {
        "aten::compile": "_compile.compile_inner (dynamo_timed)",
        "aten::tune": "CachingAutotuner.benchmark_all_configs (dynamo_timed)",
    }
}
USUAL = """
    rank# step     |1
          host     [fwd..]
          autograd        [bwd.......]
          gpu      [fwd..........][bwd.]
          nccl                [ar......]
"""
COMPILES = """
    rank# step     |1
          host     [compile...............................][fwd..]
          autograd                                                [bwd.......]
          gpu                                              [fwd..........][bwd.]
          nccl                                                        [ar......]
"""
WAITS = """
    rank# step     |1
          host     [fwd..]
          autograd        [bwd.......]
          gpu      [fwd..........][bwd.]
          nccl                [ar..............................................]
"""


def job_of(odd: list[str], *, at: tuple[int, ...] = (2, 4), steps: int = 5) -> str:
    """Steps of two ranks, of which some are drawn as `odd`; steps count from 1."""
    return in_row(*(ranks(*(odd if step in at else [USUAL] * 2), steps=1) for step in range(1, steps + 1)))


def test_a_rank_that_compiles_alone_is_named_with_what_the_others_wait() -> None:
    found = finding(RULE, job_of([WAITS, COMPILES]), **OPTIONS)
    assert (found.ranks, found.steps, found.cause) == ((1,), (2, 4), "recompile")
    slower_ms = step_ms(job_of([WAITS, COMPILES])) - step_ms(job_of([USUAL, USUAL]))
    assert found.cost_ms == pytest.approx(slower_ms, rel=0.02)
    assert found.title == "Rank 1 compiles within 2 of 5 steps, for up to 40.0 ms while the other ranks wait."


def test_a_rank_of_cpus_that_compiles_alone_is_named() -> None:
    """What compiles is an operator, and so was "slow once" for a reason that nobody named."""
    late = """
        rank0 step |1
              host [fwd.]
              gloo       [ar..............]
        rank1 step |1
              host [compile....][fwd.]
              gloo                    [ar.]
    """
    quick = """
        rank# step |1
              host [fwd.]
              gloo       [ar..]
    """
    text = in_row(ranks(quick, quick, steps=1), late, *[ranks(quick, quick, steps=1)] * 3)
    found = finding(RULE, text, **OPTIONS)
    assert (found.ranks, found.steps, found.cause) == ((1,), (2,), "recompile")
    assert found.cost_ms == pytest.approx(13 / 5, rel=0.05)
    assert "TORCH_TRACE=" in found.fix
    assert engine.examine(job(text, **OPTIONS)).verdict == RULE


def test_the_compiling_rank_is_the_verdict_and_no_straggler_of_unknown_cause() -> None:
    diagnosis = engine.examine(job(job_of([WAITS, COMPILES]), **OPTIONS))
    assert diagnosis.verdict == RULE
    assert diagnosis.findings[0].ranks == (1,)
    assert all(one.rule != "straggler" for one in diagnosis.findings if one.severity != "info")


def test_all_ranks_that_compile_are_found_together() -> None:
    found = finding(RULE, job_of([COMPILES, COMPILES]), **OPTIONS)
    assert found.ranks == (0, 1)
    assert found.title.startswith("The job compiles within 2 of 5 steps, for up to 40.0 ms.")


def test_compiling_outside_of_operators_counts_from_its_own_step() -> None:
    """The CPU launches nothing from the end of the step before until the compilation is over: one stretch."""
    compiles = COMPILES.replace("[compile....", "[own_compile")
    names = {"## compile ##": "_compile.compile_inner (dynamo_timed)"}
    text = job_of([compiles, compiles])
    found = finding(RULE, text, names=names)
    slower_ms = step_ms(text, names=names) - step_ms(job_of([USUAL, USUAL]))
    assert found.cost_ms == pytest.approx(slower_ms, rel=0.05)


def test_autotuning_in_later_steps_has_its_own_advice() -> None:
    found = finding(RULE, job_of([COMPILES.replace("compile", "tune...")] * 2), **OPTIONS)
    assert found.cause == "autotune"
    assert "TORCHINDUCTOR_CACHE_DIR" in found.fix


def test_steps_without_compiling_are_clear() -> None:
    assert outcome(RULE, job_of([USUAL, USUAL]), **OPTIONS).reason == "Nothing is compiled in these steps."


def test_a_long_op_that_does_not_compile_is_not_taken_for_it() -> None:
    assert outcome(RULE, job_of([WAITS, COMPILES])).status == "clear"


@pytest.mark.parametrize("mark", ["entire_frame_compile", "entire_backward_compile", "backend_compile"])
def test_the_marks_of_torch_2_13_count(mark: str) -> None:
    found = finding(RULE, job_of([WAITS, COMPILES]), names={"aten::compile": mark})
    assert (found.ranks, found.cause) == ((1,), "recompile")


TUNES = """
    rank# step     |1
          host     [tune............................][fwd..]
          within    [k1][sync......][k2][sync.......]
          autograd                                          [bwd.......]
          gpu        [k1...........] [k2...........] [fwd..........][bwd.]
          nccl                                                  [ar......]
"""
WAITS_FOR_TUNING = """
    rank# step     |1
          host     [fwd..]
          autograd        [bwd.......]
          gpu      [fwd..........][bwd.]
          nccl                [ar........................................]
"""


def test_the_kernels_that_autotuning_times_are_a_part_of_its_cost() -> None:
    """One rank alone runs them: it was a straggler with more work."""
    steps = [[WAITS_FOR_TUNING, TUNES] if step in (2, 4) else [USUAL] * 2 for step in range(1, 6)]
    text = in_row(*(ranks(*step, steps=1) for step in steps))
    diagnosis = engine.examine(job(text, **OPTIONS))
    found = diagnosis.findings[0]
    assert (found.rule, found.ranks, found.cause) == (RULE, (1,), "autotune")
    slower_ms = step_ms(text, **OPTIONS) - step_ms(ranks(USUAL, USUAL))
    assert found.cost_ms == pytest.approx(slower_ms, rel=0.1)
    assert all(one.rule not in ("straggler", "load-imbalance") for one in diagnosis.findings)
