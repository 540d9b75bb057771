"""Steps played again without what a fix takes out."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray
from random_jobs import FaultyJob, faulty_jobs
from random_traces import OF_JOBS, TRACES, joined
from traces import MS, alike, digests, in_row, job, ranks, read, repeat

from tb_ddp_doctor import replay
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay import native, native_library
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.host_meetings import with_host_meetings
from tb_ddp_doctor.replay.model import Ordering, Played
from tb_ddp_doctor.replay.order import (
    CircularWaitError,
    PlayedTogether,
    nothing_ordered,
    order_natively,
    order_with_numpy,
)
from tb_ddp_doctor.replay.play import _Playing, play
from tb_ddp_doctor.replay.tracks import RecordedTracks, awaited, families, recorded_parts
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Ints, RankTrace

#: The device waits for what the host does, and the host for the device at the end.
LOADED = """
    rank# step |1
          host [load......][fwd][bwd]     [sync...........]
          gpu              [fwd........][bwd..............]
"""
#: Loading hides behind the device, which has work for 20 ms.
HIDDEN = """
    rank# step |1
          host [fwd][load....][sync...]
          gpu  [fwd...................]
"""


def test_the_readme_of_the_replay_is_true() -> None:
    failed, tried = doctest.testfile(str(Path(replay.__file__).with_name("README.md")), module_relative=False)
    assert (failed, tried > 10) == (0, True)


def played(text: str) -> tuple[Job, WhatIf]:
    found = job(text)
    whatif = WhatIf.of(found)
    assert whatif.plays
    return found, whatif


def saved_ms(text: str, *kinds: CpuTime) -> list[float]:
    _, whatif = played(text)
    return [round(ns / MS, 1) for ns in whatif.saving(whatif.without(*kinds)).by_step_ns.tolist()]


def test_nothing_removed_gives_the_recorded_steps() -> None:
    for text in (ranks(LOADED, LOADED), ranks(HIDDEN)):
        found, whatif = played(text)
        nothing = Change(device_ns=np.zeros(whatif.shape, np.int64), transfer_ns=np.zeros(whatif.shape, np.int64))
        assert whatif.replay is not None
        assert (whatif.replay.step_ns(nothing) == found.budget.window_ns).all()


@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3))
def test_nothing_removed_gives_the_recorded_steps_of_any_job(traces: list[RankTrace]) -> None:
    found = joined([digest(trace) for trace in traces])
    if found and (replay := WhatIf.of(found).replay):
        assert replay.step_ns(Change()).mean() == pytest.approx(found.budget.window_ns.mean(), rel=0.01)


@pytest.mark.skipif(not native_library.is_available(), reason="the native library was not built")
@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3), st.floats(0, 1), st.booleans(), st.booleans())
def test_the_native_library_plays_any_job_as_numpy_does(
    traces: list[RankTrace], share: float, no_host: bool, kept: bool
) -> None:
    found = joined([digest(trace) for trace in traces])
    if not found or not (replay := WhatIf.of(found).replay):
        return
    shape = found.budget.window_ns.shape
    less = Change({CpuTime.WORK: np.full(shape, share)}, transfers_at_median=np.ones(shape, np.bool_), no_host=no_host)
    for alone in (False, True):
        lengths = replace(replay.lengths(less), alone=alone)
        one, other = (_Playing(replay.schedule, lengths, 5, 3, kept) for _ in range(2))
        one.natively()
        other.with_numpy()
        for name in Played.__struct_fields__:
            assert getattr(one.played, name).tolist() == getattr(other.played, name).tolist(), name


@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3))
def test_all_ends_sooner_where_all_ranks_begin_sooner(traces: list[RankTrace]) -> None:
    """Also collectives that the record has from before its first step: no row launches them."""
    found = joined([digest(trace) for trace in traces])
    if not found or not (replay := WhatIf.of(found).replay):
        return
    schedule, lengths = replay.schedule, replay.lengths(Change())
    recorded, sooner = play(schedule, lengths), play(schedule, lengths, sooner_ns=7 * MS)
    assert (recorded.done_ns - sooner.done_ns == 7 * MS).all()
    assert (recorded.end_ns - sooner.end_ns == 7 * MS).all()


@pytest.mark.skipif(not native_library.is_available(), reason="the native library was not built")
@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3), st.data())
def test_the_native_library_shortens_any_job_as_numpy_does(traces: list[RankTrace], data: st.DataObject) -> None:
    found = joined([digest(trace) for trace in traces])
    if not found or not (replay := WhatIf.of(found).replay):
        return
    shape = found.budget.window_ns.shape

    def drawn(of: st.SearchStrategy[float]) -> NDArray[np.float64]:
        return np.array(data.draw(st.lists(of, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))).reshape(
            shape
        )

    rows = len(replay.schedule.recorded)
    of_rows = np.array(data.draw(st.lists(st.integers(0, 2 * MS), min_size=rows, max_size=rows)), np.int64)
    less = Change(
        {kind: drawn(st.sampled_from([0.0, 0.3, 1.0])) for kind in data.draw(st.sets(st.sampled_from(CpuTime)))},
        device_ns=data.draw(st.sampled_from([None, drawn(st.integers(0, 5 * MS)).astype(np.int64)])),
        row_ns=data.draw(st.sampled_from([None, of_rows])),
        device_at_median=data.draw(st.sampled_from([None, drawn(st.booleans()).astype(np.bool_)])),
        balanced=data.draw(st.sampled_from([None, drawn(st.booleans()).astype(np.bool_)])),
        no_host=data.draw(st.booleans()),
    )
    played = [play(replay.schedule, lengths) for lengths in (replay._cut_natively(less), replay.lengths(less))]
    for name in Played.__struct_fields__:
        assert len({tuple(getattr(one, name).tolist()) for one in played}) == 1, name


@pytest.mark.skipif(not native_library.is_available(), reason="the native library was not built")
def test_the_native_library_shortens_rounds_of_hundreds_of_ranks_block_by_block() -> None:
    replay = WhatIf.of(alike(ranks(LOADED), 300)).replay
    assert replay and max(each.rows.stop - each.rows.start for each in replay.schedule.rounds) == 300
    share = np.linspace(0, 1, replay.recorded_ns.size).reshape(replay.recorded_ns.shape)
    less = Change({CpuTime.WORK: share, CpuTime.INPUT: 1 - share}, device_ns=np.rint(share * 3 * MS).astype(np.int64))
    natively, with_numpy = (replay.steps_ns(lengths) for lengths in (replay._cut_natively(less), replay.lengths(less)))
    assert natively.tolist() == with_numpy.tolist()
    assert len(set(natively.ravel().tolist())) > 200


@pytest.mark.skipif(not native_library.is_available(), reason="the native library was not built")
@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3), st.data())
def test_the_native_library_orders_any_job_as_numpy_does(traces: list[RankTrace], data: st.DataObject) -> None:
    found = joined([digest(trace) for trace in traces])
    if not found or not all(len(one.track) for one in found.digests):
        return
    tracks = RecordedTracks(found.digests)
    parts = with_host_meetings(found, recorded_parts(found, tracks, families(found.calls)[0]))
    awaits = awaited(tracks, parts, found.calls)
    if data.draw(st.booleans(), "rows that await anything"):
        some = st.integers(0, len(parts.rank) - 1)
        awaits = np.array(data.draw(st.lists(some, min_size=len(awaits), max_size=len(awaits))), np.int32)

    def said(way: Callable[[Ordering], tuple[Ints, Ints, list[PlayedTogether]]]) -> object:
        try:
            order, completed, plan = way(nothing_ordered(tracks, parts, awaits))
        except CircularWaitError:
            return None
        return order.tolist(), completed.tolist(), [(one.rows, one.completed) for one in plan]

    assert said(order_natively) == said(order_with_numpy)


@pytest.mark.skipif(not native_library.is_available(), reason="the native library was not built")
def test_rows_out_of_range_are_not_ordered_natively() -> None:
    found = job(ranks(LOADED, LOADED))
    tracks = RecordedTracks(found.digests)
    parts = with_host_meetings(found, recorded_parts(found, tracks, families(found.calls)[0]))
    ordering = nothing_ordered(tracks, parts, awaited(tracks, parts, found.calls))
    for name in ("awaits", "launches", "after"):
        beyond = {name: getattr(ordering, name) + np.int32(len(parts.rank) + 1)}
        with pytest.raises(IndexError):
            native.order(replace(ordering, **beyond))


def test_a_schedule_out_of_range_is_not_played_natively() -> None:
    replay = played(ranks(LOADED, LOADED))[1].replay
    assert replay
    schedule = replay.schedule
    beyond = replace(schedule, rows=replace(schedule.rows, awaits=schedule.rows.awaits + len(schedule.parts.rank)))
    lengths = replay.lengths(Change())
    first, *others = schedule.rounds
    too_many = slice(first.rows.start, len(schedule.rows.rank) + 1)
    for wrong in (beyond, replace(schedule, rounds=(replace(first, rows=too_many), *others))):
        with pytest.raises((IndexError, ValueError)):
            play(wrong, lengths)
    with pytest.raises((IndexError, ValueError)):  # numpy's own
        play(schedule, replace(lengths, transfer_ns=lengths.transfer_ns[:-2]))


@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3), st.data())
def test_whatever_is_removed_steps_stay_within_reason(traces: list[RankTrace], data: st.DataObject) -> None:
    found = joined([digest(trace) for trace in traces])
    if not found:
        return
    whatif = WhatIf.of(found)
    share = data.draw(st.floats(0, 1))
    change = Change(
        {kind: np.full(whatif.shape, share) for kind in data.draw(st.sets(st.sampled_from(CpuTime)))},
        device_ns=np.full(whatif.shape, data.draw(st.integers(0, 50))),
        transfer_ns=np.full(whatif.shape, data.draw(st.integers(0, 50))),
    )
    saving = whatif.saving(change)
    assert np.isfinite(saving.by_step_ns).all()
    assert 0 <= saving.mean_ns <= found.budget.window_ns.sum()


@OF_JOBS
@given(st.one_of(st.lists(TRACES, min_size=1, max_size=3), faulty_jobs()), st.data())
def test_no_play_saves_more_than_was_removed_or_ends_before_its_work(
    given: list[RankTrace] | FaultyJob, data: st.DataObject
) -> None:
    found = job(given.drawing) if isinstance(given, FaultyJob) else joined([digest(trace) for trace in given])
    if not found or not (replay := WhatIf.of(found).replay):
        return
    shape = found.budget.window_ns.shape

    def drawn(of: st.SearchStrategy[float]) -> NDArray[np.float64]:
        return np.array(data.draw(st.lists(of, min_size=math.prod(shape), max_size=math.prod(shape)))).reshape(shape)

    change = Change(
        {kind: drawn(st.sampled_from([0.0, 0.3, 1.0])) for kind in data.draw(st.sets(st.sampled_from(CpuTime)))},
        device_ns=data.draw(st.sampled_from([None, drawn(st.integers(0, 5 * MS)).astype(np.int64)])),
        transfer_ns=data.draw(st.sampled_from([None, drawn(st.integers(0, 5 * MS)).astype(np.int64)])),
        device_at_median=data.draw(st.sampled_from([None, drawn(st.booleans()).astype(np.bool_)])),
        transfers_at_median=data.draw(st.sampled_from([None, drawn(st.booleans()).astype(np.bool_)])),
    )
    after = replay.step_ns(change)
    assert (after.sum(axis=1) >= replay.remaining_device_ns(change).sum(axis=1) - math.prod(shape)).all()
    saved_ns = float((replay.recorded_ns - after).mean(axis=0).sum())
    # Each rank and step is rounded to a nanosecond.
    assert saved_ns <= replay.removed_ns(change) + 0.01 * float(replay.recorded_ns.mean()) + math.prod(shape)


@OF_JOBS
@given(st.lists(TRACES, min_size=1, max_size=3), st.data())
def test_what_is_not_in_effect_changes_nothing(traces: list[RankTrace], data: st.DataObject) -> None:
    found = joined([digest(trace) for trace in traces])
    whatif = WhatIf.of(found) if found else None
    if whatif is None or whatif.replay is None:
        return
    kinds = data.draw(st.lists(st.sampled_from(CpuTime), unique=True))
    shares = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=whatif.shape[0], max_size=whatif.shape[0]))
    share = np.repeat(np.array(shares)[:, None], whatif.shape[1], axis=1)
    change = Change(dict.fromkeys(kinds, share), shared=dict.fromkeys(kinds[:1], share / 2))
    in_effect = whatif.replay.in_effect(change)
    assert (whatif.replay.step_ns(in_effect) == whatif.replay.step_ns(change)).all()
    assert in_effect.host.keys() <= change.host.keys()


def test_the_device_starts_when_loading_no_longer_holds_its_launches() -> None:
    assert saved_ms(ranks(LOADED, LOADED), CpuTime.INPUT) == [12, 12, 12]


def test_what_hides_behind_the_device_saves_nothing() -> None:
    assert saved_ms(ranks(HIDDEN), CpuTime.INPUT) == pytest.approx([0, 0, 0], abs=0.1)


def test_removing_one_owner_exposes_the_next() -> None:
    _, whatif = played(ranks(HIDDEN))
    faster = Change(device_ns=np.full(whatif.shape, 20 * MS))
    # The device needs 4 ms then, but the host 15, of which loading takes 10.
    assert whatif.saving(faster).by_step_ns[1:] == pytest.approx([9 * MS] * 2, rel=0.01)
    both = faster | whatif.without(CpuTime.INPUT)
    assert whatif.saving(both).by_step_ns[1:] == pytest.approx([19 * MS] * 2, rel=0.01)


def test_a_rank_waits_less_for_one_that_is_faster() -> None:
    slow = """
        rank# step |1
              host [load......][fwd]       [sync....]
              gpu              [fwd.......]
              nccl                         [ar......]
    """
    fast = """
        rank# step |1
              host [fwd]       [sync................]
              gpu  [fwd.......]
              nccl             [ar..................]
    """
    _, whatif = played(ranks(slow, fast))
    slow_only = Change({CpuTime.INPUT: np.array([[1.0] * 3, [0.0] * 3])})
    fast_only = Change({CpuTime.INPUT: np.array([[0.0] * 3, [1.0] * 3])})
    assert whatif.cost_ns(slow_only) == pytest.approx(12 * MS, rel=0.01)
    assert whatif.cost_ns(fast_only) == 0


def test_shorter_kernels_shorten_the_step_where_the_host_waits_for_them() -> None:
    _, whatif = played(ranks(LOADED))
    change = Change(device_ns=np.full(whatif.shape, 10 * MS))
    assert whatif.cost_ns(change) == pytest.approx(10 * MS, rel=0.01)


def test_shorter_kernels_save_nothing_where_the_host_is_late() -> None:
    late = """
        rank# step |1
              host [a........][b........]
              gpu  [a]        [b]
    """
    _, whatif = played(ranks(late))
    change = Change(device_ns=np.full(whatif.shape, 4 * MS))
    # The last kernel of the last step is the only one that nothing follows.
    assert whatif.cost_ns(change) <= 4 * MS / 3


def test_a_full_launch_queue_is_no_work_of_the_host_where_a_stall_follows() -> None:
    queue_full = """
        rank# step |1                    |2
              host [a][b][c]             [d][full......]                 [e][f]
              gpu  [a...............][b.........][c....][d........]      [e...][f]
    """
    drawn, whatif = played(ranks(queue_full))
    assert whatif.recorded_ns.tolist() == drawn.budget.window_ns.tolist()
    assert whatif.host_ns(CpuTime.WORK)[0] == pytest.approx([9 * MS] * 6, rel=0.01)


def test_a_full_launch_queue_is_no_work_of_the_host_where_a_sync_with_one_kernel_follows() -> None:
    queue_full = """
        rank# step |1                                     |2
              host [a]  [b][c][d][full...][sync..]        [e][f]
              gpu  [a...................][b......][d.....][e...][f..]
              gpu2          [c..........................]
    """
    drawn, whatif = played(ranks(queue_full))
    assert whatif.recorded_ns.tolist() == drawn.budget.window_ns.tolist()
    assert whatif.host_ns(CpuTime.WORK)[0] == pytest.approx([12 * MS, 6 * MS] * 3, rel=0.01)


def test_without_launches_own_times_are_compared() -> None:
    assert not WhatIf.of(job("rank0 gpu [?a...][?b...]")).plays


def test_on_cpus_own_times_are_compared() -> None:
    assert not WhatIf.of(job("rank0 step |1\n host [a...][b...]")).plays


def test_work_beyond_the_usual_goes_from_where_it_is_done() -> None:
    """Collectives that hide behind what follows them still do without the work that went before all of it."""
    usual = """
        rank# step |1
              host [a][one][ar][two][ar][sync.................]
              gpu  [a....][one....][two....]
              nccl                 [ar................][ar....]
    """
    more = """
        rank# step |1
              host [a][x][one][ar][two][ar][sync..............]
              gpu  [a....][x.........][one....][two....]
              nccl                             [ar....][ar....]
    """
    _, whatif = played(ranks(usual, usual, more))
    straggler = np.array([[False], [False], [True]]) & np.ones(whatif.shape, np.bool_)
    # Of the 12 ms 11: the last collective is launched 25 ms into the step.
    assert whatif.cost_ns(whatif.at_the_median(straggler)) == pytest.approx(11 * MS, rel=0.01)
    evenly = Change(device_ns=np.where(straggler, 12 * MS, 0))
    assert whatif.cost_ns(evenly) < 10 * MS


def test_a_rank_that_begins_late_as_it_ends_late_begins_sooner_without_what_held_it() -> None:
    late = """
        rank0 step         |1                        |2
              host         [fwd]    [sync...]        [fwd]    [sync...]
              gpu          [fwd....]                 [fwd....]
              nccl                  [ar.....]                 [ar.....]
        rank1 step |1                        |2                        |3
              host [fwd]    [sync...........][fwd]    [sync...........]        [no]
              gpu  [fwd....]                 [fwd....]
              nccl          [ar.............]         [ar.............]
    """
    drawn, whatif = played(late)
    assert (drawn.budget.window_ns // MS).tolist() == [[18, 26], [26, 26]]
    without = whatif.step_ns(whatif.without(CpuTime.STALL))
    assert without == pytest.approx(np.full((2, 2), 18 * MS), rel=0.01)


def test_a_device_that_is_as_fast_as_others_is_so_in_the_steps_that_are_left_out() -> None:
    """Rank 0 logs at the end of each step, also of the first one, whose end the others await in the second one."""
    log, ar = "[log.......]", "[ar............]"
    text = (
        f"""
        rank0 step |2                       |3                       |4
              host [fwd][log]               [fwd][log]               [fwd][log]
              gpu  [fwd....]    {log}[fwd....]    {log}[fwd....]    {log}
              nccl          [ar]                     [ar]                     [ar]
    """.replace("|2", "            |2")
        .replace("host ", "host             ")
        .replace("gpu  ", "gpu              ")
    )
    text = text.replace("nccl ", "nccl             ")
    text += f"""
        rank1 step |2                       |3                       |4
              host [fwd]                    [fwd]                    [fwd]
              gpu  [fwd....]                [fwd....]                [fwd....]
              nccl          {ar}         {ar}         {ar}
    """
    drawn, whatif = played(text)
    assert drawn.budget.window_ns.shape == (2, 2)
    slow = np.array([[True, True], [False, False]])
    without = whatif.step_ns(whatif.at_the_median(slow))
    assert without == pytest.approx(np.full((2, 2), 13 * MS), rel=0.05)


def test_batches_of_any_size_are_balanced_to_their_mean() -> None:
    """What a rank has less to do, others have more: none of them would need as little as the median rank."""
    light = """
        rank# step |1
              host [fwd][sync.............]
              gpu  [fwd@64]
              nccl         [ar.................]
    """
    heavy = """
        rank# step |1
              host [fwd][sync.............]
              gpu  [fwd@192...............]
              nccl                         [ar]
    """
    takes_turns = (ranks(*(heavy if rank == step else light for rank in range(3)), steps=1) for step in range(3))
    _, whatif = played(in_row(*takes_turns))
    assert whatif.replay
    recorded, balanced = whatif.device_ns, whatif.replay.remaining_device_ns(whatif.faultless)
    assert balanced == pytest.approx(np.minimum(recorded, recorded.mean(axis=0)), rel=0.01)
    assert balanced.max() > 1.4 * np.median(recorded)


def test_copies_that_made_a_step_long_are_not_taken_from_it_twice() -> None:
    usual = """
        rank# step |1
              host [fwd][sync......]
              gpu  [fwd....]
              nccl          [ar]
    """
    saves = """
        rank# step |1
              host [fwd][x][sync...............]
              gpu  [fwd....][x........]
              nccl                     [ar]
    """
    _, whatif = played(in_row(*(ranks(each, each, steps=1) for each in (usual, usual, saves, usual))))
    slow = whatif.busy_ns > 20 * MS
    copies = Change(device_ns=np.where(slow, 8 * MS, 0))
    excess = whatif.at_the_median(slow)
    assert slow.sum(axis=1).tolist() == [1, 1]
    assert whatif.cost_ns(copies) == pytest.approx(8 * MS * slow.mean(), rel=0.1)
    assert (whatif.step_ns(excess | copies) == whatif.step_ns(excess)).all()


def test_a_rank_that_joins_the_record_later_does_so_sooner_where_the_others_are_faster() -> None:
    joining = """
        rank0 step |1                        |2                        |3
              host [load..][fwd]    [sync...][load..][fwd]    [sync...][load..][fwd]    [sync...]
              gpu          [fwd....]                 [fwd....]                 [fwd....]
              nccl                  [ar.....]                 [ar.....]                 [ar.....]
        rank1 step                           |2                        |3
              host                           [fwd]    [sync...........][fwd]    [sync...........]
              gpu                            [fwd....]                 [fwd....]
              nccl                                    [ar.............]         [ar.............]
    """
    _, whatif = played(joining)
    without = whatif.step_ns(whatif.without(CpuTime.INPUT))
    assert without == pytest.approx(np.full((2, 2), 18 * MS), rel=0.01)


def test_what_came_after_a_collective_for_want_of_its_launch_need_not_await_it() -> None:
    freely = """
        rank# step |1
              host [a][ar][b][c]               [sync...]
              gpu  [a.....][b..........][c........]
              nccl         [ar.........]
    """
    launched_late = """
        rank# step |1
              host [a][ar][load...........][b][c]  [sync...]
              gpu  [a.....]                [b..........][c........]
              nccl         [ar.........]
    """
    _, whatif = played(ranks(freely, launched_late))
    without = whatif.step_ns(whatif.without(CpuTime.INPUT, CpuTime.STALL))
    assert without[1, 1:] == pytest.approx([32 * MS] * 2, rel=0.01)


def _at_median_ms(text: str, slow: int) -> list[float]:
    """What each rank's only step takes once a slow rank's kernels take no longer than the median rank's."""
    _, whatif = played(text)
    chosen = np.zeros(whatif.shape, np.bool_)
    chosen[slow] = True
    return (whatif.step_ns(Change(device_at_median=chosen)) / MS).round(1).ravel().tolist()


def _boxes(*drawn: tuple[str, int, int]) -> str:
    """A lane with boxes, each from a millisecond to another."""
    lane = " " * 120
    for name, start, end in drawn:
        lane = f"{lane[:start]}[{name:.<{end - start - 2}}]{lane[end:]}"
    return lane.rstrip()


def _hybrid(rank: int) -> str:
    """Hybrid sharding: rank 2 is slow, rank 3 shares its layers, and ranks 0 and 1 sum gradients with these two."""
    shards, replicas, long = f"rs/s{rank // 2}", f"ar/r{rank % 2}", 16 if rank == 2 else 8
    kernels = [("b", start, start + long) for start in range(40, 40 + 3 * long, long)]
    # Ranks arrive when they have computed, and when their stream is free; all end together.
    scatters = {2: [(56, 64), (72, 80), (88, 96)], 3: [(48, 64), (64, 80), (80, 96)]}
    sums = [(56, 72), (72, 88), (88, 104)] if rank < 2 else [(64, 72), (80, 88), (96, 104)]
    return f"""
    rank{rank} step |1
          host [w][b][rs][ar][b][rs][ar][b][rs][ar][o]{_boxes(("sync", 39, 108))[39:]}
          gpu  {_boxes(("w", 0, 40), *kernels, ("o", 104, 108))}
          nccl {_boxes(*((shards, *at) for at in scatters.get(rank, [(48, 56), (56, 64), (64, 72)])))}
          comm {_boxes(*((replicas, *at) for at in sums))}
    """


def test_kernels_are_compared_between_the_same_collectives_whatever_these_follow() -> None:
    """AllReduces begin when a reduce-scatter ends on ranks 2 and 3, and when the one before does on the others."""
    # Three kernels of rank 2 take 8 ms each instead of 16.
    assert _at_median_ms("".join(map(_hybrid, range(4))), slow=2) == pytest.approx([108 - 24] * 4, abs=0.5)


def test_a_collective_awaits_no_more_kernels_than_on_the_rank_that_shows_it() -> None:
    """An all-gather that is launched after a kernel awaits the kernel before that one: the slow rank shows it."""
    slow, fast = (
        f"""
    rank# step |1
          host [w][ag][b][ag][b][ag][b][ag][o]
          gpu  {_boxes(("w", 0, 40), *(("b", at, at + long) for at in (40, 40 + long, 40 + 2 * long)), ("o", *last))}
          nccl {_boxes(("ag", 40, 44), ("ag", 44, 48), *(("ag", *at) for at in gathers))}
        """
        for long, gathers, last in ((20, [(60, 64), (80, 84)], (100, 104)), (8, [(48, 64), (64, 84)], (84, 88)))
    )
    found, _ = played(ranks(slow, fast, fast, steps=1))
    tracks = RecordedTracks(found.digests)
    parts = recorded_parts(found, tracks, families(found.calls)[0])
    last = np.flatnonzero(parts.ordinal[:-1] == 3)
    # The row of the second kernel, whose end launches the third all-gather.
    assert parts.ordinal[tracks.parts("launches", -1)[parts.needs[last]]].tolist() == [2, 2, 2]


def test_a_collective_awaits_the_first_of_two_copies_of_a_prefetcher() -> None:
    """Both are launched before the all-to-all, which begins when the first is over: what makes that shorter helps."""
    slow, fast = (
        f"""
    rank# step |1
          host [c][d][a2a][b]     [sync.................]
          copy {_boxes(("c", 1, first), ("d", first, first + 3))}
          nccl {_boxes(("a2a", first, 25))}
          gpu  {_boxes(("b", 25, 38))}
        """
        for first in (21, 5)
    )
    assert _at_median_ms(ranks(slow, fast, fast, steps=1), slow=0) == pytest.approx([40 - 16] * 3, abs=1.1)


def test_what_a_fix_saves_is_the_same_where_times_were_rounded() -> None:
    """Kernels and collectives seem to end a little after what waited for them began."""
    slow, fast = (
        f"""
    rank# step |1
          host {_boxes(("w", 0, 3), ("ag", 3, 7), ("b", 7, 10), ("rs", 10, 14), ("o", 14, 17), ("sync", 17, 78))}
          gpu  {_boxes(("w", 0, done), ("b", 34, 34 + long), ("o", 70, 78))}
          nccl {_boxes(("ag", done, 34))}
          comm {_boxes(("rs", 34 + long, 70))}
        """
        for done, long in ((30, 32), (10, 8))
    )
    traced = read(ranks(slow, fast, fast, steps=1))

    def fixed_ms(later_ns: int) -> list[float]:
        found = {}
        for rank, trace in traced.items():
            events = trace.events
            later = np.where(events.device >= 0, later_ns, 0)
            found[rank] = digest(replace(trace, events=replace(events, duration_ns=events.duration_ns + later)))
        whatif = WhatIf.of(build("drawn", found, dict.fromkeys(found, "host"), 3))
        chosen = np.zeros(whatif.shape, np.bool_)
        chosen[0] = True
        return (whatif.step_ns(Change(device_at_median=chosen)) / MS).ravel().tolist()

    assert fixed_ms(0) == pytest.approx([78 - 20 - 24] * 3, abs=0.1)
    assert fixed_ms(250) == pytest.approx(fixed_ms(0), abs=0.01)


def test_what_a_fix_saves_is_the_same_where_clocks_were_set_in_steps_that_are_left_out() -> None:
    usual = """
        rank# step |1
              host [fwd]             [sync...........]
              gpu  [fwd......]
              nccl            [ar...................]
    """
    late = """
        rank# step |1
              host           [fwd]   [sync...........]
              gpu            [fwd......]
              nccl                      [ar.........]
    """
    traced = read(ranks(late, usual, usual, usual, steps=7))

    def saved_ms(set_by_ms: int) -> float:
        found = {}
        for rank, trace in traced.items():
            start = trace.events.start_ns
            behind = (rank > 1) & (start > np.quantile(start, 0.5))
            set_forward = replace(trace.events, start_ns=start + np.where(behind, set_by_ms * MS, 0))
            found[rank] = digest(replace(trace, events=set_forward))
        job = build("drawn", found, {rank: f"host{rank // 2}" for rank in found}, 4)
        assert (len(job.steps) < 7) == (set_by_ms > 0)
        whatif = WhatIf.of(job)
        return whatif.cost_ns(whatif.without(CpuTime.STALL)) / MS

    assert saved_ms(700) == pytest.approx(saved_ms(0), rel=0.05)


def test_what_is_typical_is_neither_a_slow_rank_nor_a_slow_step() -> None:
    """Rank 1 pauses for 11 ms in all steps, all ranks for 60 ms in two of five: most cells have some pause."""

    def step(pause: int) -> str:
        before = " " * pause
        usual = f"""
            rank# step |1
                  host {before}[fwd][sync...............]
                  gpu  {before}[fwd......]
                  nccl {before}           [ar...........]
        """
        late = f"""
            rank# step |1
                  host {before}           [fwd][sync....]
                  gpu  {before}           [fwd......]
                  nccl {before}                      [ar]
        """
        return ranks(usual, late, usual, usual, steps=1)

    _, whatif = played(in_row(*[step(0)] * 3, *[step(60)] * 2, *[step(0)] * 3, *[step(60)] * 2))
    pauses = whatif.host_ns(CpuTime.STALL)
    assert np.unique(pauses / MS).tolist() == [0, 11, 60, 71]
    assert not whatif.typical(pauses).any()


def test_a_sync_within_a_backward_pass_awaits_the_allreduce_before_it() -> None:
    """As where a CUDA graph is captured again: the call returns when the AllReduce in flight has ended."""
    captures = """
        rank# step     |1
              host     [fwd]         [sync............]               [optim]
              autograd      [bwd][ar]                  [bwd][ar]
              gpu      [fwd][bwd]                      [bwd]          [optim]
              nccl               [ar@4................]     [ar@4....]
    """
    drawn, whatif = played(ranks(captures, captures))
    assert whatif.recorded_ns.tolist() == drawn.budget.window_ns.tolist()


def test_ranks_sync_with_a_collective_though_one_of_them_awaits_a_later_one() -> None:
    """As the rank that sends the weights on, once all ranks have gathered them."""
    sends = """
        rank# step     |1
              host     [fwd][ag][sync.......................][optim]
              gpu      [fwd.]                                [optim]
              nccl           [ag/dp.......]
              comm                         [bc/sync.........]
    """
    gathers = """
        rank# step     |1
              host     [fwd][ag][sync....]                   [optim]
              gpu      [fwd.]                                [optim]
              nccl           [ag/dp.......]
    """
    gets = """
        rank# step     |1
              host     [fwd]    [sync.......................][optim]
              gpu      [fwd.]                                [optim]
              comm                         [bc/sync.........]
    """
    drawn = job(ranks(sends, gathers, gathers, gets, steps=3))

    class Syncing(RecordedTracks):
        """Their first sync is seen to end with their first collective, on ranks 1 and 2."""

        def column(self, name: str) -> NDArray[Any]:
            own = super().column(name).copy()
            if name in ("awaits", "waits"):
                own[self.syncs] = 0 if name == "awaits" else 1
            return own

    tracks = Syncing(drawn.digests)
    blocked = np.concatenate([digest.track.blocked_by == CpuTime.SYNC for digest in drawn.digests])
    tracks.syncs = [int(np.flatnonzero(blocked & (tracks.rank == rank))[0]) for rank in (1, 2)]
    parts = recorded_parts(drawn, tracks, families(drawn.calls)[0])
    found = awaited(tracks, parts, drawn.calls)[tracks.syncs]
    assert found.tolist() == drawn.calls.first[1:3].tolist()


def test_all_rounds_of_a_record_that_is_one_step_wait_for_their_device() -> None:
    """Without marks all rounds are in one step: the CPU is blocked in it more often than in a step of training."""
    text = f"""
        rank# step |1
              host {"[fwd][sync...]" * 40}
              gpu  {"[fwd.........]" * 40}
    """
    _, whatif = played(ranks(text, steps=1))
    faster = whatif.step_ns(Change(device_ns=whatif.device_ns // 2))
    assert faster == pytest.approx(whatif.recorded_ns / 2, rel=0.01)


def test_a_backward_pass_that_is_launched_late_goes_on_beside_its_allreduces() -> None:
    launch_bound = """
        rank# step     |1
              host     [fwd]                                            [optim]
              autograd      [bwd][ar]    [bwd]   [ar]  [bwd]  [ar]
              gpu      [fwd][bwd]        [bwd...]      [bwd..]          [optim]
              nccl               [ar@4..]        [ar@4]       [ar@4....]
    """
    _, whatif = played(ranks(launch_bound, launch_bound))
    without = whatif.step_ns(whatif.without(CpuTime.WORK, CpuTime.STALL))
    # 5 + 5 + 8 + 7 + 10 + 7 ms: the first two AllReduces run beside backward.
    assert without[:, 1:] == pytest.approx(np.full((2, 2), 42 * MS), rel=0.01)


def test_steps_whose_kernels_one_graph_launches_are_played() -> None:
    found = job(
        repeat(
            """
            rank0 step |2
                  host  [a]
                  gpu    [a.][graph*20......]
                  nccl                       [ar.........]
            rank1 step |2
                  host  [a]
                  gpu    [a.][graph*20..............]
                  nccl                               [ar.]
            """,
            3,
        )
    )
    assert WhatIf.of(found).plays


def test_copies_outside_of_operators_beside_a_graph_do_not_stop_the_replay() -> None:
    """A graph's launch shows what the host does as an operator around it would."""
    step = """
        rank# step   |1
              host           [graph][b]
              gpu             [graph*20......][b]
              copy    [pinned]
              nccl                               [ar..]
    """
    recorded = job(ranks(step, step))
    assert all(len(digest.track) for digest in recorded.digests)


def test_what_awaits_a_collective_in_a_graph_comes_sooner_without_it() -> None:
    """As of lightllm's decode, whose one graph launches 2,000 kernels and 117 calls of DeepEP."""
    step = """
        rank# step |1
              host [launch][sync..................................]
              gpu   [a.....][reduce..][b*200.][reduce][c..........]
    """
    recorded = job(ranks(step, step), captured=True, kernels={"reduce": "vllm::cross_device_reduce_1stage<int, 8>"})
    whatif = WhatIf.of(recorded)
    assert whatif.plays
    halved = Change(transfer_ns=np.full(whatif.shape, 8 * MS))
    assert whatif.cost_ns(halved) / MS == pytest.approx(8, rel=0.02)


def test_transfers_side_by_side_share_the_time_that_is_removed() -> None:
    """A reduce-scatter beside the next all-gather: the 8 ms in which both are exposed are removed from both."""
    step = """
        rank# step |1
              host [a][ag][rs][b]       [sync.....]
              gpu   [a...]        [b....]
              nccl        [ag....]
              comm        [rs....]
    """
    whatif = WhatIf.of(job(ranks(step, step)))
    halved = Change(transfer_ns=np.full(whatif.shape, 4 * MS))
    assert whatif.cost_ns(halved) / MS == pytest.approx(4, abs=0.05)


@pytest.mark.parametrize("copy", ["", "copy  [c]   [d]"])
def test_a_copy_beside_the_work_that_runs_late_ties_no_kernel_to_its_launch(copy: str) -> None:
    found = job(f"""
        step |1    |2
        host [c][a][d][b]
        gpu  [?x..............][a........][b........]
        {copy}
    """)
    whatif = WhatIf.of(found)
    halved = whatif.step_ns(Change(device_ns=np.full(whatif.shape, 5 * MS)))
    assert (halved / MS).tolist() == [[16.0, 6.0]]


def test_what_goes_on_beside_a_send_says_nothing_of_its_receive() -> None:
    """The kernel of rank 1 starts right after the receive, and may have been launched only then. Rank 0 computes beside
    its send.
    """
    text = """
        rank0  step     |1
               host     [a][s1@2][c]         [sync....................]
               gpu         [a...][c..........]
               nccl              [s1@2......]
        rank1  step     |1
               host     [r0@2]    [b]        [sync....................]
               gpu                           [b...................]
               nccl            [r0@2........]
    """
    found = {}
    for rank, one in digests(text).items():
        flags = np.zeros_like(one.track.awaits_for_certain)
        found[rank] = replace(one, track=replace(one.track, awaits_for_certain=flags))
    both = build("job", found, dict.fromkeys(found, ""), 2)
    tracks = RecordedTracks(both.digests)
    parts = recorded_parts(both, tracks, families(both.calls)[0])
    nothing = len(parts.rank) - 1
    assert len(both.matched) == 1
    assert tracks.parts("awaits", nothing).tolist() == awaited(tracks, parts, both.calls).tolist()
    assert (awaited(tracks, parts, both.calls) < nothing).sum() == 1
