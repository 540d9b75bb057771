"""Ranks that count their steps from other numbers are compared step by step all the same."""

from __future__ import annotations

import numpy as np
import pytest
import traces
from msgspec.structs import replace

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.plausible import without
from tb_ddp_doctor.job.step_numbers import same_numbers

#: Rank 1 computes longer in each step, and counts from another number.
STEP = """
    rank0 step  |2
          host  [fwd][bwd]
          gpu    [fwd..][bwd..]
          nccl                 [ar............]
    rank1 step  |{number}
          host  [fwd][bwd]
          gpu    [fwd......][bwd.....]
          nccl                        [ar.....]
    rank2 step  |2
          host  [fwd][bwd]
          gpu    [fwd..][bwd..]
          nccl                 [ar............]
"""


def drawn(number: int) -> str:
    return traces.repeat(STEP.format(number=number), 4)


@pytest.mark.parametrize("number", [2, 3, 4, 12, 1002])
def test_steps_that_end_together_are_one_step(number: int) -> None:
    job = traces.job(drawn(number))
    assert job.steps.tolist() == [2, 3, 4, 5]
    assert len(job.matched) == 4
    assert traces.finding("straggler", drawn(number)).ranks == (1,)
    said = [warning.message for warning in job.warnings if "counts its steps" in warning.message]
    assert said == (
        []
        if number == 2
        else [
            f"Rank 1 counts its steps from another number: its ProfilerStep#{number} is the other ranks' "
            "ProfilerStep#2, and is called step 2."
        ]
    )


def test_a_clock_far_from_the_others_moves_no_number() -> None:
    job = traces.job(drawn(2), clock_ms={1: 5000.0})
    assert job.steps.tolist() == [2, 3, 4, 5]
    assert not any("counts its steps" in warning.message for warning in job.warnings)


@pytest.mark.parametrize("clock_ms", [-60.0, 60.0])
def test_a_clock_that_is_off_by_steps_moves_no_number_that_all_ranks_have(clock_ms: float) -> None:
    job = traces.job(drawn(2), clock_ms={1: clock_ms})
    assert job.steps.tolist() == [2, 3, 4, 5]
    assert not any("counts its steps" in warning.message for warning in job.warnings)


#: By whole steps of 30 ms, so that other steps would end together.
@pytest.mark.parametrize("set_ms", [-60, -30, 30, 60, 90])
def test_a_clock_that_is_set_within_the_record_moves_no_number(set_ms: int) -> None:
    read = traces.read(traces.repeat(STEP.format(number=2), 6))
    events = read[1].events
    late = events.start_ns > np.quantile(events.start_ns, 0.25)
    reset = replace(events, start_ns=events.start_ns + np.where(late, set_ms * traces.MS, 0))
    ranks = {rank: digest(trace) for rank, trace in (read | {1: replace(read[1], events=reset)}).items()}
    numbers, said = same_numbers(ranks)
    assert not said
    assert {rank: one.steps.number.tolist() for rank, one in numbers.items()} == {
        rank: one.steps.number.tolist() for rank, one in ranks.items()
    }


@pytest.mark.parametrize("clock_ms", [-60, 60])
def test_a_rank_that_recorded_fewer_steps_by_a_clock_that_is_off_keeps_their_numbers(clock_ms: int) -> None:
    read = traces.read(traces.repeat(STEP.format(number=2), 6))
    events = read[1].events
    off = replace(events, start_ns=events.start_ns + clock_ms * traces.MS)
    (fourth,) = (name for name, text in enumerate(read[1].strings) if text == "ProfilerStep#4")
    begins = off.start_ns[events.name == fourth].min()
    part = without(replace(read[1], events=off), off.start_ns < begins, [])
    numbers, said = same_numbers({rank: digest(trace) for rank, trace in (read | {1: part}).items()})
    assert not said and numbers[1].steps.number.tolist() == [4, 5, 6, 7]


def test_steps_without_collectives_tell_nothing_of_numbers() -> None:
    """Gradients are accumulated in three of four steps: in them rank 1 falls behind by more than a step."""
    text = """
        rank0 step |1    |2    |3    |4                    |5    |6    |7    |8
              host [fwd] [fwd] [fwd] [fwd]                 [fwd] [fwd] [fwd] [fwd]
              gpu   [fwd.][fwd.][fwd.][fwd.]                [fwd.][fwd.][fwd.][fwd.]
              nccl                          [ar...........]                         [ar...........]
        rank1 step |1       |2       |3       |4           |5       |6       |7       |8
              host [fwd]    [fwd]    [fwd]    [fwd]        [fwd]    [fwd]    [fwd]    [fwd]
              gpu   [fwd....][fwd....][fwd....][fwd....]    [fwd....][fwd....][fwd....][fwd....]
              nccl                                      [ar]                                    [ar]
    """
    job = traces.job(text)
    assert job.steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(job.matched) == 2
    assert not any("counts its steps" in warning.message for warning in job.warnings)


@pytest.mark.parametrize("number", [2, 12])
@pytest.mark.parametrize("clock_ms", [-60.0, 30.0, 5000.0])
def test_where_calls_have_sequence_numbers_no_clock_moves_steps(number: int, clock_ms: float) -> None:
    job = traces.job(drawn(number), clock_ms={1: clock_ms}, sequence=True)
    assert (job.ranks.tolist(), job.steps.tolist()) == ([0, 1, 2], [2, 3, 4, 5])
    assert any("counts its steps" in warning.message for warning in job.warnings) == (number != 2)
