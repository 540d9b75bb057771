"""Events whose times contradict each other are counted by step, and steps with more of them than usual do not count."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import MS, in_row, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.model import LostKernels
from tb_ddp_doctor.digest.order import broken_order
from tb_ddp_doctor.engine import examine
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.model import Category, RankTrace

RANK = """
    rank# step |1
          host [a][b][c][d]
          gpu  [a*4][b*4][c*4.......][d*4]
          nccl                            [ar@2....]
"""


def drawn() -> RankTrace:
    return read(ranks(RANK, steps=5))[0]


def rows(trace: RankTrace, name: str, *categories: Category) -> list[int]:
    """Rows of the events of a name, in order of time."""
    wanted = np.array([text.startswith(name) for text in trace.strings])[trace.events.name]
    wanted &= np.isin(trace.events.category, categories or (Category.KERNEL,))
    found = np.flatnonzero(wanted)
    return [*found[np.argsort(trace.events.start_ns[found], kind="stable")].tolist()]


def moved(trace: RankTrace, chosen: list[int], by_ms: float) -> RankTrace:
    start = trace.events.start_ns.copy()
    start[chosen] += round(by_ms * MS)
    return replace(trace, events=replace(trace.events, start_ns=start))


def counted(trace: RankTrace) -> LostKernels:
    return digest(trace).lost_kernels


def test_a_whole_record_has_nothing_out_of_order() -> None:
    found = counted(drawn())
    assert not found.out_of_order.any() and not found.out_of_turn.any()


@pytest.mark.parametrize("by_ms", [3.0, -3.0])
def test_kernels_that_run_beside_or_before_one_launched_earlier_are_out_of_order(by_ms: float) -> None:
    trace = drawn()
    found = counted(moved(trace, rows(trace, "c_kernel")[4:8], by_ms))
    assert found.out_of_order[1] and not found.out_of_order[[0, 2, 3, 4]].any()


def test_kernels_of_two_steps_that_change_places_are_out_of_order_in_both() -> None:
    trace = drawn()
    # Into the idle time of the step before, where nothing else runs.
    found = counted(moved(trace, rows(trace, "a_kernel")[4:8], -11.5))
    assert found.out_of_order[1]


def test_a_kernel_before_its_launch_is_out_of_order() -> None:
    trace = drawn()
    call = rows(trace, "cudaLaunchKernelExC", Category.RUNTIME)[-1:]
    found = counted(moved(trace, [*call, *rows(trace, "record_param_comms", Category.OP)[-1:]], 17))
    assert found.out_of_order.tolist() == [0, 0, 0, 0, 1] and not found.out_of_turn.any()


def test_what_one_graph_launches_has_no_order() -> None:
    trace = read(ranks(RANK.replace("[c*4.......]", "[graph*4...]").replace("[c]", "[g]"), steps=5))[0]
    of_graph = rows(trace, "graph")[4:8]
    assert len(of_graph) == 4
    together = moved(trace, of_graph[1:3], -1.5)
    assert not broken_order(DeviceRows.of(together.events)).any()


def test_calls_whose_numbers_do_not_rise_on_their_thread_are_out_of_turn() -> None:
    trace = drawn()
    calls = rows(trace, "cudaLaunchKernel", Category.RUNTIME)
    found = counted(moved(trace, calls[6:9], 40))
    assert found.out_of_turn.any()


def test_operators_that_overlap_without_nesting_are_out_of_turn() -> None:
    trace = drawn()
    found = counted(moved(trace, rows(trace, "aten::b", Category.OP)[1:2], -1.5))
    assert found.out_of_turn.tolist() == [0, 2, 0, 0, 0]


@pytest.mark.parametrize("by_ms", [90, 900, 10_000_000])
def test_one_operator_that_lasts_too_long_to_be_true_costs_itself_alone(by_ms: int) -> None:
    """One wrong digit in a duration: its rank stays in the comparison, with all of its steps."""
    traces = [*read(ranks(*[RANK] * 3, steps=5)).values()]
    length = traces[1].events.duration_ns.copy()
    length[rows(traces[1], "aten::b", Category.OP)[1]] += by_ms * MS
    traces[1] = replace(traces[1], events=replace(traces[1].events, duration_ns=length))
    job = joined(traces)
    assert job.ranks.tolist() == [0, 1, 2] and job.steps.tolist() == [1, 2, 3, 4, 5]
    (warning,) = (each.message for each in job.warnings)
    assert warning.startswith("1 event with impossible times left out: aten::b")
    sound = joined([*read(ranks(*[RANK] * 3, steps=5)).values()])
    assert np.array_equal(job.budget.owner_ns, sound.budget.owner_ns)


def test_an_operator_that_begins_as_the_one_before_ends_overlaps_by_rounding_only() -> None:
    trace = drawn()
    found = counted(moved(trace, rows(trace, "aten::b", Category.OP), -0.001))
    assert not found.out_of_turn.any()


def test_phases_of_compiling_do_not_nest_with_operators() -> None:
    """Dynamo leaves the annotation of a phase when it leaves the phase, wherever it entered it (torch 2.11)."""
    trace = drawn()
    crossing = moved(trace, rows(trace, "aten::b", Category.OP)[1:2], -1.5)
    category, strings = crossing.events.category.copy(), list(crossing.strings)
    name = crossing.events.name.copy()
    (phase,) = rows(crossing, "aten::b", Category.OP)[1:2]
    category[phase], name[phase] = Category.ANNOTATION, len(strings)
    strings.append("backend_compile_data: compile_id=0/12")
    events = replace(crossing.events, category=category, name=name)
    found = counted(replace(crossing, events=events, strings=tuple(strings)))
    assert not found.out_of_turn.any()
    strings[-1] = "## forward ##"
    assert counted(replace(crossing, events=events, strings=tuple(strings))).out_of_turn.any()


def test_a_clock_is_not_set_right_where_the_order_is_broken() -> None:
    trace = drawn()
    early = moved(trace, [row for name in "abc" for row in rows(trace, f"{name}_kernel")[8:12]], -20)
    assert not any("clock" in warning.message for warning in digest(early).warnings)
    assert counted(early).out_of_order.any()


def joined(traces: list[RankTrace]) -> Job:
    each = {rank: digest(trace) for rank, trace in enumerate(traces)}
    return build("drawn", each, {rank: f"host{rank}" for rank in each}, len(each))


def test_steps_out_of_order_do_not_count_where_other_ranks_have_none() -> None:
    traces = [*read(ranks(*[RANK] * 3, steps=5)).values()]
    traces[1] = moved(traces[1], rows(traces[1], "c_kernel")[4:8], 3)
    job = joined(traces)
    assert job.steps.tolist() == [1, 4, 5]
    assert any("GPU events are out of the order of their launches" in each.message for each in job.warnings)


def test_a_recorder_that_breaks_the_order_on_all_ranks_damages_none() -> None:
    traces = [*read(ranks(*[RANK] * 3, steps=5)).values()]
    traces = [moved(trace, rows(trace, "c_kernel")[4:8], 3) for trace in traces]
    assert joined(traces).steps.tolist() == [1, 2, 3, 4, 5]


def test_a_rank_with_a_collective_that_ends_apart_serves_without_its_step() -> None:
    traces = [*read(ranks(*[RANK] * 3, steps=12)).values()]
    traces[1] = moved(traces[1], rows(traces[1], "nccl")[3:4], 12)
    job = joined(traces)
    assert not {4, 5} & {*job.steps.tolist()} and not sum(job.matched.odd)
    assert any("ends apart from those of all other ranks" in each.message for each in job.warnings)


#: The same with longer kernels.
SLOW = """
    rank# step |1
          host [a][b][c][d]
          gpu  [a*4][b*4][c*4..............................][d*4]
          nccl                                                   [ar@2....]
"""


def begun_later(steps: int, first: str = RANK) -> Job:
    """A job of three ranks, of which one lacks the mark of its first step, which is drawn as `first`."""
    drawing = in_row(ranks(*[first] * 3, steps=1), ranks(*[RANK] * 3, steps=steps - 1))
    traces = [*read(drawing).values()]
    marks = rows(traces[1], "ProfilerStep#1", Category.ANNOTATION)[:1]
    kept = np.setdiff1d(np.arange(len(traces[1].events)), marks)
    events = traces[1].events
    traces[1] = replace(
        traces[1],
        events=type(events)(*(getattr(events, name)[kept] for name in events.__struct_fields__)),
        comms=replace(traces[1].comms, event=np.searchsorted(kept, traces[1].comms.event)),
    )
    return joined(traces)


def test_a_rank_whose_record_begins_later_is_said() -> None:
    job = begun_later(steps=5)
    assert job.steps.tolist() == [2, 3, 4, 5]
    assert any(each.message.startswith("Rank 1 has no step 1,") for each in job.warnings)
    assert examine(job).verdict == "healthy"


def test_two_steps_are_healthy_where_the_third_takes_no_longer() -> None:
    job = begun_later(steps=3)
    assert job.steps.tolist() == [2, 3]
    assert examine(job).verdict == "healthy"


def test_two_steps_of_those_that_most_ranks_have_are_not_called_healthy() -> None:
    job = begun_later(steps=3, first=SLOW)
    assert job.steps.tolist() == [2, 3]
    diagnosis = examine(job)
    assert diagnosis.verdict == "unknown"
    assert diagnosis.headline.startswith("No fault shows in 2 of the 3 steps that most ranks have")
