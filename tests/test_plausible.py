"""Events whose times cannot be are dropped and said; what is odd but possible stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from traces import MS, ranks, read

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.plausible import plausible, without_copies
from tb_ddp_doctor.trace.model import Category, Events, RankTrace

RANK = """
    rank# step |1
          host [fwd][bwd][opt]
          gpu  [fwd....][bwd.]    [opt]
          nccl                [ar]
"""
S, HOUR = 1000 * MS, 3600 * 1000 * MS


def drawn(steps: int = 40) -> RankTrace:
    return read(ranks(RANK, steps=steps))[0]


def rows_of(trace: RankTrace, name: str) -> list[int]:
    return [row for row, index in enumerate(trace.events.name) if trace.strings[index].startswith(name)]


def changed(trace: RankTrace, row: int, column: str, by_ns: int) -> RankTrace:
    values = getattr(trace.events, column).copy()
    values[row] += by_ns
    return replace(trace, events=replace(trace.events, **{column: values}))


def left_of(trace: RankTrace) -> RankTrace:
    once = without_copies(trace)
    return plausible(once, DeviceRows.of(once.events))


def numbered(trace: RankTrace) -> RankTrace:
    """The trace with launches numbered as they come, as drivers do."""
    rows, correlation = DeviceRows.of(trace.events), trace.events.correlation.copy()
    joined = rows.launch >= 0
    order = np.argsort(np.argsort(trace.events.start_ns[rows.launch[joined]], kind="stable"))
    correlation[rows.row[joined]] = correlation[rows.launch[joined]] = order + 1
    return replace(trace, events=replace(trace.events, correlation=correlation))


def left_rows(trace: RankTrace) -> list[int]:
    """The rows of the events that stay."""
    left = left_of(trace).events
    stay = set(zip(left.start_ns.tolist(), left.name.tolist(), left.thread.tolist(), strict=True))
    events = trace.events
    told = zip(events.start_ns.tolist(), events.name.tolist(), events.thread.tolist(), strict=True)
    return [row for row, one in enumerate(told) if one in stay]


def dropped(trace: RankTrace) -> list[str]:
    left = left_of(trace)
    gone = len(trace.events) - len(left.events)
    new = left.warnings[len(trace.warnings) :]
    assert bool(gone) == bool(new)
    assert all(warning.loses_events for warning in new)
    return [warning.message for warning in new]


def test_a_sound_trace_is_left_as_it_is() -> None:
    trace = drawn()
    assert left_of(trace) is trace


@pytest.mark.parametrize("name", ["fwd_kernel", "nccl"])
@pytest.mark.parametrize("which", [0, 17, -1])
@pytest.mark.parametrize("by_ns", [5 * S, -5 * S, 72 * HOUR, -72 * HOUR])
def test_one_changed_digit_of_a_start_costs_that_event(name: str, which: int, by_ns: int) -> None:
    trace = drawn()
    (message,) = dropped(changed(trace, rows_of(trace, name)[which], "start_ns", by_ns))
    assert message.startswith(f"1 event with impossible times left out: {name}")


@pytest.mark.parametrize("name", ["fwd_kernel", "bwd_kernel", "nccl"])
@pytest.mark.parametrize("which", [0, 17, -1])
def test_a_kernel_of_three_hours_is_dropped(name: str, which: int) -> None:
    trace = drawn()
    (message,) = dropped(changed(trace, rows_of(trace, name)[which], "duration_ns", 3 * HOUR))
    assert message.startswith(f"1 event with impossible times left out: {name}")


@pytest.mark.parametrize("name", ["fwd_kernel", "bwd_kernel", "nccl"])
@pytest.mark.parametrize("by_ns", [50 * MS, 900 * MS])
def test_a_kernel_that_runs_on_beside_the_next_of_its_stream_is_dropped(name: str, by_ns: int) -> None:
    trace = drawn()
    (message,) = dropped(changed(trace, rows_of(trace, name)[17], "duration_ns", by_ns))
    assert message.startswith(f"1 event with impossible times left out: {name}")
    assert "runs on beside the next one of its stream" in message


@pytest.mark.parametrize("which", [17, -1])
def test_a_step_of_three_hours_ends_with_its_thread(which: int) -> None:
    trace = drawn()
    step = next(row for row in rows_of(trace, f"ProfilerStep#{18 if which == 17 else 40}"))
    damaged = changed(trace, step, "duration_ns", 3 * HOUR)
    left = left_of(damaged)
    assert len(left.events) == len(trace.events)
    (warning,) = left.warnings[len(trace.warnings) :]
    assert "lasts longer than the whole trace" in warning.message
    assert digest(damaged).steps.number.tolist() == digest(trace).steps.number.tolist()
    assert digest(damaged).steps.end_ns.tolist() == digest(trace).steps.end_ns.tolist()


def test_where_many_kernels_run_on_beside_the_next_they_are_cut_there() -> None:
    """As ROCm's do."""
    trace = drawn()
    for row in rows_of(trace, "fwd_kernel")[::3]:
        trace = changed(trace, row, "duration_ns", 20 * MS)
    assert not dropped(trace)


@pytest.mark.parametrize("by_ns", [300 * MS, -300 * MS])
def test_a_kernel_that_moves_within_the_trace_is_out_of_order(by_ns: int) -> None:
    trace = drawn()
    (message,) = dropped(changed(trace, rows_of(trace, "bwd_kernel")[17], "start_ns", by_ns))
    assert message.startswith("1 event with impossible times left out: bwd_kernel starts ")


@pytest.mark.parametrize("by_ns", [30 * MS, -30 * MS])
def test_a_launch_that_moves_on_its_thread_is_out_of_turn(by_ns: int) -> None:
    """Its kernel runs when it did, and a launch before that breaks no rule: by the numbers of calls it is elsewhere."""
    trace = numbered(drawn())
    rows = DeviceRows.of(trace.events)
    launch = rows.launch[rows.row == rows_of(trace, "bwd_kernel")[17]][0]
    moved = changed(trace, launch, "start_ns", by_ns)
    (message,) = dropped(moved)
    assert message.startswith("2 events with impossible times left out: ") and "is out of turn" in message
    assert not {launch, rows_of(trace, "bwd_kernel")[17]} & set(left_rows(moved))


def test_a_step_that_lies_days_away_is_known_by_those_beside_it() -> None:
    trace = drawn()
    moved = changed(trace, rows_of(trace, "ProfilerStep#7")[0], "start_ns", 72 * HOUR)
    assert "ProfilerStep#7 lies seconds away from all others" in dropped(moved)[0]
    steps, whole = digest(moved).steps, digest(trace).steps
    assert steps.number.tolist() == whole.number.tolist()
    assert steps.end_ns.tolist() == whole.end_ns.tolist()


def test_what_lies_between_steps_of_which_several_lack_is_of_no_step() -> None:
    trace = drawn()
    kept = np.ones(len(trace.events), np.bool_)
    kept[[rows_of(trace, f"ProfilerStep#{number}")[0] for number in (7, 8)]] = False
    columns = {name: getattr(trace.events, name)[kept] for name in Events.__struct_fields__}
    steps, whole = digest(replace(trace, events=Events(**columns))).steps, digest(trace).steps
    assert steps.number.tolist() == [number for number in whole.number.tolist() if number not in (7, 8)]
    assert set((steps.end_ns - steps.start_ns).tolist()) == set((whole.end_ns - whole.start_ns).tolist())


def test_kernels_without_any_duration_are_dropped() -> None:
    trace = drawn()
    kernels = trace.events.category == Category.KERNEL
    flat = replace(trace, events=replace(trace.events, duration_ns=np.where(kernels, 0, trace.events.duration_ns)))
    assert "take no time" in dropped(flat)[0]
    some = np.flatnonzero(kernels)[::10]
    rounded = trace.events.duration_ns.copy()
    rounded[some] = 0
    assert not dropped(replace(trace, events=replace(trace.events, duration_ns=rounded)))


def hang(trace: RankTrace) -> RankTrace:
    """The last collective hangs for ten minutes, and the host waits for it."""
    trace = changed(trace, rows_of(trace, "nccl")[-1], "duration_ns", 600 * S)
    return changed(trace, rows_of(trace, "ProfilerStep#40")[0], "duration_ns", 600 * S)


def pause(trace: RankTrace) -> RankTrace:
    """The second half comes a minute later, within a step that lasts as long."""
    start = trace.events.start_ns
    middle = int(start[rows_of(trace, "ProfilerStep#21")[0]])
    later = replace(trace.events, start_ns=np.where(start >= middle, start + 60 * S, start))
    return changed(replace(trace, events=later), rows_of(trace, "ProfilerStep#20")[0], "duration_ns", 60 * S)


def other_clock(trace: RankTrace) -> RankTrace:
    """The device's clock is a second behind the host's."""
    kernels = trace.events.category == Category.KERNEL
    start = np.where(kernels, trace.events.start_ns - S, trace.events.start_ns)
    return replace(trace, events=replace(trace.events, start_ns=start))


@pytest.mark.parametrize("odd", [hang, pause, other_clock])
def test_what_is_odd_but_possible_stays(odd: Callable[[RankTrace], RankTrace]) -> None:
    assert not dropped(odd(drawn()))


def test_metadata_stays_with_its_collective() -> None:
    trace = drawn()
    moved = left_of(changed(trace, rows_of(trace, "fwd_kernel")[0], "start_ns", 72 * HOUR))
    assert len(moved.comms) == len(trace.comms)
    names = [[one.strings[one.events.name[row]] for row in one.comms.event] for one in (trace, moved)]
    assert names[0] == names[1]


# ------------------------------------------------------------------------------------------------ events twice


def twice(trace: RankTrace, rows: list[int]) -> RankTrace:
    """The trace with some of its events once more at its end."""
    places = np.concatenate((np.arange(len(trace.events)), rows)).astype(np.int64)
    columns = {name: getattr(trace.events, name)[places] for name in Events.__struct_fields__}
    return replace(trace, events=Events(**columns))


@pytest.mark.parametrize("name", ["fwd_kernel", "nccl", "cudaLaunchKernel", "aten::fwd", "ProfilerStep"])
def test_an_event_that_is_there_twice_counts_once(name: str) -> None:
    trace = drawn()
    left = left_of(twice(trace, rows_of(trace, name)))
    assert len(left.events) == len(trace.events)
    (warning,) = left.warnings
    assert warning.message.startswith(f"{len(rows_of(trace, name))} events left out that the file holds twice: {name}")
    assert warning.kind == "note"


def test_a_trace_with_all_events_twice_is_digested_as_if_they_were_there_once() -> None:
    trace = drawn()
    once, doubled = digest(trace), digest(twice(trace, list(range(len(trace.events)))))
    assert doubled.work.kernels.kernels.tolist() == once.work.kernels.kernels.tolist()
    assert doubled.work.owner_ns.tolist() == once.work.owner_ns.tolist()
    assert len(doubled.collectives) == len(once.collectives)


def test_two_calls_of_the_same_time_and_name_on_other_threads_are_two() -> None:
    trace = drawn()
    doubled = twice(trace, rows_of(trace, "aten::fwd"))
    thread = doubled.events.thread.copy()
    thread[len(trace.events) :] += 1
    assert left_of(replace(doubled, events=replace(doubled.events, thread=thread))).warnings == ()
