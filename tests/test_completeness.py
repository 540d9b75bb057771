"""A rank takes part in a comparison only with a record as complete as its peers'; whoever may differ is not damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from job_shapes import drawn, staged
from msgspec.structs import replace
from numpy.typing import NDArray
from traces import BEGINS_EARLY, BEGINS_LATE, MS, digests, in_row, job, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.facts import unrecognised
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.odd_clocks import ClockSet
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.model import Category, CommArgs, Events, RankTrace

USUAL = """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd*20..][bwd*20]
          nccl                   [ar@1][ar@2............]
"""
SLOW = """
    rank# step |1
          host [fwd][bwd]
          gpu  [fwd*20..........][bwd*20]
          nccl                           [ar@1][ar@2....]
"""
HEALTHY = USUAL.replace("[ar@2............]", "[ar@2....]")
Mask = NDArray[np.bool_]
#: A damaged rank from a whole one.
Damage = Callable[[RankTrace], RankTrace]


def without(trace: RankTrace, lost: Mask) -> RankTrace:
    kept = ~lost
    rows = kept[trace.comms.event]
    comms = {name: getattr(trace.comms, name)[rows] for name in CommArgs.__struct_fields__}
    comms["event"] = (np.cumsum(kept) - 1)[comms["event"]]
    events = Events(*(getattr(trace.events, name)[kept] for name in Events.__struct_fields__))
    return replace(trace, events=events, comms=CommArgs(**comms))


def on_device(trace: RankTrace) -> Mask:
    return np.isin(trace.events.category, (Category.KERNEL, Category.MEMCPY, Category.MEMSET))


def called(trace: RankTrace, name: str) -> Mask:
    return np.array([name in text for text in trace.strings])[trace.events.name]


def no_device_events(trace: RankTrace) -> RankTrace:
    return without(trace, on_device(trace))


def no_collectives(trace: RankTrace) -> RankTrace:
    return without(trace, on_device(trace) & called(trace, "nccl"))


def half_the_kernels(trace: RankTrace) -> RankTrace:
    return without(trace, on_device(trace) & (np.arange(len(trace.events)) % 2 == 0))


def no_correlations(trace: RankTrace) -> RankTrace:
    return replace(trace, events=replace(trace.events, correlation=np.full(len(trace.events), -1)))


def no_host_events(trace: RankTrace) -> RankTrace:
    return without(trace, ~on_device(trace))


def no_durations(trace: RankTrace) -> RankTrace:
    length = np.where(on_device(trace), 0, trace.events.duration_ns)
    return replace(trace, events=replace(trace.events, duration_ns=length))


def thousandfold_times(trace: RankTrace) -> RankTrace:
    start = trace.events.start_ns
    return replace(trace, events=replace(trace.events, start_ns=start.min() + (start - start.min()) * 1000))


def clock_that_jumps(trace: RankTrace) -> RankTrace:
    start = trace.events.start_ns
    later = start > (start.min() + start.max()) // 2
    return replace(trace, events=replace(trace.events, start_ns=np.where(later, start + 3000 * MS, start)))


def clock_set(at: float, by_ms: int) -> Damage:
    """A clock that is set forward after this share of the record."""

    def damage(trace: RankTrace) -> RankTrace:
        start, end = trace.events.start_ns, trace.events.start_ns + trace.events.duration_ns
        when = start.min() + at * (end.max() - start.min())
        start, end = (time + np.where(time >= when, by_ms * MS, 0) for time in (start, end))
        return replace(trace, events=replace(trace.events, start_ns=start, duration_ns=end - start))

    return damage


def cut_in(step: int, of: int) -> Damage:
    """Kineto writes the host's operators first, then launches and kernels by time: cut within a step."""

    def damage(trace: RankTrace) -> RankTrace:
        start, runtime = trace.events.start_ns, trace.events.category == Category.RUNTIME
        end = start.min() + (start.max() - start.min()) * (step - 0.6) / of
        losses = Losses()
        losses.add(Loss.CUT, 7, "the JSON ends within its events")
        return replace(
            without(trace, (on_device(trace) | runtime) & (start > end)), warnings=losses.warnings(trace.file)
        )

    return damage


TOTAL = [
    no_device_events,
    no_collectives,
    half_the_kernels,
    no_correlations,
    no_host_events,
    no_durations,
    thousandfold_times,
    clock_that_jumps,
]


def joined(text: str, damage: Damage, *damaged: int, **options: Any) -> Job:
    traces = read(text, **options)
    each = {rank: digest(damage(trace) if rank in damaged else trace) for rank, trace in traces.items()}
    return build("drawn", each, {rank: f"host{rank}" for rank in each}, len(each))


def said_of(job: Job, rank: int) -> str:
    return " ".join(warning.message for warning in job.warnings if warning.file == f"rank{rank}.json")


@pytest.mark.parametrize("damage", TOTAL)
@pytest.mark.parametrize("metadata", ["host", "kernel"])
def test_a_damaged_rank_is_left_out_and_named(damage: Damage, metadata: str) -> None:
    job = joined(ranks(USUAL, SLOW, USUAL, USUAL), damage, 3, metadata=metadata)
    assert job.ranks.tolist() == [0, 1, 2] and job.missing_ranks == (3,)
    assert "Rank 3 is left out" in said_of(job, 3)
    assert job.damaged == ("rank3.json",)
    diagnosis = examine(job)
    assert diagnosis.incomplete == ("rank3.json",)
    assert (diagnosis.verdict, diagnosis.findings[0].ranks) == ("straggler", (1,))


@pytest.mark.parametrize("damage", TOTAL)
def test_a_healthy_job_with_a_damaged_rank_has_no_fault_but_is_not_called_healthy(damage: Damage) -> None:
    diagnosis = examine(joined(ranks(*[HEALTHY] * 4), damage, 0))
    assert diagnosis.verdict == "healthy"
    assert diagnosis.headline.startswith("No fault found in these traces, but 1 of 4 ranks has no usable trace here")


def test_most_ranks_may_lack_device_events() -> None:
    job = joined(ranks(USUAL, SLOW, USUAL, USUAL), no_device_events, 0, 3)
    assert job.ranks.tolist() == [1, 2] and job.missing_ranks == (0, 3)
    assert examine(job).findings[0].ranks == (1,)


@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_rank_serves_for_the_steps_that_it_has_whole(step: int) -> None:
    job = joined(ranks(USUAL, SLOW, USUAL, USUAL, steps=5), cut_in(step, of=5), 3)
    diagnosis = examine(job)
    assert diagnosis.findings[0].ranks == (1,)
    if step > 3:
        assert job.ranks.tolist() == [0, 1, 2, 3]
        assert job.steps.tolist() == list(range(1, step))
        assert f"is used for steps {', '.join(map(str, range(1, step)))} only" in said_of(job, 3)
        assert f"its GPU events end within step {step}" in said_of(job, 3)
    else:
        assert job.ranks.tolist() == [0, 1, 2] and job.steps.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("set_ms", [8, 25, 800])
@pytest.mark.parametrize(("at", "steps"), [(0.35, [4, 5, 6]), (0.6, [1, 2, 3])])
def test_a_rank_whose_clock_is_set_serves_for_the_steps_before_or_after(
    set_ms: int, at: float, steps: list[int]
) -> None:
    """Rank 1 is slow: without it, its peers would seem to wait for a rank that has no trace."""
    usual = USUAL.replace("[ar@1][ar@2............]", "[ar@1........][ar@2....]")

    job = joined(ranks(usual, SLOW, usual, usual, steps=6), clock_set(at, set_ms), 1)
    diagnosis = examine(job)
    assert job.ranks.tolist() == [0, 1, 2, 3] and job.steps.tolist() == steps
    assert "its clock jumps relative to those of other ranks" in said_of(job, 1)
    assert (diagnosis.verdict, diagnosis.findings[0].ranks) == ("straggler", (1,))


@pytest.mark.parametrize("at", [0.53, 0.56])
def test_a_step_that_goes_on_behind_its_collectives_ends_before_the_clock_is_set_if_as_long_as_others(
    at: float,
) -> None:
    text = """
        rank# step |1
              host [fwd][bwd]          [opt]
              gpu  [fwd....][bwd...]      [opt...]
              nccl                  [ar@1]
    """
    job = joined(ranks(text, text, text, steps=6), clock_set(at, 25), 1)
    assert job.steps.tolist() == [1, 2, 3]


@pytest.mark.parametrize("set_ms", [25, 800])
@pytest.mark.parametrize("on", [(0, 1), (2, 3)])
def test_of_two_nodes_the_one_whose_own_steps_show_it_has_the_clock_that_was_set(
    set_ms: int, on: tuple[int, ...]
) -> None:
    job = joined(ranks(*[HEALTHY] * 4, steps=6), clock_set(0.35, set_ms), *on)
    assert job.ranks.tolist() == [0, 1, 2, 3] and job.steps.tolist() == [4, 5, 6]
    assert {warning.file for warning in job.warnings} == {f"rank{rank}.json" for rank in on}


def test_steps_that_are_longer_by_the_clock_of_one_node_of_two_alone_hide_nothing() -> None:
    job = joined(ranks(*[HEALTHY] * 4, steps=4), clock_set(0.6, 25), 2, 3)
    assert job.steps.tolist() == [1, 2]
    assert unrecognised.reason(job) is None


#: How late a rank's collectives are, and their steps; by what the clock is set, or None.
LATE: list[tuple[list[float], list[int], float | None]] = [
    ([33, 33, 33, 33, 0, 0], [2, 2, 3, 3, 4, 4], -33),
    # Two collectives of step 3 are cut where times overlap.
    ([33, 33, 20, 33, 13, 0, 0, 0], [2, 2, 3, 3, 3, 3, 4, 4], -33),
    ([0, 0, 30, 30, 60, 60, 90, 90], [2, 2, 3, 3, 4, 4, 5, 5], None),
    ([0, 0, 40, 40, 0, 0], [2, 2, 3, 3, 4, 4], None),
    ([0, 0, 0, 5, 5, 5], [2, 2, 3, 3, 4, 4], None),
    ([0, 0, 0, 0, 0, 40], [2, 2, 3, 3, 4, 4], None),
]


@pytest.mark.parametrize(("late_ms", "step", "by_ms"), LATE)
def test_a_clock_is_set_once_where_lateness_has_two_levels(
    late_ms: list[float], step: list[int], by_ms: float | None
) -> None:
    late = np.array(late_ms) * MS
    found = ClockSet.of(late, late.astype(np.int64), np.array(step), 20 * MS)
    assert (found and found.by_ns / MS) == by_ms


def test_the_first_step_is_judged_by_the_steps_of_the_ranks_that_have_the_most() -> None:
    """Rank 0 serves for two steps: by these alone the first one, which ranks begin 12 ms apart, would be as usual."""
    usual = """
        rank# step |1
              gpu  [fwd....][bwd.]
              nccl                [ar........]
    """

    def third_step_lost(trace: RankTrace) -> RankTrace:
        start = trace.events.start_ns
        after = start >= start[called(trace, "ProfilerStep#3")].min()
        return without(trace, on_device(trace) & after & (start < start[called(trace, "ProfilerStep#4")].min()))

    text = in_row(ranks(BEGINS_EARLY, BEGINS_LATE, BEGINS_EARLY, steps=1), ranks(*[usual] * 3, steps=3))
    assert joined(text, lambda trace: trace, 0).steps.tolist() == [2, 3, 4]
    damaged = joined(text, third_step_lost, 0)
    assert damaged.ranks.tolist() == [0, 1, 2] and damaged.steps.tolist() == [2]


def test_a_number_that_marks_two_steps_of_some_ranks_is_compared_once() -> None:
    twice = """
        rank# step |1                  |2                  |2                  |3
              gpu  [fwd....][bwd.]     [fwd....][bwd.]     [fwd....][bwd.]     [fwd....][bwd.]
              nccl                [ar.]               [ar.]               [ar.]               [ar.]
    """
    once = twice.replace("|2                  |2  ", "|2                      ")
    job = joined(ranks(twice, once, twice, steps=1), lambda trace: trace)
    assert job.steps.tolist() == [1, 2, 3]


def test_a_step_after_one_without_kernels_begins_nobody_knows_when() -> None:
    def one_step_lost(trace: RankTrace) -> RankTrace:
        start = trace.events.start_ns
        window = (start.max() - start.min()) / 8
        return without(trace, on_device(trace) & (np.abs(start - start.min() - 2.5 * window) < window / 2))

    job = joined(ranks(USUAL, SLOW, USUAL, steps=8), one_step_lost, 2)
    assert job.ranks.tolist() == [0, 1, 2]
    assert not {3, 4} & set(job.steps.tolist()) and {1, 6, 7, 8} <= set(job.steps.tolist())
    assert "have no kernel" in said_of(job, 2)


def test_kernels_of_collectives_under_other_names_do_not_count_as_compute() -> None:
    """Of a pipeline, where stages call other collectives, so that none is missing beside other ranks."""

    def renamed(trace: RankTrace) -> RankTrace:
        name = trace.events.name.copy()
        name[on_device(trace) & called(trace, "nccl")] = len(trace.strings)
        return replace(trace, strings=(*trace.strings, "other"), events=replace(trace.events, name=name))

    job = joined(drawn(staged, has_straggler=True), renamed, 2)
    assert job.ranks.tolist() == [0, 1, 3]
    assert "45 of 45 launches of communication have no communication kernel" in said_of(job, 2)


def test_where_no_rank_is_whole_the_job_is_what_is_there() -> None:
    job = joined(ranks(USUAL, SLOW, USUAL), half_the_kernels, 0, 1, 2)
    assert job.ranks.tolist() == [0, 1, 2]


def test_one_rank_alone_is_compared_with_nobody() -> None:
    job = joined(ranks(USUAL), half_the_kernels, 0)
    assert job.ranks.tolist() == [0] and not job.damaged


# ------------------------------------------------------------------------------------------------------- copies


def copied(text: str, pids: dict[int, str], by_ns: int = 0) -> Job:
    def measured(trace: RankTrace) -> RankTrace:
        # To the nanosecond, as real ones.
        return replace(trace, events=replace(trace.events, start_ns=trace.events.start_ns + by_ns))

    each = {rank: digest(measured(trace)) for rank, trace in read(text, pids=pids).items()}
    named = {rank: replace(one, file=f"host_{100 + rank}.1700000000.pt.trace.json") for rank, one in each.items()}
    return build("drawn", named, {}, len(named))


@pytest.mark.parametrize(("pids", "left_out"), [({1: "100"}, 1), ({0: "101"}, 0)])
def test_of_two_ranks_with_one_content_the_one_whose_file_names_the_process_stays(
    pids: dict[int, str], left_out: int
) -> None:
    job = copied(ranks(USUAL, USUAL, SLOW), pids)
    assert job.missing_ranks == (left_out,)
    (warning,) = [warning for warning in job.warnings if "one is a copy" in warning.message]
    assert f"_{100 + left_out}." in warning.file and f"(rank {1 - left_out})" in warning.message


def test_two_processes_do_not_measure_the_same_times_to_the_nanosecond() -> None:
    assert not copied(ranks(USUAL, USUAL, SLOW), {}).damaged
    assert len(copied(ranks(USUAL, USUAL, SLOW), {}, by_ns=17).damaged) == 1


def test_a_job_of_copies_of_one_trace_is_diagnosed_and_said() -> None:
    job = copied(ranks(*[USUAL] * 8), dict.fromkeys(range(8), "100"))
    assert len(job.ranks) == 8 and not job.damaged
    assert [warning.message for warning in job.warnings] == [
        "8 ranks have the same event times: their files are copies of one trace."
    ]


# ---------------------------------------------------------------------------------------- what is no damage


def whole(text: str, **options: Any) -> Job:
    each = digests(text, **options)
    job = build("drawn", each, {rank: f"host{rank}" for rank in each}, max(each) + 1)
    assert job.ranks.tolist() == sorted(each) and not job.damaged
    return job


def test_stages_of_a_pipeline_may_differ() -> None:
    first = """
        rank0 step |1
              host [fwd]
              gpu  [fwd*9...............]
              nccl                       [s1]
    """
    second = """
        rank1 step |1
              host [fwd][bwd]
              gpu                            [fwd*2][bwd*3]
              nccl                       [r0]
    """
    whole(ranks(first, second), metadata="host")


def test_groups_may_differ_and_some_ranks_be_in_none() -> None:
    grouped = """
        rank# step |1
              host [fwd][bwd]
              gpu  [fwd....][bwd.]
              nccl                [ar/tp]
    """
    alone = """
        rank2 step |1
              host [fwd]
              gpu  [fwd..........]
    """
    for metadata in ("host", "kernel"):
        whole(ranks(grouped, grouped, alone), metadata=metadata)


def test_a_rank_may_do_more() -> None:
    more = USUAL.replace("[fwd][bwd]", "[fwd][bwd][own_save][save]").replace("[bwd*20]", "[bwd*90]")
    whole(ranks(USUAL, USUAL, more))


def test_jobs_without_a_device_are_compared() -> None:
    rank = """
        rank# step |1
              host [fwd......]
              gloo            [ar........]
    """
    whole(ranks(rank, rank))


def test_ranks_that_capture_graphs_launch_without_kernels() -> None:
    each = {
        rank: digest(without(trace, on_device(trace) & called(trace, "fwd")))
        for rank, trace in read(ranks(*[USUAL] * 3)).items()
    }
    assert not build("drawn", each, {}, 3).damaged


def test_a_rank_that_stopped_early_is_whole() -> None:
    long, short = ranks(USUAL, SLOW, steps=5), ranks(USUAL, SLOW, steps=3)
    text = "\n".join(
        line for text, rank in ((long, "rank0"), (short, "rank1")) for line in text.splitlines() if rank in line
    )
    assert whole(text).steps.tolist() == [1, 2, 3]


@pytest.mark.parametrize("clock_ms", [{1: 5000.0}, {0: -70.0, 2: 900.0}])
def test_clocks_may_be_apart(clock_ms: dict[int, float]) -> None:
    whole(ranks(USUAL, SLOW, USUAL), clock_ms=clock_ms)


@pytest.mark.parametrize(("others", "said"), [(3, [1]), (1, [0, 1])])
def test_a_file_of_another_run_is_named_and_of_two_both(others: int, said: list[int]) -> None:
    """Ranks wait for each other in every step; a node has one clock, and others are a minute apart at most."""

    def named(apart_ms: float, node: str) -> list[int]:
        each = digests(ranks(*[USUAL] * (others + 1)), clock_ms={1: apart_ms})
        job = build("drawn", each, {rank: node.format(rank) for rank in each}, len(each))
        return [rank for rank in each if "recorded at another time than" in said_of(job, rank)]

    assert named(20_000.0, "node0") == named(600_000.0, "node{}") == named(600_000.0, "") == said
    assert named(20_000.0, "node{}") == named(20_000.0, "") == named(200.0, "node0") == []


@pytest.mark.parametrize(("count", "said"), [(4, [1]), (2, [0, 1])])
def test_ranks_of_one_node_with_clocks_apart_are_named(count: int, said: list[int]) -> None:
    """Kineto sets each GPU's times to its CPU's clock, and a node has one."""
    each = digests(ranks(*[USUAL] * count), clock_ms={1: 140.0})
    job = build("drawn", each, dict.fromkeys(each, "node0"), count)
    assert [rank for rank in each if "140.0 ms" in said_of(job, rank)] == said
    assert "The clock of rank 1 is 140.0 ms late beside that of the other rank" in said_of(job, 1)
    assert not build("drawn", each, {rank: f"node{rank}" for rank in each}, count).warnings


def test_calls_of_groups_without_a_name_may_end_apart() -> None:
    """Taken for one collective, they end by another time apart in each step: no clock does so."""
    one = "rank# step |1\n gpu [a....]\n nccl       [ar]" + " " * 90
    other = [
        "rank# step |1\n gpu [a" + "." * n + "]\n nccl " + " " * (n + 3) + "[ar]" + " " * (95 - n)
        for n in (80, 5, 45, 70)
    ]
    text = in_row(*(ranks(one, one, late, late, steps=1) for late in other))
    whole(text, metadata="nowhere")


def test_a_warning_of_the_file_is_kept_beside_what_the_comparison_says() -> None:
    each = digests(ranks(USUAL, USUAL, USUAL))
    each[1] = replace(each[1], warnings=(FileWarning("rank1.json", "cut"),))
    assert [warning.message for warning in build("drawn", each, {}, 3).warnings] == ["cut"]


def test_digests_are_not_changed() -> None:
    each: dict[int, RankDigest] = digests(ranks(USUAL, SLOW))
    assert build("drawn", each, {}, 2).digests == tuple(each.values())


# ------------------------------------------------------------------------------------------------- few steps


def one_mark_left(number: int) -> Damage:
    def damage(trace: RankTrace) -> RankTrace:
        return without(trace, called(trace, "ProfilerStep") & ~called(trace, f"ProfilerStep#{number}"))

    return damage


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_rank_with_one_step_of_many_is_left_out(number: int) -> None:
    job = joined(ranks(USUAL, SLOW, USUAL, USUAL, steps=5), one_mark_left(number), 1)
    assert job.ranks.tolist() == [0, 2, 3] and len(job.steps) == 5
    assert "Rank 1 is left out as damaged: it has 1 step, and other ranks have 5." in said_of(job, 1)
    assert examine(job).verdict == "missing-straggler"


def test_of_two_ranks_the_one_with_one_step_is_left_out() -> None:
    job = joined(ranks(USUAL, SLOW, steps=5), one_mark_left(2), 1)
    assert job.ranks.tolist() == [0] and len(job.steps) == 5


def test_one_step_of_all_ranks_is_compared_and_not_called_healthy() -> None:
    job = joined(ranks(*[HEALTHY] * 4), one_mark_left(2), 0, 1, 2, 3)
    assert job.ranks.tolist() == [0, 1, 2, 3] and len(job.steps) == 1
    diagnosis = examine(job)
    assert diagnosis.verdict == "unknown"
    assert diagnosis.headline.startswith("No fault shows in the one step that these traces have")


def test_calls_without_a_match_forbid_healthy() -> None:
    """Of two ranks with collectives of other kinds, nobody knows which one is of another job."""
    text = ranks(*[HEALTHY] * 2)
    other = ranks(HEALTHY, HEALTHY.replace("[ar@", "[ag@"))
    assert examine(whole(text)).verdict == "healthy"
    diagnosis = examine(whole(other))
    assert diagnosis.verdict == "unknown"
    assert "of the calls of collectives have no match on another rank" in diagnosis.headline


# ------------------------------------------------------------------------------------- another job's, another clock's


def paced(factor: float) -> Damage:
    """A clock that is fast by this factor."""

    def damage(trace: RankTrace) -> RankTrace:
        events, first = trace.events, int(trace.events.start_ns.min())
        start = first + np.rint((events.start_ns - first) * factor).astype(np.int64)
        length = np.rint(events.duration_ns * factor).astype(np.int64)
        return replace(trace, events=replace(events, start_ns=start, duration_ns=length))

    return damage


@pytest.mark.parametrize(("factor", "said"), [(1.3, "its clock is 30 % fast"), (0.8, "its clock is 20 % slow")])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_whose_clock_runs_at_another_pace_is_left_out(rank: int, factor: float, said: str) -> None:
    job = joined(ranks(USUAL, SLOW, USUAL, USUAL, steps=6), paced(factor), rank)
    assert job.missing_ranks == (rank,) and said in said_of(job, rank)
    assert examine(job).findings[0].ranks == (1,)


def test_times_in_ms_leave_a_rank_out() -> None:
    job = joined(ranks(USUAL, SLOW, USUAL, USUAL), paced(0.001), 2)
    assert job.missing_ranks == (2,)
    assert "seems to take less than a hundredth of what it takes on other ranks" in said_of(job, 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_ranks_the_one_whose_kernels_no_gpu_could_run_is_left_out(rank: int) -> None:
    job = joined(ranks(USUAL, USUAL), paced(0.0001), rank)
    assert job.missing_ranks == (rank,)
    assert "ns on average, and no GPU's do" in said_of(job, rank)


def test_clocks_drift_without_being_damaged() -> None:
    job = joined(ranks(USUAL, SLOW, USUAL, USUAL, steps=6), paced(1.0002), 2)
    assert len(job.ranks) == 4 and not job.damaged


@pytest.mark.parametrize("rank", [0, 2])
def test_a_file_of_another_job_is_left_out(rank: int) -> None:
    """Its collectives are of sizes that no other rank has."""
    lines = ranks(USUAL, SLOW, USUAL, USUAL).splitlines()
    text = "\n".join(line.replace("@2", "@7").replace("@1", "@9") if f"rank{rank}" in line else line for line in lines)
    job = joined(text, lambda trace: trace)
    assert job.missing_ranks == (rank,)
    assert "of its collectives over all ranks, none is in kind and size as on other ranks" in said_of(job, rank)
    assert examine(job).findings[0].ranks == (1,)


def test_sizes_may_differ_between_all_ranks() -> None:
    """As those of experts' all-to-alls do."""
    lines = ranks(*[HEALTHY] * 4).splitlines()
    whole("\n".join(line.replace("@2", f"@{3 + int(line[4])}") for line in lines))


def test_an_all_to_all_may_be_larger_on_one_rank() -> None:
    """Where the experts that get most tokens are."""
    plain = """
        rank# step |1
              host [fwd][a2a]
              gpu       [fwd....]
              nccl               [a2a@2]
    """
    whole(ranks(plain, plain.replace("@2", "@5"), plain, plain))


# --------------------------------------------------------------------------------------------- the host's events

BUSY = """
    rank# step |1
          host [a][b][c][d][e][f]      [g][h]
          gpu  [a...][b...][c*4][d...][e...][f...][g*4.][h...]
          nccl                                                [ar@1...]
"""


def no_launches(first: int, last: int) -> Damage:
    """A share of the launches, by their order."""

    def damage(trace: RankTrace) -> RankTrace:
        rows = np.flatnonzero(trace.events.category == Category.RUNTIME)
        rows = rows[np.argsort(trace.events.start_ns[rows])][len(rows) * first // 30 : len(rows) * last // 30]
        lost = np.zeros(len(trace.events), np.bool_)
        lost[rows] = True
        return without(trace, lost)

    return damage


def test_steps_with_kernels_whose_launch_is_lost_do_not_count() -> None:
    job = joined(ranks(*[BUSY] * 3, steps=6), no_launches(11, 13), 1)
    assert job.ranks.tolist() == [0, 1, 2] and job.steps.tolist() == [1, 2, 5, 6]
    assert "kernels have no launch" in said_of(job, 1)


def test_a_rank_that_lacks_many_launches_is_left_out() -> None:
    job = joined(ranks(*[BUSY] * 3, steps=6), no_launches(3, 22), 1)
    assert job.missing_ranks == (1,) and "Rank 1 is left out as damaged" in said_of(job, 1)


def no_ops(first: float, last: float) -> Damage:
    """The operators of a part of the record."""

    def damage(trace: RankTrace) -> RankTrace:
        start = trace.events.start_ns
        place = (start - start.min()) / (start.max() - start.min())
        return without(trace, (trace.events.category == Category.OP) & (place >= first) & (place < last))

    return damage


def test_a_step_that_lacks_operators_beside_other_steps_and_ranks_does_not_count() -> None:
    job = joined(ranks(*[BUSY] * 3, steps=6), no_ops(0.34, 0.5), 1)
    assert job.ranks.tolist() == [0, 1, 2] and 3 not in job.steps.tolist()
    assert "its CPU has fewer events than other ranks' in step 3" in said_of(job, 1)


def test_a_rank_without_the_operators_that_others_have_for_as_many_launches_is_left_out() -> None:
    job = joined(ranks(*[BUSY] * 3, steps=6), no_ops(0, 1.1), 1)
    assert job.missing_ranks == (1,) and "its CPU has fewer events" in said_of(job, 1)


def test_ranks_that_do_less_on_their_cpu_are_whole() -> None:
    less = BUSY.replace("[c]", "   ").replace("[c*4]", "     ")
    whole(ranks(BUSY, less, BUSY))


def test_how_often_a_rank_asks_whether_work_is_done_says_nothing_of_its_record() -> None:
    """The allocator asks a thousand times in a step of one stage of a pipeline, and forty times in that of another."""
    traces = [*read(ranks(*[BUSY] * 3, steps=6)).values()]
    asking = [with_queries(trace, 400) for trace in traces[:2]]
    job = build("drawn", {rank: digest(trace) for rank, trace in enumerate((*asking, traces[2]))}, {}, 3)
    assert job.ranks.tolist() == [0, 1, 2] and len(job.steps) == 6


def with_queries(trace: RankTrace, count: int) -> RankTrace:
    """So many calls of cudaEventQuery in the middle of each operator."""
    events = trace.events
    rows = np.concatenate((np.arange(len(events)), np.repeat(np.flatnonzero(events.category == Category.OP), count)))
    more = type(events)(*(getattr(events, name)[rows] for name in events.__struct_fields__))
    new = np.arange(len(rows)) >= len(events)
    return replace(
        trace,
        strings=(*trace.strings, "cudaEventQuery"),
        events=replace(
            more,
            category=np.where(new, Category.RUNTIME, more.category).astype(more.category.dtype),
            name=np.where(new, len(trace.strings), more.name).astype(more.name.dtype),
            start_ns=more.start_ns + np.where(new, more.duration_ns // 2, 0),
            duration_ns=np.where(new, 0, more.duration_ns),
            correlation=np.where(new, -1, more.correlation),
        ),
    )


@pytest.mark.parametrize("others", [1, 3])
def test_a_rank_with_many_times_the_collectives_of_the_others_is_left_out(others: int) -> None:
    each = digests(ranks(*[HEALTHY] * (others + 1), steps=5))
    table = each[0].collectives
    columns = (getattr(table, name) for name in table.__struct_fields__)
    more = type(table)(*(np.concatenate((column, np.repeat(column[-1:], 20_000))) for column in columns))
    each[0] = replace(each[0], collectives=more)
    job = build("drawn", each, {}, len(each))
    assert job.missing_ranks == (0,) and "it has 20,010 calls of collectives, and other ranks have 10" in said_of(
        job, 0
    )


def test_engines_have_far_more_collectives_than_ranks_that_train_in_a_group_of_their_own() -> None:
    each = digests(ranks(*[HEALTHY] * 4, steps=5))
    for rank in (2, 3):
        calls = each[rank].collectives
        columns = {name: getattr(calls, name) for name in calls.__struct_fields__}
        more = {name: np.concatenate((column, np.repeat(column[-1:], 20_000))) for name, column in columns.items()}
        more["group"][-20_000:] = len(each[rank].strings)
        each[rank] = replace(each[rank], strings=(*each[rank].strings, "tp"), collectives=type(calls)(**more))
    assert build("drawn", each, {}, len(each)).missing_ranks == ()


def renamed(trace: RankTrace) -> RankTrace:
    """Each kernel with another name than on other ranks."""
    odd = {name for name in trace.strings if name.endswith("_kernel")}
    return replace(trace, strings=tuple(f"my_{name}" if name in odd else name for name in trace.strings))


def test_a_rank_whose_kernels_have_names_that_no_other_has_is_left_out() -> None:
    job = joined(ranks(*[HEALTHY] * 3, steps=5), renamed, 1)
    assert job.missing_ranks == (1,) and "none of its kernels has a name" in said_of(job, 1)


def test_of_two_ranks_nobody_knows_whose_names_are_right() -> None:
    assert joined(ranks(*[HEALTHY] * 2, steps=5), renamed, 1).ranks.tolist() == [0, 1]


#: Ranks that generate with many short ops, and one that trains with few, for as many launches.
GENERATES = """
    rank# step |1
          host   [own_generate_sequences...............]
          within [a][x][x][x][x][x][x][x][b][sync......]
          gpu      [a.....................][b..........]
          nccl                                         [bc@1]
"""
TRAINS = """
    rank# step |1
          host   [own_update_actor.....................]
          within [a][b]                      [sync.....]
          gpu      [a.....................][b.......]
          nccl                                       [bc@1..]
"""


def test_ranks_of_roles_differ_in_what_their_cpus_call() -> None:
    text = ranks(GENERATES, GENERATES, GENERATES, TRAINS, steps=4)
    roles = examine(job(text))
    assert (roles.kind, roles.ranks, roles.incomplete) == ("RL", (0, 1, 2, 3), ())
    # Without roles, a rank with the same events lacks some.
    assert job(text.replace("own_", "any_")).missing_ranks == (3,)


#: A rank that reads prompts with single launches, and has fewer other events than those that write answers.
PROMPTS = """
    rank# step |1
          host   [own_generate_sequences...............]
          within [a][b][c]                   [sync.....]
          gpu      [a.........][b.....][c..............]
          nccl                                         [bc@1]
"""


def test_ranks_that_generate_differ_in_what_their_requests_need() -> None:
    assert examine(job(ranks(GENERATES, PROMPTS, GENERATES, TRAINS, steps=4))).incomplete == ()
