"""Gaps between a server's or a pipeline's iterations are found with what they cost, where work is pending."""

from __future__ import annotations

import pytest
from traces import finding, job, outcome, ranks

from tb_ddp_doctor import engine

RULE = "iteration-gap"
#: After every second iteration the CPU schedules for 10 ms.
FAULTY = """
    rank# host   [own_context_0_generation_8.]          [own_context_0_generation_8.]
          within [attend][sync.............]            [attend][sync.............]
          gpu      [attend................]               [attend................]
"""
#: It schedules the next iteration while the GPU works on this one.
HEALTHY = """
    rank# host   [own_context_0_generation_8.][own_context_0_generation_8.]
          within [attend][sync.............]  [attend][sync.............]
          gpu      [attend.................]    [attend.................]
"""
GAPS, NONE = (ranks(text, text, steps=4) for text in (FAULTY, HEALTHY))


def test_gaps_between_iterations_that_decode_are_found_with_their_cost() -> None:
    found = finding(RULE, GAPS)
    assert found.cost_ms == pytest.approx(6, rel=0.02)
    assert found.ranks == (0, 1)
    assert found.title == "GPUs idle after 3 of 7 iterations: the CPU is outside any op there for 12.0 ms."
    assert len(found.steps) == 3
    assert "--async-scheduling" in found.fix and "training" not in found.fix


def test_gaps_after_most_iterations_are_said_of_each() -> None:
    one = "[own_context_0_generation_8.]", "[attend][sync.............]  ", "  [attend................]   "
    lanes = "host  ", "within", "gpu   "
    text = "\n".join(f"rank# {lane} {(part + ' ' * 10) * 3}{part}" for lane, part in zip(lanes, one, strict=True))
    found = finding(RULE, ranks(text + "\n", text + "\n"))
    assert found.title.startswith("GPUs idle between iterations: the CPU is outside any op for ")


def test_the_verdict_of_a_server_that_idles_between_iterations_is_the_gap() -> None:
    assert engine.examine(job(GAPS)).verdict == RULE


def test_a_server_that_schedules_ahead_is_clear() -> None:
    assert outcome(RULE, NONE).status == "clear"


def test_a_server_may_idle_where_no_request_waits() -> None:
    prompts = GAPS.replace("context_0_generation_8.", "context_3_generation_0.")
    assert outcome(RULE, prompts).status == "clear"


def test_iterations_at_regular_intervals_tell_of_work_without_marks_of_requests() -> None:
    unmarked = GAPS.replace("context_0_generation_8.", "kv_cache...............")
    assert finding(RULE, unmarked).cost_ms == finding(RULE, GAPS).cost_ms


def test_a_pipelines_steps_are_judged_without_marks_of_requests() -> None:
    steps = GAPS.replace("own_context_0_generation_8.", "own_denoise............")
    found = finding(RULE, steps)
    assert "pipeline" in found.fix and found.cost_ms == pytest.approx(5, rel=0.3)


def test_training_is_left_to_host_stall() -> None:
    training = """
        rank# step |1
              host          [fwd][update]
              autograd           [bwd]
              gpu           [fwd....][bwd...]
    """
    assert outcome(RULE, ranks(training, training)).status == "clear"


def test_gaps_between_forward_passes_that_nothing_marks_are_found() -> None:
    operators = "".join(f"[op{i:02}]" for i in range(25))
    one = f"{operators}{' ' * 40}", f"{operators}{' ' * 40}"
    text = "\n".join(
        f"rank0 {lane} {part * 2}{part.rstrip()}" for lane, part in zip(("host", "gpu "), one, strict=True)
    )
    found = finding(RULE, text, world_size=1)
    assert found.cost_ms == pytest.approx(80, rel=0.05)
    assert found.title.startswith(
        "GPUs idle between forward passes or within them: the CPU is outside any op for 80.0 ms"
    )
    assert "DataLoader" in found.fix
