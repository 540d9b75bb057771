"""A rank whose clock is set back within the record is read on one side of that, as if the record ended there."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import MS, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.launches import DeviceRows, is_on_device
from tb_ddp_doctor.digest.set_back import one_side
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.trace.model import Category, RankTrace

#: The host launches all of a step in its first half, four kernels a block; the GPU is busy to the step's end.
RANK = """
    rank# step |1
          host [a][b][c][d][e]
          gpu  [a*4][b*4][c*4][d*4][e*4]
          nccl                          [ar..]
"""
STEPS = 7


def drawn(rank: int = 0) -> RankTrace:
    return read(ranks(RANK, RANK, RANK, steps=STEPS))[rank]


def one_step_ns(trace: RankTrace) -> int:
    return int(np.median(np.diff(digest(trace).steps.start_ns)))


def clock_set(trace: RankTrace, at: float, by_ns: int) -> RankTrace:
    """The trace as recorded by a clock that is set in step `at` (2.5: in the middle of the third step)."""
    events, length = trace.events, one_step_ns(trace)
    when = int(events.start_ns.min() + at * length)
    start, end = events.start_ns, events.start_ns + events.duration_ns
    start, end = (np.where(times >= when, times + by_ns, times) for times in (start, end))
    return replace(trace, events=replace(events, start_ns=start, duration_ns=np.maximum(end - start, 0)))


def kept(trace: RankTrace) -> RankTrace:
    return one_side(trace, DeviceRows.of(trace.events))


# By less than a step; by some steps, so that both sides have recorded the same time; by more than the whole record.
@pytest.mark.parametrize("steps", [0.5, 2.1, 20.0])
@pytest.mark.parametrize(("at", "whole"), [(2.1, range(3, STEPS)), (5.1, range(5))])
def test_the_side_with_more_calls_stays(at: float, whole: range, steps: float) -> None:
    trace = drawn()
    back = -round(steps * one_step_ns(trace))
    found, right = digest(clock_set(trace, at, back)), digest(trace)
    assert found.steps.number.tolist() == right.steps.number[list(whole)].tolist()
    moved = back if whole[0] else 0
    assert (found.steps.end_ns == right.steps.end_ns[list(whole)] + moved).all()
    # What precedes the first step that stays is not known of it.
    inner = list(whole)[1:]
    assert (found.work.owner_ns[1:] == right.work.owner_ns[inner]).all()
    said = [warning.message for warning in found.warnings if "clock" in warning.message]
    side = "after" if whole[0] else "before"
    assert len(said) == 1 and f"only what was recorded {side} that is used" in said[0]


def test_a_clock_that_is_set_forward_or_back_by_little_disorders_nothing() -> None:
    trace = drawn()
    for by_ns in (30 * MS, 300 * MS, -MS):
        moved = clock_set(trace, 2.1, by_ns)
        assert kept(moved) is moved


@pytest.mark.parametrize("by_ms", [-60, 60])
def test_one_call_whose_time_is_damaged_sets_no_clock(by_ms: int) -> None:
    trace = drawn()
    call = np.flatnonzero(trace.events.category == Category.RUNTIME)[20]
    start = trace.events.start_ns.copy()
    start[call] += by_ms * MS
    damaged = replace(trace, events=replace(trace.events, start_ns=start))
    assert kept(damaged) is damaged


def test_calls_that_are_all_early_beside_their_device_set_no_clock() -> None:
    trace = drawn()
    set_back = clock_set(trace, 3.1, -60 * MS)
    start = np.where(is_on_device(trace.events), trace.events.start_ns, set_back.events.start_ns)
    early = replace(trace, events=replace(trace.events, start_ns=start))
    assert kept(early) is early and kept(set_back) is not set_back


def test_numbers_of_calls_that_begin_anew_set_no_clock() -> None:
    trace = drawn()
    number = trace.events.correlation
    middle = int(np.median(number[number > 0]))
    anew = np.where(number > middle, number - middle, np.where(number > 0, number + (1 << 32) - middle, number))
    wrapped = replace(trace, events=replace(trace.events, correlation=anew))
    assert kept(wrapped) is wrapped


@pytest.mark.parametrize("at", [2.1, 3.1])
def test_a_job_with_such_a_rank_stays_healthy(at: float) -> None:
    """Also where under half of the rank's steps stay."""
    traces = [drawn(0), drawn(1), clock_set(drawn(2), at, -round(2.1 * one_step_ns(drawn(2))))]
    digests = {rank: digest(trace) for rank, trace in enumerate(traces)}
    found = examine(build("drawn", digests, dict.fromkeys(digests, "host"), 3))
    assert found.verdict == "healthy" and not found.missing_ranks, found.headline


def behind(trace: RankTrace, by_ns: int) -> RankTrace:
    """The trace with a device that runs everything so much later."""
    start = trace.events.start_ns + np.where(is_on_device(trace.events), by_ns, 0)
    return replace(trace, events=replace(trace.events, start_ns=start))


@pytest.mark.parametrize(("at", "whole", "steps"), [(2.1, range(3, STEPS), 0.5), (1.3, range(2, STEPS), 20.0)])
def test_work_that_was_queued_when_the_clock_was_set_does_not_hide_that(at: float, whole: range, steps: float) -> None:
    """Of what was launched before that instant, most runs after it."""
    trace = drawn()
    length = one_step_ns(trace)
    late = behind(trace, round(1.2 * length))
    set_back = clock_set(late, at, -round(steps * length))
    assert kept(set_back) is not set_back
    assert digest(set_back).steps.number.tolist() == digest(late).steps.number[list(whole)].tolist()
