"""The GPU idles while the CPU is outside any op, on all ranks alike."""

from __future__ import annotations

import numpy as np
import pytest
from traces import MS, finding, in_row, job, lies_in_its_step, outcome, ranks, step_ms

from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.rules.host_stall import _part

RULE = "host-stall"
STALLED = """
    rank# step |1
          host       [fwd]
          gpu        [fwd..........]
          nccl                      [ar......]
"""
BUSY = """
    rank# step |1
          host [fwd]
          gpu  [fwd..........]
          nccl                [ar............]
"""
#: The CPU is ahead of its GPU, and the AllReduce hides.
AHEAD = """
    rank# step |1
          host [fwd]
          gpu  [fwd................]
          nccl                [ar..]
"""


def test_a_host_in_no_operation_is_found_with_its_cost() -> None:
    found = finding(RULE, ranks(STALLED, STALLED))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(6, rel=0.02)
    assert found.severity == "major"
    assert found.confidence == "high"
    assert "gc.freeze()" in found.fix


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("[ddp]", "outside forward/backward/optimizer, in the training loop"),
        ("[ddp......]", "in the forward pass"),
        ("[ddp][update......]", "in the optimizer's step"),
    ],
)
def test_the_phase_of_the_stall_is_named(host: str, place: str) -> None:
    text = f"""
        rank# step |1
              host {host}
              gpu                     [fwd..........]
    """
    assert f"Most of it is {place}." in finding(RULE, ranks(text, text)).why


def test_evidence_is_the_stall() -> None:
    text = ranks(STALLED, STALLED)
    for window in finding(RULE, text).evidence:
        assert window.end_ns - window.start_ns == pytest.approx(6 * MS, abs=0.1 * MS)
        assert lies_in_its_step(window, text)


def test_the_kernel_that_all_stalls_precede_is_named() -> None:
    text = """
        rank# step |1
              host       [triton_mul_0]
              gpu        [triton_mul_0.]
              nccl                      [ar......]
    """
    found = finding(RULE, ranks(text, text))
    assert "All 6 stalls are followed by the launch of triton_mul_0_kernel. " in found.why
    assert {window.what for window in found.evidence} == {
        "GPU idle, CPU outside any op, before the launch of triton_mul_0_kernel."
    }


@pytest.mark.parametrize("drawing", [BUSY, AHEAD])
def test_a_host_that_is_busy_is_clear(drawing: str) -> None:
    assert outcome(RULE, ranks(drawing, drawing)).status == "clear"


def test_stalls_below_the_threshold_are_clear() -> None:
    share = 6 / step_ms(ranks(STALLED, STALLED))
    assert outcome(RULE, ranks(STALLED, STALLED), settings={"min_share": share * 1.02}).status == "clear"
    assert finding(RULE, ranks(STALLED, STALLED), settings={"min_share": share * 0.97})


@pytest.mark.parametrize("busy", [1, 2, 3])
def test_one_rank_that_stalls_is_a_straggler(busy: int) -> None:
    text = ranks(*[BUSY] * busy, STALLED)
    straggler = finding("straggler", text)
    assert (straggler.ranks, straggler.cause) == ((busy,), "host")
    assert outcome(RULE, text).status == "clear"


def test_what_one_rank_stalls_beyond_the_others_is_not_charged() -> None:
    longer = """
        rank# step |1
              host [fwd]                    [bwd][ar][sync]
              gpu  [fwd.]                    [bwd....]
              nccl                                     [ar]
    """
    shorter = """
        rank# step |1
              host [fwd]      [bwd][ar][sync..............]
              gpu  [fwd.]      [bwd....]
              nccl                       [ar..............]
    """
    found = finding(RULE, ranks(shorter, shorter, longer))
    assert found.cost_ms == pytest.approx(6, rel=0.02)


def test_a_stall_at_the_end_of_steps_is_charged_in_the_steps_that_it_delays() -> None:
    collects = """
        rank# step |1                     |2                     |3
              host [fwd][ar][sync]        [fwd][ar][sync]        [fwd][ar][sync]
              gpu  [fwd....]              [fwd....]              [fwd....]
              nccl          [ar..]                 [ar..]                 [ar..]
    """.replace("          [ar..]", "         [ar..]")
    found = finding(RULE, ranks(collects, collects, steps=1))
    assert found.cost_ms == pytest.approx(8 * 2 / 3, rel=0.03)


def test_one_rank_alone_is_enough() -> None:
    assert finding(RULE, ranks(STALLED), world_size=2).ranks == (0,)


def test_few_steps_lower_the_confidence() -> None:
    assert finding(RULE, ranks(STALLED, STALLED, steps=2)).confidence == "medium"


#: What stacks show of the stall, the cause, and what the fix then says.
SHOWN = [
    ("[gc..]", "garbage_collection", "gc.freeze()"),
    ("[save]", "checkpoint", "async_save"),
    ("[emit]", "logging", "QueueListener"),
    ("[nap.]", "sleep", "gc.freeze()"),
]


@pytest.mark.parametrize(("function", "cause", "fix"), SHOWN, ids=[cause for _, cause, _ in SHOWN])
def test_stacks_tell_what_the_host_does(function: str, cause: str, fix: str) -> None:
    stacks = (
        STALLED
        + f"""
          python [report.......]
          inner   {function}
    """
    )
    found = finding(RULE, ranks(stacks, stacks))
    assert found.cause == cause
    assert "called by report (tools/report.py:12)" in found.why
    assert fix in found.fix


def test_a_function_of_ones_own_is_named() -> None:
    stacks = (
        STALLED
        + """
          python [step........]
          inner   [call]
    """
    )
    found = finding(RULE, ranks(stacks, stacks))
    assert found.cause == "python"
    assert "called by step (train.py:4)" in found.why


def test_an_annotation_tells_it_without_stacks() -> None:
    noted = STALLED.replace("host       [fwd]", "host [note][fwd]")
    found = finding(RULE, ranks(noted, noted))
    assert (found.cause, "write_checkpoint" in found.why) == ("checkpoint", True)


def test_what_takes_little_of_the_stall_is_not_its_cause() -> None:
    long = """
        rank# step |1
              host                    [fwd]
              gpu                     [fwd....]
              nccl                             [ar.]
              inner     [gc]
    """
    found = finding(RULE, ranks(long, long))
    assert found.cause is None
    assert "Python, garbage collection, logging or I/O" in found.why


def test_a_stall_of_all_ranks_in_one_step_names_the_step() -> None:
    usual = """
        rank# step |1
              host [a]
              gpu  [a......]
              nccl          [ar]
    """
    odd = """
        rank# step |1
              host [a]                          [b]
              gpu  [a......]                    [b]
              nccl                                 [ar]
    """
    text = in_row(ranks(usual, usual, steps=2), ranks(odd, odd, steps=1), ranks(usual, usual, steps=2))
    found = finding("host-stall", text)
    assert found.steps == (3,)
    assert "in step 3 (1 of 5 steps), on all ranks" in found.title
    assert found.confidence == "low"
    assert "A longer capture would show how often it comes." in found.why


def test_hosts_that_nothing_shows_to_wait_seem_to_stall_until_the_next_step() -> None:
    """They stall for unlike times before a collective, and after it; the last of the record ends with it by chance."""
    stalls, width = (27, 50, 1, 4), 70

    def lane(name: str, drawn: str) -> str:
        steps = (drawn.replace("|", f"|{number}") for number in (1, 2, 3))
        return f"rank# {name} {''.join(step.ljust(width) for step in steps)}\n"

    drawings = [
        lane("step", "|")
        + lane("host", f"[a]{' ' * stall}[b]")
        + lane("gpu", f"[a..]{' ' * (stall - 1)}[b..]")
        + lane("nccl", f"{' ' * (stall + 8)}[ar{'.' * (max(stalls) - stall)}]")
        for stall in stalls
    ]
    found = next(one for one in examine(job(ranks(*drawings, steps=1))).findings if one.rule == RULE)
    assert found.cost_ms == pytest.approx(53.7, abs=0.1)
    assert "The CPU is outside any op 60.7 ms of every 67.3 ms" in found.title


def test_of_stalls_in_turn_the_longest_of_each_step_is_said_up_to_what_they_cost() -> None:
    in_turn, window = np.diag([50, 40, 30]) * MS, np.full((3, 3), 100 * MS)
    said = [_part(in_turn, window, cost * MS).ns for cost in (0, 25, 60)]
    assert said == [pytest.approx(ms * MS) for ms in (40 / 3, 25, 40)]


#: An engine that schedules for 3 ms between its answers, and a rank that trains.
ENGINE = """
    rank# step |1
          host   [own_generate_sequences.................................................]
          within [attend][sync..........................]   [attend][sync...............]
          gpu      [attend...............................]    [attend...................]
"""
TRAINER = """
    rank# step |1
          host   [own_update_actor.......................................................]
          within [fwd][sync.............................................................]
          gpu     [fwd...................................................................]
"""


def test_engines_that_generate_may_schedule_between_answers() -> None:
    result = outcome("host-stall", ranks(ENGINE, ENGINE, ENGINE, TRAINER))
    assert result.status == "clear" and "mostly in engines that generate" in result.reason


#: Engines that schedule for 6 ms after each answer, at other times each, and ranks that train for half as long and then
#: wait for samples.
SCHEDULES = """
    rank# step |1
          host   [own_generate_sequences...................................................]
          within [attend][sync.]      [attend][sync.]      [attend][sync.]      [a][sync...]
          gpu      [attend.....]        [attend.....]        [attend.....]        [a.......]
"""
LATER = """
    rank# step |1
          host   [own_generate_sequences...................................................]
          within [a][sync...]      [attend][sync.]      [attend][sync.]      [attend][sync.]
          gpu      [a.......]        [attend.....]        [attend.....]        [attend.....]
"""
WAITS = """
    rank# step |1
          host   [own_update_actor............]
          within [fwd][sync...................]
          gpu     [fwd........................]
"""


def test_trainers_that_wait_for_engines_that_stall_do_not_stall_themselves() -> None:
    """They do nothing for longer, and are more."""
    found = finding(RULE, ranks(SCHEDULES, LATER, *[WAITS] * 4, steps=12))
    assert found.ranks == (0, 1)
    assert found.cost_ms == pytest.approx(18, rel=0.15)
    assert "GPU and CPU both idle 2" in found.title
